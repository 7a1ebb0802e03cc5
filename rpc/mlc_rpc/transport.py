"""How bytes reach a board: the interface of transports, and the board URLs that choose one.

A transport is a pair of byte streams to the program on the board, already started. Framing,
deadlines and tensors are the session's.
"""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from mlc_rpc.counters import Counter
from mlc_rpc.errors import Unreachable
from mlc_rpc.text import quoted

# Gives the board's program for a machine ("aarch64", "arm", "x86_64"): its bytes or its file.
Runtime = Callable[[str], bytes | Path]
Buffer = bytes | memoryview

SCHEMES = (
    "local://",
    "qemu://[CPU[,flags]]",
    "ssh://[user@]host[:port]",
    "tcp://host:port",
    "labgrid://place",
)
TAIL_BYTES = 8192


_ADDRESS = re.compile(
    r"(?:(?P<user>[^@/\s]+)@)?"
    r"(?:\[(?P<six>[^\]\s]+)\]|(?P<host>[^-@/:\s\[\]][^@/:\s\[\]]*))"
    r"(?::(?P<port>\d+))?/?"
)
# What a shell or an option would take for something else; ssh refuses it, too.
_STRANGE = re.compile(r"^-|[\x00-\x1f\x7f'`\"$\\;&<>|(){}*?!]")
_SIX = frozenset(string.hexdigits + string.ascii_letters + ":.%_-")  # with a zone


class Transport(ABC):
    """Bytes to and from the program on a board. `board` is the URL it was opened with.

    `counter` reads the executed instructions of marked runs; if it is None, `why_not_counting` says
    why. `warnings` are shown to the user once. `greeted`: preamble and hello are over; only
    messages follow. `moved` counts the bytes written; while it grows, a long write is not stuck.
    `ends_with_client`: the stream always ends with this process, so the board needs no heartbeat.
    `as_root`: root has started the board's program. `network`: bytes may travel for long. `mark`:
    what the board's start files print ends with it.
    """

    board: str
    emulated: bool = False
    process: int | None = None  # id of the board's program, if it runs here as this user
    counter: Counter | None = None
    why_not_counting: str = "instructions are counted on qemu:// boards only"
    warnings: tuple[str, ...] = ()
    greeted: bool = False
    ends_with_client: bool = False
    moved: int = 0
    as_root: bool = False
    network: bool = False
    mark: bytes = b""
    # Reads into a place; returns how many bytes, 0 at the end. None: not supported.
    read_into: Callable[[memoryview], int] | None = None
    # Waits so many seconds at most; whether `read` would not block. None: not supported.
    ready: Callable[[float], bool] | None = None

    @abstractmethod
    def read(self, limit: int) -> bytes:
        """Waits for at least one byte; b"" at the end of the stream, and again after it. Raises
        OSError."""

    @abstractmethod
    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        """Writes all pieces within `timeout` seconds. Raises TimeoutError, OSError."""

    def unsent(self) -> int | None:
        """How many of the written bytes the other end has not acknowledged; None: unknown."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Ends the board's program; a `read` in progress ends soon after. Safe to call again."""

    @abstractmethod
    def last_words(self) -> str:
        """How the board's program ended, and the end of its stderr ("" for nothing)."""


class Tail:
    """The last TAIL_BYTES of a stream, fed by one thread and read by another."""

    def __init__(self) -> None:
        self._bytes = b""
        self._lock = Lock()

    def feed(self, data: bytes) -> None:
        with self._lock:
            self._bytes = (self._bytes + data)[-TAIL_BYTES:]

    def text(self) -> str:
        """As mlc_rpc.text.quoted."""
        with self._lock:
            return quoted(self._bytes.decode(errors="replace"))


def join_words(ending: str, said: str) -> str:
    """'exit status 1', 'bad option' -> 'exit status 1; it said: bad option'"""
    return "; it said: ".join(filter(None, (ending, said)))


@dataclass(frozen=True, slots=True)
class LocalUrl:
    """local://"""


@dataclass(frozen=True, slots=True)
class QemuUrl:
    """qemu://cpu,flags; cpu defaults to "max"; flags lacks its first comma."""

    cpu: str
    flags: str = ""

    @property
    def option(self) -> str:
        """What QEMU's -cpu takes."""
        return f"{self.cpu},{self.flags}" if self.flags else self.cpu


@dataclass(frozen=True, slots=True)
class SshUrl:
    """ssh://user@host:port; None where the ssh configuration decides."""

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class TcpUrl:
    """tcp://host:port"""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LabgridUrl:
    """labgrid://place"""

    place: str


BoardUrl = LocalUrl | QemuUrl | SshUrl | TcpUrl | LabgridUrl

# CPUs that QEMU's user mode emulates but the runtime does not run on, by a pattern for the
# beginning of their names; and why.
_NO_BOARDS = {
    r"cortex-[mr]\d": "is a microcontroller, which runs no Linux",
    r"arm(9|1[01])|pxa|sa11|ti925": "is older than ARMv7, which the runtime needs",
}


def why_no_board(cpu: str) -> str:
    """Why the runtime does not run on a CPU that QEMU emulates; "" if it does."""
    return next((why for kind, why in _NO_BOARDS.items() if re.match(kind, cpu)), "")


def parse_url(text: str) -> BoardUrl:
    """The board that a URL names. Raises Unreachable when it names none."""
    scheme, mark, rest = text.partition("://")
    match scheme if mark else "":
        case "local":
            if rest:
                raise _bad_url(text, "local:// takes nothing after it", "local://")
            return LocalUrl()
        case "qemu":
            cpu, _, flags = rest.partition(",")
            if not re.fullmatch(r"[\w.+-]*(,[\w.+-]+(=[\w.+-]*)?)*", rest):
                raise _bad_url(text, f"'{rest}' is not CPU[,flag=value...]", "qemu://cortex-a53")
            if reason := why_no_board(cpu):
                raise _bad_url(text, f"{cpu} {reason}", "qemu://cortex-a7, or --target c")
            return QemuUrl(cpu or "max", flags)
        case "ssh":
            if ":" in rest.rpartition("@")[0]:  # a password, which no message may show
                hidden = f"ssh://{rest.rpartition('@')[2]}"
                raise _bad_url(
                    hidden,
                    "a URL of a board holds no password",
                    "without it: a key is used where there is one, and a password asked for",
                )
            return SshUrl(*_address(text, rest, "[user@]host[:port]", "ssh://pi@raspberrypi:22"))
        case "tcp":
            host, user, port = _address(text, rest, "host:port", "tcp://raspberrypi:9190")
            if user or port is None:
                raise _bad_url(text, f"'{rest}' is not host:port", "tcp://raspberrypi:9190")
            return TcpUrl(host, port)
        case "labgrid":
            if not re.fullmatch(r"[\w.+][\w.+-]*(/[\w.+-]+)*", rest):
                raise _bad_url(text, f"'{rest}' is not the name of a place", "labgrid://attic")
            return LabgridUrl(rest)
        case _:
            known = ", ".join(SCHEMES)
            raise _bad_url(text, f"'{text}' is not the URL of a board", f"one of {known}")


def _address(text: str, rest: str, form: str, example: str) -> tuple[str, str | None, int | None]:
    """Host, user and port in the part after the scheme."""
    found = _ADDRESS.fullmatch(rest)
    if not found or _STRANGE.search(rest) or not _SIX.issuperset(found["six"] or ""):
        raise _bad_url(text, f"'{rest}' is not {form}", example)
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65536:
        raise _bad_url(text, f"port {port} is not between 1 and 65535", example)
    return found["six"] or found["host"], found["user"], port


def _bad_url(text: str, what: str, attempt: str) -> Unreachable:
    return Unreachable(what, board=text, attempt=attempt)
