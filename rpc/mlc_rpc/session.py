"""A board in use: what it is, tensors and blobs on it, modules loaded into it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.cores import KINDS, core_numbers, ranges
from mlc_rpc.counters import Counter
from mlc_rpc.errors import Lost, Mismatch, ProtocolError, Refused, RpcError, Unreachable
from mlc_rpc.link import CHUNK_SECONDS, Link, chunks
from mlc_rpc.module import RemoteModule, parse_metadata
from mlc_rpc.tensor import RemoteTensor, dtype_name
from mlc_rpc.transport import Transport
from mlc_rpc.wire import HASH_BYTES

PING_SECONDS = 5.0
CALL_SECONDS = 30.0
RETURN_SECONDS = 120.0  # what a board may take to boot
TRY_SECONDS = 10.0  # for one try to connect to it meanwhile
READ_SECONDS = 600.0  # to read and hash a blob from a slow card; a dead board is found otherwise
PAUSE_SECONDS = 1.0  # at least, from one try to the next


@dataclass(frozen=True, slots=True)
class Cpu:
    """One core. `model` is "" and `midr` 0 where the board does not know."""

    model: str = ""
    midr: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """What the board says of itself. Memory and pages in bytes."""

    runtime: str  # version of the program
    machine: str  # of its user space: "aarch64", "arm", "x86_64"
    abi: int
    features: frozenset[str]  # by LLVM's names
    kernel: str
    cores: int
    fast_cores: int  # of the fastest kind, where the program may run; as many threads are best
    memory: int
    page_size: int
    cpus: tuple[Cpu, ...]
    boot: str = ""  # another one after each boot; "" where the board does not say
    slow_cores: tuple[int, ...] = ()  # numbers; none where all are fast, or not told apart
    allowed_cores: tuple[int, ...] = ()  # numbers of all; none where the board does not say
    box: tuple[str, ...] | None = None  # of wire.BOX, what holds; None where it does not say

    def count_cores(self, cores: str = "") -> int:
        """How many cores those are, at least 1, whether they are there or not: "fast" (as "" is),
        "slow", or numbers as "0-3" or "4,5". Raises ValueError on other text."""
        match cores:
            case "" | "fast":
                return self.fast_cores
            case "slow":
                return max(len(self.slow_cores), 1)
            case _:
                return len(core_numbers(cores))

    def refuse_cores(self, cores: str, board: str) -> None:
        """Raises Refused where the board has none that are called so, ValueError on other text;
        before anything is sent, as the board would on a run."""
        if cores == "slow" and not self.slow_cores and self.allowed_cores:
            raise Refused(
                "the board has no slow cores, or its kernel does not tell which they are",
                board=board,
                attempt="cores by number, such as 0-3",
            )
        if cores in ("", *KINDS) or not self.allowed_cores:
            return
        if absent := core_numbers(cores).difference(self.allowed_cores):
            raise Refused(
                f"core {min(absent)} is not here, or not for this program to use",
                board=board,
                attempt=f"of {ranges(self.allowed_cores)}",
            )


class Deployable(Protocol):
    """What `load` takes besides bytes: an object file and the weights of its model.

    Where some of the model's calls are functions of this machine, `host_calls` has them, each a
    host_call.HostCall.
    """

    @property
    def object_bytes(self) -> bytes: ...

    @property
    def weights_bytes(self) -> bytes | memoryview: ...


class Session:
    """Everything that is done with one board, until `close`. Usable from several threads.

    Every call raises RpcError's kinds (mlc_rpc.errors) and has a deadline. Ctrl-C during a call
    ends the board's program.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = CALL_SECONDS,
        reopen: Callable[[float], Transport] | None = None,
    ) -> None:
        """`timeout` is the default deadline, in seconds, of a call that does no work of the user's.
        `reopen` starts the program on the same board again within so many seconds, for `reconnect`.

        Raises Unreachable when no program of ours is at the other end, Mismatch when it is another
        version's.
        """
        self.timeout = timeout
        self._reopen = reopen
        self._sent_before = 0  # by links that are gone
        self._begin(transport, timeout)

    def _begin(self, transport: Transport, timeout: float) -> None:
        self.link = Link(transport, timeout)
        self.board = transport.board
        self.emulated = transport.emulated
        self.warnings = transport.warnings
        self.why_not_counting = transport.why_not_counting
        self._garbage: deque[int] = deque()  # tensors of this link that nobody holds any more
        try:
            self.device = self._describe()
        except BaseException:
            self.link.close()
            raise

    def reconnect(self, patience: float = RETURN_SECONDS) -> None:
        """Goes on with the same board after the session was lost, as soon as it answers: its
        program is started again, and what its cache holds need not be sent again.

        Tensors and modules of before are gone; using them raises Lost. `patience` in seconds.
        Raises Unreachable when the board does not come back in that time, Mismatch, and Lost when
        this session was closed.
        """
        if self._reopen is None:
            raise Lost("the session is closed", board=self.board, attempt="connect again")
        deadline = time.monotonic() + patience
        self.link.close()
        while True:
            began = time.monotonic()
            try:
                transport = self._reopen(min(self.timeout, TRY_SECONDS))
                sent = self.link.sent_bytes
                self._begin(transport, self.timeout)
                self._sent_before += sent
                return
            except Mismatch:
                raise
            except RpcError as error:  # it may answer, and be on its way down
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"the board did not come back in {patience:g} s: {error.what}",
                        board=self.board,
                        attempt=error.attempt or "look after its power and network",
                    ) from error
            time.sleep(max(began + PAUSE_SECONDS - time.monotonic(), 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.board}, {self.device.machine}, {self.device.cores} cores>"

    @property
    def counting(self) -> bool:
        """Whether executed instructions are counted here; else `why_not_counting` says why."""
        return self.counter is not None

    @property
    def counter(self) -> Counter | None:
        """Where marked runs are counted."""
        return self.link.transport.counter

    @property
    def can_reconnect(self) -> bool:
        """Whether `reconnect` is of use: the session was not closed here."""
        return self._reopen is not None

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the board so far, framing included."""
        return self._sent_before + self.link.sent_bytes

    def close(self) -> None:
        """Ends the board's program; what it held is gone. Safe to call again."""
        self._reopen = None
        self.link.close()

    def call(self, method: str, *params: object, timeout: float | None = None) -> Any:
        """One request of wire.METHODS."""
        return self.link.call(method, *params, timeout=timeout or self.timeout)

    def ping(self, timeout: float = PING_SECONDS) -> float:
        """Seconds to the board and back."""
        start = time.perf_counter()
        self.call("ping", None, timeout=timeout)
        return time.perf_counter() - start

    # Tensors

    def tensor(self, array: NDArray[Any]) -> RemoteTensor:
        """A tensor on the board with the array's shape, dtype and content."""
        array = np.asarray(array)
        made = self.empty(array.shape, dtype_name(array.dtype))
        made.write(array)
        return made

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> RemoteTensor:
        """A tensor on the board, zeros until written."""
        while self._garbage:
            self.call("tensor.free", self._garbage.popleft())
        shape = tuple(int(extent) for extent in shape)
        handle = self.call("tensor.new", dtype, shape)
        return RemoteTensor(self.link, self._garbage, handle, shape, dtype)

    def random(self, shape: Sequence[int], dtype: str = "float32", seed: int = 1) -> RemoteTensor:
        """A tensor that the board fills itself: nothing is sent. Floats are uniform in [-1, 1)."""
        made = self.empty(shape, dtype)
        made.fill("random", seed)
        return made

    # Blobs

    def put(self, data: bytes | memoryview) -> bytes:
        """Leaves `data` on the board under its BLAKE2b-256 hash, which is returned.

        What is there already, of this session or an earlier one that broke off, is not sent again.
        """
        view = memoryview(data).cast("B")
        name = blake2b(view, digest_size=HASH_BYTES).digest()
        size, complete = self._blob(name)
        if complete:
            return name
        try:
            self._send_blob(name, view, size)
        except Refused:
            if size == 0:
                raise
            # The part that was there is damaged. The board has dropped it by now, or says so again.
            self._send_blob(name, view, self._blob(name)[0])
        return name

    def has(self, name: bytes) -> bool:
        """Whether the board holds the whole blob."""
        return self._blob(name)[1]

    def get(self, name: bytes) -> bytes:
        """The content of a blob. Raises Refused when the board does not hold it."""
        size, complete = self._blob(name)
        if not complete:
            raise Refused(
                f"blob {name.hex()[:12]} is not on the board", board=self.board, method="blob.get"
            )
        data = bytearray(size)
        requests = (((name, at, step), None) for at, step in chunks(size))
        for (at, step), part in zip(
            chunks(size), self.link.stream("blob.get", requests, CHUNK_SECONDS), strict=True
        ):
            data[at : at + step] = part
        return bytes(data)

    def forget(self, name: bytes) -> None:
        """Drops a blob. Raises Refused while a module needs it."""
        self.call("blob.free", name)

    def _blob(self, name: bytes) -> tuple[int, bool]:
        match self.call("blob.has", name, timeout=READ_SECONDS):
            case [int(size), bool(complete)]:
                return size, complete
            case answer:
                raise ProtocolError(f"answer {answer!r:.100}", board=self.board, method="blob.has")

    def _send_blob(self, name: bytes, view: memoryview, start: int) -> None:
        total = len(view)
        if start or not total:  # a piece of nothing: the board takes in what its cache has
            self.link.call("blob.put", name, total, start, timeout=READ_SECONDS, tail=b"")
        requests = (
            ((name, total, start + at), view[start + at : start + at + step])
            for at, step in chunks(total - start)
        )
        for _ in self.link.stream("blob.put", requests, CHUNK_SECONDS):
            pass

    # Modules

    def load(
        self, program: bytes | Deployable, weights: bytes | memoryview | None = None
    ) -> RemoteModule:
        """Loads an object file, and with it the weights of its model.

        The board refuses an object for another machine, or one that needs CPU features it lacks.
        """
        if isinstance(program, bytes):
            code = self.put(program)
        else:
            code, weights = self.put(program.object_bytes), program.weights_bytes
        host_calls = getattr(program, "host_calls", ())
        data = self.put(weights) if weights is not None and len(weights) else None
        answer = self.call("module.load", code, data, timeout=max(self.timeout, CHUNK_SECONDS))
        try:
            handle, image_bytes = int(answer["module"]), int(answer["image_bytes"])
            metadata = parse_metadata(answer["metadata"])
            arena = None
            if metadata.model and answer["arena"] is not None:
                shape = (metadata.model.arena_bytes,)
                arena = RemoteTensor(self.link, None, int(answer["arena"]), shape, "uint8")
        except (LookupError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"an answer that is none ({error!r}): {answer!r:.200}",
                board=self.board,
                method="module.load",
            ) from error
        return RemoteModule(self, handle, metadata, arena, image_bytes, host_calls, weights or b"")

    def _describe(self) -> Device:
        answer = self.call("describe")
        try:
            # What an older program does not say.
            given = {"boot": "", "slow_cores": (), "allowed_cores": (), "box": None} | answer
            known = {f.name: given[f.name] for f in fields(Device)}
            known["features"] = frozenset(known["features"])
            for name in ("slow_cores", "allowed_cores"):
                known[name] = tuple(int(core) for core in known[name])
            if known["box"] is not None:
                known["box"] = tuple(str(part) for part in known["box"])
            known["cpus"] = tuple(Cpu(str(c["model"]), int(c["midr"])) for c in known["cpus"])
            return Device(**known)
        except (LookupError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"an answer that is none ({error!r}): {answer!r:.200}",
                board=self.board,
                method="describe",
            ) from error
