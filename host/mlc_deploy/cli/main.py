"""The commands: which there are, and which one the arguments name."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ..errors import ModelWarning
from .ending import signalled
from .errors import FAILED, MISUSED, OK, complain, exit_status, message
from .groups import Group, NoCommand
from .options import Misuse
from .progress import Progress

RUN = "run"  # `mlc-deploy` without the name of a command
# What --help lists: commands by group, with the first sentence of their own help. It stands here so
# that --help imports no compiler; a test compares both.
GROUPS = {
    "Models": {
        "inspect": "Show a model's operators, memory and kernels.",
        "tune": "Search for faster schedules of a model's kernels on boards.",
        "quantize": "Quantize a model to int8, or its weights to 8 or 4 bits.",
        "generate": "Generate text with a language model on a board.",
        "transcribe": "Transcribe speech on a board.",
        "test": "Run models on boards; fail on wrong outputs or higher cost.",
        "compare": "Compare the results of two runs, layer by layer.",
        "report": "Write an HTML report of a run, of two runs, or of a tuning.",
        "compare-boards": "Predict latency and memory on boards that you do not have.",
    },
    "Boards": {
        "board enroll": "Register a board under a name.",
        "board list": "List the registered boards.",
        "board remove": "Remove a board from the list.",
        "board info": "Show a board's cores, caches, clocks and temperatures.",
        "board doctor": "Check whether a board's timings can be trusted.",
        "board calibrate": "Fit predictions to a board, in two to ten minutes.",
        "board clean": "Delete the programs, objects and weights kept on a board.",
        "farm join": "Offer this machine's boards and builders to a farm.",
        "farm keys": "Make the keys of a farm of several machines.",
        "farm scheduler": "Run the scheduler of a farm.",
        "farm list": "List a farm's boards, users and queues.",
    },
    "More": {
        "help": "Explain targets, boards, precision, or a group of options.",
    },
}
MODULES = {"report": "report_page", "help": "topics"}  # of commands in modules of other names
COMMANDS = (RUN, *dict.fromkeys(name.split()[0] for rows in GROUPS.values() for name in rows))


class Commands(Group):
    """COMMANDS, each in the module of its name. Only the command that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = MODULES.get(name, name.replace("-", "_"))
        command = getattr(import_module(f".{module}", __package__), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in COMMANDS or args[0] == "--version")
        if args and not named and not args[0].startswith("-") and not Path(args[0]).exists():
            near = get_close_matches(args[0], COMMANDS[1:], 1, 0.7)
            if near:
                raise Misuse(f"there is no such command or file: '{args[0]}'", mend=near[0])
        return super().parse_args(ctx, args if named else [RUN, *args])


@click.group(cls=Commands)
@click.version_option(package_name="mlc-deploy", message="mlc-deploy %(version)s")
def cli() -> None:
    pass


def _tell(warning: Warning | str, kind: type[Warning], *place: Any) -> None:
    """A warning about the model, as the others are shown; other packages' warnings are not."""
    if issubclass(kind, ModelWarning):
        Progress(False).warn(str(warning))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ModelWarning)
            warnings.showwarning = _tell  # type: ignore[assignment]
            status = cli.main(args, prog_name="mlc-deploy", standalone_mode=False)
        sys.stdout.flush()
    except NoCommand as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except BrokenPipeError:  # whoever read stdout, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except (Exception, KeyboardInterrupt, click.exceptions.Abort) as error:
        if "--debug" in args:
            traceback.print_exc()
        cause = KeyboardInterrupt() if signalled() else error
        complain(message(cause))
        return exit_status(cause)
    return status if isinstance(status, int) else OK
