"""Every configuration of an ssh server: the board works, or its user is told what is in the way."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.ssh_client import is_trusted, server_key
from mlc_rpc.ssh_config import resolve
from mlc_rpc.transport import SshUrl
from tests.odd.world import PASSWORD, World, url
from tests.rpc.test_ssh import RELAY

pytestmark = pytest.mark.odd
Runtime = Callable[[str], Path]
SNTRUP = "KexAlgorithms sntrup761x25519-sha512@openssh.com"  # which paramiko lacks

WORKS = {
    "one session": ["MaxSessions 1"],
    "one try": ["MaxAuthTries 1"],
    "no forwarding": ["AllowTcpForwarding no", "DisableForwarding yes"],
    "sftp that fails": ["Subsystem sftp /bin/false"],
    "ForceCommand that evaluates": ['ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"'],
    "ForceCommand without quotes": ["ForceCommand exec $SSH_ORIGINAL_COMMAND"],
    "a banner": ["Banner /etc/passwd", "PrintMotd yes"],
    "another key exchange": [SNTRUP],
    "compression": ["Compression yes"],
    "no keep-alive": ["TCPKeepAlive no"],
}
REFUSED = {
    "no session": (["MaxSessions 0"], r"opens no channel for a command", r"MaxSessions"),
    "ForceCommand": (["ForceCommand /bin/echo go away"], r"does not run.*go away", r"login shell"),
    "internal-sftp": (["ForceCommand internal-sftp"], r"does not run a command", r"login shell"),
    "old algorithms": (
        ["KexAlgorithms diffie-hellman-group1-sha1"],
        r"no common algorithms.*no matching key exchange method found",
        r"the line KexAlgorithms \+diffie-hellman-group1-sha1",
    ),
    "another user only": (["AllowUsers root"], r"user bash was not let in", r"ssh-copy-id"),
}


def works(place: str, runtime_of: Runtime) -> None:
    array = np.random.default_rng(0).standard_normal(10000)
    with connect(place, runtime_of, timeout=20) as session:
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)


@pytest.mark.parametrize("name", WORKS)
def test_a_server_that_works(name: str, users: World, runtime_of: Runtime) -> None:
    with users.server(*WORKS[name]) as port:
        for _ in range(3):
            works(url("bash", port), runtime_of)


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_that_does_not(name: str, users: World, runtime_of: Runtime) -> None:
    lines, what, attempt = REFUSED[name]
    with users.server(*lines) as port, pytest.raises(errors.Unreachable) as caught:
        connect(url("bash", port), runtime_of, timeout=10)
    assert re.search(what, caught.value.what, re.DOTALL), caught.value
    assert re.search(attempt, caught.value.attempt), caught.value


@pytest.mark.parametrize("user", ["bash", "ash", "fish"])
def test_dropbear(user: str, users: World, runtime_of: Runtime) -> None:
    with users.server(dropbear=True) as port:
        works(url(user, port), runtime_of)


def test_a_host_key_behind_another_key_exchange(users: World) -> None:
    with users.server(SNTRUP) as port:
        host = resolve(SshUrl("127.0.0.1", "bash", port))
        assert is_trusted(host, server_key(host, 10))


def test_too_many_keys(users: World, runtime_of: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers in the agent come after the user's own file; where that is not it, the server has
    hung up, and a person is asked on another connection."""
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    for name, value in re.findall(r"(SSH_\w+)=([^;]+);", agent):
        monkeypatch.setenv(name, value)
    try:
        for number in range(8):
            key = users.home / f"stranger{number}"
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(make, check=True)
            subprocess.run(["ssh-add", "-q", str(key)], check=True)
        with users.server() as port:
            works(url("bash", port), runtime_of)
        own = users.home / ".ssh/id_ed25519"
        own.rename(users.home / "away")
        try:
            with users.server("PasswordAuthentication yes") as port:
                monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
                typed = Mock(return_value=PASSWORD)
                monkeypatch.setattr("getpass.getpass", typed)
                works(url("bash", port), runtime_of)
                typed.assert_called_once_with("bash@127.0.0.1's password: ")
            with users.server() as port, pytest.raises(errors.Unreachable) as caught:
                connect(url("bash", port), runtime_of)
            assert str(caught.value).startswith("user bash was not let in: ")
        finally:
            (users.home / "away").rename(own)
    finally:
        subprocess.run(["ssh-agent", "-k"], capture_output=True)


def test_an_old_board_with_that_line(users: World, runtime_of: Runtime) -> None:
    config = users.home / ".ssh/config"
    with users.server("KexAlgorithms diffie-hellman-group1-sha1") as port:
        config.write_text("Host 127.0.0.1\n  KexAlgorithms +diffie-hellman-group1-sha1\n")
        try:
            works(url("bash", port), runtime_of)
        finally:
            config.unlink()


def test_two_hosts_behind_commands(users: World, runtime_of: Runtime) -> None:
    """Of one user and one port: each has a connection of its own."""
    config = users.home / ".ssh/config"
    with users.server() as port:
        place = f"  User bash\n  HostKeyAlias [127.0.0.1]:{port}\n"
        config.write_text(
            f"Host first\n{place}  ProxyCommand {RELAY} 127.0.0.1 {port}\n"
            f"Host second\n{place}  ProxyCommand {RELAY} 127.0.0.1 1\n"
        )
        try:
            works("ssh://first", runtime_of)
            with pytest.raises(errors.Unreachable) as caught:
                connect("ssh://second", runtime_of)
            assert "ssh failed" in caught.value.what
        finally:
            config.unlink()
