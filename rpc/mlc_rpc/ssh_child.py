"""The system's ssh as a child process, for boards and routes that paramiko cannot handle.

It reads the user's configuration itself, so it reaches whatever `ssh BOARD` reaches. The first
connection logs in, on the terminal if need be; the commands after it share this connection through
a socket. It ends with this process, or when no session has used it for a while.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import tempfile
import threading
from typing import IO

from mlc_rpc import screen
from mlc_rpc.ssh_config import Host, home_options, ssh_command
from mlc_rpc.ssh_scripts import SHELL, Script
from mlc_rpc.ssh_shell import MOST_SAID, TURN_SECONDS, Command, Said, Shell, converse
from mlc_rpc.text import quoted
from mlc_rpc.transport import Transport

KEEPALIVE_SECONDS = 5
IDLE_SECONDS = 10  # a connection without a session ends; a second session finds it until then
FAILED = 255  # ssh's own exit status
GRACE_SECONDS = 2.0
# It waits for this process to end, then ends the connection and removes its folder.
KEEPER = (
    "sh", "-c",
    'trap "" INT HUP TERM; cat > /dev/null; d=$1; shift; "$@" > /dev/null 2>&1; rm -rf "$d"',
    "sh",
)  # fmt: skip

# ssh's words for what both ends lack, and the option that allows it.
ALGORITHMS = {
    "key exchange method": "KexAlgorithms",
    "host key type": "HostKeyAlgorithms",
    "cipher": "Ciphers",
    "MAC": "MACs",
}
_NO_COMMON = re.compile(rf"no matching ({'|'.join(ALGORITHMS)}) found\. Their offer: (\S+)")
_MUTEX = threading.Lock()
_LINES: dict[tuple[str, ...], _Line] = {}  # connections of this process, by host and options


class _Line:
    """A connection that is logged in. `command`: ssh that shares it."""

    def __init__(self, host: Host, arguments: list[str], timeout: float) -> None:
        """Raises Unreachable."""
        self._folder = tempfile.mkdtemp(prefix="mlc-ssh-")
        path = f"-oControlPath={self._folder}/s"
        self.command = [*arguments, path, "-oControlMaster=no", "-oBatchMode=yes"]
        end = [*arguments, path, "-O", "exit", "--", host.alias]
        self._keeper = subprocess.Popen(
            [*KEEPER, self._folder, *end], stdin=subprocess.PIPE, start_new_session=True
        )
        asks = screen.can_ask() or "SSH_ASKPASS" in os.environ
        try:
            self._log_in(host, [*arguments, path], timeout, asks)
        except BaseException:
            self.close()
            raise

    def _log_in(self, host: Host, command: list[str], timeout: float, asks: bool) -> None:
        # In the background once it is logged in, in a session of its own.
        command = [
            *command, "-oControlMaster=yes", f"-oControlPersist={IDLE_SECONDS}", "-N", "-f",
            f"-oBatchMode={'no' if asks else 'yes'}", "--", host.alias,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as complaint, screen.asking():
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaint,
                    timeout=None if asks else 2 * timeout,  # a person may take long
                )
            except subprocess.TimeoutExpired as error:
                raise host.unreachable(
                    f"ssh did not connect in {2 * timeout:g} s", host.command
                ) from error
            if done.returncode:
                said = _beginning(complaint).strip()
                words = quoted(said) or "without a word"
                raise host.unreachable(f"ssh failed: {words}", _way_out(host, said))

    def is_alive(self, host: Host) -> bool:
        check = [*self.command, "-O", "check", "--", host.alias]
        done = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode == 0

    def close(self) -> None:
        assert self._keeper.stdin
        self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(GRACE_SECONDS)


class ChildShell(Shell):
    """Commands of the system's ssh, which itself asks for a password or about a host key."""

    def __init__(self, host: Host, timeout: float) -> None:
        """Raises Unreachable."""
        self.host = host
        if sys.platform == "win32":  # ProcessTransport cannot poll its pipes
            raise host.unreachable("only ssh itself can reach it, which is not used on Windows")
        program = ssh_command()
        if not program:
            raise host.unreachable(
                "only ssh itself can reach it, and there is none here",
                "install the OpenSSH client",
            )
        arguments = [
            *program, "-T",
            f"-oConnectTimeout={max(int(timeout), 1)}",
            f"-oServerAliveInterval={KEEPALIVE_SECONDS}",
            "-oServerAliveCountMax=2",
            "-oClearAllForwardings=yes",
            f"-p{host.port}",
            f"-l{host.user}",
            *home_options(host),
        ]  # fmt: skip
        with _MUTEX:
            place = (host.alias, *arguments)
            line = _LINES.get(place)
            if line and not line.is_alive(host):
                line.close()
                line = None
            self._line = _LINES[place] = line or _Line(host, arguments, timeout)

    def run(self, script: Script, timeout: float, sent: bytes = b"") -> Said:
        with _Child([*self._line.command, "--", self.host.alias, SHELL]) as child:
            said = converse(child, script, timeout, sent)
        if said.status == FAILED and not script.answered(said.out):
            words = quoted(said.complaint) or "without a word"
            raise self.host.unreachable(f"ssh failed: {words}", self.host.command)
        return said

    def start(self, script: Script, timeout: float) -> Transport:
        from mlc_rpc.process import ProcessTransport  # cannot be imported on Windows

        folder = tempfile.TemporaryDirectory(prefix="mlc-ssh-")
        command = [*self._line.command, "--", self.host.alias, SHELL]
        transport = ProcessTransport(self.host.board, command, folder)
        # The program's memory is on the board, and the board does not notice a dead link.
        transport.process, transport.ends_with_client = None, False
        transport.network = True
        transport.mark = script.word("start")
        with contextlib.suppress(OSError):  # it ended; what it says is asked for later
            transport.write([script.sent], timeout)
        return transport

    def close(self) -> None:
        pass  # the connection stays a while, for the next session


class _Child(Command):
    def __init__(self, command: list[str]) -> None:
        self._complaint = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaint,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()
        self._complaint.close()

    def send(self, data: memoryview) -> int:
        _await(self._in, selectors.EVENT_WRITE)
        return os.write(self._in.fileno(), data)

    def end_input(self) -> None:
        self._in.close()

    def receive(self) -> bytes:
        _await(self._out, selectors.EVENT_READ)
        return os.read(self._out.fileno(), 1 << 16)

    def complaint(self) -> bytes:
        return _beginning(self._complaint).encode()

    def status(self) -> int:
        try:
            return self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return -1

    def unsent(self) -> None:
        return None


def _way_out(host: Host, said: str) -> str:
    """What to try after ssh did not connect."""
    if found := _NO_COMMON.search(said):
        option = ALGORITHMS[found[1]]
        return (
            f"in ~/.ssh/config, under 'Host {host.alias}', the line {option} +{found[2]}\n"
            "       if such an old algorithm is safe enough there"
        )
    return host.command


def _await(pipe: IO[bytes], event: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(TURN_SECONDS):
            raise TimeoutError


def _beginning(file: IO[bytes]) -> str:
    """What was written to a file so far. The writer shares its place, which does not move."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), min(size, MOST_SAID), 0).decode(errors="replace")
