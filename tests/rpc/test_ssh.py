"""ssh:// against a real sshd on loopback: host keys, user keys, the cache on the board."""

from __future__ import annotations

import getpass
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.local import local_machine

Files = Callable[[str], Path]
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(
    not SSHD or not shutil.which("ssh-keygen"),
    reason="no sshd here: apt install openssh-server",
)


@dataclass
class Server:
    port: int
    home: Path  # of the client
    cache: Path  # of the board
    host_key: str

    def trust(self) -> None:
        known = self.home / ".ssh" / "known_hosts"
        known.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    assert SSHD
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in ("host_key", "home/.ssh/id_ed25519"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(key, check=True)
    authorized = tmp_path / "authorized_keys"
    authorized.write_text((home / ".ssh/id_ed25519.pub").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {authorized}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"PasswordAuthentication no\nSetEnv XDG_CACHE_HOME={tmp_path}/cache\n"
    )
    if getpass.getuser() == "root":
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's service makes it otherwise
    child = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            child.kill()
            pytest.fail(f"sshd does not start: {child.communicate()[1].decode()}")
        host_key = (tmp_path / "host_key.pub").read_text().rsplit(" ", 1)[0]
        yield Server(port, home, tmp_path / "cache" / "mlc-deploy", host_key)
    finally:
        child.terminate()
        child.communicate()


def test_a_board_behind_sshd(server: Server, runtime_of: Files) -> None:
    server.trust()
    asked: list[str] = []

    def runtime(machine: str) -> Path:
        asked.append(machine)
        return runtime_of(machine)

    array = np.random.default_rng(0).standard_normal(1 << 20)
    with connect(server.url, runtime) as session:
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)
        assert session.ping() < 1
        assert session.device.machine == local_machine()
    assert asked == [local_machine()]
    (stored,) = server.cache.iterdir()
    assert stat.S_IMODE(server.cache.stat().st_mode) == 0o700
    before = stored.stat().st_mtime_ns
    with connect(server.url, runtime_of):
        pass
    assert stored.stat().st_mtime_ns == before, "the program was sent again"
    damaged = b"damaged" + stored.read_bytes()[7:]
    stored.unlink()  # it may still run for a moment, and cannot be written to then
    stored.write_bytes(damaged)
    with connect(server.url, runtime_of) as session:
        assert session.ping() < 1
    assert list(server.cache.iterdir()) == [stored]


def test_the_ssh_configuration_is_followed(server: Server, runtime_of: Files) -> None:
    server.trust()
    key = server.home / ".ssh" / "id_ed25519"
    moved = key.rename(server.home / "elsewhere")
    (server.home / ".ssh" / "config").write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"  User {getpass.getuser()}\n  IdentityFile {moved}\n"
        "Host far\n  ProxyJump gate\n"
    )
    with connect("ssh://board", runtime_of) as session:
        assert session.board == server.url
    with pytest.raises(errors.Unreachable) as caught:
        connect("ssh://far", runtime_of)
    assert "reaches 'far' by proxyjump, which is not supported" in str(caught.value)


def test_an_unknown_host_key_is_refused(server: Server, runtime_of: Files) -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, runtime_of)
    listed = subprocess.run(
        ["ssh-keygen", "-lf", "-"], input=server.host_key, text=True, capture_output=True
    )
    fingerprint = listed.stdout.split()[1]
    assert str(caught.value) == (
        f"its host key is not known: ssh-ed25519 {fingerprint}\n  on:  {server.url}\n"
        "  try: compare the fingerprint with what the board itself says "
        "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then\n"
        f"       ssh-keyscan -t ed25519 -p {server.port} 127.0.0.1 >> ~/.ssh/known_hosts"
    )


def test_a_changed_host_key_is_refused(server: Server, runtime_of: Files) -> None:
    other = (server.home / ".ssh" / "id_ed25519.pub").read_text().rsplit(" ", 1)[0]
    server.host_key = other
    server.trust()
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, runtime_of)
    assert caught.value.what.startswith("its host key has changed: ssh-ed25519 SHA256:")
    assert f"ssh-keygen -R '[127.0.0.1]:{server.port}'" in caught.value.attempt


@pytest.mark.parametrize("key", ["none", "another"])
def test_a_user_without_the_key_is_not_let_in(server: Server, key: str, runtime_of: Files) -> None:
    server.trust()
    path = server.home / ".ssh" / "id_ed25519"
    path.unlink()
    if key == "another":
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(make, input="y", text=True, check=True, stdout=subprocess.DEVNULL)
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, runtime_of)
    assert caught.value.what.startswith(f"user {getpass.getuser()} was not let in: ")
    assert caught.value.attempt.startswith(f"ssh-copy-id -p {server.port} ")


def test_a_cache_that_is_another_directory(server: Server, runtime_of: Files) -> None:
    server.trust()
    server.cache.parent.mkdir()
    (server.cache.parent / "other").mkdir()
    server.cache.symlink_to(server.cache.parent / "other")
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, runtime_of)
    assert caught.value.what == ("the program cannot be stored there: its cache is not safe to use")


def test_a_program_that_does_not_start(server: Server) -> None:
    server.trust()
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, lambda machine: b"#!/bin/sh\necho no such luck >&2; exit 3\n")
    assert caught.value.what == (
        "the board's program did not start: exit status 3; it said: no such luck"
    )


def test_nobody_listens(runtime_of: Files) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(errors.Unreachable) as caught:
            connect(f"ssh://pi@127.0.0.1:{port}", runtime_of)
    assert str(caught.value) == (
        f"cannot connect to 127.0.0.1 port {port}: Connection refused\n"
        f"  on:  ssh://pi@127.0.0.1:{port}\n"
        "  try: ping 127.0.0.1; is the board on, on this network, and running an ssh server?"
    )
