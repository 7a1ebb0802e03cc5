"""The functions for users, under the field's usual names.

database = tune_tir(mod, "aarch64", 512, work_dir="tuned", runner="ssh://pi@attic")
sch = compile_tir(database, mod, "aarch64")

database = tune_graph("model.onnx", "aarch64", 4000, work_dir="tuned", runner="ssh://pi@attic")
model = mlc.compile("model.onnx", "aarch64", db=database)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mlc_rpc.transport import parse_url
from mlc_targets import Target
from mlc_targets.caches import Cache, caches_for, caches_of
from mlc_targets.cores import Speed, core_names

from ..board.connect import connect
from ..driver.builder import builder as default_builder
from ..driver.deploy import refuse_cores, refuse_unfit
from ..driver.model_graph import model_graph
from ..errors import TuneError
from ..graph import Function
from ..ir import IRModule, PrimFunc
from ..predict.counting import speed_for
from ..schedule import Schedule
from ..schedule.trace import Trace
from ..tuned import Database, Objective, PlanRecord, digest, existing, known_layouts
from .boards import BoardPool, Boards, Incident
from .cost_model import require_lightgbm
from .experience import experience
from .extract import task_of
from .layouts import Model, Plan, plans
from .measuring import Measuring
from .records import Search, Task
from .scheduler import GradientBased, RoundRobin, TaskScheduler
from .search import make_search
from .space import DesignSpace, ScheduleFn
from .tune import (
    BATCH,
    State,
    Watch,
    best_schedule,
    default_costs,
    name_of_run,
    tune_tasks,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

DATABASE = "database.jsonl"
LAYOUTS_RUN = "layouts"  # the run that default kernels are recorded under while a plan is chosen
SCHEDULERS: Mapping[str, Callable[[], TaskScheduler]] = {
    "gradient": GradientBased,
    "round-robin": RoundRobin,
}
Runner = str | Sequence[str] | BoardPool


@dataclass(frozen=True)
class Options:
    """The options of a run. space, strategy: as in tune.search.make_search. seconds: limit of a
    candidate's run. layouts: whether to choose a model's layouts, too. speed: for predicted times
    (default: the target's core)."""

    trials: int
    batch: int = BATCH
    seed: int = 0
    strategy: str = "evolutionary"
    space: DesignSpace | Callable[[Schedule], Schedule | None] | None = None
    scheduler: str = "gradient"
    objective: Objective | None = None
    early_stopping: int | None = None
    minutes: float | None = None
    seconds: float = 10.0
    layouts: bool = True
    cores: str = ""  # of the board: fast, slow, or numbers (default: the fast ones)
    speed: Speed | None = None

    def __post_init__(self) -> None:
        """Raises TuneError."""
        for name, number in (("trials", self.trials), ("batch", self.batch)):
            if not isinstance(number, int) or number < 1:
                raise TuneError(f"{name} is a whole number above 0", where=f"{name} {number!r}")
        for name, limit in (("seconds", self.seconds), ("minutes", self.minutes)):
            if limit is not None and not (isinstance(limit, (int, float)) and limit >= 0):
                raise TuneError(f"{name} is a number, not below 0", where=f"{name} {limit!r}")
        for name, text, known in (
            ("scheduler", self.scheduler, tuple(SCHEDULERS)),
            ("objective", self.objective, (None, *get_args(Objective))),
        ):
            if text not in known:
                mend = f"one of {', '.join(k for k in known if k)}"
                raise TuneError(f"no {name} '{text}'", mend=mend)
        if self.space is not None and not (callable(self.space) or hasattr(self.space, "schedule")):
            raise TuneError(
                "a space is a function that schedules, or has `schedule`",
                where=f"space {self.space!r:.60}",
            )


class NothingToTune(TuneError):
    """A model has no kernel that can be tuned, or none of the wanted names."""


@dataclass(frozen=True)
class TunedModel:
    """The end of a model's run. tuned: the plan whose tasks were tuned, since its default kernels
    were cheapest. plans: with the costs of their kernels in the end, the cheapest first."""

    state: State
    tuned: Plan
    plans: Sequence[tuple[Plan, float]]


def tune_tir(
    mod: PrimFunc | IRModule,
    target: Target | str | None = None,
    max_trials_global: int = 256,
    num_trials_per_iter: int = BATCH,
    *,
    space: DesignSpace | Callable[[Schedule], Schedule | None] | None = None,
    work_dir: str | Path | None = None,
    task_name: str = "main",
    runner: Runner = "local://",
    builder: Executor | None = None,
    database: Database | None = None,
    callbacks: Watch | Sequence[Watch] = (),
    **options: Any,
) -> Database:
    """Tunes a function without a schedule, and returns the database of the results.

    target: default: the one in scope, or this machine. space: a function that schedules and
    samples, or a DesignSpace (default: what rules make of the function, and the neighbours of the
    default schedule). work_dir: the folder of the database; the same call continues a stopped one.
    runner: a board's URL, several, or a BoardPool; builder: an executor for build_object. callbacks
    see the State after each round. options: those of Options. Raises TuneError, DeployError,
    RpcError.
    """
    to = _target(target)
    how = Options(max_trials_global, num_trials_per_iter, space=space, **options)
    tasks = [task_of(_function(mod), to, task_name)]
    database = _database(work_dir) if database is None else database
    with (
        opened(runner, to, caches=simulated(to, how)) as boards,
        measuring(to, how, boards, database, builder) as by,
    ):
        run(tasks, how, by, _all_of(callbacks))
    return database


def tune_graph(
    model: str | Path | ExportedProgram | Function | IRModule,
    target: Target | str | None = None,
    max_trials_global: int = 1024,
    num_trials_per_iter: int = BATCH,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str = "float32",
    trust: bool = False,
    work_dir: str | Path | None = None,
    runner: Runner = "local://",
    builder: Executor | None = None,
    database: Database | None = None,
    callbacks: Watch | Sequence[Watch] = (),
    **options: Any,
) -> Database:
    """Tunes a model, given as `compile` takes it: the layouts of its convolutions, and its kernels;
    the other arguments are those of tune_tir. `compile(model, target, db=...)` uses the results."""
    to = _target(target)
    how = Options(max_trials_global, num_trials_per_iter, **options)
    graph = model_graph(model, to, shapes, dims, precision=precision, trust=trust)
    graphs = Model(graph, to, precision)
    database = _database(work_dir) if database is None else database
    with (
        opened(runner, to, caches=simulated(to, how)) as boards,
        measuring(to, how, boards, database, builder) as by,
    ):
        run_model(graphs, how, by, watch=_all_of(callbacks))
    return database


def compile_tir(
    database: Database | str | Path,
    mod: PrimFunc | IRModule,
    target: Target | str | None = None,
) -> Schedule | None:
    """The best schedule that a database, or its file, has for a function and a target, for `build`;
    None where it has none that applies. Raises TuneError for a function that is not a task."""
    func = _function(mod)
    found = best_schedule(existing(database), task_of(func, _target(target)))
    if found is None:
        return None
    sch = Schedule(func)
    found.trace.apply(sch)
    return sch


@contextmanager
def measuring(
    target: Target,
    options: Options,
    boards: Boards,
    database: Database,
    builder: Executor | None = None,
) -> Iterator[Measuring]:
    """The Measuring of a run. Raises TuneError where the boards cannot measure the objective,
    DeployError where they cannot run code for the target, Unreachable."""
    session = boards.first()
    refuse_unfit(target, session.board, session.device)
    objective = options.objective or ("instructions" if session.emulated else "seconds")
    if objective == "seconds" and session.emulated:
        raise TuneError(
            "an emulator's seconds are not those of a board",
            where=session.board,
            mend="objective instructions, or a real board",
        )
    speed = options.speed or speed_for(target) if objective == "predicted" else None
    if objective == "predicted" and speed is None:
        raise TuneError(
            f"nothing is known of how fast the core '{target.mcpu}' is",
            where=str(target),
            mend=f"objective instructions, or a target with one of {', '.join(core_names())}",
        )
    if objective != "seconds" and not session.counting:
        raise TuneError(
            "executed instructions are not counted on this board",
            where=f"{session.board}: {session.why_not_counting}",
            mend="objective seconds, or qemu://",
        )
    refuse_cores(options.cores, session.board, session.device)
    if options.strategy == "evolutionary":
        require_lightgbm()
    timed_here = any(url.startswith("local://") for url in boards.urls)
    build = builder or default_builder(gently=timed_here)
    board = f"{boards.kind}, cores {options.cores}" if options.cores else boards.kind
    if speed is not None:  # results by other figures could not be compared
        figures = blake2b(repr(speed).encode(), digest_size=4).hexdigest()
        board += f", predicted for {speed.core} at {speed.mhz:g} MHz, figures {figures}"
    try:
        yield Measuring(
            build, boards, database, board, objective, "", seconds=options.seconds,
            cores=options.cores, apart=not timed_here, speed=speed,
        )  # fmt: skip
    finally:
        if builder is None:
            build.shutdown()


def run(
    tasks: Sequence[Task], options: Options, by: Measuring, watch: Watch = lambda _: None
) -> State:
    """Tunes tasks. Raises what tune_tasks raises."""

    def make(task: Task, seed: int, known: Sequence[Trace]) -> Search:
        space = options.space
        if callable(space):
            space = ScheduleFn(space)
        return make_search(options.strategy, task, space, seed, known, prior(task.target))

    @lru_cache
    def prior(target: Target) -> Any:
        if options.strategy != "evolutionary":
            return None
        return experience(by.database, by.run, target, by.objective)

    space: Any = options.space if hasattr(options.space, "__qualname__") else type(options.space)
    by.run = name_of_run(
        tasks, by.board, by.objective, options.seed, options.batch, options.strategy,
        f"{space.__module__}.{space.__qualname__}",
        options.scheduler, options.early_stopping,
    )  # fmt: skip
    return tune_tasks(
        tasks,
        by,
        make,
        trials=options.trials,
        batch=options.batch,
        seed=options.seed,
        scheduler=SCHEDULERS[options.scheduler](),
        early_stopping=options.early_stopping,
        minutes=options.minutes,
        watch=watch,
    )


def run_model(
    model: Model,
    options: Options,
    by: Measuring,
    *,
    only: str = "",
    watch: Watch = lambda _: None,
) -> TunedModel:
    """Tunes a model: chooses a plan by its default kernels, tunes its tasks whose names contain
    `only`, and records which plan is cheapest then. With `only`, or if options.layouts is off, the
    plan is that of the database, or the target's own. Raises NothingToTune, and what tune_tasks
    raises."""
    began = time.perf_counter()
    by.run = LAYOUTS_RUN
    reference = model.graphs.reference
    if options.layouts and not only:
        state = State([], by.objective, options.trials, options.minutes)

        def tried(plan: Plan, _: float) -> None:
            state.stage = f"layouts: {plan.title}"
            watch(state)

        state.stage = "layouts"
        watch(state)
        found = plans(model, partial(default_costs, by), tried, lambda: state.late)
        own = next((plan, cost) for plan, cost in found if not plan.layouts)
        if not isfinite(own[1]):  # a default kernel failed: plans cannot be compared
            found = [own]
    else:
        known = known_layouts(by.database, reference, model.target, model.precision)
        found = [(model.plan(known), inf)]
    chosen, _ = found[0]
    tasks = [task for task in chosen.tasks if only in task.name]
    if not tasks:
        raise NothingToTune(
            "the model has no kernel to be tuned",
            where=f"{reference.name}, kernels whose names contain '{only}'"
            if only
            else reference.name,
            mend=f"one of {', '.join(t.name for t in chosen.tasks)}" if chosen.tasks else "",
        )
    if options.minutes is not None:
        spent = (time.perf_counter() - began) / 60
        options = replace(options, minutes=max(options.minutes - spent, 0.0))
    state = run(tasks, options, by, watch)
    costs = _best_costs(by, [plan for plan, _ in found])
    ranked = sorted(((plan, plan.cost(costs)) for plan, _ in found), key=lambda entry: entry[1])
    by.database.add_plans(
        PlanRecord(
            digest(reference, model.precision), reference.name, str(model.target), by.board,
            by.objective, plan.layouts, cost,
        )
        for plan, cost in ranked[:1]
        if isfinite(cost)
    )  # fmt: skip
    return TunedModel(state, chosen, ranked)


def _best_costs(by: Measuring, of: Sequence[Plan]) -> dict[str, float]:
    """The lowest known costs of the plans' tasks, by workload."""
    costs: dict[str, float] = {}
    for task in (task for plan in of for task in plan.tasks):
        best = by.database.best(
            task.workload, str(task.target), board=by.board, objective=by.objective
        )
        if best is not None:
            costs[task.workload] = best.cost
    return costs


def _database(work_dir: str | Path | None) -> Database:
    if work_dir is not None and Path(work_dir).is_file():
        raise TuneError("work_dir is a folder, not a file", where=str(work_dir))
    return Database(None if work_dir is None else Path(work_dir) / DATABASE)


def _all_of(callbacks: Watch | Sequence[Watch]) -> Watch:
    if callable(callbacks):
        return callbacks

    def watch(state: State) -> None:
        for callback in callbacks:
            callback(state)

    return watch


@contextmanager
def opened(
    runner: Runner,
    target: Target,
    report: Callable[[Incident], None] = lambda _: None,
    caches: Sequence[Cache] = (),
) -> Iterator[BoardPool]:
    """The boards of a runner; those that are opened here are closed in the end, and simulate
    `caches` where they are emulated."""
    if isinstance(runner, BoardPool):
        yield runner
        return
    urls = [runner] if isinstance(runner, str) else list(runner)
    if not urls:
        raise TuneError("there is no board to measure on", mend='runner="local://", or several')
    for url in urls:
        parse_url(url)  # raises Unreachable for a malformed one
    to = partial(connect, machine=target.arch, caches=caches)
    with BoardPool(urls, connect=to, report=report) as pool:
        yield pool


def simulated(target: Target, options: Options) -> tuple[Cache, ...]:
    """The caches that predictions need; none for other objectives."""
    if options.objective != "predicted":
        return ()
    return caches_of(options.speed.l1_kib) if options.speed else caches_for(target.mcpu)


def _target(target: Target | str | None) -> Target:
    return Target(target) if target is not None else (Target.current() or Target("host"))


def _function(mod: PrimFunc | IRModule) -> PrimFunc:
    if isinstance(mod, PrimFunc):
        return mod
    if not isinstance(mod, IRModule):
        raise TuneError(
            "what is tuned is a function, or a module that has one",
            where=type(mod).__name__,
            mend="sch.func of a Schedule; tune_graph for models",
        )
    funcs = [f for f in mod.functions.values() if isinstance(f, PrimFunc)]
    if len(funcs) != 1:
        raise TuneError(
            f"the module holds {len(funcs)} functions, and one is tuned at a time",
            where=", ".join(f.name for f in funcs),
            mend="one of them",
        )
    return funcs[0]
