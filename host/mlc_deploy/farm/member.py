"""A machine that joins a farm: its builders, and the boards that it reaches.

Each board has a Dask worker with one thread, which exists only while the board is offered. So a
board runs one call at a time, and calls that waited for a withdrawn board go to another one. A
worker that lost its scheduler is started again until the scheduler is back.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from mlc_rpc import RpcError, Session
from mlc_rpc.facts import Facts, read_facts
from mlc_rpc.verdict import HOT, THROTTLED_NOW
from mlc_targets.boards import board_names

from ..driver.builder import builder
from ..tune.boards import Board, BoardPool, Incident, fingerprint
from .calibration import calibrated
from .engine import own_host
from .keys import MEMBER, Keys, keys_of
from .tasks import BOARD_TASKS, BUILD_TASKS, HOST_TASKS
from .work import (
    ASIDE,
    BUILDER,
    HOST,
    JOBS_KEY,
    POSTS,
    STATUSES,
    BoardStatus,
    Description,
    Post,
    resource,
)

CHECK_SECONDS = 15.0  # between two checks of an idle board
FACTS_SECONDS = 30.0  # to read a board's facts
AGAIN_SECONDS = 1.0  # before a worker that ended is started again

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A board to offer: its URL, and its target if it was enrolled with one."""

    url: str
    target: str = ""


def me() -> str:
    """user@machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def kind_of(session: Session, target: str = "") -> str:
    """The board's model if it was enrolled as one, else the names of its cores."""
    if target.lower() in board_names():
        return target.lower()
    models = Counter(cpu.model or "unknown" for cpu in session.device.cpus)
    cores = "+".join(re.sub(r"[^\w.-]", "_", model) for model in models)
    if "unknown" in models or not models:
        cores = session.device.machine
    return f"emulated-{cores}" if session.emulated else cores


def unfit_now(facts: Facts | None) -> str:
    """Why the times of a board cannot be trusted at the moment; "" if they can."""
    if facts is None:
        return ""
    if (facts.throttled or 0) & THROTTLED_NOW:
        return f"throttled (get_throttled {facts.throttled:#x})"
    if facts.temperatures and (most := max(facts.temperatures.values())) >= HOT:
        return f"hot: {most:.0f} °C"
    return ""


class OfferedBoard:
    """A board and its state. `pool` has only this board. A call whose board is lost and does not
    come back raises Unreachable at once."""

    def __init__(
        self,
        place: Place,
        tell: Tell,
        *,
        connect: Any = None,
        calibrate: Callable[[Board], tuple[float, ...]] = calibrated,
        **times: float,
    ) -> None:
        self.place, self._tell, self._calibrate = place, tell, calibrate
        self.post = Post(
            BoardPool([place.url], connect=connect, report=self._heard, patience=0.0, **times),
            BOARD_TASKS,
        )
        self.kind = self.exact = self.fingerprint = ""
        self.about: Description | None = None
        self.degrees: float | None = None
        self.times: tuple[float, ...] = ()
        self.aside = ""  # why a user has withdrawn it
        self.why = "not connected yet"
        self.changed: Callable[[], None] = lambda: None

    @property
    def pool(self) -> BoardPool:
        assert isinstance(self.post.executor, BoardPool)
        return self.post.executor

    @property
    def lasting(self) -> bool:
        """Whether the board is real hardware other than this machine."""
        emulated = self.about is not None and self.about.emulated
        return not emulated and not self.place.url.startswith("local://")

    def name(self, otherwise: str) -> str:
        """The name of the board's worker. A scheduler takes each name once, so a board is offered
        once even if two machines reach it under different URLs."""
        boot = self.about.device.boot if self.about else ""
        return f"board {boot or self.place.url}" if self.lasting else otherwise

    def status(self) -> BoardStatus:
        state = "withdrawn" if self.why else "busy" if self.post.calls else "free"
        return BoardStatus(
            socket.gethostname(), self.place.url, self.kind, self.exact, self.fingerprint, state,
            self.post.user, self.why, self.degrees, self.about, self.post.turn, self.times,
        )  # fmt: skip

    def set_aside(self, why: str) -> None:
        """Withdraws the board at the next check, which is soon."""
        self.aside = why
        self.changed()

    def _heard(self, incident: Incident) -> None:
        self._tell(f"{incident.board}: {incident.what}")
        self.changed()

    def check(self) -> None:
        """Decides whether the board can be offered. Blocks while it connects."""
        before = self.why
        self.why = self._unfit()
        if self.why and self.why != before:
            self._tell(f"{self.place.url}: withdrawn: {self.why}")
        elif before and not self.why:
            self._tell(f"{self.place.url}: offered as {resource(self.kind)}")

    def _unfit(self) -> str:
        try:
            session = self.pool.first()
            if self.about is None:
                self._describe(session)
        except RpcError as error:
            return error.what
        if self.aside:
            return self.aside
        if self.post.calls:  # reading facts would disturb a measurement
            return self.why
        try:
            facts = read_facts(self.place.url, FACTS_SECONDS)
        except (RpcError, OSError) as error:
            return f"its clock and temperature cannot be read: {error}"
        if facts is not None and facts.temperatures:
            self.degrees = max(facts.temperatures.values())
        return unfit_now(facts)

    def _describe(self, session: Session) -> None:
        self.kind, self.fingerprint = kind_of(session, self.place.target), fingerprint(session)
        self.exact = blake2b(self.fingerprint.encode(), digest_size=4).hexdigest()
        self.about = Description(
            session.board, session.device, session.emulated, session.counting,
            session.why_not_counting,
        )  # fmt: skip
        if self.lasting:
            self.times = self.pool.submit(self._calibrate).result()


async def join(
    scheduler: str,
    places: Sequence[Place],
    builders: int,
    tell: Tell,
    *,
    workshop: Executor | None = None,
    check_seconds: float = CHECK_SECONDS,
) -> None:
    """Offers boards and builders to a scheduler until it is cancelled. `workshop` runs builds; the
    default is a pool of processes, at low priority if a board is this machine itself."""
    host = f"{socket.gethostname()}-{os.getpid()}"
    here = any(place.url.startswith("local://") for place in places)
    boards = [OfferedBoard(place, tell) for place in places]
    workshop = workshop or builder(max(builders, 1), gently=here)
    STATUSES[:] = [board.status for board in boards]
    ASIDE.update((board.place.url, board.set_aside) for board in boards)
    keys = keys_of(scheduler, MEMBER)
    assert keys.jobs is not None
    JOBS_KEY[:] = [keys.jobs]
    POSTS[f"host {host}"] = Post(workshop, BUILD_TASKS, HOST_TASKS)
    at = _Farm(scheduler, keys, tell)
    jobs = [_kept(at, f"host {host}", {BUILDER: builders, HOST: 1}, asyncio.Event())]
    jobs += [
        _offered(at, f"board {host} {number}", board, check_seconds)
        for number, board in enumerate(boards)
    ]
    try:
        async with asyncio.TaskGroup() as together:
            for job in jobs:
                together.create_task(job)
    finally:
        workshop.shutdown()
        for board in boards:
            board.pool.shutdown()
        JOBS_KEY.clear()
        POSTS.clear()
        STATUSES.clear()
        ASIDE.clear()


@dataclass(frozen=True, slots=True)
class _Farm:
    """The farm that a member has joined, and whom to tell what happens."""

    scheduler: str
    keys: Keys
    tell: Tell


async def _offered(farm: _Farm, name: str, board: OfferedBoard, seconds: float) -> None:
    """Runs a board's worker while the board is fit."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notice() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(changed.set)

    board.changed = notice
    worker: asyncio.Task[None] | None = None
    withdrawn = asyncio.Event()
    try:
        while True:
            changed.clear()
            await asyncio.to_thread(board.check)
            if board.why and worker is not None:
                withdrawn.set()
                await worker
                worker = None
            elif not board.why and worker is None:
                withdrawn = asyncio.Event()
                resources = dict.fromkeys(board.status().resources, 1)
                own = board.name(name)
                POSTS[own] = board.post
                worker = loop.create_task(_kept(farm, own, resources, withdrawn))
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), seconds)
    finally:
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def _kept(farm: _Farm, name: str, resources: dict[str, int], end: asyncio.Event) -> None:
    """Keeps a Dask worker running until `end`, even while the scheduler is away."""
    from .closed import Member  # here: it needs an extra

    tell = farm.tell
    ended = asyncio.create_task(end.wait())
    # One thread for each call that its resources allow at a time. All resources of a board are its
    # own call; a host has builds, and tasks about itself.
    threads = resources.get(BUILDER, 0) + 1
    try:
        while not end.is_set():
            try:
                worker = Member(
                    farm.scheduler, farm.keys, host=own_host(farm.scheduler), name=name,
                    nthreads=threads, resources=resources, memory_limit=0,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                tell(f"{name}: {error}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(ended), AGAIN_SECONDS)
                continue
            try:
                starting = asyncio.ensure_future(worker.start())
                await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                    gone = asyncio.create_task(worker.finished())
                    await asyncio.wait({gone, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if not ended.done():
                        tell(f"{name}: the scheduler is gone; it is tried again")
            except (OSError, TimeoutError, ValueError) as error:
                tell(f"{name}: {error}")
            finally:
                await worker.close(timeout=5)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), AGAIN_SECONDS)
    finally:
        ended.cancel()
