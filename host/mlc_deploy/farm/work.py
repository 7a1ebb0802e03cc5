"""The work of a farm's workers: a call is performed at a post, by one of the post's tasks.

A call names its task, so that no function travels. Calls and results are sealed bytes (seal.py) of
data (payload.py): Dask carries them, and neither reads nor runs what is in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mlc_rpc import Unreachable
from mlc_rpc.session import Device

from .engine import require_distributed
from .payload import NotData, packed, unpacked
from .seal import Unsealable, opened_call

BUILDER = "builder"  # the resource of builders; a worker has one per builder
HOST = "host"  # the resource of a member's first worker, for tasks about the member itself
RETURN_PAUSE = 0.5  # seconds before a call of a lost board goes back to the scheduler
NOT_OURS = b""  # the answer to a call that this member's key does not open, or that is none


@dataclass(frozen=True, slots=True)
class Call:
    """A task with arguments for a user, at a turn (turns.py)."""

    task: str
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
    """A place that runs calls of its tasks. `own`: those about the member itself, which need no
    executor. `user` is whom the current one is for, `turn` the highest of those that were begun."""

    executor: Executor
    tasks: Mapping[str, Callable[..., Any]]
    own: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
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


JOBS_KEY: list[bytes] = []  # of this process: the key that opens calls


def perform(sealed: bytes) -> bytes:
    """Runs on a worker: performs a sealed Call and returns a sealed Done. A call whose board is
    gone goes back to the scheduler."""
    distributed = require_distributed()
    worker = distributed.get_worker()
    post = POSTS[worker.name]
    try:
        plain, keys = opened_call(JOBS_KEY[0], sealed)
        call = unpacked(plain)
    except (Unsealable, NotData):
        return NOT_OURS
    if not isinstance(call, Call) or call.task not in {*post.tasks, *post.own}:
        return NOT_OURS
    result: Any = None
    error: BaseException | None = None
    began = time.monotonic()
    if call.task in post.own:
        result = post.own[call.task](*call.args)
    else:
        with post.working_for(call.user, call.turn):
            try:
                result = post.executor.submit(post.tasks[call.task], *call.args).result()
            except Unreachable:
                time.sleep(RETURN_PAUSE)
                raise distributed.Reschedule() from None
            except Exception as raised:
                error = raised
    done = Done(result, error, time.monotonic() - began, post.turn, worker.address)
    return keys.seal_result(_portable(done))


def _portable(done: Done) -> bytes:
    """A Done as bytes. An error that is not data arrives as its text."""
    if done.error is not None:
        try:
            content = packed(done)
            unpacked(content)
        except Exception:
            text = f"{type(done.error).__name__}: {done.error}"
            return packed(replace(done, error=RuntimeError(text)))
        return content
    return packed(done)


ASIDE: dict[str, Callable[[str], None]] = {}  # withdraw a board of this process, by URL


def set_aside(url: str, why: str) -> None:
    """Runs on a worker: withdraws the boards of its process that have the URL."""
    if url in ASIDE:
        ASIDE[url](why)


def statuses() -> list[BoardStatus]:
    """Runs on a worker: the boards of its process."""
    return [status() for status in STATUSES]
