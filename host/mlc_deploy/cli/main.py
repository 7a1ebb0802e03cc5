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
from .options import Misuse
from .progress import Progress

RUN = "run"  # `mlc-deploy` without the name of a command
# What --help lists: commands by group, with the first sentence of their own help. It stands here so
# that --help imports no compiler; a test compares both.
GROUPS = {
    "Commands about a model": {
        "inspect": "Shows what MODEL holds, and how its kernels compute.",
        "tune": "Searches faster schedules of MODEL's kernels on boards.",
        "quantize": "Makes a model of small integers from MODEL and data to calibrate with.",
        "generate": "Writes what a language model says behind a prompt, token by token on a board.",
        "transcribe": "Writes what is said in a sound, token by token on a board.",
        "compare-boards": "Predicts how long MODEL takes on boards that are not there, and"
        " whether it fits.",
        "compare": "Compares two records of --json, layer by layer.",
        "report": "Writes a page of a record, of two, or of a tuning.",
        "test": "Runs models on boards, and says which are right and which cost more than before.",
    },
    "Commands about your boards": {
        "board enroll": "Gives the board at URL a NAME for --board.",
        "board list": "Lists the enrolled boards.",
        "board remove": "Forgets the board NAME.",
        "board info": "Shows cores, caches, features, clocks and temperatures of BOARD.",
        "board doctor": "Says whether times of BOARD can be trusted.",
        "board calibrate": "Fits predictions to the board NAME, in two to ten minutes.",
        "board clean": "Removes the programs, objects and weights kept on BOARD.",
    },
    "Commands about a farm of boards": {
        "farm join": "Offers this machine's builders and boards to SCHEDULER, until Ctrl-C.",
        "farm list": "Lists the boards of SCHEDULER: kinds, states, users, temperatures, queues.",
    },
}
MODULES = {"report": "report_page"}  # of commands in modules of other names
COMMANDS = (RUN, *dict.fromkeys(name.split()[0] for rows in GROUPS.values() for name in rows))


class Commands(click.Group):
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
    except click.exceptions.NoArgsIsHelpError as error:
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
