"""Every configuration of an ssh server: the board works, or its user is told what is in the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import connect, errors
from tests.odd.world import World, url

pytestmark = pytest.mark.odd
Runtime = Callable[[str], Path]
OLD = "KexAlgorithms diffie-hellman-group14-sha1"  # which paramiko lacks

WORKS = {
    "one session": ["MaxSessions 1"],
    "one try": ["MaxAuthTries 1"],
    "no forwarding": ["AllowTcpForwarding no", "DisableForwarding yes"],
    "no sftp": ["Subsystem sftp /bin/false"],
    "ForceCommand that evaluates": ['ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"'],
    "ForceCommand without quotes": ["ForceCommand exec $SSH_ORIGINAL_COMMAND"],
    "a banner": ["Banner /etc/passwd", "PrintMotd yes"],
    "another key exchange": ["KexAlgorithms sntrup761x25519-sha512@openssh.com"],
    "compression": ["Compression yes"],
    "no keep-alive": ["TCPKeepAlive no"],
}
REFUSED = {
    "no session": (["MaxSessions 0"], r"opens no channel for a command", r"MaxSessions"),
    "ForceCommand": (["ForceCommand /bin/echo go away"], r"does not run.*go away", r"login shell"),
    "internal-sftp": (["ForceCommand internal-sftp"], r"does not run a command", r"login shell"),
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
