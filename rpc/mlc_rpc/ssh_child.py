"""The system's ssh as a child process, for boards and routes that paramiko cannot handle.

It reads the user's configuration itself, so it reaches whatever `ssh BOARD` reaches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from typing import IO

from mlc_rpc.ssh_config import Host
from mlc_rpc.ssh_shell import MOST_SAID, Said, Shell
from mlc_rpc.text import quoted
from mlc_rpc.transport import Transport

KEEPALIVE_SECONDS = 5
FAILED = 255  # ssh's own exit status


class ChildShell(Shell):
    """Opens a connection for each command. Host keys must be known; ssh itself asks for a
    password."""

    def __init__(self, host: Host, timeout: float) -> None:
        """Raises Unreachable."""
        self.host = host
        if sys.platform == "win32":  # ProcessTransport cannot poll its pipes
            raise host.unreachable("only ssh itself can reach it, which is not used on Windows")
        program = shutil.which("ssh")
        if not program:
            raise host.unreachable(
                "only ssh itself can reach it, and there is none here",
                "install the OpenSSH client",
            )
        self._command = [
            program, "-T",
            "-oStrictHostKeyChecking=yes",
            f"-oConnectTimeout={max(int(timeout), 1)}",
            f"-oServerAliveInterval={KEEPALIVE_SECONDS}",
            f"-p{host.port}",
            f"-l{host.user}",
            host.alias,
        ]  # fmt: skip

    def run(self, command: str, timeout: float, sent: bytes = b"") -> Said:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaint:
            try:
                done = subprocess.run(
                    [*self._command, command],
                    input=sent,
                    stdout=out,
                    stderr=complaint,
                    timeout=timeout,
                )
            except subprocess.TimeoutExpired:
                return Said(-1, "", f"no answer in {timeout:g} s")
            errors = _beginning(complaint).strip()
            if done.returncode == FAILED:
                raise self.host.unreachable(
                    f"ssh failed: {quoted(errors) or 'without a word'}", f"ssh {self.host.alias}"
                )
            return Said(done.returncode, _beginning(out), errors)

    def start(self, command: str) -> Transport:
        from mlc_rpc.process import ProcessTransport  # cannot be imported on Windows

        folder = tempfile.TemporaryDirectory(prefix="mlc-ssh-")
        transport = ProcessTransport(self.host.board, [*self._command, command], folder)
        # The program's memory is on the board, and the board does not notice a dead link.
        transport.process, transport.ends_with_client = None, False
        return transport

    def close(self) -> None:
        pass


def _beginning(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_SAID).decode(errors="replace")
