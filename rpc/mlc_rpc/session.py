"""A board in use: its description, and the tensors, blobs and modules on it."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.closing import Closing
from mlc_rpc.cores import KINDS, core_numbers, ranges
from mlc_rpc.counters import Counter
from mlc_rpc.errors import Lost, Mismatch, Refused, RpcError, Unreachable
from mlc_rpc.link import CHUNK_SECONDS, Link, Request
from mlc_rpc.module import RemoteModule
from mlc_rpc.tensor import Handles, RemoteTensor, dtype_name
from mlc_rpc.transport import Transport
from mlc_rpc.wire import HASH_BYTES
from mlc_targets.object_format import parse_metadata, section_of

PING_SECONDS = 5.0
CALL_SECONDS = 30.0
RETURN_SECONDS = 120.0  # a board may take this long to boot
TRY_SECONDS = 10.0  # for one try to reconnect
READ_SECONDS = 600.0  # to read and hash a blob on a slow card; the heartbeat finds a dead board
PAUSE_SECONDS = 1.0  # between two tries, at least
PIECE = 1 << 24  # bytes of a blob hashed at a time
RELEASED_CHUNKS = 32  # of a mapped blob; its pages are released after so many were sent


@dataclass(frozen=True, slots=True)
class Cpu:
    """One core. `model` is "" and `midr` is 0 if unknown."""

    model: str = ""
    midr: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """The board's description of itself. Memory and pages in bytes."""

    runtime: str  # version of the program
    machine: str  # of its user space: "aarch64", "arm", "x86_64"
    abi: int
    features: frozenset[str]  # by LLVM's names
    kernel: str
    cores: int
    fast_cores: int  # of the fastest kind that the program may use: the best number of threads
    memory: int
    page_size: int
    cpus: tuple[Cpu, ...]
    boot: str = ""  # differs after each boot; "" if unknown
    slow_cores: tuple[int, ...] = ()  # numbers; none if all are of one kind, or unknown
    allowed_cores: tuple[int, ...] = ()  # numbers of the cores the program may use; none: unknown
    box: tuple[str, ...] | None = None  # the entries of wire.BOX in force; None: unknown

    def count_cores(self, cores: str = "") -> int:
        """How many cores a text names, at least 1, whether or not the board has them: "fast" (also
        ""), "slow", or numbers as "0-3" or "4,5". Raises ValueError on other text."""
        match cores:
            case "" | "fast":
                return self.fast_cores
            case "slow":
                return max(len(self.slow_cores), 1)
            case _:
                return len(core_numbers(cores))

    def refuse_cores(self, cores: str, board: str) -> None:
        """Raises Refused if the board has no such cores, as a run would, but before anything is
        sent. Raises ValueError on other text."""
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

    It may also have `host_calls`, a sequence of host_call.HostCall.
    """

    @property
    def object_bytes(self) -> bytes: ...

    @property
    def weights_bytes(self) -> bytes | memoryview: ...


class Session(Closing):
    """A connection to one board, until `close`. Usable from several threads.

    Every call raises RpcError's kinds (mlc_rpc.errors) and has a deadline. Ctrl-C during a call
    ends the board's program.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = CALL_SECONDS,
        reopen: Callable[[float], Transport] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        """`timeout`, in seconds, is the default deadline of calls that run no kernel. `reopen`
        starts the program on the same board again, within so many seconds, for `reconnect`.
        `release` returns a lent board when the session is closed.

        Raises Unreachable when our program does not answer, Mismatch when its version differs.
        """
        self.timeout = timeout
        self._reopen, self._release = reopen, release
        self._sent_before = 0  # bytes sent by earlier links
        self._begin(transport, timeout)

    def _begin(self, transport: Transport, timeout: float) -> None:
        self.link = Link(transport, timeout)
        self.board = transport.board
        self.emulated = transport.emulated
        self.why_not_counting = transport.why_not_counting
        self._tensors = Handles(self.link, "tensor")
        self._modules = Handles(self.link, "module")
        try:
            self.device = self._describe()
        except BaseException:
            self.link.close()
            raise
        self.warnings = (*transport.warnings, *_lacks(transport, self.device))

    def reconnect(self, patience: float = RETURN_SECONDS) -> None:
        """Starts the program on the same board again after the session was lost, as soon as the
        board answers. Blobs in the board's cache need not be sent again.

        Earlier tensors and modules are gone; using them raises Lost. Raises Unreachable when the
        board does not come back in `patience` seconds, Mismatch, and Lost when this session was
        closed.
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
            except RpcError as error:  # also if it answers while it shuts down
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"the board did not come back in {patience:g} s: {error.what}",
                        board=self.board,
                        attempt=error.attempt or "check its power and network",
                    ) from error
            time.sleep(max(began + PAUSE_SECONDS - time.monotonic(), 0))

    def __repr__(self) -> str:
        return f"<Session {self.board}, {self.device.machine}, {self.device.cores} cores>"

    @property
    def counting(self) -> bool:
        """Whether executed instructions are counted; if not, `why_not_counting` says why."""
        return self.counter is not None

    @property
    def counter(self) -> Counter | None:
        """Reads the counts of marked runs; None if the board does not count."""
        return self.link.transport.counter

    @property
    def can_reconnect(self) -> bool:
        """Whether `reconnect` can work: the session was not closed here."""
        return self._reopen is not None

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the board so far, framing included."""
        return self._sent_before + self.link.sent_bytes

    def close(self) -> None:
        """Ends the board's program; its tensors and modules are gone. Safe to call again."""
        self._reopen = None
        self.link.close()
        release, self._release = self._release, None
        if release is not None:
            release()

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
        self._tensors.free_dropped(self.timeout)
        shape = tuple(int(extent) for extent in shape)
        handle = self._tensors.add(self.call("tensor.new", dtype, shape), "tensor.new")
        return RemoteTensor(self.link, self._tensors, handle, shape, dtype)

    def random(self, shape: Sequence[int], dtype: str = "float32", seed: int = 1) -> RemoteTensor:
        """A tensor that the board fills itself: nothing is sent. Floats are uniform in [-1, 1)."""
        made = self.empty(shape, dtype)
        made.fill("random", seed)
        return made

    # Blobs

    def put(self, data: bytes | memoryview) -> bytes:
        """Leaves `data` on the board under its BLAKE2b-256 hash, which is returned.

        The part that is there already, from this or an earlier session, is not sent again.
        """
        view = memoryview(data).cast("B")
        name = _name_of(view)
        size, complete = self._blob(name, len(view))
        if complete:
            return name
        try:
            self._send_blob(name, view, size)
        except Refused:
            if size == 0:
                raise
            # The part that was there is damaged. The board has dropped it, or refuses again.
            self._send_blob(name, view, self._blob(name, len(view))[0])
        return name

    def has(self, name: bytes) -> bool:
        """Whether the board holds the whole blob."""
        return self._blob(name)[1]

    def get(self, name: bytes) -> bytes:
        """The content of the blob with this hash. Raises Refused when the board does not hold
        it."""
        size, complete = self._blob(name)
        if not complete:
            raise Refused(
                f"blob {name.hex()[:12]} is not on the board", board=self.board, method="blob.get"
            )
        requests = (Request(step, (name, at, step)) for at, step in self.link.chunks(size))
        # Grows as parts arrive: the board claims the size, so it is not allocated up front.
        data = bytearray()
        for part in self.link.stream("blob.get", requests, CHUNK_SECONDS, size):
            data += part
        if blake2b(data, digest_size=HASH_BYTES).digest() != name:
            raise self.link.broken("what came is not the blob's content", "blob.get")
        return bytes(data)

    def forget(self, name: bytes) -> None:
        """Drops a blob. Raises Refused while a module needs it."""
        self.call("blob.free", name)

    def _blob(self, name: bytes, whole: int | None = None) -> tuple[int, bool]:
        """How many bytes of a blob are there, and whether it is complete. `whole`: its size, if
        known."""
        size, complete = self.call("blob.has", name, timeout=READ_SECONDS)
        if whole is not None and (size > whole or (complete and size < whole)):
            what = f"the board has {size} bytes of a blob of {whole}"
            raise self.link.broken(what, "blob.has")
        return size, complete

    def _send_blob(self, name: bytes, view: memoryview, start: int) -> None:
        total = len(view)
        if start or not total:  # an empty piece makes the board read its cache
            self.link.call("blob.put", name, total, start, timeout=READ_SECONDS, tail=b"")
        requests = (
            Request(step, (name, total, start + at), view[start + at : start + at + step])
            for at, step in self.link.chunks(total - start)
        )
        answers = self.link.stream("blob.put", requests, CHUNK_SECONDS, total - start)
        for number, _ in enumerate(answers):
            if number % RELEASED_CHUNKS == 0:
                _release(view)
        _release(view)

    # Modules

    def load(
        self, program: bytes | Deployable, weights: bytes | memoryview | None = None
    ) -> RemoteModule:
        """Loads an object file and the weights of its model.

        The board refuses an object for another machine, or one that needs CPU features it lacks.
        """
        if isinstance(program, bytes):
            code = self.put(program)
        else:
            code, weights = self.put(program.object_bytes), program.weights_bytes
        host_calls = getattr(program, "host_calls", ())
        data = self.put(weights) if weights is not None and len(weights) else None
        answer = self.call("module.load", code, data, timeout=max(self.timeout, CHUNK_SECONDS))
        own = _metadata_of(program if isinstance(program, bytes) else program.object_bytes)
        if own is None or answer["metadata"] != own:
            raise self.link.broken("metadata of the answer is not the object's", "module.load")
        metadata = parse_metadata(own)
        handle, arena = self._modules.add(answer["module"], "module.load"), None
        needed = metadata.model.arena_bytes if metadata.model else 0
        if (answer["arena"] is not None) != (needed > 0):
            what = f"arena of the answer is {answer['arena']}, and the model needs {needed} bytes"
            raise self.link.broken(what, "module.load")
        if needed:
            tensor = self._tensors.add(answer["arena"], "module.load")
            arena = RemoteTensor(self.link, None, tensor, (needed,), "uint8")
        return RemoteModule(
            self, self._modules, handle, metadata, arena, answer["image_bytes"], host_calls,
            weights or b"",
        )  # fmt: skip

    def _describe(self) -> Device:
        began = time.monotonic()
        told = self.call("describe")
        self.link.pace.returned(time.monotonic() - began)
        told["features"] = frozenset(told["features"])
        told["cpus"] = tuple(Cpu(**cpu) for cpu in told["cpus"])
        for name in ("slow_cores", "allowed_cores"):
            told[name] = tuple(told[name])
        if told["box"] is not None:
            told["box"] = tuple(told["box"])
        return Device(**{each.name: told[each.name] for each in fields(Device)})


def _lacks(transport: Transport, device: Device) -> list[str]:
    """What is to be said of a box without a user of its own, where root started the program."""
    if not transport.as_root or device.box is None or "user" in device.box:
        return []
    parts = ", ".join(device.box) or "nothing"
    return [
        f"kernels run as root on {transport.board}, which may not become another user there "
        f"(a container without CAP_SETUID?); what still holds them: {parts}"
    ]


def _name_of(view: memoryview) -> bytes:
    """The name of a blob: the hash of its content."""
    found = blake2b(digest_size=HASH_BYTES)
    for begin in range(0, len(view), PIECE):
        found.update(view[begin : begin + PIECE])
        _release(view)
    return found.digest()


def _release(view: memoryview) -> None:
    """Frees the memory of a mapped file's pages; a later access reads them again."""
    if isinstance(view.obj, mmap.mmap) and hasattr(view.obj, "madvise"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def _metadata_of(program: bytes) -> bytes | None:
    """The metadata section of an object; None if it is not an object, which boards refuse."""
    try:
        return section_of(program)
    except ValueError:
        return None
