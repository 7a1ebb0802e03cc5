"""Commands; and what goes wrong as a message on stderr and an exit status.

    0  the outputs matched the reference        2  bad usage
    1  the job failed, or they did not          3  the board could not be reached, or was lost
                                              130  interrupted
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click
from mlc_rpc import CounterError, Lost, RpcError, Unreachable
from mlc_targets import TargetError

from ..errors import InputError, MlcError
from .options import Misuse
from .run import run

OK, FAILED, MISUSED, UNREACHED, INTERRUPTED = 0, 1, 2, 3, 130
MISTAKES = (MlcError, TargetError, RpcError, CounterError, click.ClickException, OSError)


class Commands(click.Group):
    """Its commands; without the name of one, `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] == "--version")
        return super().parse_args(ctx, args if named else ["run", *args])


@click.group(cls=Commands)
@click.version_option(package_name="mlc-deploy", message="mlc-deploy %(version)s")
def cli() -> None:
    pass


cli.add_command(run)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        status = cli.main(args, prog_name="mlc-deploy", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read stdout, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except (Exception, KeyboardInterrupt, click.exceptions.Abort) as error:
        if "--debug" in args:
            traceback.print_exc()
        complain(message(error))
        return exit_status(error)
    return status if isinstance(status, int) else OK


def exit_status(error: BaseException) -> int:
    match error:
        case KeyboardInterrupt() | click.exceptions.Abort():
            return INTERRUPTED
        case Misuse() | InputError() | TargetError() | click.UsageError():
            return MISUSED
        case Unreachable() | Lost():
            return UNREACHED
        case _:
            return FAILED


def message(error: BaseException) -> str:
    """What went wrong: for a user's mistake what, where and how to mend it."""
    match error:
        case KeyboardInterrupt() | click.exceptions.Abort():
            return "interrupted"
        case click.UsageError():
            text = error.format_message().rstrip(".")
            return f"{text[:1].lower()}{text[1:]}\n  try: mlc-deploy --help"
        case OSError():
            where = f"\n  in:  {error.filename}" if error.filename else ""
            return f"{(error.strerror or str(error)).lower()}{where}"
        case _ if isinstance(error, MISTAKES):
            return str(error)
        case _:
            return (
                f"a mistake in mlc-deploy itself ({type(error).__name__}: {error})\n"
                "  try: --debug, and report what it says"
            )


def complain(text: str) -> None:
    click.secho("error: ", err=True, nl=False, fg="red", bold=True)
    click.echo(text, err=True)
