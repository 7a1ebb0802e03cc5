"""Commands."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click

from .ending import signalled
from .errors import FAILED, MISUSED, OK, complain, exit_status, message
from .options import Misuse

COMMANDS = ("run", "inspect", "board", "tune", "compare")  # each in the module of its name


class Commands(click.Group):
    """COMMANDS, of which one alone is imported; without the name of one, `run`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(import_module(f".{name}", __package__), name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in COMMANDS or args[0] == "--version")
        if args and not named and not args[0].startswith("-") and not Path(args[0]).exists():
            near = get_close_matches(args[0], [c for c in COMMANDS if c != "run"], 1, 0.7)
            if near:
                raise Misuse(f"there is no such command or file: '{args[0]}'", mend=near[0])
        return super().parse_args(ctx, args if named else ["run", *args])


@click.group(cls=Commands)
@click.version_option(package_name="mlc-deploy", message="mlc-deploy %(version)s")
def cli() -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
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
