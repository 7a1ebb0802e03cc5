"""Several boards as one executor of concurrent.futures.

`submit(f, *args)` calls f(board, *args) on a free board, in that board's thread. If a board dies
during a job, its session reconnects, and the job is done once more, here or elsewhere. A job during
which boards died twice gets the exception BoardLost. A board that does not come back is left alone
for a while (quarantined), and the others go on. When all have been gone for longer than `patience`,
or are left out for good, jobs get the exception Unreachable.

Anything that takes a function of a board and gives a Future can replace this: a fake in tests, or
the executor of a distributed engine whose workers hold the boards.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from mlc_rpc import Lost, ProtocolError, RpcError, Session, Timeout, Unreachable
from mlc_rpc.session import Device

from ..board import connect as own_boards

ATTEMPTS = 2  # boards that a job may take with it
CONNECT_TRIES = 3
CONNECT_PAUSE = 1.0  # seconds before the second try, doubled for each further one
RETURN_SECONDS = 10.0  # for a lost board, until it is quarantined
QUARANTINE_SECONDS = 30.0  # before a lost board is tried again
PATIENCE_SECONDS = 600.0

Connect = Callable[[str], Session]
R = TypeVar("R")


class BoardExecutor(Protocol):
    """The interface of a BoardPool, and of its replacements."""

    def submit(self, fn: Callable[..., R], /, *args: Any) -> Future[R]:
        """fn(board, *args) some time on some board."""


class Described(Protocol):
    """A Session's description of its board. `board` is its URL."""

    @property
    def board(self) -> str: ...

    @property
    def device(self) -> Device: ...

    @property
    def emulated(self) -> bool: ...

    @property
    def counting(self) -> bool: ...

    @property
    def why_not_counting(self) -> str: ...


class Boards(BoardExecutor, Protocol):
    """Boards of one kind: those of a BoardPool, or of a farm. `kind` is their fingerprint."""

    @property
    def kind(self) -> str: ...

    @property
    def urls(self) -> Sequence[str]: ...

    def first(self) -> Described:
        """One that is there. Raises Unreachable."""


class BoardLost(Exception):
    """Boards died during a job, ATTEMPTS times; `str` is the last message."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A problem that was dealt with: on which board, what, for which task."""

    board: str
    what: str
    task: str = ""


@dataclass(eq=False)
class Board:
    """A board that is connected. `state` is for jobs, and goes with the session."""

    url: str
    session: Session
    report: Callable[[Incident], None]
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Job:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: Future[Any] = field(default_factory=Future)
    attempts: int = 0


def fingerprint(session: Session) -> str:
    """The properties of a board that decide a kernel's speed; equal for boards of one kind."""
    device = session.device
    kinds = [cpu.model or "unknown" for cpu in device.cpus]
    cores = " + ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    features = blake2b(" ".join(sorted(device.features)).encode(), digest_size=4).hexdigest()
    emulated = "emulated " if session.emulated else ""
    return f"{emulated}{device.machine}, {cores}, features {features}"


def _end(session: Session) -> None:
    with suppress(RpcError, OSError):  # it may be lost
        session.close()


class BoardPool(Executor):
    """Boards by URL. connect: makes the session of one. report: called with incidents, from any
    thread. `kind` is the fingerprint of the first board of the list that is there. Boards of
    another kind are left out, since their results could not be compared. In seconds: `comeback` of
    a lost board until it is quarantined, `quarantine` until it is tried again, `patience` while all
    are gone, `pause` before the second try of a first connection."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        connect: Connect | None = None,
        report: Callable[[Incident], None] = lambda _: None,
        quarantine: float = QUARANTINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        pause: float = CONNECT_PAUSE,
        comeback: float = RETURN_SECONDS,
    ) -> None:
        self._connect = connect or own_boards.connect
        self._listener = report
        self._quarantine, self._patience, self._pause = quarantine, patience, pause
        self._comeback = comeback
        self._changed = threading.Condition()  # of everything below
        self._jobs: deque[_Job] = deque()
        self._closed = False
        self._kind: str | None = None
        self._sessions: dict[int, Session] = {}
        self._why: dict[int, str] = {}  # of boards that are not there
        self._left_out: set[int] = set()  # of these, the ones that are not tried again
        self._last_seen = time.monotonic()
        self.urls = tuple(urls)
        self._threads = [
            threading.Thread(target=self._serve, args=(n, url), daemon=True, name=f"board {url}")
            for n, url in enumerate(urls)
        ]
        for thread in self._threads:
            thread.start()

    def first(self) -> Session:
        """The session of a real board; waits for one. Raises Unreachable when each has
        been tried in vain."""
        with self._changed:
            self._changed.wait_for(lambda: self._sessions or len(self._why) == len(self.urls))
            if not self._sessions:
                raise self._unreachable()
            return next(iter(self._sessions.values()))

    @property
    def kind(self) -> str:
        """The fingerprint of the boards. Raises Unreachable."""
        self.first()
        assert self._kind is not None
        return self._kind

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        assert not kwargs, "a board's job takes arguments by their places"
        job = _Job(fn, args)
        with self._changed:
            if self._closed:
                raise RuntimeError("the boards are closed")
            self._jobs.append(job)
            self._changed.notify_all()
        self._fail_if_all_gone()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Ends the sessions whatever runs there."""
        with self._changed:
            self._closed = True
            jobs, sessions = list(self._jobs), list(self._sessions.values())
            self._jobs.clear()
            self._changed.notify_all()
        for job in jobs:
            if job.future.cancel():
                job.future.set_running_or_notify_cancel()
            else:  # it was begun on a board that died
                job.future.set_exception(CancelledError())
        for session in sessions:
            _end(session)
        for thread in self._threads:
            thread.join(5.0)

    # ------------------------------------------------------------------------ a board's thread

    def _serve(self, number: int, url: str) -> None:
        try:
            self._attend(number, url)
        except BaseException as error:  # of `report`, for example: no job may wait for this thread
            self._give_up(number, url, f"{type(error).__name__}: {error}")

    def _attend(self, number: int, url: str) -> None:
        session: Session | None = None
        while (board := self._connected(number, url, session)) is not None:
            session = board.session
            lost = self._work(board)
            with self._changed:
                self._sessions.pop(number, None)
                self._last_seen = time.monotonic()
            if not lost:
                _end(session)
                return

    def _work(self, board: Board) -> bool:
        """Does jobs until the board is lost (True) or the pool is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return False
                job = self._jobs.popleft()
            if not job.attempts and not job.future.set_running_or_notify_cancel():
                continue
            try:
                result = job.function(board, *job.args)
            except (Lost, Unreachable, ProtocolError, Timeout) as error:
                # Jobs handle kernels that take too long: this Timeout concerns the whole board.
                if self._closed:
                    job.future.set_exception(error)
                    return False
                self._again(job, board.url, error)
                return True
            except BaseException as error:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)

    def _again(self, job: _Job, url: str, error: RpcError) -> None:
        job.attempts += 1
        with self._changed:
            again = job.attempts < ATTEMPTS and not self._closed
            if again:
                self._jobs.appendleft(job)
                self._changed.notify_all()
        if job.attempts >= ATTEMPTS:
            job.future.set_exception(BoardLost(f"{ATTEMPTS} boards died of it: {error.what}"))
        elif not again:
            job.future.set_exception(CancelledError())
        self._report(Incident(url, f"lost: {error.what}"))

    def _connected(self, number: int, url: str, session: Session | None) -> Board | None:
        """Connects to the board, however long that takes. session: the one that was lost. None when
        the pool is closed, or the board is of another kind than the rest."""
        failures = 0 if session is None else CONNECT_TRIES - 1  # reconnect tries several times
        while True:
            try:
                if session is None or not session.can_reconnect:
                    session = self._connect(url)
                else:
                    session.reconnect(0.0 if number in self._why else self._comeback)
            except (RpcError, OSError) as error:
                if self._closed:
                    return None
                failures += 1
                why = error.what if isinstance(error, RpcError) else str(error)
                if not self._pause_after(number, url, why, failures):
                    return None
                continue
            except Exception as error:  # a mistake in the request: trying again is of no use
                if self._closed:
                    return None
                self._give_up(number, url, str(error))
                return None
            kind = fingerprint(session)
            with self._changed:
                # The order of the list decides, not which board answers first: the database's
                # subject is then the same at every start.
                self._changed.wait_for(lambda: self._decided(number), self._patience)
                if self._closed:
                    _end(session)
                    return None
                if self._kind is None:
                    self._kind = kind
                if kind == self._kind:
                    self._sessions[number] = session
                    came_back = self._why.pop(number, None) is not None
                    self._changed.notify_all()
            if kind != self._kind:
                _end(session)
                self._give_up(number, url, f"another kind of board than the first: {kind}")
                return None
            if came_back:
                self._report(Incident(url, "came back"))
            return Board(url, session, self._report)

    def _decided(self, number: int) -> bool:
        """Whether a board need not wait for earlier ones of the list, which may decide the kind."""
        return self._closed or self._kind is not None or self._why.keys() >= set(range(number))

    def _pause_after(self, number: int, url: str, why: str, failures: int) -> bool:
        """Waits before the board is tried again; False when there is nothing to wait for."""
        if failures < CONNECT_TRIES and number not in self._why:
            seconds = self._pause * 2 ** (failures - 1)
        else:
            if number not in self._why:
                self._report(Incident(url, f"quarantined: {why}"))
            seconds = self._quarantine
            with self._changed:
                self._why[number] = why
                self._changed.notify_all()
            self._fail_if_all_gone()
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, seconds)

    def _give_up(self, number: int, url: str, why: str) -> None:
        with self._changed:
            session = self._sessions.pop(number, None)
            if session is not None:
                self._last_seen = time.monotonic()
            self._why[number] = why
            self._left_out.add(number)
            self._changed.notify_all()
        self._fail_if_all_gone()
        if session is not None:
            _end(session)
        self._report(Incident(url, f"left out: {why}"))

    def _fail_if_all_gone(self) -> None:
        """Fails the waiting jobs when no board has been there for `patience`, or none will be."""
        with self._changed:
            gone = len(self._why) == len(self.urls)
            waits = len(self._left_out) < len(self.urls)
            if not gone or (waits and time.monotonic() - self._last_seen < self._patience):
                return
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            if job.attempts or job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._unreachable())

    def _report(self, incident: Incident) -> None:
        with suppress(OSError, ValueError):  # a closed stream is not a reason to end a board
            self._listener(incident)

    def _unreachable(self) -> Unreachable:
        with self._changed:
            lines = [f"{self.urls[n]}: {why}" for n, why in sorted(self._why.items())]
        return Unreachable(
            "no board can be reached: " + "; ".join(lines),
            attempt="the same command again when one is there: it goes on where it stopped",
        )
