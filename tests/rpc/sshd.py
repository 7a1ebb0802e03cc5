"""A real OpenSSH server on a port of the loopback interface, and a user who may log in there."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
WHY_NOT = "no sshd here: apt install openssh-server"


def is_here() -> bool:
    """Whether such a server can run here; WHY_NOT says what to do where not."""
    return bool(SSHD and shutil.which("ssh-keygen"))


@dataclass
class Server:
    port: int
    process: int
    home: Path  # of the client
    cache: Path  # of the board
    host_key: str

    def trust(self) -> None:
        known = self.home / ".ssh" / "known_hosts"
        known.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server with all its files in `folder`. Whoever uses it has `home` as HOME."""
    assert SSHD
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in ("host_key", "home/.ssh/id_ed25519"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    authorized = folder / "authorized_keys"
    authorized.write_text((home / ".ssh/id_ed25519.pub").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {authorized}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"PasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        f"SetEnv XDG_CACHE_HOME={folder}/cache HOME={folder}/board\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's service makes it otherwise
    child = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE)
    try:
        for _ in range(1000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            child.kill()
            raise AssertionError(f"sshd does not start: {child.communicate()[1].decode()}")
        host_key = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        yield Server(port, child.pid, home, folder / "cache" / "mlc-runtime", host_key)
    finally:
        child.terminate()
        child.communicate()
