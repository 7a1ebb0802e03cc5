"""`mlc-deploy tune MODEL`: boards find the fastest schedule of each of a model's kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mlc_targets import Target

from ..boards import connect, target_of
from ..deploy import RUN_SECONDS, deploy
from .errors import FAILED, INTERRUPTED, OK
from .json_file import JsonFile
from .options import Misuse, dims, known_precision, model_file, one_level, shapes
from .place import NONE, choose, located
from .progress import Progress
from .tables import add_row, plain_table
from .tune_report import (
    clock_text,
    incident_text,
    recorded,
    show,
    task_cells,
    task_columns,
    task_record,
)

if TYPE_CHECKING:
    from mlc_rpc import Session

    from ..deploy import Deployment
    from ..tune.boards import Incident
    from ..tune.tune import State

LINE_SECONDS = 15.0  # between lines where stderr is no terminal
MOST_ROWS = 24  # tasks that are shown while tuning
STRATEGIES = ("evolutionary", "random", "grid")


@click.command()
@click.argument("model")
@click.option("--target", metavar="T", help="armv7a, aarch64, a board's name, or 'llvm -mtriple=…'")
@click.option("--board", "boards", multiple=True, metavar="B", help="several measure in parallel")
@click.option("--trials", type=int, default=1000, metavar="N", help="schedules to try; 1000")
@click.option("--db", "db", required=True, metavar="FILE", help="what was found, and for --db")
@click.option("--seed", type=int, default=0, metavar="N", help="another search; 0")
@click.option("--minutes", type=float, metavar="N", help="begin nothing more after as many")
@click.option("--search", "strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0])
@click.option("--batch", type=int, default=16, metavar="N", help="schedules of a round; 16")
@click.option("--early-stopping", type=int, metavar="N", help="of a kernel, after N in vain")
@click.option("--only", metavar="TEXT", help="kernels whose names contain this")
@click.option("--shape", "shape", multiple=True, metavar="NAME=1,3,…", help="shape of an input")
@click.option("--bind", multiple=True, metavar="NAME=N", help="value of a named dimension")
@click.option("--precision", metavar="P", help="float16, as without tuning; float32")
@click.option("--json", "json_file", metavar="FILE", help="write all of it; - is stdout")
@click.option("-v", "--verbose", is_flag=True, help="say each incident when it happens")
@click.option("--debug", is_flag=True, help="show where an error comes from")
def tune(
    model: str,
    target: str | None,
    boards: tuple[str, ...],
    trials: int,
    db: str,
    seed: int,
    minutes: float | None,
    strategy: str,
    batch: int,
    early_stopping: int | None,
    only: str | None,
    shape: tuple[str, ...],
    bind: tuple[str, ...],
    precision: str | None,
    json_file: str | None,
    verbose: bool,
    debug: bool,
) -> int:
    """Tries schedules of the kernels of MODEL, an .onnx or .pt2 file, on boards, and keeps what
    each took in a database, with which `mlc-deploy MODEL --db FILE` then compiles.

    It can be stopped at any moment: the same command goes on. On emulated boards what counts is
    executed instructions.
    """
    numbers = {"--trials": trials, "--batch": batch, "--minutes": minutes}
    for option, value in (numbers | {"--early-stopping": early_stopping}).items():
        if value is not None and not value > 0:
            raise Misuse(f"{option} is a number above 0", where=f"{option} {value:g}")
    path = model_file(model, ("tune",))
    to_json = JsonFile(json_file)
    wanted, first = choose(
        one_level(target, "tune is for") if target else None, boards[0] if boards else None
    )
    if first is None:
        raise Misuse("kernels are tuned on a board", where=f"--board {NONE}", mend="a board's URL")
    urls = [first, *(located(board).url for board in boards[1:])]
    how: dict[str, Any] = {"shapes": shapes(shape), "dims": dims(bind)}
    if precision is not None:
        known_precision(precision)
        how["precision"] = precision
    progress = Progress(verbose)
    began = time.perf_counter()

    from ..graph import lower_graph  # here, as the compiler takes a while to import
    from ..model_graph import model_graph
    from ..tune.api import Options, measuring, opened, run
    from ..tune.boards import BoardPool
    from ..tune.database import Database
    from ..tune.extract import extract_tasks

    incidents: list[Incident] = []

    def report(incident: Incident) -> None:
        incidents.append(incident)
        progress.note(incident_text(incident))

    database = Database(db)
    for note in database.notes:
        progress.warn(note)
    options = Options(trials, batch, seed, strategy, minutes=minutes, early_stopping=early_stopping)
    stopped = False
    state: State | None = None
    with ExitStack() as stack:
        if wanted is None:
            with progress.stage("connect"), connect(urls[0]) as session:
                wanted = target_of(session.device)
        to = wanted
        with progress.stage("graph"):
            graphs = model_graph(path, to, **how)
            tasks = extract_tasks(lower_graph(graphs.optimized, graphs.module), to)
            tasks = [task for task in tasks if not only or only in task.name]
        if not tasks:
            raise Misuse(
                "the model has no kernel to be tuned",
                where=f"{path} --only {only}" if only else f"{path}",
                mend=f"mlc-deploy inspect {path}, which lists its kernels",
            )
        pool = stack.enter_context(opened(urls, to, report))
        assert isinstance(pool, BoardPool)
        by = stack.enter_context(measuring(tasks, to, options, pool, database))
        try:
            with shown(progress, options.trials) as watch:

                def seen(now: State) -> None:
                    nonlocal state
                    state = now
                    watch(now)

                state = run(tasks, options, by, seen)
        except KeyboardInterrupt:
            stopped = True
        measured = by.measured
    if state is None:
        raise KeyboardInterrupt
    done = None
    if not stopped:
        done = _whole_model(path, to, urls[0], database, how, progress)
    record = recorded(state, done, incidents, path.stem, to, urls) | {
        "board": by.board,
        "db": db,
        "measured": measured,
        "stopped": stopped,
        "total_s": time.perf_counter() - began,
        "notes": database.notes,
    }
    show(record, to_json.beside)
    to_json.write(record)
    if stopped:
        return INTERRUPTED
    return OK if all(layers.ok for layers in done or ()) else FAILED


def _whole_model(
    path: Path,
    target: Target,
    url: str,
    database: Any,
    how: Mapping[str, Any],
    progress: Progress,
) -> tuple[Deployment, Deployment]:
    """The model untuned and tuned, each run on the board."""
    from ..compile import compile

    with progress.stage("compile"):
        models = [compile(path, target, db=db, **how) for db in (None, database)]
    for note in models[1].notes:
        progress.warn(note)

    def ran(session: Session, model: Any) -> Deployment:
        return deploy(model, session, threads=1, timeout=RUN_SECONDS)

    with progress.stage("model"), connect(url, machine=target.arch) as session:
        return ran(session, models[0]), ran(session, models[1])


# ----------------------------------------------------------------------------- while it goes on


@contextmanager
def shown(progress: Progress, trials: int) -> Iterator[Any]:
    """A function that shows how a run stands: in place on a terminal, now and then elsewhere."""
    console = progress.console
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda state: live.update(_standing(state), refresh=True)
        return
    last = 0.0

    def line(state: State) -> None:
        nonlocal last
        if state.told < trials and time.perf_counter() - last < LINE_SECONDS:
            return
        last = time.perf_counter()
        console.print(_line(state), style="dim")

    yield line


def _line(state: State) -> str:
    return (
        f"{state.told:>6} of {state.trials} trials, {clock_text(state.seconds)}, "
        f"kernels {_gain(state)}: {state.stage}"
    )


def _standing(state: State) -> Group:
    table = plain_table(*task_columns(state.objective), ("trials", True), ("share", True))
    total = sum(t.share for t in state.tasks if isfinite(t.share))
    ranked = sorted(state.tasks, key=lambda t: -t.share if isfinite(t.share) else 0)
    for t in ranked[:MOST_ROWS]:
        share = f"{t.share / total:.1%}" if isfinite(t.share) and total else ""
        add_row(
            table, t.task.name, *task_cells(task_record(t, state.objective)), f"{t.trials}", share
        )
    left = (state.trials - state.told) * state.seconds / state.told if state.told else 0.0
    rest = f", about {clock_text(left)} more" if state.told else ""
    text = Text(f"{_line(state)}{rest}", style="dim", no_wrap=True, overflow="ellipsis")
    return Group(table, text)


def _gain(state: State) -> str:
    known = [t for t in state.tasks if isfinite(t.baseline) and isfinite(t.best)]
    before = sum(t.task.weight * t.baseline for t in known)
    now = sum(t.task.weight * min(t.best, t.baseline) for t in known)
    return f"{before / now:.2f}x as fast" if now else "not run yet"
