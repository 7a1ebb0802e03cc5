"""ssh:// against a real sshd on loopback: host keys, user keys, the cache on the board."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import paramiko
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.local import local_machine
from mlc_rpc.ssh import clean_ssh
from mlc_rpc.ssh_client import connect_client, is_trusted, server_key, trust
from mlc_rpc.ssh_config import Host, resolve
from mlc_rpc.transport import SshUrl, parse_url
from tests.rpc.sshd import WHY_NOT, Server, is_here

Files = Callable[[str], Path]
# As nc: standard input and output, joined with a port.
RELAY = f"{sys.executable} {Path(__file__).with_name('relay.py')}"
pytestmark = pytest.mark.skipif(not is_here(), reason=WHY_NOT)


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
    before = stored.stat().st_ino
    with connect(server.url, runtime_of):
        pass
    assert stored.stat().st_ino == before, "the program was sent again"
    damaged = b"damaged" + stored.read_bytes()[7:]
    stored.unlink()  # it may still run for a moment, and cannot be written to then
    stored.write_bytes(damaged)
    with connect(server.url, runtime_of) as session:
        assert session.ping() < 1
    assert list(server.cache.iterdir()) == [stored]


def test_a_server_that_hangs_up_at_once(
    runtime_of: Files, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        with pytest.raises(errors.Unreachable) as caught:
            connect(f"ssh://me@127.0.0.1:{port}", runtime_of)
    what, on, mend = str(caught.value).splitlines()
    assert what.startswith("ssh failed: ") and on == f"  on:  ssh://me@127.0.0.1:{port}"
    assert mend == f"  try: ssh -v -p {port} me@127.0.0.1, which says more"
    assert capfd.readouterr().err == ""


def test_the_ssh_configuration_is_followed(server: Server, runtime_of: Files) -> None:
    server.trust()
    key = server.home / ".ssh" / "id_ed25519"
    moved = key.rename(server.home / "elsewhere")
    (server.home / ".ssh" / "config").write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"  User {getpass.getuser()}\n  IdentityFile {moved}\n"
        "Host far\n  ProxyJump board\n  HostName 127.0.0.1\n"
        f"  Port {server.port}\n  IdentityFile {moved}\n"
        "Host circle\n  ProxyJump circle\n"
    )
    for name in ("board", "far"):
        with connect(f"ssh://{name}", runtime_of) as session:
            assert session.board == server.url and session.ping() < 1
    with pytest.raises(errors.Unreachable) as caught:
        connect("ssh://circle", runtime_of)
    assert "the ProxyJump of 'circle' leads in a circle" in str(caught.value)


def test_the_system_ssh_is_used_where_only_that_knows_the_way(
    server: Server, runtime_of: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.trust()
    # OpenSSH asks the password file for the user's home, and not HOME.
    program = server.home / "ssh"
    program.write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh')} -F none -o UserKnownHostsFile="
        f'{server.home}/.ssh/known_hosts -i {server.home}/.ssh/id_ed25519 "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{server.home}:{os.environ['PATH']}")
    (server.home / ".ssh" / "config").write_text(
        f"Host 127.0.0.1\n  ProxyCommand {RELAY} %h {server.port}\n"
    )
    array = np.arange(1 << 18)
    with connect(server.url, runtime_of) as session:
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)


def test_a_password_is_asked_for_and_stands_in_no_url() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        parse_url("ssh://pi:secret@board")
    assert "holds no password" in str(caught.value) and "secret" not in str(caught.value)


class PasswordServer(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        right = (username, password) == ("pi", "raspberry")
        return int(paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED)

    def get_allowed_auths(self, username: str) -> str:
        return "password"


@pytest.mark.parametrize("typed, enters", [(("wrong", "raspberry"), True), (("wrong",) * 3, False)])
def test_a_password_is_asked_on_the_terminal(
    typed: tuple[str, ...], enters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    answers = list(typed)
    monkeypatch.setattr("getpass.getpass", lambda prompt: answers.pop(0))
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = Host("board", "127.0.0.1", listening.getsockname()[1], "pi")
        trust(host, key)

        def serve() -> None:
            server = paramiko.Transport(listening.accept()[0])
            server.add_server_key(key)
            server.start_server(server=PasswordServer())

        threading.Thread(target=serve, daemon=True).start()
        if enters:
            connect_client(host, 10).close()
        else:
            with pytest.raises(errors.Unreachable, match="user pi was not let in"):
                connect_client(host, 10)
    assert not answers


def test_an_unknown_board_is_enrolled(server: Server, runtime_of: Files) -> None:
    host = resolve(parse_url(server.url))  # type: ignore[arg-type]
    key = server_key(host, 10)
    assert not is_trusted(host, key)
    trust(host, key)
    assert is_trusted(host, key)
    assert stat.S_IMODE((server.home / ".ssh" / "known_hosts").stat().st_mode) == 0o600
    with connect(server.url, runtime_of):
        pass


def test_blobs_outlive_their_session(server: Server, runtime_of: Files) -> None:
    server.trust()
    data = np.random.default_rng(1).bytes(3_000_001)
    with connect(server.url, runtime_of) as session:
        name = session.put(data)
    (kept,) = server.cache.glob("blob-*")
    assert kept.name == f"blob-{name.hex()}"
    with connect(server.url, runtime_of) as session:
        before = session.sent_bytes
        assert session.put(data) == name and session.sent_bytes - before < 1000
        assert session.get(name) == data
    kept.write_bytes(data[:-1] + b"?")
    with connect(server.url, runtime_of) as session:
        assert not session.has(name), "damaged, and believed"
        assert not kept.exists()


def test_an_upload_goes_on_where_it_stopped(server: Server, runtime_of: Files) -> None:
    server.trust()
    data = np.random.default_rng(2).bytes(2_000_000)
    name = hashlib.blake2b(data, digest_size=32).digest()
    with connect(server.url, runtime_of) as session:
        session.call("blob.put", name, len(data), 0, data[:500_000])
    (part,) = server.cache.glob("part-*")
    with connect(server.url, runtime_of) as session:
        before = session.sent_bytes
        session.put(data)
        assert 1_500_000 <= session.sent_bytes - before < 1_501_000
        assert session.get(name) == data and not part.exists()
    for cached in server.cache.glob("blob-*"):
        cached.unlink()
    part.write_bytes(data[:300_000] + bytes(100_000))
    part.chmod(0o600)
    with connect(server.url, runtime_of) as session:
        session.put(data)
        assert session.get(name) == data


def test_an_upload_is_as_fast_as_sftp(server: Server, runtime_of: Files, tmp_path: Path) -> None:
    """In turns, since other programs are at work too; the best of each is what they can do, and is
    seen sooner or later."""
    server.trust()
    array = np.random.default_rng(0).integers(0, 256, 16_000_000, np.uint8)
    (tmp_path / "file").write_bytes(array.tobytes())
    url = parse_url(server.url)
    assert isinstance(url, SshUrl)
    shell = connect_client(resolve(url), 20)
    took: list[tuple[float, float]] = []  # seconds, ours and theirs

    def fast() -> bool:
        ours, theirs = map(min, zip(*took, strict=True))
        return bool(ours < theirs / 0.8)

    with (
        connect(server.url, runtime_of) as session,
        paramiko.SFTPClient.from_transport(shell._transports[-1]) as sftp,
    ):
        tensor = session.tensor(array)
        while len(took) < 40 and (len(took) < 4 or not fast()):
            began = time.perf_counter()
            tensor.write(array)
            between = time.perf_counter()
            sftp.put(str(tmp_path / "file"), str(tmp_path / "copy"))
            took.append((between - began, time.perf_counter() - between))
        np.testing.assert_array_equal(tensor.numpy(), array)
    shell.close()
    assert fast(), took


def test_the_cache_is_cleaned(server: Server, runtime_of: Files) -> None:
    server.trust()
    with connect(server.url, runtime_of):
        pass
    url = parse_url(server.url)
    (gone,) = clean_ssh(url, 10)  # type: ignore[arg-type]
    assert gone.path == str(server.cache) and gone.bytes > 100_000
    assert not server.cache.exists()


def test_an_unknown_host_key_is_refused(server: Server, runtime_of: Files) -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect(server.url, runtime_of)
    listed = subprocess.run(
        ["ssh-keygen", "-lf", "-"], input=server.host_key, text=True, capture_output=True
    )
    fingerprint = listed.stdout.split()[1]
    assert str(caught.value) == (
        f"its host key is not known: ssh-ed25519 {fingerprint}\n  on:  {server.url}\n"
        f"  try: mlc-deploy board enroll 127.0.0.1 {server.url}, and compare the fingerprint with\n"
        "       what the board itself says: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
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


def test_a_cache_that_is_another_directory_is_not_used(server: Server, runtime_of: Files) -> None:
    server.trust()
    server.cache.parent.mkdir()
    (server.cache.parent / "other").mkdir()
    server.cache.symlink_to(server.cache.parent / "other")
    with connect(server.url, runtime_of):
        pass
    assert not list((server.cache.parent / "other").iterdir())
    (instead,) = (server.home.parent / "board" / ".cache" / "mlc-runtime").iterdir()
    assert instead.name.startswith("runtime-")


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
        "  try: start its ssh server (systemctl enable --now ssh), or the port it listens on: "
        "ssh://pi@127.0.0.1:PORT"
    )
