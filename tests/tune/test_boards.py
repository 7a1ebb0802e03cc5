"""Boards as an executor: they die, come back, are left out, and no job is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from mlc_deploy.tune.boards import Board, BoardLost, BoardPool, Incident
from mlc_rpc import Lost, Refused, Unreachable
from mlc_rpc.session import Cpu, Device

PATIENCE = 60.0  # seconds
HERE = Device(
    runtime="1", machine="aarch64", abi=1, features=frozenset({"neon"}), kernel="6", cores=4,
    fast_cores=4, memory=1 << 30, page_size=4096, cpus=(Cpu("cortex-a72"),) * 4,
)  # fmt: skip
OTHER = Device(**{**{f: getattr(HERE, f) for f in HERE.__slots__}, "cpus": (Cpu("cortex-a53"),)})


class FakeSession:
    emulated = False
    can_reconnect = True

    def __init__(self, url: str, device: Device = HERE) -> None:
        self.board, self.device, self.closed = url, device, False
        self.returns = 0
        self.away = 0  # so many times it does not come back

    def reconnect(self, patience: float) -> None:
        if self.away:
            self.away -= 1
            raise Unreachable(f"not back in {patience:g} s", board=self.board)
        self.returns += 1

    def close(self) -> None:
        self.closed = True


@contextmanager
def pool(
    connect: Callable[[str], Any], *urls: str, **options: Any
) -> Iterator[tuple[BoardPool, list[Incident]]]:
    incidents: list[Incident] = []
    options = {"quarantine": 0.05, "pause": 0.01, **options}
    with BoardPool(urls, connect=connect, report=incidents.append, **options) as boards:
        yield boards, incidents


def name(board: Board) -> str:
    time.sleep(0.005)
    return board.url


def test_jobs_go_to_all_boards() -> None:
    with pool(FakeSession, "a", "b") as (boards, incidents):
        found = {f.result(PATIENCE) for f in [boards.submit(name) for _ in range(20)]}
    assert found == {"a", "b"} and not incidents


def test_what_a_job_raises_is_its_futures_and_the_board_goes_on() -> None:
    def refuse(board: Board) -> None:
        raise Refused("no", board=board.url)

    with pool(FakeSession, "a") as (boards, incidents):
        with pytest.raises(Refused):
            boards.submit(refuse).result(PATIENCE)
        assert boards.submit(name).result(PATIENCE) == "a"
    assert not incidents


def test_a_job_that_lost_its_board_is_done_again() -> None:
    sessions: list[FakeSession] = []

    def connect(url: str) -> FakeSession:
        sessions.append(FakeSession(url))
        return sessions[-1]

    def job(board: Board) -> int:
        if sessions[0].returns == 0:
            raise Lost("power", board=board.url)
        return sessions[0].returns

    with pool(connect, "a") as (boards, incidents):
        assert boards.submit(job).result(PATIENCE) == 1
        assert not sessions[0].closed
    assert incidents == [Incident("a", "lost: power")] and len(sessions) == 1


def test_a_lost_board_that_stays_away_is_quarantined_and_its_job_is_done_elsewhere() -> None:
    lost = threading.Event()

    def job(board: Board) -> str:
        if board.url == "a" and not lost.is_set():
            lost.set()
            board.session.away = 3  # type: ignore[attr-defined]
            raise Lost("power", board=board.url)
        time.sleep(0.005)
        return board.url

    with pool(FakeSession, "a", "b", comeback=0.25) as (boards, incidents):
        while not lost.is_set():
            boards.submit(job).result(PATIENCE)
        assert boards.submit(job).result(PATIENCE) == "b"
        _until(lambda: Incident("a", "came back") in incidents)
        assert {f.result(PATIENCE) for f in [boards.submit(job) for _ in range(20)]} == {"a", "b"}
    assert [i.what for i in incidents] == [
        "lost: power", "quarantined: not back in 0.25 s", "came back",
    ]  # fmt: skip


def test_a_job_that_takes_two_boards_with_it_is_given_up_and_others_are_done() -> None:
    def deadly(board: Board) -> None:
        raise Lost("the board hung up", board=board.url)

    with pool(FakeSession, "a", "b") as (boards, incidents):
        bad = boards.submit(deadly)
        good = [boards.submit(name) for _ in range(8)]
        with pytest.raises(BoardLost, match="2 boards died of it: the board hung up"):
            bad.result(PATIENCE)
        assert {f.result(PATIENCE) for f in good} <= {"a", "b"}
    assert [i.what for i in incidents] == ["lost: the board hung up"] * 2


def test_a_board_that_is_away_is_quarantined_and_comes_back() -> None:
    away = threading.Event()
    away.set()

    def connect(url: str) -> FakeSession:
        if url == "b" and away.is_set():
            raise Unreachable("no route to host", board=url)
        return FakeSession(url)

    with pool(connect, "a", "b") as (boards, incidents):
        assert {boards.submit(name).result(PATIENCE) for _ in range(30)} == {"a"}
        _until(lambda: Incident("b", "quarantined: no route to host") in incidents)
        away.clear()
        _until(lambda: Incident("b", "came back") in incidents)
        jobs = [boards.submit(name) for _ in range(20)]
        assert {f.result(PATIENCE) for f in jobs} == {"a", "b"}
    assert len(incidents) == 2


def test_a_board_of_another_kind_is_left_out() -> None:
    def connect(url: str) -> FakeSession:
        if url == "b":
            _until(lambda: bool(seen))
        made = FakeSession(url, OTHER if url == "b" else HERE)
        seen.append(made)
        return made

    seen: list[FakeSession] = []
    with pool(connect, "a", "b") as (boards, incidents):
        _until(lambda: bool(incidents))
        assert {boards.submit(name).result(PATIENCE) for _ in range(10)} == {"a"}
        assert boards.kind.startswith("aarch64, 4 cortex-a72, features ")
    (incident,) = incidents
    assert incident.board == "b"
    assert incident.what.startswith(
        "left out: another kind of board than the first: aarch64, 1 cortex-a53, features "
    )


def test_the_first_board_of_the_list_decides_the_kind_however_slow_it_is() -> None:
    other = threading.Event()

    def connect(url: str) -> FakeSession:
        if url == "b":
            other.set()
            return FakeSession(url, OTHER)
        assert other.wait(PATIENCE)
        time.sleep(0.1)
        return FakeSession(url)

    with pool(connect, "a", "b") as (boards, incidents):
        assert boards.kind.startswith("aarch64, 4 cortex-a72, ")
        assert {boards.submit(name).result(PATIENCE) for _ in range(5)} == {"a"}
        _until(lambda: bool(incidents))
    assert [i.board for i in incidents] == ["b"]


def test_where_the_first_board_is_away_the_next_decides_the_kind() -> None:
    def connect(url: str) -> FakeSession:
        if url == "a":
            raise Unreachable("no route to host", board=url)
        if url == "b":
            time.sleep(0.1)
        return FakeSession(url, HERE if url == "b" else OTHER)

    with pool(connect, "a", "b", "c") as (boards, _):
        assert boards.submit(name).result(PATIENCE) == "b"
        assert boards.kind.startswith("aarch64, 4 cortex-a72, ")


def test_boards_do_not_wait_for_ever_for_the_first() -> None:
    done = threading.Event()

    def connect(url: str) -> FakeSession:
        if url == "a":
            done.wait(PATIENCE)
        return FakeSession(url)

    with pool(connect, "a", "b", patience=0.1) as (boards, _):
        assert boards.submit(name).result(PATIENCE) == "b"
        done.set()


def test_jobs_end_when_no_board_has_been_there_for_long() -> None:
    def connect(url: str) -> FakeSession:
        raise Unreachable("no route to host", board=url)

    with pool(connect, "a", "b", patience=0.0) as (boards, _):
        job = boards.submit(name)
        with pytest.raises(Unreachable) as gone:
            job.result(PATIENCE)
    assert str(gone.value) == (
        "no board can be reached: a: no route to host; b: no route to host\n"
        "  try: the same command again when one is there: it goes on where it stopped"
    )


def test_jobs_end_at_once_when_every_board_is_left_out() -> None:
    def changed(board: Board) -> None:
        board.session.device = OTHER
        raise Lost("power", board=board.url)

    with pool(FakeSession, "a") as (boards, _):
        for job in changed, name:
            with pytest.raises(Unreachable) as gone:
                boards.submit(job).result(PATIENCE)
            assert str(gone.value).startswith(
                "no board can be reached: a: another kind of board than the first: aarch64, 1 co"
            )


def test_jobs_wait_for_a_board_that_is_away_where_the_others_are_left_out() -> None:
    away = threading.Event()
    away.set()

    def connect(url: str) -> FakeSession:
        if url == "a":
            raise ValueError("no such board")
        if away.is_set():
            raise Unreachable("booting", board=url)
        return FakeSession(url)

    with pool(connect, "a", "b") as (boards, incidents):
        job = boards.submit(name)
        _until(lambda: len(incidents) == 2)
        assert not job.done()
        away.clear()
        assert job.result(PATIENCE) == "b"
    assert {i.what for i in incidents[:2]} == {"left out: no such board", "quarantined: booting"}


def test_a_job_that_was_cancelled_is_in_nobodys_way_when_jobs_end() -> None:
    tried, gone = threading.Event(), threading.Event()

    def connect(url: str) -> FakeSession:
        tried.set()
        assert gone.wait(PATIENCE)
        raise ValueError("no such board")

    with pool(connect, "a") as (boards, _):
        jobs = [boards.submit(name), boards.submit(name)]
        assert tried.wait(PATIENCE) and jobs[0].cancel()
        gone.set()
        assert isinstance(jobs[1].exception(5), Unreachable)


def test_a_job_is_done_again_though_nobody_can_hear_of_it() -> None:
    def closed(_: Incident) -> None:
        raise BrokenPipeError

    def job(board: Board) -> str:
        if board.session.returns == 0:  # type: ignore[attr-defined]
            raise Lost("power", board=board.url)
        return board.url

    with BoardPool(["a"], connect=FakeSession, report=closed) as boards:  # type: ignore[arg-type]
        assert boards.submit(job).result(PATIENCE) == "a"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_board_whose_thread_ends_is_given_up() -> None:
    def mistaken(_: Incident) -> None:
        raise KeyError("task")

    def job(board: Board) -> None:
        raise Lost("power", board=board.url)

    with BoardPool(["a"], connect=FakeSession, report=mistaken) as boards:  # type: ignore[arg-type]
        with pytest.raises(Unreachable) as gone:
            boards.submit(job).result(PATIENCE)
    assert gone.value.what == "no board can be reached: a: KeyError: 'task'"


def test_jobs_wait_for_boards_that_are_away_for_a_while() -> None:
    tries = 0

    def connect(url: str) -> FakeSession:
        nonlocal tries
        tries += 1
        if tries < 6:
            raise Unreachable("booting", board=url)
        return FakeSession(url)

    with pool(connect, "a") as (boards, incidents):
        assert boards.submit(name).result(PATIENCE) == "a"
    assert incidents == [Incident("a", "quarantined: booting"), Incident("a", "came back")]


def test_closing_cancels_what_waits() -> None:
    begun = threading.Event()

    def long(board: Board) -> None:
        begun.set()
        _until(lambda: board.session.closed)  # type: ignore[attr-defined]
        raise Lost("the session is closed", board=board.url)

    with pool(FakeSession, "a") as (boards, _):
        jobs: list[Future[Any]] = [boards.submit(long), boards.submit(name)]
        assert begun.wait(PATIENCE)
    wait(jobs, 5)
    assert isinstance(jobs[0].exception(), Lost) and jobs[1].cancelled()


def test_a_job_whose_board_dies_while_the_pool_closes_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost, again = threading.Event(), BoardPool._again

    def late(boards: BoardPool, *args: Any) -> None:
        lost.set()
        _until(lambda: boards._closed)
        again(boards, *args)

    def job(board: Board) -> None:
        raise Lost("power", board=board.url)

    monkeypatch.setattr(BoardPool, "_again", late)
    with pool(FakeSession, "a") as (boards, _):
        begun = boards.submit(job)
        assert lost.wait(PATIENCE)
    assert isinstance(begun.exception(5), CancelledError)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)
