"""The work of a farm's workers: functions on a board, and functions for builders.

Calls and results travel as bytes, so that Dask neither searches arguments for tasks nor needs to
know our exceptions.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlc_rpc import Unreachable
from mlc_rpc.session import Device

from .engine import require_distributed

BUILDER = "builder"  # the resource of builders; a worker has one per builder
RETURN_PAUSE = 0.5  # seconds before a call of a lost board goes back to the scheduler


@dataclass(frozen=True, slots=True)
class Call:
    """function(*args) for a user, at a turn (turns.py)."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    user: str
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a call: its result or its error, the seconds it took, the turn that its place
    had reached by then, and the place: the address of its worker."""

    result: Any
    error: BaseException | None
    seconds: float
    turn: float
    place: str


@dataclass(frozen=True, slots=True)
class Description:
    """A Session's description of its board, for users without a session. `board` is the URL that
    the board's host uses."""

    board: str
    device: Device
    emulated: bool
    counting: bool
    why_not_counting: str


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """A board of a farm. `state` is "free", "busy", or "withdrawn" with the reason in `why`; `user`
    is whom it works for. Within a kind, only the times of boards with equal `exact` can be
    compared. `degrees`: Celsius, if known. `about` is None if the board was never connected.
    `turn`: the turn it has reached. `times`: seconds of the calibration kernels; () for an emulated
    board."""

    host: str
    url: str
    kind: str
    exact: str
    fingerprint: str
    state: str
    user: str = ""
    why: str = ""
    degrees: float | None = None
    about: Description | None = None
    turn: float = 0.0
    times: tuple[float, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of the board's worker: its kind, and its kind with `exact`."""
        return resource(self.kind), resource(self.kind, self.exact)


def resource(kind: str, exact: str = "") -> str:
    return f"board-{kind}{f'#{exact}' if exact else ''}"


@dataclass(eq=False)
class Post:
    """A place that runs calls. `user` is whom the current one is for, `turn` the highest of those
    that were begun."""

    executor: Executor
    user: str = ""
    calls: int = 0  # running or queued here
    turn: float = 0.0

    @contextmanager
    def working_for(self, user: str, turn: float = 0.0) -> Iterator[None]:
        self.user, self.calls, self.turn = user, self.calls + 1, max(self.turn, turn)
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self.user = ""


POSTS: dict[str, Post] = {}  # of this process, by the names of their workers
STATUSES: list[Callable[[], BoardStatus]] = []  # of this process's boards


def perform(packed: bytes) -> bytes:
    """Runs on a worker: performs a packed Call and returns a packed Done. A call whose board is
    gone goes back to the scheduler."""
    distributed = require_distributed()
    call: Call = pickle.loads(packed)
    worker = distributed.get_worker()
    post = POSTS[worker.name]
    result: Any = None
    error: BaseException | None = None
    began = time.monotonic()
    with post.working_for(call.user, call.turn):
        try:
            result = post.executor.submit(call.function, *call.args).result()
        except Unreachable:
            time.sleep(RETURN_PAUSE)
            raise distributed.Reschedule() from None
        except Exception as raised:
            error = raised
    done = Done(result, error, time.monotonic() - began, post.turn, worker.address)
    return pickle.dumps(done, pickle.HIGHEST_PROTOCOL)


ASIDE: dict[str, Callable[[str], None]] = {}  # withdraw a board of this process, by URL


def set_aside(url: str, why: str) -> None:
    """Runs on a worker: withdraws the boards of its process that have the URL."""
    if url in ASIDE:
        ASIDE[url](why)


def statuses() -> list[BoardStatus]:
    """Runs on a worker: the boards of its process."""
    return [status() for status in STATUSES]
