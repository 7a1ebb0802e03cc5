"""The interface of an ssh connection: scripts on the board, among them the start of the board's
program.

Two classes implement it: by paramiko (ssh_channel), and by the system's ssh (ssh_child).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from mlc_rpc.screen import Meter
from mlc_rpc.ssh_config import Host
from mlc_rpc.ssh_scripts import Script
from mlc_rpc.transport import Transport

MOST_SAID = 1 << 20  # bytes read of a command's output
TURN_SECONDS = 0.1  # between two looks at what has moved
PIECE_BYTES = 1 << 15  # sent at a time
# Where nobody tells what a link has moved, it is given the time of one of 16 kbit/s.
SLOWEST_BYTES_PER_SECOND = 2000.0


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and the first MOST_SAID bytes of each stream. status is -1 if it did not
    end in time, or printed more."""

    status: int
    out: str
    complaint: str


class Shell(ABC):
    """The board's shell. Every method raises Unreachable when the connection breaks."""

    host: Host

    @abstractmethod
    def run(self, script: Script, timeout: float, sent: bytes = b"") -> Said:
        """Runs a script. It says `ready` if it reads `sent` from its stdin.

        `timeout` is for silence: while bytes move, the command has time.
        """

    @abstractmethod
    def start(self, script: Script, timeout: float) -> Transport:
        """Starts a script that becomes a program after the answer `start`; the transport is its
        stdin and stdout. Closing the transport closes this shell."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection. Safe to call again."""


class Command(ABC):
    """A command at work on the board, and its streams. Methods raise TimeoutError after
    TURN_SECONDS, and OSError."""

    @abstractmethod
    def send(self, data: memoryview) -> int:
        """Writes some bytes to its stdin; returns how many."""

    @abstractmethod
    def end_input(self) -> None:
        """Ends its stdin."""

    @abstractmethod
    def receive(self) -> bytes:
        """Reads from its stdout; b"" at its end."""

    @abstractmethod
    def complaint(self) -> bytes:
        """What it has written to its stderr so far."""

    @abstractmethod
    def status(self) -> int:
        """Its exit status; -1 if it does not end soon."""

    @abstractmethod
    def unsent(self) -> int | None:
        """Bytes that were sent and did not arrive yet; None: unknown."""


def converse(command: Command, script: Script, timeout: float, sent: bytes) -> Said:
    """Sends a script and, once it is ready, data; returns what it says. Raises OSError."""
    out = b""
    watch = _Watch(command, timeout, Meter(len(sent), "program, "))
    try:
        _write(command, script.sent, watch)
        if not sent:
            command.end_input()
        waits = bool(sent)
        while True:
            try:
                data = command.receive()
            except TimeoutError:
                watch.look()
                continue
            if not data:
                break
            watch.moved()
            out += data
            if waits and script.word("ready") in out:
                waits = False
                watch.begin(len(sent))
                _write(command, sent, watch)
                command.end_input()
            if len(out) >= MOST_SAID:  # and nobody reads the rest
                return Said(-1, _text(out), _text(command.complaint()))
    except TimeoutError:
        said = _text(command.complaint()).strip()
        return Said(-1, _text(out), said or f"no answer in {timeout:g} s")
    return Said(command.status(), _text(out), _text(command.complaint()).strip())


def _write(command: Command, data: bytes, watch: _Watch) -> None:
    left = memoryview(data)
    while left:
        try:
            size = command.send(left[:PIECE_BYTES])
        except TimeoutError:
            watch.look()
            continue
        except OSError:  # it ended before it has read all; its output says why
            return
        watch.moved()
        watch.sent += size
        left = left[size:]


class _Watch:
    """Raises TimeoutError if nothing has moved for too long."""

    def __init__(self, command: Command, timeout: float, meter: Meter) -> None:
        self._command, self._timeout, self._meter = command, timeout, meter
        self.sent = self._arrived = self._before = 0
        self.moved()

    def begin(self, size: int) -> None:
        """From now on, the data is sent."""
        self._before = self.sent
        if self._command.unsent() is None:
            self._timeout += size / SLOWEST_BYTES_PER_SECOND
        self.moved()

    def moved(self) -> None:
        self._deadline = time.monotonic() + self._timeout
        self._count()

    def _count(self) -> bool:
        """Whether more has arrived at the board."""
        if (unsent := self._command.unsent()) is None:
            return False
        arrived = self.sent - self._before - unsent
        if arrived <= self._arrived:
            return False
        self._meter.moved(arrived - self._arrived)
        self._arrived = arrived
        return True

    def look(self) -> None:
        if self._count():
            self._deadline = time.monotonic() + self._timeout
        elif time.monotonic() > self._deadline:
            raise TimeoutError


def _text(data: bytes) -> str:
    return data[:MOST_SAID].decode(errors="replace")
