"""An ssh connection by paramiko: commands, and the program, on channels of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import paramiko

from mlc_rpc.errors import Unreachable
from mlc_rpc.sockets import unsent_bytes
from mlc_rpc.ssh_config import Host
from mlc_rpc.ssh_scripts import SHELL, Script
from mlc_rpc.ssh_shell import MOST_SAID, TURN_SECONDS, Command, Said, Shell, converse
from mlc_rpc.transport import Buffer, Tail, Transport, join_words

GRACE_SECONDS = 2.0
PACKET_BYTES = 1 << 15  # what paramiko sends at a time
OPEN_SECONDS = 3.0  # a server that allows one channel needs a moment to forget the last one
REFUSED = 1, 4  # codes of a server that opens no more channels: prohibited, out of resources

# paramiko's thread logs a traceback for a broken connection, besides raising an exception.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

Failures = (paramiko.SSHException, EOFError, OSError)


class ClientShell(Shell):
    """Commands on channels of one connection. `transports`: the jump hosts', then the board's."""

    def __init__(self, host: Host, transports: Sequence[paramiko.Transport]) -> None:
        self.host = host
        self._transports = transports

    def run(self, script: Script, timeout: float, sent: bytes = b"") -> Said:
        try:
            with contextlib.closing(self._open(timeout)) as channel:
                channel.exec_command(SHELL)
                link = self._transports[0].sock
                return converse(_ChannelCommand(channel, link), script, timeout, sent)
        except Failures as error:
            raise self._broken(error) from error

    def start(self, script: Script, timeout: float) -> Transport:
        try:
            channel = self._open(timeout)
            channel.exec_command(SHELL)
        except Failures as error:
            raise self._broken(error) from error
        transport = ClientTransport(self, channel, self._transports[0].sock)
        transport.mark = script.word("start")
        with contextlib.suppress(OSError):  # it ended; what it says is asked for later
            transport.write([script.sent], timeout)
        return transport

    def close(self) -> None:
        for transport in reversed(self._transports):
            transport.close()

    def _open(self, timeout: float) -> paramiko.Channel:
        """A channel for a command; waits while the server still has another one open."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                return self._transports[-1].open_session(timeout=timeout)
            except paramiko.ChannelException as error:
                if time.monotonic() > deadline:
                    raise self.host.unreachable(
                        f"its ssh server opens no channel for a command: {error.text}",
                        "MaxSessions 1 or more in its sshd_config, and no ForceCommand",
                    ) from error
            time.sleep(TURN_SECONDS)

    def _broken(self, error: Exception) -> Unreachable:
        return self.host.unreachable(f"the connection broke: {error or type(error).__name__}")


class _ChannelCommand(Command):
    """`link` carries the channel."""

    def __init__(self, channel: paramiko.Channel, link: Any) -> None:
        self._channel, self._link = channel, link
        self._complaint = b""
        channel.settimeout(TURN_SECONDS)

    def send(self, data: memoryview) -> int:
        return int(self._channel.send(bytes(data)))

    def end_input(self) -> None:
        with contextlib.suppress(*Failures):
            self._channel.shutdown_write()

    def receive(self) -> bytes:
        self.complaint()  # else a long one would fill its window
        return bytes(self._channel.recv(PACKET_BYTES))

    def complaint(self) -> bytes:
        while self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(PACKET_BYTES)
            self._complaint += data[: MOST_SAID - len(self._complaint)]
        return self._complaint

    def status(self) -> int:
        ended = self._channel.status_event.wait(GRACE_SECONDS)
        return int(self._channel.recv_exit_status()) if ended else -1

    def unsent(self) -> int | None:
        return unsent_bytes(self._link)


class ClientTransport(Transport):
    """The program on the board at a channel's end. `close` also closes `shell`."""

    network = True

    def __init__(self, shell: ClientShell, channel: paramiko.Channel, link: Any) -> None:
        """`link` carries the channel."""
        self.board = shell.host.board
        self._shell, self._link = shell, link
        self._tail = Tail()
        self._channel = channel
        self._listener = threading.Thread(
            target=self._listen, name=f"{self.board} stderr", daemon=True
        )
        self._listener.start()

    def read(self, limit: int) -> bytes:
        while True:
            # The channel has one timeout for both directions, and writing sets it.
            with contextlib.suppress(TimeoutError):
                return bytes(self._channel.recv(limit))

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for piece in pieces:
            left = memoryview(piece)
            while left:
                self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
                sent = self._channel.send(bytes(left[:PACKET_BYTES]))
                self.moved += sent
                left = left[sent:]

    def unsent(self) -> int | None:
        return unsent_bytes(self._link)

    def close(self) -> None:
        # The end of its input ends the program; closing the channel ends the reader. Both fail if
        # the link is down.
        for end in (self._channel.shutdown_write, self._channel.close):
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                end()
        self._shell.close()

    def last_words(self) -> str:
        ending = ""
        if self._channel.status_event.wait(GRACE_SECONDS):
            status = self._channel.recv_exit_status()
            ending = f"exit status {status}" if status >= 0 else "killed by a signal, or cut off"
        self._listener.join(GRACE_SECONDS)
        return join_words(ending or "the connection broke", self._tail.text())

    def _listen(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                data = self._channel.recv_stderr(4096)
                if not data:
                    return
                self._tail.feed(data)
