"""What the tests of mlc_rpc share: the built runtime and plugin, which the package knows not of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlc_deploy.board import runtime_files
from tests.rpc import sshd


@pytest.fixture(scope="session")
def count_plugin() -> Path:
    return runtime_files.counting_plugin()


@pytest.fixture(scope="session")
def runtime_of() -> Callable[[str], Path]:
    return runtime_files.runtime_file


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Server]:
    """A real sshd, whose user is the one of this process; its host key is not known yet."""
    with sshd.running(tmp_path) as server:
        monkeypatch.setenv("HOME", str(server.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield server
