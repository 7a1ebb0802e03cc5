"""The interface of an ssh connection: commands on the board, among them the board's program.

Two classes implement it: by paramiko (ssh_client), and by the system's ssh (ssh_child).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mlc_rpc.ssh_config import Host
from mlc_rpc.transport import Transport

MOST_SAID = 1 << 20  # bytes read of a command's output


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
    def run(self, command: str, timeout: float, sent: bytes = b"") -> Said:
        """Runs a command with `sent` as its stdin."""

    @abstractmethod
    def start(self, command: str) -> Transport:
        """Starts a command; the transport is its stdin and stdout. Closing the transport closes
        this shell."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection. Safe to call again."""
