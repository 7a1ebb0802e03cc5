"""What a farm's workers do: functions of a board, and functions for builders.

A call goes to a worker as bytes and comes back as bytes, so that Dask neither looks into arguments
for tasks nor needs to know our exceptions.
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

BUILDER = "builder"  # the resource of which a worker has one for each of its builders
RETURN_PAUSE = 0.5  # seconds, before a call goes back to the scheduler from a board that is gone


@dataclass(frozen=True, slots=True)
class Call:
    """function(*args) for a user, as whom the lists name them, at a turn (turns.py)."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    user: str
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a call: its result, or what it raised. `seconds` that it took, the turn that
    its place had reached by then, and the place: the address of its worker."""

    result: Any
    error: BaseException | None
    seconds: float
    turn: float
    place: str


@dataclass(frozen=True, slots=True)
class Description:
    """What a Session says of its board, for those who have no session with it. `board` is its URL
    as its host knows it."""

    board: str
    device: Device
    emulated: bool
    counting: bool
    why_not_counting: str


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """A board of a farm. `state` is "free", "busy", or "withdrawn" with the reason in `why`; `user`
    is whom it works for. `exact` tells boards of a kind apart whose times cannot be compared.
    `degrees` Celsius, where the board tells them. No `about`: it was never there. `turn`: that it
    has reached. `times`: seconds of the calibration kernels; none of an emulated board.
    """

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
        """Of the board's worker: any of the kind, and those whose times can be compared."""
        return resource(self.kind), resource(self.kind, self.exact)


def resource(kind: str, exact: str = "") -> str:
    return f"board-{kind}{f'#{exact}' if exact else ''}"


@dataclass(eq=False)
class Post:
    """A place where calls are done. `user` is whom the present one is for, `turn` the highest of
    those that were begun."""

    executor: Executor
    user: str = ""
    calls: int = 0  # that are under way
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
STATUSES: list[Callable[[], BoardStatus]] = []  # of this process


def perform(packed: bytes) -> bytes:
    """Runs on a worker: what becomes of a packed Call, as a packed Done. A call whose board is gone
    returns to the scheduler."""
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


ASIDE: dict[str, Callable[[str], None]] = {}  # of this process: what withdraws a board, by URL


def set_aside(url: str, why: str) -> None:
    """Runs on a worker: withdraws the boards of its process that have the URL."""
    if url in ASIDE:
        ASIDE[url](why)


def statuses() -> list[BoardStatus]:
    """Runs on a worker: the boards of its process."""
    return [status() for status in STATUSES]
