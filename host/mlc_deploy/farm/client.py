"""The user's side of a farm: its status, and its boards and builders as executors of
concurrent.futures."""

from __future__ import annotations

import itertools
import threading
import time
from asyncio import run_coroutine_threadsafe
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pickle import PicklingError
from typing import Any, Generic, TypeVar
from uuid import uuid4

from mlc_rpc import Unreachable
from mlc_rpc.closing import Closing
from mlc_targets import Target

from ..errors import FarmError
from .calibration import deviating, how_apart
from .engine import require_distributed, scheduler_address
from .keys import FOLDER_SETTING, USER, keys_of
from .member import me
from .payload import NotData, packed, unpacked
from .seal import Pair, Unsealable, calling
from .tasks import task_of
from .turns import Turns, dask_priority
from .witness import Judge, evidence, is_due, majority, wrong_ones
from .work import (
    BUILDER,
    HOST,
    NOT_OURS,
    BoardStatus,
    Call,
    Description,
    Done,
    perform,
    resource,
    set_aside,
    statuses,
)

R = TypeVar("R")
CONNECT_SECONDS = 15.0  # for the first answer of a scheduler
PATIENCE_SECONDS = 60.0  # a scheduler may be away for so long
DEATHS = 10  # times that a call is sent again after Dask gave it up
AGAIN_SECONDS = 0.5  # between two tries
ASKED = 3  # times that all hosts are asked for their boards
HOST_SECONDS = 10.0  # for the answers of all hosts
HOST_PRIORITY = 1_000_000  # of questions to hosts: no work has so much
WATCH_SECONDS = 5.0  # between two looks whether the scheduler still knows our calls
CHECK_SECONDS = 600.0  # for another member's answer to a call that is checked
AHEAD = 4  # calls of a user in flight, per place: a place that ends one has another at once
LEAST_PLACES = 4  # as many as may come to a farm before anybody notices
GONE = ("scheduler-connection-lost", "scheduler-restart")  # why Dask cancels; others: somebody did


class Farm(Closing):
    """A connection to a scheduler. Calls of a higher priority go first; within a priority, users
    get the boards' time by their shares. Raises FarmError, and Unreachable if no scheduler
    answers."""

    def __init__(
        self,
        address: str,
        *,
        priority: int = 0,
        share: float = 1.0,
        warn: Callable[[str], None] = lambda _: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._distributed = require_distributed()
        self.address, self.warn = scheduler_address(address), warn
        self._keys = keys_of(self.address, USER)
        self.user, self.priority, self.share, self.patience = me(), priority, share, patience
        self._lock = threading.Lock()  # of the client
        self._closed = threading.Event()
        from .closed import restrict  # here: it needs an extra

        restrict()
        self._client = self._connected()
        self._under_way: dict[str, Future[bytes]] = {}  # by the scheduler's keys
        self.distrusted: set[str] = set()  # members that answered wrongly
        self.judge = Judge()
        self.checks = ThreadPoolExecutor(1, "farm's checks")
        if self._client.scheduler_info(n_workers=0).get("type") != "Queue":
            warn(
                f"{self.address} is a scheduler of Dask's, which runs the code of everyone who "
                f"reaches it; mlc-deploy farm scheduler {self.address} runs none"
            )
        threading.Thread(target=self._watch, daemon=True, name="farm's calls").start()

    def _connected(self) -> Any:
        try:
            return self._distributed.Client(
                self.address,
                security=self._keys.security(),
                timeout=CONNECT_SECONDS,
                set_as_default=False,
            )
        except (OSError, TimeoutError) as error:
            raise Unreachable(
                f"no scheduler answers: {error}",
                board=self.address,
                attempt=f"mlc-deploy farm scheduler {self.address}, on that machine",
            ) from None
        except (TypeError, ValueError, RuntimeError) as error:  # wrong settings of certificates
            raise FarmError(
                f"the scheduler cannot be asked: {error}",
                where=self.address,
                mend=f"keys of this farm: {FOLDER_SETTING}=farm-keys/user",
            ) from None

    def client(self) -> Any:
        """A client that is connected or reconnects. Raises Unreachable."""
        with self._lock:
            if self.closed:
                raise CancelledError
            if self._client.status == "closed":
                self._client = self._connected()
            return self._client

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def is_death(self, error: Exception) -> bool:
        """Whether Dask gave a call up because workers died while running it, or lost its result
        because the scheduler died while sending it, or the answer is of no member."""
        lost = (self._distributed.comm.CommClosedError, Unsealable)
        return isinstance(error, lost) or b"KilledWorker" in _unread(error)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._client.close(timeout=5)
        self.checks.shutdown(wait=False, cancel_futures=True)
        self.judge.close()

    def begin(
        self, client: Any, resource: str, sealed: bytes, priority: float, workers: list[str] | None,
        others: bool = False,
    ) -> Future[bytes]:  # fmt: skip
        """Sends a sealed call to a place with a resource: any, or one of some workers, or `others`
        where these are busy or gone. The future raises what Dask raises."""
        key = f"{resource}-{uuid4().hex}"
        where = {"workers": workers, "allow_other_workers": others} if workers else {}
        run = client.submit(
            perform,
            sealed,
            key=key,
            pure=False,
            priority=priority,
            resources={resource: 1},
            **where,
        )
        # Not client.get_executor: its futures never end when the scheduler dies while it sends a
        # result.
        ran = run_coroutine_threadsafe(_awaited(run), client.loop.asyncio_loop)
        self._under_way[key] = ran
        ran.add_done_callback(lambda _: self._under_way.pop(key, None))
        return ran

    def plain(self, function: Callable[..., Any], args: tuple[Any, ...], turn: float) -> bytes:
        """A call as a member reads it. Raises FarmError if it is not a task of a farm on data."""
        why = ""
        try:
            plain = packed(Call(task_of(function), args, self.user, turn))
            unpacked(plain)
        except (PicklingError, AttributeError, TypeError, NotData) as error:
            why = str(error)
        if not task_of(function):
            why = f"'{getattr(function, '__name__', function)}' is not a task of a farm"
        if why:
            raise FarmError(
                f"this cannot be sent to a farm: {why}",
                where=self.address,
                mend="--board; functions of a --converters file stay on this machine",
            ) from None
        return plain

    def sealed(self, function: Callable[..., Any], args: tuple[Any, ...], turn: float) -> Sealed:
        """A call as it travels. Raises FarmError as above."""
        keys = calling(self._keys.members)
        return Sealed(keys.seal_call(self.plain(function, args, turn)), keys)

    def opened(self, sealed: Sealed, answer: bytes) -> Done:
        """The outcome of a call. Raises Unsealable if no member sent it, FarmError if a member
        cannot read the call."""
        if answer == NOT_OURS:
            raise FarmError(
                "a member cannot read this call: it has other keys, or another version",
                where=self.address,
                mend="the keys of one farm for all of its machines, in the same version",
            )
        try:
            done = unpacked(sealed.keys.open_result(answer))
        except NotData:
            raise Unsealable from None
        if not isinstance(done, Done):
            raise Unsealable
        return done

    def boards(self) -> list[BoardStatus]:
        """All boards, also withdrawn ones. A host that does not answer is asked again: it may be
        busy or about to leave."""
        found: dict[str, list[BoardStatus]] = {}
        for _ in range(ASKED):
            hosts = self._hosts()
            found = self._ask(hosts, statuses)
            if hosts and len(found) == len(hosts):
                break
            time.sleep(AGAIN_SECONDS)
        each = [status for of_host in found.values() for status in of_host]
        return sorted(each, key=lambda b: (b.kind, b.host, b.url))

    def set_aside(self, board: BoardStatus, why: str) -> None:
        """Withdraws a board until its machine joins again."""
        self._ask(self._hosts(), set_aside, board.url, why)

    def members(self, resource: str) -> dict[str, str]:
        """The members with a resource, by the addresses of the workers that have it."""
        return {
            at: str(w["name"]).split()[1]
            for at, w in self._workers().items()
            if resource in w["resources"]
        }

    def distrust(self, member: str, what: str) -> None:
        """Leaves a member out from now on."""
        if member not in self.distrusted:
            self.distrusted.add(member)
            self.warn(f"member {member} of the farm gave a wrong {what}; it gets no more calls")

    def ask_at(
        self, place: str, resource: str, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """The answer of one place to a call."""
        sealed, first = self.sealed(function, args, 0.0), dask_priority(self.priority, 0.0)
        ran = self.begin(self.client(), resource, sealed.call, first, [place])
        done = self.opened(sealed, ran.result(CHECK_SECONDS))
        if done.error is not None:
            raise done.error
        return done.result

    def _ask(
        self, hosts: Sequence[str], function: Callable[..., Any], *args: Any
    ) -> dict[str, Any]:
        """The answers of hosts about themselves, those that arrive in time."""
        client, end = self.client(), time.monotonic() + HOST_SECONDS
        asked = []
        for host in hosts:
            sealed = self.sealed(function, args, 0.0)
            first = dask_priority(HOST_PRIORITY, 0.0)
            asked.append((host, sealed, self.begin(client, HOST, sealed.call, first, [host])))
        found = {}
        for host, sealed, ran in asked:
            try:
                done = self.opened(sealed, ran.result(max(0.0, end - time.monotonic())))
            except (Exception, CancelledError):
                ran.cancel()
            else:
                found[host] = done.result
        return found

    def _watch(self) -> None:
        """Ends calls that the scheduler has forgotten without a word."""
        missed: set[str] = set()
        while not self._closed.wait(WATCH_SECONDS):
            keys = list(self._under_way)
            try:
                client = self.client()
                if not keys or client.status != "running":
                    missed = set()
                    continue
                known = client.sync(client.scheduler.get_task_status, keys=keys)
            except (Exception, CancelledError):  # the scheduler is away
                missed = set()
                continue
            unknown = {key for key in keys if known.get(key, "") is None}
            for key in unknown & missed:  # twice: the first time, it may have been on its way
                if (ran := self._under_way.get(key)) is not None:
                    ran.cancel()
            missed = unknown

    def builders(self) -> int:
        return sum(int(w["resources"].get(BUILDER, 0)) for w in self._workers().values())

    def waiting(self) -> Counter[str]:
        """The number of calls that wait or run, by the resource that they ask for."""
        client = self.client()
        return Counter(client.sync(client.scheduler.waiting) or {})

    def builder(self) -> FarmExecutor:
        """An executor for build_object, on all hosts."""
        return FarmExecutor(self, BUILDER, self.builders())

    def _workers(self) -> dict[str, Any]:
        return dict(self.client().scheduler_info(n_workers=-1)["workers"])

    def _hosts(self) -> list[str]:
        return [at for at, w in self._workers().items() if str(w["name"]).startswith("host ")]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A call as it travels, and the keys that open its result."""

    call: bytes
    keys: Pair


class _Places:
    """The number of an executor's calls in flight at each place, by its address. All places get
    equally many, so that none is idle, or serves another user, while calls wait elsewhere. Only
    places where a call has ended are known."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self) -> str:
        """The place for a further call; "" if none is known."""
        with self._lock:
            place = min(self._calls, key=self._calls.__getitem__, default="")
            if place:
                self._calls[place] += 1
            return place

    def ended(self, sent: str, ran: str = "") -> None:
        """Notes where a call ran ("": nowhere). If that is not where it was sent, the place it was
        sent to may be gone and is forgotten."""
        with self._lock:
            if sent != ran:
                self._calls.pop(sent, None)
            elif sent in self._calls:
                self._calls[sent] -= 1
            if ran:
                self._calls.setdefault(ran, 0)


@dataclass(eq=False)
class _Sent(Generic[R]):
    """A call. `call`: as it travels, once it has a turn; `counted`: the seconds it counts as until
    it ends. `in_flight`: sent, and not yet answered. `place`: where it was sent, "" for anywhere.
    `missed`: since when there is no scheduler. `deaths`: how often Dask lost the call because
    workers or the scheduler died. The call is not the cause, since calls run in processes other
    than the workers'."""

    function: Callable[..., R]
    args: tuple[Any, ...]
    outcome: Future[R] = field(default_factory=Future)
    call: Sealed | None = None
    turn: float = 0.0
    counted: float = 0.0
    in_flight: bool = False
    place: str = ""
    missed: float | None = None
    deaths: int = 0


async def _awaited(run: Awaitable[bytes]) -> bytes:
    return await run


class FarmExecutor(Executor):
    """The places of a farm with a resource, as an executor. A call whose worker or scheduler ends
    is sent again. When the scheduler is away for longer than the farm's patience, calls raise
    Unreachable."""

    def __init__(
        self, farm: Farm, resource: str, places: int, begun: float = 0.0, alike: bool = False
    ) -> None:
        """`places`: how many have the resource, and `begun`: the turn they have reached. alike:
        whether all places take equally many calls at a time."""
        self.farm, self.resource = farm, resource
        self._places_there = places
        self._lock = threading.Lock()  # of the next three
        self._waiting: deque[_Sent[Any]] = deque()
        self._in_flight = 0
        self._sending = False  # one thread sends, and the calls go in their order
        self._turns = Turns(farm.share, begun)
        self._places = _Places() if alike else None
        self._answers = itertools.count()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Raises FarmError for what is not a task of a farm on data."""
        assert not kwargs, "a farm's call takes arguments by their places"
        self.farm.plain(fn, args, 0.0)
        sent = _Sent(fn, args)
        self._turns.came()
        sent.outcome.add_done_callback(partial(self._over, sent))
        with self._lock:
            self._waiting.append(sent)
        self._send_ahead()
        return sent.outcome

    def _over(self, sent: _Sent[Any], _: object) -> None:
        self._answered(sent)
        self._turns.left()

    def _answered(self, sent: _Sent[Any]) -> None:
        with self._lock:
            self._in_flight -= sent.in_flight
            sent.in_flight = False
        self._send_ahead()

    def _most(self) -> int:
        """How many calls may be in flight: few as long as nobody knows how long they take."""
        if self._turns.known:
            return AHEAD * max(self._places_there, LEAST_PLACES)
        return max(self._places_there, 1)

    def _send_ahead(self) -> None:
        """Sends calls that wait until as many are in flight as may be."""
        while True:
            with self._lock:
                if self._sending or not self._waiting or self._in_flight >= self._most():
                    return
                sent = self._waiting.popleft()
                if sent.outcome.done():  # it was cancelled
                    continue
                self._in_flight += 1
                sent.in_flight = self._sending = True
            sent.turn, sent.counted = self._turns.take()
            self._send(sent)
            with self._lock:
                self._sending = False

    def _send(self, sent: _Sent[Any]) -> None:
        if self.farm.distrusted:  # asking who else is there blocks, and this may be Dask's thread
            threading.Thread(target=self._begin, args=(sent,), daemon=True).start()
        else:
            self._begin(sent)

    def _begin(self, sent: _Sent[Any]) -> None:
        try:
            client = self.farm.client()
            if client.status == "running":
                sent.missed = None
            sent.place = self._places.take() if self._places else ""
            first = dask_priority(self.farm.priority, sent.turn)
            place = [sent.place] if sent.place else None
            if self.farm.distrusted:
                place = self._trusted()
            others = not self.farm.distrusted
            if sent.call is None:
                sent.call = self.farm.sealed(sent.function, sent.args, sent.turn)
            ran = self.farm.begin(client, self.resource, sent.call.call, first, place, others)
        except FarmError as error:
            sent.outcome.set_exception(error)
        except Exception as error:
            self._missed(sent, error)
        else:
            ran.add_done_callback(partial(self._settle, sent))

    def _settle(self, sent: _Sent[Any], ran: Future[bytes]) -> None:
        assert sent.call is not None
        try:
            done = self.farm.opened(sent.call, ran.result())
            self._left(sent, done.place)
        except CancelledError as cancelled:
            self._left(sent)
            if self.farm.closed or getattr(cancelled, "reason", "") in GONE:
                self._missed(sent, cancelled)
            else:
                sent.outcome.set_exception(_forgotten(self.farm.address))
        except Exception as raised:
            self._left(sent)
            if self.farm.is_death(raised) and sent.deaths < DEATHS:
                sent.deaths += 1
                self._send(sent)
            elif isinstance(raised, Unsealable):
                sent.outcome.set_exception(_not_a_member(self.farm.address))
            elif _unread(raised):
                sent.outcome.set_exception(_given_up(self.farm.address))
            else:
                sent.outcome.set_exception(raised)
        else:
            self._turns.ended(done.turn, done.seconds, sent.counted)
            if done.error is not None:
                sent.outcome.set_exception(done.error)
            elif evidence(done.result) is None or not is_due(next(self._answers)):
                sent.outcome.set_result(done.result)
            else:
                self._answered(sent)
                self.farm.checks.submit(self._check, sent, done)

    def _trusted(self) -> list[str]:
        """The places of members that have not answered wrongly. Raises FarmError without any."""
        members = self.farm.members(self.resource)
        trusted = [at for at, member in members.items() if member not in self.farm.distrusted]
        if not trusted:
            raise FarmError(
                f"no member is left for this call but {', '.join(sorted(self.farm.distrusted))}, "
                "which answered wrongly",
                where=self.farm.address,
                mend="mlc-deploy farm join, on another machine",
            )
        return trusted

    def _check(self, sent: _Sent[Any], done: Done) -> None:
        """Delivers an answer, or the right one if another member or this machine differs."""
        right = done.result
        try:
            right = self._witnessed(sent, done)
        except (Exception, CancelledError):  # nobody is there to check it
            if self.farm.closed:
                sent.outcome.set_exception(CancelledError())
                return
        sent.outcome.set_result(right)

    def _witnessed(self, sent: _Sent[Any], done: Done) -> Any:
        """The right answer of a call that has been answered."""
        members = self.farm.members(self.resource)
        first = members.get(done.place, "unknown")
        answers = {first: done.result}
        judged = None
        others = {m: at for at, m in members.items() if m not in {first, *self.farm.distrusted}}
        for member, at in others.items():
            answers[member] = self.farm.ask_at(at, self.resource, sent.function, sent.args)
            if len(answers) == 2 and not wrong_ones(answers, done.result):
                return done.result
            if (judged := self.farm.judge.built(sent.function, sent.args)) is not None:
                break
            if len(answers) == 3:
                break
        if not others:
            judged = self.farm.judge.built(sent.function, sent.args)
        right = judged if judged is not None else majority(answers)
        what = "object" if isinstance(done.result, bytes) else "count of instructions"
        if right is None:
            if others:
                names = " and ".join(answers)
                self.farm.warn(f"{names} differ in a {what}; no third is there to say who is wrong")
            return done.result
        for member in wrong_ones(answers, right):
            self.farm.distrust(member, what)
        return right

    def _left(self, sent: _Sent[Any], ran: str = "") -> None:
        if self._places is not None:
            self._places.ended(sent.place, ran)

    def _missed(self, sent: _Sent[Any], error: BaseException) -> None:
        now = time.monotonic()
        sent.missed = now if sent.missed is None else sent.missed
        if self.farm.closed:
            sent.outcome.set_exception(CancelledError())
        elif now - sent.missed > self.farm.patience:
            sent.outcome.set_exception(
                Unreachable(
                    f"the scheduler is gone: {error or type(error).__name__}",
                    board=self.farm.address,
                    attempt="the same command again when it is there: it goes on where it stopped",
                )
            )
        else:
            again = threading.Timer(AGAIN_SECONDS, self._send, (sent,))
            again.daemon = True
            again.start()


def _unread(error: Exception) -> bytes:
    """The pickle of an error of Dask's, which arrives unread (closed.py); b"" for other errors."""
    content = error.args[0] if error.args else None
    return content if type(error) is Exception and isinstance(content, bytes) else b""


def _given_up(address: str) -> FarmError:
    return FarmError(
        "the farm has given up this call",
        where=address,
        mend="what the scheduler and the members printed says why",
    )


def _forgotten(address: str) -> FarmError:
    return FarmError(
        "the scheduler has dropped this call: somebody else has cancelled it",
        where=address,
        mend="the same command again: it goes on where it stopped",
    )


def _not_a_member(address: str) -> FarmError:
    return FarmError(
        f"{DEATHS} answers to this call are of no member: they do not open with its key",
        where=address,
        mend="keys for all machines: mlc-deploy farm keys farm-keys",
    )


class FarmBoards(FarmExecutor):
    """Boards of a farm with comparable times, for measuring like a BoardPool."""

    def __init__(self, farm: Farm, boards: Sequence[BoardStatus]) -> None:
        one = boards[0]
        # Idle boards keep the turn that they have reached: who comes first to them begins there,
        # or who comes second would begin far after.
        busy = [b.turn for b in boards if b.state == "busy"]
        begun = min(busy) if busy else max(b.turn for b in boards)
        super().__init__(farm, resource(one.kind, one.exact), len(boards), begun, alike=True)
        assert one.about is not None
        self._about, self.kind = one.about, one.fingerprint
        self.urls = tuple(board.url for board in boards)

    def first(self) -> Description:
        """One of the boards, as it describes itself."""
        return self._about


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A board of the kind that cannot be compared with the others, and why. `slow`: it is the same
    hardware, but its times differ."""

    board: BoardStatus
    why: str
    slow: bool = False


def matching(
    boards: Sequence[BoardStatus], kind: str | None, target: Target | None, where: str
) -> tuple[list[BoardStatus], list[LeftOut]]:
    """The largest set of comparable boards of one kind, and the others of that kind. Raises
    FarmError if no kind matches, or several do."""
    there = [board for board in boards if board.about is not None]
    kinds = sorted({board.kind for board in there})
    fit = [b for b in there if kind is None or b.kind == kind]
    if kind is None and target is not None:
        fit = [b for b in fit if b.about and runs_on(target, b.about)]
    found = sorted({board.kind for board in fit})
    if len(found) != 1:
        of = f"of kind '{kind}'" if kind else f"for {target.short_name}" if target else "at all"
        what = "the farm has boards of several kinds" if found else f"the farm has no board {of}"
        mend = " or ".join(f"--board-kind {k}" for k in found or kinds)
        raise FarmError(what, where=where, mend=mend or "mlc-deploy farm join, where boards are")
    sizes = Counter(board.exact for board in fit)
    most = max(sorted(sizes), key=lambda exact: sizes[exact])
    others = [LeftOut(b, f"another {b.kind} than the others") for b in fit if b.exact != most]
    alike = [board for board in fit if board.exact == most]
    apart = deviating([board.times for board in alike])
    chosen = [board for n, board in enumerate(alike) if n not in apart]
    for n in apart:
        others.append(LeftOut(alike[n], how_apart(alike[n].times, [b.times for b in chosen]), True))
    return chosen, others


def runs_on(target: Target, about: Description) -> bool:
    needs = set(target.required_features)
    return about.device.machine == target.arch and needs <= about.device.features
