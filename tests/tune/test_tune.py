"""The whole of tuning over boards that say what they are told to: nothing is lost or doubled,
whatever is killed when, and every incident is known of."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.ir import structural_hash
from mlc_deploy.tune.boards import Board, BoardPool
from mlc_deploy.tune.measuring import Measuring
from mlc_deploy.tune.records import Candidate, Task
from mlc_deploy.tune.runner import Request
from mlc_deploy.tune.scheduler import GradientBased, Progress, RoundRobin
from mlc_deploy.tune.search import make_search
from mlc_deploy.tune.tune import tune_tasks
from mlc_deploy.tuned import Database, Measured, Record, pack
from mlc_rpc import Lost
from tests.tune.searches import (
    CountingBoards,
    Following,
    Naming,
    Sampling,
    cost_of,
    hash_of,
    matmul_task,
    sampled,
)
from tests.tune.test_boards import FakeSession, pool
from tests.tune.whole import TRIALS, killed_and_resumed, measuring, results, tasks, tuned


def test_trials_are_spent_on_all_tasks_and_the_best_is_in_the_database() -> None:
    database, boards = Database(), CountingBoards()
    state = tuned(database, boards)
    assert state.told == TRIALS == sum(t.trials for t in state.tasks)
    assert all(t.trials for t in state.tasks)
    assert len(boards.requests) == len(database) == TRIALS + 2  # and the two default kernels
    for t in state.tasks:
        best = database.best(t.task.workload, str(t.task.target))
        assert best is not None and best.cost == t.best <= t.baseline
        assert t.best == min(r.cost for r in database.records if r.workload == t.task.workload)


class OneObject(Executor):
    """Builds the same of all candidates."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(b"the object")
        return future


def test_schedules_that_lead_to_one_object_are_measured_once() -> None:
    database, boards = Database(), CountingBoards()
    by = measuring(database, boards)
    by.build = OneObject()
    tune_tasks(tasks(), by, Following, trials=24, batch=8, seed=5)
    assert len(boards.requests) == len(tasks())
    assert len(database) == 24 + len(tasks())
    assert {r.cost for r in database.records} == {float(cost_of(b"the object"))}


def test_what_is_measured_once_more_is_not_built_again() -> None:
    built: list[str] = []

    class Noting(Naming):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            built.append(structural_hash(args[0]))
            return super().submit(fn, *args, **kwargs)

    by = measuring(Database(), CountingBoards(lambda r: timed(r.object)), "seconds")
    by.build = Noting()
    tune_tasks(tasks(), by, Following, trials=TRIALS, batch=8, seed=5)
    assert any(r.final for r in by.database.records)
    assert len(built) == len(set(built)) == TRIALS + len(tasks())


class Scrambled(CountingBoards):
    """Answers in another order than it was asked."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        (request,) = args
        future: Future[Any] = Future()

        def answer() -> None:
            time.sleep(random.random() * 0.01)
            future.set_result(Measured("ok", (), cost_of(request.object), "emulated"))

        threading.Thread(target=answer).start()
        return future


def test_the_order_in_which_results_come_makes_no_difference() -> None:
    one, two = Database(), Database()
    tuned(one)
    tuned(two, Scrambled())
    assert sorted(results(one)) == sorted(results(two))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stops", [(1, 10, 23), (7, 8, 9, 4), (30,)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, stops: Sequence[int]
) -> None:
    whole = Database()
    tuned(whole)
    for stop in stops:
        left = iter(range(stop))

        def answer(_: Request, left: Any = left) -> None:
            if next(left, None) is None:
                raise Stopped

        with pytest.raises(Stopped):
            tuned(Database(tmp_path / "db"), CountingBoards(answer))
    boards = CountingBoards()
    database = Database(tmp_path / "db")
    known = len(database)
    tuned(database, boards)
    assert sorted(results(database)) == sorted(results(whole))
    assert len(boards.requests) == len(database) - known
    again = CountingBoards()
    state = tuned(Database(tmp_path / "db"), again)
    assert not again.requests and state.told == TRIALS


def test_kills_lose_nothing_double_nothing_and_change_nothing(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path / "db", kills=3, seed=1)
    whole = Database()
    tuned(whole)
    found = Database(tmp_path / "db")
    assert sorted(results(found)) == sorted(results(whole))
    assert max(Counter((r.task, r.program) for r in found.records).values()) == 1


def bad(code: bytes) -> Measured | None:
    """What becomes of an object: of 100, 10 crash, 5 hang, 5 compute something else."""
    number = hash_of(code.hex() + "ill") % 100
    if number < 10:
        return Measured("crash", message="SIGSEGV")
    if number < 15:
        return Measured("timeout", message="no end in 10 s")
    return Measured("wrong", message="output 0: 3 elements") if number < 20 else None


def test_bad_candidates_are_recorded_and_never_tried_again(tmp_path: Path) -> None:
    boards = CountingBoards(lambda request: bad(request.object))
    state = tuned(Database(tmp_path / "db"), boards, trials=64)
    found = Database(tmp_path / "db")
    verdicts = Counter(r.measured.verdict for r in found.records)
    assert set(verdicts) == {"ok", "crash", "timeout", "wrong"}
    assert state.bad == {k: n for k, n in verdicts.items() if k != "ok"}
    again = CountingBoards()
    tuned(found, again, trials=64)
    assert not again.requests
    for t in state.tasks:
        good = [r.cost for r in found.records if r.task == t.task.name and r.cost < inf]
        assert t.best == min(good)


def test_a_board_that_is_lost_and_returns_changes_no_result() -> None:
    quiet = Database()
    tuned(quiet)
    sessions: list[FakeSession] = []
    calls = iter(range(10_000))

    def connect(url: str) -> FakeSession:
        sessions.append(FakeSession(url))
        return sessions[-1]

    def job(board: Board, request: Request) -> Measured:
        if next(calls) in (5, 15, 25, 35):
            raise Lost("power", board=board.url)
        return Measured("ok", (), cost_of(request.object), "emulated")

    class Jobs:
        def __init__(self, boards: BoardPool) -> None:
            self.boards = boards

        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            return self.boards.submit(job, *args)

    database = Database()
    with pool(connect, "a", "b") as (boards, incidents):
        tuned(database, Jobs(boards))
    assert sorted(results(database)) == sorted(results(quiet))
    assert Counter(i.what for i in incidents) == {"lost: power": 4}
    assert len(sessions) == 2 and sum(s.returns for s in sessions) == 4


def test_earlier_runs_are_what_a_search_begins_with() -> None:
    """Those on boards of this kind first; on a faster kind, how much worse one is than the best."""
    database = Database()
    tuned(database)
    theirs = [
        replace(r, board="another", measured=replace(r.measured, instructions=n + 1))
        for n, r in enumerate(database.records)
    ]
    database.add(theirs)
    searches: list[Sampling] = []

    def make(*args: Any) -> Sampling:
        searches.append(Sampling(*args))
        return searches[-1]

    by = measuring(database)
    by.run = "another run"
    tune_tasks(tasks(), by, make, trials=16, batch=8, seed=6)
    for search, task in zip(searches, tasks(), strict=True):
        earlier = [r for r in database.records if r.workload == task.workload]
        own = [r for r in earlier if r.run == "this run" and r.board == by.board]
        ranked = sorted(own, key=lambda r: r.cost) + [r for r in earlier if r.board == "another"]
        steps = [r.steps.replace(" ", "") for r in ranked]
        assert [t.dumps().replace(" ", "") for t in search.known] == steps


def test_what_is_known_is_measured_on_top_of_the_trials() -> None:
    database = Database()
    tuned(database)
    origins: Counter[str] = Counter()

    def make(task: Task, seed: int, known: Sequence[Any]) -> Any:
        search = make_search("evolutionary", task, sampled, seed, known)
        propose = search.propose

        def noting(n: int) -> Sequence[Candidate]:
            found = propose(n)
            origins.update(c.origin for c in found)
            return found

        search.propose = noting  # type: ignore[method-assign]
        return search

    by = measuring(database)
    by.run = "another run"
    state = tune_tasks(tasks(), by, make, trials=32, batch=8, seed=6)
    assert origins["known"] >= len(tasks())
    assert state.told == 32 == sum(t.trials for t in state.tasks)
    assert origins.total() == 32 + origins["known"]


def test_a_task_that_gets_no_better_is_done_early() -> None:
    level = CountingBoards(lambda _: Measured("ok", (), 1000, "emulated"))
    state = tuned(Database(), level, trials=400, early_stopping=24)
    assert [t.done for t in state.tasks] == ["no better for 24 trials"] * 2
    assert 48 <= state.told <= 64  # a round of each may have been under way


def test_a_space_that_is_exhausted_ends_its_task() -> None:
    def tiny(sch: Any) -> None:
        i, *_ = sch.get_loops("c")
        sch.split(i, sch.sample_perfect_tile(i, 2, 16))

    state = tuned(Database(), trials=400, make=lambda t, s, k: Sampling(t, s, k, tiny))
    assert [t.done for t in state.tasks] == ["nothing left to try"] * 2
    assert [t.trials for t in state.tasks] == [5, 5]


def test_the_best_are_measured_once_more_and_luck_does_not_count() -> None:
    """One candidate was lucky when it was first timed."""

    def answer(request: Request) -> Measured:
        cost = cost_of(request.object) * 1e-6
        lucky = hash_of(request.object.hex() + "luck") % 6 == 0
        seconds = cost if request.careful or not lucky else cost / 50
        return Measured("ok", (seconds,) * 3, None, "ok")

    database = Database()
    state = tuned(database, CountingBoards(answer), objective="seconds", trials=64)
    for t in state.tasks:
        best = database.best(t.task.workload, str(t.task.target))
        assert best is not None and best.final and best.cost == t.best
        honest = [_honest(r) for r in database.records if r.workload == t.task.workload and r.final]
        assert best.cost == min(honest)
        assert t.baseline in honest


def timed(code: bytes) -> Measured:
    return Measured("ok", (cost_of(code) * 1e-6,) * 3, None, "ok")


def test_all_that_would_be_the_best_are_measured_again() -> None:
    """However many were lucky."""

    def answer(request: Request) -> Measured:
        honest = timed(request.object)
        if request.careful:
            return honest
        return replace(honest, seconds=(honest.seconds[0] * 1e-3,) * 3)

    database = Database()
    state = tuned(database, CountingBoards(answer), objective="seconds", trials=64)
    for t in state.tasks:
        best = database.best(t.task.workload, str(t.task.target))
        assert best is not None and best.final and best.cost == t.best


def test_what_fails_once_when_it_is_measured_again_is_not_lost() -> None:
    """Nor does it go unsaid."""
    failed: set[bytes] = set()

    def answer(request: Request) -> Measured:
        if request.careful and request.object not in failed:
            failed.add(request.object)
            return Measured("crash", message="2 boards died of it: power")
        return timed(request.object)

    database = Database()
    state = tuned(database, CountingBoards(answer), objective="seconds", trials=32)
    assert {r.measured.verdict for r in database.records} == {"ok"}
    assert state.bad == {"crash": len(failed)} and len(failed) >= 2 * 4
    for t in state.tasks:
        assert t.best == min(r.cost for r in database.records if r.workload == t.task.workload)


def test_what_fails_again_is_the_best_no_longer() -> None:
    best: dict[str, bytes] = {}

    def answer(request: Request) -> Measured:
        known = best.setdefault(request.workload, request.object)
        if cost_of(request.object) < cost_of(known):
            best[request.workload] = request.object
        if request.careful and request.object == best[request.workload]:
            return Measured("crash")
        return timed(request.object)

    database = Database()
    state = tuned(database, CountingBoards(answer), objective="seconds", trials=32)
    assert state.bad == {"crash": 2 * len(best)}
    for t in state.tasks:
        assert t.best > cost_of(best[t.task.workload]) * 1e-6
        assert t.best < inf


def test_what_beats_the_best_that_is_certain_is_checked() -> None:
    """Though a lucky measurement of another was less."""
    database = Database()
    task = matmul_task(16, 16, 16)
    by = measuring(database, boards := CountingBoards(), "seconds")
    (one, *_) = Following(task, 1).propose(1)
    boards.answer = lambda r: Measured("ok", (2e-3 if r.careful else 1e-3,) * 3, None, "ok")
    by.finish(by.begin(task, [one]))
    by.finish(by.begin(task, [one], final=True), final=True)
    by.begin(task, Following(task, 2).propose(1), best=1e-3)
    assert boards.requests[-1].best == 2e-3


def test_records_that_no_longer_apply_do_not_count() -> None:
    """They are of another version of a schedule's steps, or of another program than they say."""
    database = Database()
    by = measuring(database, CountingBoards(lambda r: timed(r.object)), "seconds")
    task = tasks()[0]
    (made, *_) = Sampling(task, 1).propose(1)
    bad = [
        record_of(by, task, made, packed=pack('[1,[["get_block",{"name":"none"},"b",null]]]')),
        record_of(by, task, made, packed=pack("[99,[]]"), program="b"),
        record_of(by, task, made, program="c"),
    ]
    database.add(bad)
    state = tune_tasks(tasks(), by, Following, trials=16, batch=8, seed=5)
    assert state.stage == "done"
    assert all(t.best == t.history[-1] > 1e-9 for t in state.tasks)


def record_of(by: Measuring, task: Task, made: Candidate, **changes: Any) -> Record:
    lucky = Measured("ok", (1e-9,) * 3, None, "ok")
    made_record = Record(
        task.name, task.workload, str(task.target), by.board, by.objective, "theirs",
        made.program, pack(made.trace.dumps()), lucky,
    )  # fmt: skip
    return replace(made_record, **changes)


class Failing(Naming):
    """Fails with something that nobody expected, now and then: of the default kernels with all
    that have this in their names."""

    def __init__(self, default: str = "nothing") -> None:
        self.default = default

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        defaults = {t.name: structural_hash(t.default(t.func)).encode() for t in tasks()}
        name = next((n for n, code in defaults.items() if code == future.result()), None)
        if self.default not in name if name else cost_of(future.result()) % 5:
            return future
        failed: Future[Any] = Future()
        failed.set_exception(RecursionError("maximum recursion depth exceeded"))
        return failed


def test_a_fault_of_the_compilers_costs_one_candidate() -> None:
    database = Database()
    by = measuring(database)
    by.build = Failing()
    state = tune_tasks(tasks(), by, Following, trials=TRIALS, batch=8, seed=5)
    assert state.told == TRIALS and state.bad["build_error"] > 3
    said = {r.measured.message for r in database.records if r.measured.verdict == "build_error"}
    assert said == {"RecursionError: maximum recursion depth exceeded"}


def test_a_kernel_whose_default_is_no_good_is_left_alone_until_it_is() -> None:
    database = Database()
    for broken in (True, False):
        by = measuring(database)
        by.build = Failing("matmul_16" if broken else "nothing")
        state = tune_tasks(tasks(), by, Following, trials=16, batch=8, seed=5)
        first, second = state.tasks
        assert second.trials and not second.done
        assert (first.done == "its default kernel is not usable") is broken
        assert bool(state.doubts) is broken is (not first.trials)
    assert first.baseline < inf


class Held(CountingBoards):
    """Answers careful requests as long as none comes any more, and knows how many there were at
    once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self.now = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        (request,) = args
        seconds = cost_of(request.object) * 1e-6
        measured = Measured("ok", (seconds,) * 3, None, "ok")
        future: Future[Any] = Future()
        if not request.careful:
            future.set_result(measured)
            return future
        self.now += 1
        self.most = max(self.most, self.now)

        def answer() -> None:
            time.sleep(0.02)
            self.now -= 1
            future.set_result(measured)

        threading.Thread(target=answer).start()
        return future


@pytest.mark.parametrize("apart", [False, True])
def test_boards_apart_measure_the_best_together_and_others_one_by_one(apart: bool) -> None:
    boards = Held()
    by = measuring(Database(), boards, "seconds")
    by.apart = apart
    tune_tasks(tasks(), by, Following, trials=32, batch=8, seed=5)
    assert (boards.most > 1) is apart


def _honest(record: Record) -> float:
    return record.measured.seconds[0]


def test_time_that_is_up_ends_a_run_after_what_is_under_way() -> None:
    state = tuned(Database(), minutes=0.0, trials=64)
    assert state.told == 0 and state.stage == "done"


# ---------------------------------------------------------------------------------- whose turn


def standing(
    cost: float, trials: int = 8, *, weight: int = 1, fell: float = 0.0, flops: float = 0.0
) -> Progress:
    task = Task("t", None, None, None, weight, None, flops)  # type: ignore[arg-type]
    made = Progress(task, cost + fell, cost)
    made.trials = made.asked = trials
    made.rounds = max(trials // 8, 0)
    made.history = [cost + fell, cost] if trials else []
    return made


def test_turns_go_to_where_the_model_gains_most() -> None:
    order = GradientBased()
    assert order.next([standing(1.0), standing(1.0, 0)]) == 1  # the one that had no turn
    assert order.next([standing(9.0), standing(1.0, 0)]) == 0  # though not if it is small
    assert order.next([standing(1.0), standing(9.0)]) == 1  # the slower
    assert order.next([standing(2.0, weight=9), standing(9.0)]) == 0  # the one called more often
    assert order.next([standing(5.0), standing(5.0, fell=4.0)]) == 1  # the one that is falling
    efficient, other = standing(9.0, flops=9.0), standing(5.0, flops=2.0)
    assert order.next([efficient, other]) == 1  # the one that is far from what others reach
    done = standing(9.0)
    done.done = "nothing left to try"
    assert order.next([standing(1.0), done]) == 0


def test_round_robin_takes_turns() -> None:
    three = [standing(1.0, 0) for _ in range(3)]
    seen = []
    for _ in range(6):
        seen.append(RoundRobin().next(three))
        three[seen[-1]].rounds += 1
    assert seen == [0, 1, 2] * 2


def test_every_task_has_a_turn_some_time() -> None:
    two = [standing(100.0), standing(0.001, 0)]
    turns = []
    for _ in range(12):
        turns.append(GradientBased().next(two))
        two[turns[-1]].rounds += 1
    assert 1 in turns
