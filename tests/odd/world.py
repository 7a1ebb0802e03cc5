"""A machine with users of every login shell, behind ssh servers of every configuration.

The users are this machine's only in the mount namespace of their server. Root is needed for that.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rpc.sshd import SSHD

PASSWORD = "raspberry"
FIRST_ID = 61000
GREETING = "\033[1;32mWelcome to the board\033[0m, mlc-board is a nice one\n"

# Login shells by user. rbash finds only what is in its PATH.
SHELLS = {
    "bash": "/bin/bash", "dash": "/bin/dash", "zsh": "/usr/bin/zsh", "fish": "/usr/bin/fish",
    "ksh": "/usr/bin/ksh", "csh": "/bin/csh", "tcsh": "/usr/bin/tcsh", "rbash": "/bin/rbash",
    "ash": "@folder@/bin/ash",
}  # fmt: skip
# Start files by user: the shell, the file, and its content.
START_FILES = {
    "talker": ("/bin/bash", ".bashrc", f"printf '{GREETING}'; stty -a; set -u; set -C\n"),
    "flood": ("/bin/bash", ".bashrc", "head -c 200000 /dev/zero | tr '\\0' x; echo\n"),
    "reader": ("/bin/bash", ".bashrc", "read answer\nread -r another\n"),
    "eater": ("/bin/bash", ".bashrc", "cat > /dev/null\n"),
    "printing fish": ("/usr/bin/fish", ".config/fish/config.fish", "echo hello from fish\n"),
    "printing zsh": ("/usr/bin/zsh", ".zshenv", "echo hello from zsh; setopt noclobber\n"),
    "printing csh": ("/bin/tcsh", ".cshrc", "echo hello from csh; set prompt='! > '\n"),
    "reading csh": ("/bin/tcsh", ".cshrc", "set answer = $<\n"),
    "quitter": ("/bin/bash", ".bashrc", "echo maintenance; exit 3\n"),
    "tmux": ("/bin/bash", ".bashrc", "exec tmux\n"),
}
NO_SHELLS = {"nologin": "/usr/sbin/nologin", "false": "/bin/false", "missing": "/no/such/shell"}


@dataclass
class World:
    """`home` is the client's. `process`: of the server that was started last."""

    folder: Path
    home: Path
    process: int = 0

    def cache(self, user: str) -> Path:
        return self.folder / slug(user) / ".cache" / "mlc-runtime"

    @contextmanager
    def server(self, *lines: str, dropbear: bool = False) -> Iterator[int]:
        """A server with these lines of sshd_config; its port. Its key is known to the client."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        command = self._dropbear(port) if dropbear else self._sshd(port, lines)
        inside = (
            'for name in passwd shadow shells; do mount --bind "$1/$name" "/etc/$name"; done; '
            'shift; exec "$@"'
        )
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", inside, "sh", str(self.folder), *command],
                stdout=log, stderr=log,
            )  # fmt: skip
        self.process = child.pid
        try:
            wait_for(port)
            kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
            with (self.home / ".ssh/known_hosts").open("a") as known:
                known.write(f"[127.0.0.1]:{port} {kind} {key}\n")
            yield port
        finally:
            child.terminate()
            child.wait()

    def _sshd(self, port: int, lines: tuple[str, ...]) -> list[str]:
        assert SSHD
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.folder / f"sshd_config-{port}"
        # Of two lines, the first counts.
        config.write_text(
            "\n".join(lines)
            + f"\nListenAddress 127.0.0.1:{port}\nHostKey {self.folder}/host_key\nPidFile none\n"
            "UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\n"
        )
        return [SSHD, "-D", "-e", "-f", str(config)]

    def _dropbear(self, port: int) -> list[str]:
        key = self.folder / "dropbear_key"
        if not key.exists():
            convert = ["dropbearconvert", "openssh", "dropbear", str(self.folder / "host_key")]
            subprocess.run([*convert, str(key)], check=True, capture_output=True)
        return ["dropbear", "-F", "-E", "-p", f"127.0.0.1:{port}", "-r", str(key)]


def slug(user: str) -> str:
    return user.replace(" ", "-")


def url(user: str, port: int) -> str:
    return f"ssh://{slug(user)}@127.0.0.1:{port}"


@contextmanager
def made() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="mlc-odd-"))
    folder.chmod(0o755)
    try:
        world = World(folder, folder / "client")
        (world.home / ".ssh").mkdir(parents=True, mode=0o700)
        for key in ("host_key", "client/.ssh/id_ed25519"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(make, check=True)
        own = (world.home / ".ssh/id_ed25519.pub").read_text()
        (folder / "authorized_keys").write_text(own)
        (folder / "bin").mkdir()
        (folder / "bin/ash").symlink_to(shutil.which("busybox") or "/bin/busybox")
        _write_users(folder, own)
        yield world
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_users(folder: Path, key: str) -> None:
    crypt = ["openssl", "passwd", "-6", PASSWORD]
    hashed = subprocess.run(crypt, capture_output=True, text=True, check=True).stdout.strip()
    passwd, shadow = Path("/etc/passwd").read_text(), Path("/etc/shadow").read_text()
    started: Mapping[str, tuple[str, str, str]] = {
        **{user: (shell, "", "") for user, shell in (SHELLS | NO_SHELLS).items()},
        **START_FILES,
    }
    for number, (user, (shell, file, content)) in enumerate(started.items(), FIRST_ID):
        home = folder / slug(user)
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        (home / ".ssh/authorized_keys").write_text(key)
        if file:
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            (home / file).write_text(content)
        for path in (home, *home.rglob("*")):
            os.chown(path, number, number)
        shell = shell.replace("@folder@", str(folder))
        passwd += f"{slug(user)}:x:{number}:{number}::{home}:{shell}\n"
        shadow += f"{slug(user)}:{hashed}:19000:0:99999:7:::\n"
    (folder / "passwd").write_text(passwd)
    (folder / "shadow").write_text(shadow)
    (folder / "shadow").chmod(0o600)
    shells = {start[0].replace("@folder@", str(folder)) for start in started.values()}
    (folder / "shells").write_text("\n".join(sorted(shells)) + "\n")


def wait_for(port: int) -> None:
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not start")


def why_not() -> str:
    """What a machine lacks for this world; "" if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "users of a test are made by root, on Linux"
    tools = ("unshare", "openssl", "dropbear", "zsh", "fish", "ksh", "tcsh", "busybox", "tmux")
    missing = [tool for tool in tools if not shutil.which(tool)] + ([] if SSHD else ["sshd"])
    if missing:
        return f"apt install {' '.join(missing)}"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        return "this container allows no mount namespaces"
    return ""
