"""Requests and responses over a transport: framing, pipelining, deadlines, errors.

One thread reads; any thread may call. Requests in flight are answered in any order. The caller of a
prepared request reads the answer itself if nobody else waits; this saves a switch of threads.
A second thread keeps the heartbeat. It pings a silent board, and ends a link that is dead without
an error, as when a cable is pulled or a board hangs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

import msgpack

from mlc_rpc.errors import (
    KINDS,
    Lost,
    Mismatch,
    ProtocolError,
    Refused,
    RpcError,
    Silent,
    Timeout,
    Unreachable,
    advice,
)
from mlc_rpc.kinds import ANYTHING, Data, Kind, Text, Wrong
from mlc_rpc.pace import WINDOW, Pace
from mlc_rpc.screen import Meter
from mlc_rpc.source import INTEGER, NIL, Ended, Source, described
from mlc_rpc.text import quoted
from mlc_rpc.transport import Buffer, Transport
from mlc_rpc.wire import (
    ANSWERS,
    ERROR,
    MAX_BANNER,
    MAX_METHOD,
    NONCE_BYTES,
    NOTHING,
    NOTIFY,
    PREAMBLE,
    REQUEST,
    RESPONSE,
    VERSION,
    version_refusal,
)

CHUNK_SECONDS = 60.0  # per chunk, of about a second; the heartbeat finds dead links
BEAT_SECONDS = 1.0  # a tick of the heartbeat
PING_BEATS = 2  # ticks without traffic from the board, or to it, between pings
DEAD_BEATS = 8  # silent ticks until an end is taken for dead
MOST_PRINTED = 1 << 20  # bytes, by start files of the board's shell
READ_BYTES = 1 << 16  # small enough that malloc need not ask the system each time
ROW_OF_3, ROW_OF_4 = 0x93, 0x94  # the first byte of a message
REQUEST_HEAD = bytes((ROW_OF_4, REQUEST, 0xCE))  # the id follows, a uint32


@dataclass(slots=True)
class Pending:
    """A request that was sent; `kind` is its result's. `answer` gets error and result, or None when
    the session ended."""

    id: int
    method: str
    kind: Kind
    deadline: float  # of time.monotonic()
    prepared: bool = False
    sleeps: bool = False  # its caller waits and does not read
    answered: float = 0.0  # when its answer came, of time.monotonic()
    answer: SimpleQueue[tuple[Any, Any] | None] = field(default_factory=SimpleQueue)


@dataclass(frozen=True, slots=True)
class Request:
    """A request of `stream`, which moves `size` bytes. `tail` is a last parameter of bytes, sent
    without a copy. `into`: where to write an answer of that many bytes."""

    size: int
    params: Sequence[object]
    tail: Buffer | None = None
    into: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is packed once and sent often. `packed`: method and params."""

    method: str
    kind: Kind
    packed: bytes


def _needs_thread(pending: Pending) -> bool:
    return pending.sleeps or not pending.prepared


class Reads(Enum):
    """Who reads the stream. NOBODY: the thread sleeps until a caller of a prepared request reads,
    or wakes it."""

    THREAD, CALLER, NOBODY = "thread", "caller", "nobody"


class Link:
    """A transport that answers requests. `sent_bytes` counts what went to the board."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        """Waits for the preamble and exchanges versions, unless the transport has done so.

        Raises Unreachable, Mismatch, Timeout.
        """
        self.transport = transport
        self.board = transport.board
        self.sent_bytes = 0
        self.pace = Pace(transport.network)
        self._pending: dict[int, Pending] = {}
        self._late: set[int] = set()  # requests whose deadline has passed
        self._next_id = 0
        self._reads = Reads.THREAD
        self._source: Source | None = None  # for whoever reads
        self._wake = threading.Semaphore(0)  # tells the thread to read again
        self._state = threading.Lock()  # of _pending, _late, _next_id, _ended, _reads
        self._writing = threading.Lock()
        self._ended: Callable[[str], RpcError] | None = None  # method -> what to raise
        self._begun: SimpleQueue[RpcError | None] = SimpleQueue()
        self._received = 0  # reads that brought something
        self._pinged = 0  # bytes of the heartbeat's pings
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"{self.board} reader", daemon=True)
        self._heart = threading.Thread(target=self._beat, name=f"{self.board} heart", daemon=True)
        self._reader.start()
        try:
            if not transport.greeted:
                self._greet(timeout)
            if not transport.ends_with_client:
                # Nobody waits for the answer: a board may not know the method.
                self.send("heartbeat", (round(DEAD_BEATS * BEAT_SECONDS * 1000),), timeout)
        except BaseException:
            self.close()
            raise
        self._heart.start()

    def call(self, method: str, *params: object, timeout: float, tail: Buffer | None = None) -> Any:
        """The result of one request. `tail` is a last parameter of bytes, sent without a copy."""
        return self.wait(self.send(method, params, timeout, tail))

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the chunks of `size` bytes, each as large as the link is fast now."""
        at = 0
        while at < size:
            step = min(self.pace.chunk, size - at)
            yield at, step
            at += step

    def stream(
        self, method: str, requests: Iterable[Request], timeout: float, total: int
    ) -> Iterator[Any]:
        """Results of many requests in order, with several of them in flight. `timeout` is for each
        request, `total` the bytes that all of them move."""
        window: deque[tuple[Pending, int, int, float]] = deque()  # size, in flight, when sent
        flying, meter = 0, Meter(total)

        def first() -> Any:
            nonlocal flying
            pending, size, with_it, sent = window.popleft()
            result = self.wait(pending)
            flying -= size
            self.pace.answered(size, with_it, pending.answered - sent)
            meter.moved(size)
            return result

        for request in requests:
            while window and (len(window) == WINDOW or flying + request.size > self.pace.limit):
                yield first()
            flying += request.size
            sent = time.monotonic()
            pending = self.send(method, request.params, timeout, request.tail, request.into)
            window.append((pending, request.size, flying, sent))
        while window:
            yield first()

    def send(
        self,
        method: str,
        params: Sequence[object],
        timeout: float,
        tail: Buffer | None = None,
        into: memoryview | None = None,
    ) -> Pending:
        """Sends a request without waiting. Raises Lost when the session ended, Timeout."""
        kind = ANSWERS[method](*params) if tail is None else ANSWERS[method](*params, tail)
        if into is not None:
            kind = Data(len(into), into=into)
        return self._post(method, kind, _packed(method, params, tail), tail, timeout)

    def prepare(self, method: str, *params: object) -> Prepared:
        """A request for `call_prepared`."""
        return Prepared(method, ANSWERS[method](*params), _packed(method, params))

    def call_prepared(self, request: Prepared, timeout: float) -> Any:
        """As `call`."""
        return self.wait(self.send_prepared(request, timeout))

    def send_prepared(self, request: Prepared, timeout: float) -> Pending:
        """As `send`."""
        return self._post(
            request.method, request.kind, request.packed, None, timeout, prepared=True
        )

    def _post(
        self, method: str, kind: Kind, packed: bytes, tail: Buffer | None, timeout: float,
        *, prepared: bool = False,
    ) -> Pending:  # fmt: skip
        """Sends a request; `packed` is all but its head and tail."""
        pending = Pending(0, method, kind, time.monotonic() + timeout, prepared)
        with self._state:
            if self._ended:
                raise self._ended(method)
            if self._reads is Reads.NOBODY and not prepared:
                self._wake_thread()
            pending.id = self._next_id
            self._next_id = (self._next_id + 1) & 0xFFFFFFFF
            self._pending[pending.id] = pending
        try:
            with self._writing:
                self._write(pending.id, packed, tail, timeout)
        except KeyboardInterrupt:
            self.close()
            raise
        except TimeoutError:
            # Half a frame was sent: the board would misread whatever follows.
            self._end(lambda m: self._timeout(m, f"the board took no more bytes for {timeout:g} s"))
            self.transport.close()
        except BrokenPipeError:
            self._end(self._lost("the board's program ended"))
        except OSError as error:
            self._end(self._lost(f"the connection broke ({error})"))
        return pending

    def _write(self, id: int, packed: bytes, tail: Buffer | None, timeout: float) -> None:
        """Writes one request. The caller holds `_writing`. Raises TimeoutError, OSError."""
        frame: list[Buffer] = [REQUEST_HEAD + id.to_bytes(4, "big") + packed]
        if tail is not None and len(tail):
            frame.append(tail)
        self.transport.write(frame, timeout)
        self.sent_bytes += sum(map(len, frame))

    def wait(self, pending: Pending) -> Any:
        """The result of a request. Raises Timeout, Lost, or what the board answered."""
        try:
            if pending.prepared and self._caller_reads(pending):
                self._read_for(pending)
            left = max(pending.deadline - time.monotonic(), 0)
            answer = pending.answer.get(timeout=left)
        except Empty:
            with self._state:
                if self._pending.pop(pending.id, None):
                    self._late.add(pending.id)
            raise self._timeout(pending.method, "no answer from the board in time") from None
        except KeyboardInterrupt:
            self.close()
            raise
        if answer is None:
            assert self._ended
            raise self._ended(pending.method)
        error, result = answer
        if error is not None:
            raise self._remote_error(error, pending.method)
        return result

    def _caller_reads(self, pending: Pending) -> bool:
        """Whether the caller of a prepared request shall read the stream."""
        with self._state:
            if self._reads is Reads.NOBODY and pending.id in self._pending:
                self._reads = Reads.CALLER
                return True
            pending.sleeps = True
            return False

    def _read_for(self, pending: Pending) -> None:
        """Takes messages until a request has its answer, its deadline has passed, or the session
        has ended. Then the thread reads on, if others wait."""
        ready, source = self.transport.ready, self._source
        assert ready and source
        try:
            while pending.answer.empty():
                if not source.left and not ready(max(pending.deadline - time.monotonic(), 0)):
                    return
                try:
                    self._taken(source)
                except BaseException:  # Ctrl-C: the rest of the message would be misread
                    self._end(self._lost("an answer was interrupted while it was read"))
                    raise
        finally:
            with self._state:
                if self._reads is Reads.CALLER:
                    self._wake_thread()

    def _wake_thread(self) -> None:
        """The caller holds `_state`."""
        self._reads = Reads.THREAD
        self._wake.release()

    def close(self) -> None:
        """Ends the board's program. Calls in flight raise Lost. Safe to call again."""
        self._end(lambda method: Lost("the session is closed", board=self.board, method=method))
        self.transport.close()
        self._reader.join(1.0)

    def _greet(self, timeout: float) -> None:
        try:
            failure = self._begun.get(timeout=timeout)
        except Empty:
            raise Unreachable(
                f"nothing from the board's program in {timeout:g} s",
                board=self.board,
                attempt="a larger timeout, or start the program by hand to see what it says",
            ) from None
        if failure:
            raise failure
        try:
            nonce = os.urandom(NONCE_BYTES)
            major, minor, _ = self.call("hello", *VERSION, nonce, timeout=timeout)
        except Refused as error:
            raise Mismatch(error.what, board=self.board, attempt=error.attempt) from error
        if refusal := version_refusal(major, minor):
            raise Mismatch(refusal[0], board=self.board, attempt=refusal[1])

    def _read(self) -> None:
        """The reader thread: reads from the preamble to the end of the stream."""
        try:
            first = b"" if self.transport.greeted else self._skip_banner()
            into = self._fetch_into if self.transport.read_into else None
        except Unreachable as error:
            self._begun.put(error)
            return
        except OSError as error:
            self._end(self._lost(f"the connection broke ({error})"))
            return
        source = self._source = Source(self._fetch, first, into)
        self._begun.put(None)
        while (left := self._taken(source)) is not None:
            if left:
                self._wake.acquire()

    def _taken(self, source: Source) -> bool | None:
        """Takes one message. Returns whether nobody reads from now on; None if the session
        ended."""
        try:
            return self._take_message(source)
        except Ended:
            self._end(self._lost("the board's program ended"))
        except ProtocolError as error:
            self._end_talk(error.what, error.method)
        except Wrong as error:  # in a message that answers no request
            self._end_talk(f"the board sent what is not a message: {error}")
        except OSError as error:
            self._end(self._lost(f"the connection broke ({error})"))
        return None

    def _fetch(self) -> bytes:
        data = self.transport.read(READ_BYTES)
        self._received += 1
        return data

    def _fetch_into(self, place: memoryview) -> int:
        assert self.transport.read_into
        size = self.transport.read_into(place)
        self._received += 1
        return size

    def _beat(self) -> None:
        """The heartbeat's thread. Bytes that arrive at either end, however slowly, are signs of
        life; those of its own pings are not, since the kernel of a hung board, or whoever passes
        bytes on to a dead link, takes them too.

        The board, too, ends a session without signs of life. So this thread also pings when the
        client has sent nothing, even while data arrives.
        """
        silent, received, arrived = 0, 0, 0
        mute, sent = 0, 0
        while not self._over.wait(BEAT_SECONDS):
            there = max(self._arrived(arrived), arrived)
            signs = (self._received, there)
            silent = silent + 1 if signs == (received, arrived) else 0
            received, arrived = signs
            mute, sent = (mute + 1 if self.sent_bytes == sent else 0), self.sent_bytes
            if silent >= DEAD_BEATS:
                self._end(self._dead)
                self.transport.close()
                return
            if any(ticks and ticks % PING_BEATS == 0 for ticks in (silent, mute)):
                self._ask_for_life(BEAT_SECONDS * (DEAD_BEATS - silent))

    def _arrived(self, before: int) -> int:
        """How many bytes have arrived at the board, or in the queue of who does not tell; without
        the pings."""
        moved, unsent = self.transport.moved, self.transport.unsent()  # in this order: never more
        if unsent is not None:
            return moved - unsent - self._pinged
        return moved - self._pinged if self._writing.locked() else before

    def _ask_for_life(self, timeout: float) -> None:
        """Sends a ping that nobody waits for; none while another request is being written."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            with self._state:
                if self._ended:
                    return
                number = self._next_id
                self._next_id = (number + 1) & 0xFFFFFFFF
                if self._reads is Reads.NOBODY:
                    self._wake_thread()
                kind = ANSWERS["ping"](None)
                self._pending[number] = Pending(number, "ping", kind, time.monotonic())
            moved = self.transport.moved
            self._write(number, _packed("ping", (None,)), None, timeout)
            self._pinged += self.transport.moved - moved
        except OSError:  # a timeout too: half a frame was sent
            self._end(self._dead)
            self.transport.close()
        finally:
            self._writing.release()

    def _dead(self, method: str) -> RpcError:
        rate = f"; before, {self.pace.rate / 1000:.0f} kB/s came through" if self.pace.rate else ""
        return Silent(
            f"no sign of life from the board for {DEAD_BEATS * BEAT_SECONDS:g} s{rate}",
            board=self.board,
            method=method,
            attempt="check its power and network, then connect again; what was on the board "
            "must be sent again",
        )

    def _skip_banner(self) -> bytes:
        """Reads up to the preamble; returns the bytes read after it. Raises Unreachable when none
        comes."""
        seen = self._read_to(self.transport.mark, b"", MOST_PRINTED)
        return self._read_to(PREAMBLE, seen, MAX_BANNER)

    def _read_to(self, mark: bytes, seen: bytes, most: int) -> bytes:
        """Reads up to a mark, before which there are at most so many bytes; returns the bytes read
        after it. Raises Unreachable."""
        while mark not in seen:
            try:
                data = self.transport.read(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise self._unstarted("the board's program did not start", seen)
            seen += data
            if len(seen) > most + len(mark) and mark not in seen:
                raise self._unstarted(
                    f"{most} bytes came from the board, and no sign of our program", seen
                )
        return seen.split(mark, 1)[1] if mark else seen

    def _take_message(self, source: Source) -> bool:
        """Takes one message. Returns whether nobody reads from now on. Raises Ended, Wrong,
        ProtocolError, OSError."""
        begin = source.byte()
        if begin == ROW_OF_4 and source.byte() == RESPONSE:
            return self._take_response(source)
        if begin == ROW_OF_3 and source.byte() == NOTIFY:
            Text(MAX_METHOD).read(source)  # there are no notifications yet: all are ignored
            ANYTHING.read(source)
            return False
        what = f"what came is neither answer nor notification: it begins with {begin:#04x}"
        raise self._protocol(what, "")

    def _take_response(self, source: Source) -> bool:
        family, id = source.head()
        if family is NIL:
            _, complaint, _ = ERROR.read(source)
            raise self._protocol(f"the board understood no more: {complaint}", "")
        pending = self._pending.get(id) if family is INTEGER else None
        if not pending:
            self._refuse_unasked(family, id)
        error = result = None
        try:
            family, value = source.head()
            if family is not NIL:
                error = _error(source, family, value)
                NOTHING.read(source)
            elif pending:
                result = pending.kind.take(source, *source.head())
            else:
                ANYTHING.read(source)
        except Wrong as wrong:
            raise self._protocol(str(wrong), pending.method if pending else "") from wrong
        with self._state:
            pending = self._pending.pop(id, None)
            if not pending:  # its deadline has passed
                self._late.discard(id)
                return False
            left = (
                pending.prepared
                and self.transport.ready is not None
                and not (self._pending and any(map(_needs_thread, self._pending.values())))
            )
            if left:
                self._reads = Reads.NOBODY
        pending.answered = time.monotonic()
        pending.answer.put((error, result))
        return left

    def _refuse_unasked(self, family: str, id: Any) -> None:
        """Raises ProtocolError unless that request's deadline has passed."""
        with self._state:
            if family is INTEGER and id in self._late:
                return
        what = f"a request of id {described(family, id)}, which waits for none"
        raise self._protocol(f"what came answers {what}", "")

    def _end(self, error: Callable[[str], RpcError]) -> None:
        """Fails all requests, in flight and later; the first reason stays."""
        with self._state:
            self._ended = self._ended or error
            self._over.set()
            if self._reads is Reads.NOBODY:
                self._wake_thread()
            waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.answer.put(None)

    def _end_talk(self, what: str, method: str = "") -> None:
        """Ends the session with a board whose answer to `method` breaks the protocol."""
        self._end(lambda called: self._protocol(what, method or called))
        self.transport.close()

    def _lost(self, what: str) -> Callable[[str], RpcError]:
        def error(method: str) -> RpcError:
            words = self.transport.last_words()
            return Lost(
                f"{what}: {words}" if words else what,
                board=self.board,
                method=method,
                attempt="connect again; what was on the board must be sent again",
            )

        return error

    def _unstarted(self, what: str, seen: bytes = b"") -> RpcError:
        printed = quoted(seen[-500:].decode(errors="replace"))
        words = self.transport.last_words()
        notes = filter(None, (words, printed and f"it printed: {printed}"))
        return Unreachable(": ".join((what, "; ".join(notes))).removesuffix(": "), board=self.board)

    def _timeout(self, method: str, what: str) -> RpcError:
        return Timeout(
            what,
            board=self.board,
            method=method,
            attempt="a larger timeout; if ping does not answer either, connect again",
        )

    def broken(self, what: str, method: str) -> RpcError:
        """Ends the session because the answer to `method` cannot be true. Returns the error to
        raise."""
        self._end_talk(what, method)
        return self._protocol(what, method)

    def _protocol(self, what: str, method: str) -> RpcError:
        return ProtocolError(what, board=self.board, method=method, attempt=KINDS["protocol"][1])

    def _remote_error(self, error: list[Any], method: str) -> RpcError:
        kind, text, details = error  # as wire.ERROR
        cls, _ = KINDS[kind]
        what, _, mend = text.partition("; try: ")
        known = {name: value for name, value in details.items() if value is not None}
        attempt = mend or advice(kind, what)
        return cls(what, board=self.board, method=method, attempt=attempt, details=known)


def _error(source: Source, family: str, value: Any) -> list[Any]:
    """A response's error, as wire.ERROR. Raises Wrong."""
    try:
        return ERROR.take(source, family, value)
    except Wrong as wrong:
        raise wrong.within("error") from None


def _packed(method: str, params: Sequence[object], tail: Buffer | None = None) -> bytes:
    """The bytes between a request's id and its `tail`: method, params, and the tail's head."""
    packer = msgpack.Packer()
    if tail is None:
        return bytes(packer.pack(method) + packer.pack(list(params)))
    size = tail.nbytes if isinstance(tail, memoryview) else len(tail)
    return b"".join(
        (
            packer.pack(method),
            packer.pack_array_header(len(params) + 1),
            *(packer.pack(param) for param in params),
            b"\xc6" + size.to_bytes(4, "big"),
        )
    )
