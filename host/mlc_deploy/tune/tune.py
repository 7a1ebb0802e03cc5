"""The tuning loop: rounds of candidates of one task each, until the trials are spent.

Two rounds are under way at a time, so that boards and builders are busy while the search makes the
next candidates. The order of proposals depends on results, not on their timing: the same command
over the same database continues a stopped run, and ends as it would have ended without the stop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from math import inf, isfinite

from ..driver.children import give_back
from ..schedule import Schedule
from ..schedule.trace import Trace
from ..tuned import Database, Measured, Objective, Record, applicable
from .measuring import Measuring, Round
from .records import Candidate, Search, Task
from .scheduler import GradientBased, Progress, TaskScheduler
from .space import default_candidate

AHEAD = 2  # rounds under way
BATCH = 16  # candidates of a round
TOP = 3  # candidates of a task that are measured once more at the end, besides the default
CERTAIN = ("ok", "wrong")  # verdicts for which one measurement is enough
IMPROVED = 0.999  # a cost below this share of the best is an improvement

# A search for a task, by a seed; known: traces of earlier runs, the best first.
MakeSearch = Callable[[Task, int, Sequence[Trace]], Search]


@dataclass(eq=False)
class State:
    """The state of a run, for whoever watches it."""

    tasks: list[Progress]
    objective: Objective
    trials: int  # to be spent
    minutes: float | None = None  # after which nothing more is begun
    began: float = field(default_factory=time.perf_counter)
    search_began: float | None = None
    ended: float | None = None
    told: int = 0
    thinking: float = 0.0  # seconds spent on choosing candidates
    stage: str = "default kernels"
    bad: dict[str, int] = field(default_factory=dict)  # results by verdict, those that are not ok
    doubts: list[str] = field(default_factory=list)  # default kernels that failed

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self.ended is None else self.ended) - self.began

    @property
    def late(self) -> bool:
        return self.minutes is not None and self.seconds > self.minutes * 60

    @property
    def left(self) -> float | None:
        """Seconds that are left, at the speed of the search so far; None where unknown."""
        by_clock = [max(self.minutes * 60 - self.seconds, 0.0)] if self.minutes is not None else []
        if self.told and self.search_began is not None:
            spent = time.perf_counter() - self.search_began
            by_clock.append((self.trials - self.told) * spent / self.told)
        return min(by_clock, default=None)


Watch = Callable[[State], None]


def name_of_run(tasks: Sequence[Task], board: str, objective: Objective, *parts: object) -> str:
    """A name that is equal for equal searches; the records of a run have it."""
    words = [board, objective, *map(str, parts)]
    words += [f"{task.workload} {task.target}" for task in tasks]
    return blake2b("\n".join(words).encode(), digest_size=8).hexdigest()


def tune_tasks(
    tasks: Sequence[Task],
    measuring: Measuring,
    make: MakeSearch,
    *,
    trials: int,
    batch: int = BATCH,
    seed: int = 0,
    scheduler: TaskScheduler | None = None,
    early_stopping: int | None = None,
    minutes: float | None = None,
    watch: Watch = lambda _: None,
) -> State:
    """Spends `trials` on the tasks, `batch` at a time, and measures the best once more.

    early_stopping: a task is done after so many trials without improvement. minutes: begin nothing
    more after so many. watch: called with the state after every round. Raises what `Measuring`
    does.
    """
    state = State([Progress(task) for task in tasks], measuring.objective, trials, minutes)
    for task in tasks:
        measuring.database.add_workload(task.func)
    known = [_earlier(measuring, task) for task in tasks]
    defaults = _defaults(tasks)
    _baselines(state, measuring, defaults, watch)
    searches = [make(t, _seed(seed, t), k) for t, k in zip(tasks, known, strict=True)]
    state.stage, state.search_began = "search", time.perf_counter()
    _search(state, measuring, searches, scheduler or GradientBased(), batch, early_stopping, watch)
    if measuring.objective == "seconds":
        _finals(state, measuring, defaults, watch)
    state.stage, state.ended = "done", time.perf_counter()
    return state


def _search(
    state: State,
    measuring: Measuring,
    searches: Sequence[Search],
    order: TaskScheduler,
    batch: int,
    early_stopping: int | None,
    watch: Watch,
) -> None:
    """Runs rounds, AHEAD of them under way, until there is nothing left to spend or to try."""
    under_way: deque[tuple[int, Round]] = deque()

    def begun() -> bool:
        """Begins a round, or marks a task as done; False where neither is possible now."""
        left = state.trials - sum(t.asked for t in state.tasks)
        if left <= 0 or state.late or all(t.done for t in state.tasks):
            return False
        number = order.next(state.tasks)
        began = time.perf_counter()
        candidates = searches[number].propose(min(batch, left))
        state.thinking += time.perf_counter() - began
        chosen = state.tasks[number]
        if not candidates:
            if any(n == number for n, _ in under_way):
                return False  # these results may give it ideas
            chosen.done = "nothing left to try"
            return True
        chosen.asked += sum(c.is_trial for c in candidates)
        chosen.rounds += 1
        best = min(chosen.best, chosen.baseline)
        under_way.append((number, measuring.begin(chosen.task, candidates, best)))
        return True

    while True:
        while len(under_way) < AHEAD and begun():
            pass
        if not under_way:
            return
        number, round_ = under_way.popleft()
        results = measuring.finish(round_)
        costs = [m.cost(measuring.objective) for m in results]
        trials = [c.is_trial for c in round_.candidates]
        _told(state, number, results, costs, trials, early_stopping)
        began = time.perf_counter()
        searches[number].tell(list(zip(round_.candidates, costs, strict=True)))
        state.thinking += time.perf_counter() - began
        give_back()  # training takes more each time
        watch(state)


def _earlier(measuring: Measuring, task: Task) -> list[Trace]:
    """The traces that other runs found for the task before this one began: first those of this kind
    of board, then of others, each sorted by cost relative to the best there."""
    newest: dict[tuple[str, str], Record] = {}
    for record in measuring.database.before(measuring.run):
        same = (record.workload, record.target) == (task.workload, str(task.target))
        if same and record.objective == measuring.objective:
            newest[record.board, record.program] = record
    best: dict[str, float] = {}
    for record in newest.values():
        best[record.board] = min(record.cost, best.get(record.board, inf))
    good = [r for r in newest.values() if isfinite(r.cost)]
    good.sort(key=lambda r: (r.board != measuring.board, r.cost / best[r.board]))
    return [trace for r in good if (trace := _readable(r)) is not None]


def _readable(record: Record) -> Trace | None:
    try:
        return record.trace
    except ValueError:  # of another version
        return None


def _seed(seed: int, task: Task) -> int:
    digest = blake2b(f"{seed} {task.workload}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _defaults(tasks: Sequence[Task]) -> dict[Task, Candidate]:
    """The default schedules of tasks, as far as they are traces."""
    made = {task: default_candidate(task) for task in tasks}
    return {task: found for task, found in made.items() if found is not None}


def _measured(
    measuring: Measuring, candidates: Mapping[Task, Candidate]
) -> Iterator[tuple[Task, Measured]]:
    """The results of one candidate per task, all of them under way at once."""
    rounds = [(task, measuring.begin(task, [c], again=True)) for task, c in candidates.items()]
    for task, begun in rounds:
        (result,) = measuring.finish(begun)
        yield task, result


def _baselines(
    state: State, measuring: Measuring, defaults: Mapping[Task, Candidate], watch: Watch
) -> None:
    progress = {p.task: p for p in state.tasks}
    for number, (task, result) in enumerate(_measured(measuring, defaults), 1):
        of = progress[task]
        of.baseline = of.best = result.cost(measuring.objective)
        if result.verdict != "ok":
            what = result.verdict.replace("_", " ")
            state.doubts.append(f"{task.name}: default kernel: {what}: {result.message}")
            of.done = "its default kernel is not usable"  # no cost to compare others with
        state.stage = f"default kernels, {number} of {len(defaults)}"
        watch(state)


def default_costs(measuring: Measuring, tasks: Sequence[Task]) -> dict[str, float]:
    """The costs of tasks' default kernels, by workload. Raises what `Measuring` does."""
    found = {
        task.workload: result.cost(measuring.objective)
        for task, result in _measured(measuring, _defaults(tasks))
    }
    return {task.workload: inf for task in tasks} | found


def _told(
    state: State,
    number: int,
    results: Sequence[Measured],
    costs: Sequence[float],
    trials: Sequence[bool],
    early_stopping: int | None,
) -> None:
    """Counts a round's results: `trials` says which of the candidates are trials."""
    chosen = state.tasks[number]
    _count_bad(state, results)
    for cost, is_trial in zip(costs, trials, strict=True):
        chosen.trials += is_trial
        chosen.since = 0 if cost < IMPROVED * chosen.best else chosen.since + is_trial
        chosen.best = min(chosen.best, cost)
    chosen.history.append(chosen.best)
    state.told += sum(trials)
    if early_stopping is not None and chosen.since >= early_stopping and not chosen.done:
        chosen.done = f"no better for {chosen.since} trials"


def _finals(
    state: State, measuring: Measuring, defaults: Mapping[Task, Candidate], watch: Watch
) -> None:
    """The best of many noisy measurements is likely a lucky one. So the best are measured
    carefully, then whatever is best after that, until the best one is measured carefully."""
    _carefully(state, measuring, [(task, [c]) for task, c in defaults.items()], watch)
    count, before = TOP, -1
    while len(measuring.database) > before:
        best = [(t.task, list(islice(_ranked(measuring, t.task), count))) for t in state.tasks]
        lucky = [(task, found) for task, found in best if not all(r.final for r, _ in found)]
        if not lucky:
            break
        again = [(task, [c for _, c in found]) for task, found in lucky]
        count, before = 1, len(measuring.database)
        _carefully(state, measuring, again, watch)
    for progress in state.tasks:
        default = defaults.get(progress.task)
        past = measuring.database.programs(
            progress.task.workload, str(progress.task.target), measuring.board, "seconds"
        )
        if default is not None and isfinite(past[default.program].cost):
            progress.baseline = past[default.program].cost
        if (first := next(_ranked(measuring, progress.task), None)) is not None:
            progress.best = first[0].cost
    watch(state)


def _carefully(
    state: State,
    measuring: Measuring,
    candidates: Sequence[tuple[Task, Sequence[Candidate]]],
    watch: Watch,
) -> None:
    """Measures the candidates that were not measured carefully before: all at once on separate
    boards, one at a time and undisturbed on this machine. A failed candidate is tried once more
    before the failure counts, since it ran before: it may be the board's fault."""

    def finish(task: Task, candidate: Candidate, begun: Round) -> None:
        state.stage = f"the best of {task.name}, once more"
        watch(state)
        (result,) = measuring.finish(begun, final=True, counts=lambda m: m.verdict in CERTAIN)
        if result.verdict not in CERTAIN:
            _count_bad(state, [result])
            (result,) = measuring.finish(measuring.begin(task, [candidate], final=True), final=True)
        _count_bad(state, [result])

    waiting: list[tuple[Task, Candidate, Round]] = []
    for task, several in candidates:
        past = measuring.database.programs(
            task.workload, str(task.target), measuring.board, measuring.objective
        )
        for candidate in several:
            if candidate.program in past and past[candidate.program].final:
                continue
            begun = measuring.begin(task, [candidate], final=True)
            waiting.append((task, candidate, begun))
            if not measuring.apart:
                finish(*waiting.pop())
    for one in waiting:
        finish(*one)


def _count_bad(state: State, results: Sequence[Measured]) -> None:
    for result in results:
        if result.verdict != "ok":
            state.bad[result.verdict] = state.bad.get(result.verdict, 0) + 1


def _ranked(measuring: Measuring, task: Task) -> Iterator[tuple[Record, Candidate]]:
    """A task's records in the database that apply, the best first."""
    records = measuring.database.query(
        task.workload, str(task.target), board=measuring.board, objective=measuring.objective
    )
    for record, sch in applicable(records, task.func):
        yield record, Candidate(sch.trace, sch.func, "final")


def best_schedule(database: Database, task: Task) -> Schedule | None:
    """The best applicable schedule in the database for a task; None where there is none."""
    records = database.query(task.workload, str(task.target))
    return next((sch for _, sch in applicable(records, task.func)), None)
