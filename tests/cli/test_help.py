"""What --help prints: every command, in its group, and every option with its default."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc_deploy.cli.main import COMMANDS, GROUPS
from tests.cli.command import Command

BOARD = ("enroll", "list", "remove", "info", "doctor", "clean")
CALLS = (
    (), *((name,) for names in GROUPS.values() for name in names), *(("board", n) for n in BOARD),
)  # fmt: skip


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "_".join(call) or "run")
def test_help(call: tuple[str, ...], mlc_deploy: Command, golden: Callable[..., None]) -> None:
    ended = mlc_deploy(*call, "--help")
    assert ended.status == 0 and ended.stderr == ""
    golden(ended.stdout, f"cli_help_{'_'.join(call) or 'run'}")


def test_every_command_is_in_a_group(mlc_deploy: Command) -> None:
    listed = mlc_deploy("--help").stdout
    for name in COMMANDS[1:]:
        assert f"\n  {name} " in listed
    for name in BOARD:
        assert f"\n  board {name} " in listed
