"""What --help prints: every command, in its group, and every option with its default."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc_deploy.cli.board import board
from mlc_deploy.cli.farm import farm
from mlc_deploy.cli.main import COMMANDS, GROUPS
from tests.cli.command import Command

ROWS = {name: text for rows in GROUPS.values() for name, text in rows.items()}
CALLS = ((), ("board",), ("farm",), *(tuple(name.split()) for name in ROWS))


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "_".join(call) or "run")
def test_help(call: tuple[str, ...], mlc_deploy: Command, golden: Callable[..., None]) -> None:
    ended = mlc_deploy(*call, "--help")
    assert ended.status == 0 and ended.stderr == ""
    golden(ended.stdout, f"cli_help_{'_'.join(call) or 'run'}")


def test_every_command_is_listed_with_the_first_sentence_of_its_help(mlc_deploy: Command) -> None:
    subcommands = {f"{g.name} {name}" for g in (board, farm) for name in g.commands}
    assert {*COMMANDS, *subcommands} - {"run", "board", "farm"} == ROWS.keys()
    for name, sentence in ROWS.items():
        text = " ".join(mlc_deploy(*name.split(), "--help").stdout.split())
        assert f" {sentence} " in text, name
