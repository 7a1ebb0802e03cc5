"""What an ssh connection is used for: commands on the board, one of which is its program.

Two things offer it: paramiko (ssh_client), and the system's ssh where that cannot (ssh_child).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mlc_rpc.ssh_config import Host
from mlc_rpc.transport import Transport

MOST_SAID = 1 << 20  # bytes that are read of what a command says


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it said, of each stream the first MOST_SAID bytes; status is -1
    where it did not end in time, or said more."""

    status: int
    out: str
    complaint: str


class Shell(ABC):
    """The board's shell. Every method raises Unreachable when the connection breaks."""

    host: Host

    @abstractmethod
    def run(self, command: str, timeout: float, sent: bytes = b"") -> Said:
        """A command of ours, which is given `sent` on its stdin."""

    @abstractmethod
    def start(self, command: str) -> Transport:
        """A command whose stdin and stdout are the transport, which closes this when it closes."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection. Safe to call again."""
