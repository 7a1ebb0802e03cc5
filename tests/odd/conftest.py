"""What the tests of odd boards share: users of every shell, and a client at their servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlc_deploy.board import runtime_files
from mlc_rpc import ssh_login
from tests.odd import world

WHY_NOT = world.why_not()


@pytest.fixture(scope="session")
def users() -> Iterator[world.World]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with world.made() as made:
        yield made


@pytest.fixture(scope="session")
def port(users: world.World) -> Iterator[int]:
    """Of a server that is configured as usual."""
    with users.server() as port:
        yield port


@pytest.fixture(autouse=True)
def client(users: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(users.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(ssh_login, "_typed", {})


@pytest.fixture(scope="session")
def runtime_of() -> Callable[[str], Path]:
    return runtime_files.runtime_file
