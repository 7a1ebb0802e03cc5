"""What --help prints: every command and option in its group, examples, topics, completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from mlc_deploy.cli.board import board
from mlc_deploy.cli.farm import farm
from mlc_deploy.cli.help import Command as HelpedCommand
from mlc_deploy.cli.help import Option
from mlc_deploy.cli.main import COMMANDS, GROUPS, cli
from mlc_deploy.cli.topics import TOPICS
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


LINES, COLUMNS = 60, 80  # what fits on a screen


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "_".join(call) or "run")
def test_help_fits_on_a_screen(call: tuple[str, ...], mlc_deploy: Command) -> None:
    lines = mlc_deploy(*call, "-h").stdout.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    ctx = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": c for inner, c in command.commands.items()}
        else:
            found[name] = command
    return found


def test_every_option_is_in_a_group_and_its_help_begins_with_a_capital() -> None:
    for name, command in commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert isinstance(parameter, Option), f"{name} {parameter.opts}"
                text = parameter.help or ""
                first = text.split()[0].strip(",")
                plain = first[0].isupper() or first in ("seconds,", "tokenizer.json")
                choices = getattr(parameter.type, "choices", ())
                assert plain or first in ("seconds", *choices), f"{name} {parameter.opts}: {text}"
                assert not text.endswith("."), f"{name} {parameter.opts}"


def test_rare_options_of_a_run_stand_in_a_topic(mlc_deploy: Command) -> None:
    shown = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", mlc_deploy("--help").stdout, re.MULTILINE)
    topics = "".join(mlc_deploy("help", topic).stdout for topic in TOPICS)
    for parameter in commands()["run"].params:
        if isinstance(parameter, Option):
            assert (parameter.opts[-1] in shown) is not parameter.rare, parameter.opts
            assert parameter.opts[-1] in topics, parameter.opts


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(topic: str, mlc_deploy: Command, golden: Callable[..., None]) -> None:
    ended = mlc_deploy("help", topic)
    assert ended.status == 0 and ended.stderr == ""
    assert max(map(len, ended.stdout.splitlines())) <= COLUMNS
    golden(ended.stdout, f"cli_help_topic_{topic}")


def test_help_of_a_command_and_of_nothing(mlc_deploy: Command) -> None:
    assert mlc_deploy("help").stdout == mlc_deploy("--help").stdout
    assert (
        mlc_deploy("help", "tune").stdout.splitlines()[1:]
        == (mlc_deploy("tune", "--help").stdout.splitlines()[1:])
    )


def test_an_unknown_topic_names_the_nearest(mlc_deploy: Command) -> None:
    ended = mlc_deploy("help", "target")
    assert ended.status == 2 and ended.stdout == ""
    assert ended.stderr == ("error: there is no topic 'target'\n  try: mlc-deploy help targets\n")


def test_examples_parse() -> None:
    """Each example is a command whose options exist."""
    for name, command in commands().items():
        for line in getattr(command, "examples", ()):
            words = shlex.split(line, comments=True)
            assert words[0] == "mlc-deploy" and isinstance(command, HelpedCommand), name
            known = {opt for c in commands().values() for p in c.params for opt in p.opts}
            assert {w for w in words if w.startswith("-")} <= known, line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mlc-deploy ins", {"inspect"}),
        ("mlc-deploy board inf", {"info"}),
        ("mlc-deploy model.onnx --targ", {"--target"}),
        ("mlc-deploy tune --search r", {"random"}),
    ],
)
def test_completion_in_bash(words: str, expected: set[str]) -> None:
    place = len(words.split()) - 1
    asks = {"_MLC_DEPLOY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    start = "import sys; sys.argv[0] = 'mlc-deploy'; from mlc_deploy.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", start], env=os.environ | asks, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert {line.partition(",")[2] for line in ended.stdout.splitlines()} == expected
