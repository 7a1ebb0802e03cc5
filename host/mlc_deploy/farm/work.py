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
    """function(*args) for a user, as whom the lists name them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    user: str


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
    `degrees` Celsius, where the board tells them. No `about`: it was never there."""

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

    @property
    def resources(self) -> tuple[str, ...]:
        """Of the board's worker: any of the kind, and those whose times can be compared."""
        return resource(self.kind), resource(self.kind, self.exact)


def resource(kind: str, exact: str = "") -> str:
    return f"board-{kind}{f'#{exact}' if exact else ''}"


@dataclass(eq=False)
class Post:
    """A place where calls are done. `user` is whom the present one is for."""

    executor: Executor
    user: str = ""
    calls: int = 0  # that are under way

    @contextmanager
    def working_for(self, user: str) -> Iterator[None]:
        self.user, self.calls = user, self.calls + 1
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self.user = ""


POSTS: dict[str, Post] = {}  # of this process, by the names of their workers
STATUSES: list[Callable[[], BoardStatus]] = []  # of this process


def perform(packed: bytes) -> bytes:
    """Runs on a worker: the result of a packed Call, or what it raised. A call whose board is gone
    returns to the scheduler."""
    distributed = require_distributed()
    call: Call = pickle.loads(packed)
    post = POSTS[distributed.get_worker().name]
    result: Any = None
    error: BaseException | None = None
    with post.working_for(call.user):
        try:
            result = post.executor.submit(call.function, *call.args).result()
        except Unreachable:
            time.sleep(RETURN_PAUSE)
            raise distributed.Reschedule() from None
        except Exception as raised:
            error = raised
    return pickle.dumps((result, error), pickle.HIGHEST_PROTOCOL)


def statuses() -> list[BoardStatus]:
    """Runs on a worker: the boards of its process."""
    return [status() for status in STATUSES]
