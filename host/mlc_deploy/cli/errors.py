"""Errors as messages on stderr and exit statuses.

0  the outputs matched the reference        2  bad usage
1  the job failed, or they did not          3  the board could not be reached, or was lost
                                          130  interrupted; 128 + n, ended by the signal n
"""

from __future__ import annotations

import errno
import os

import click

from mlc_rpc import CounterError, Lost, RpcError, Unreachable
from mlc_targets import TargetError
from mlc_targets.text import LONG, paragraph, shown

from ..errors import InputError, MlcError, ReportError, ShapeError
from .groups import worded
from .options import Misuse

OK, FAILED, MISUSED, UNREACHED, INTERRUPTED = 0, 1, 2, 3, 130
MISTAKES = (MlcError, TargetError, RpcError, CounterError)
MENDS = {
    errno.ENOSPC: "free some space there, or write elsewhere",
    errno.EDQUOT: "free some space there, or write elsewhere",
    errno.EACCES: "another place, or other permissions there",
    errno.EPERM: "another place, or other permissions there",
    errno.EROFS: "another place: nothing is written there",
}
MORE_MEMORY = "more memory for this process (ulimit -v, a container's limit), or a smaller model"
NO_THREAD = "can't start new thread"  # Python has no class for this error


def exit_status(error: BaseException) -> int:
    match error:
        case KeyboardInterrupt() | click.exceptions.Abort():
            return INTERRUPTED
        case Misuse() | InputError() | ReportError() | ShapeError() | TargetError():
            return MISUSED
        case click.UsageError():
            return MISUSED
        case Unreachable() | Lost():
            return UNREACHED
        case _:
            return FAILED


def message(error: BaseException) -> str:
    """The message of an error: what is wrong, where, and how to mend it."""
    match error:
        case KeyboardInterrupt() | click.exceptions.Abort():
            return "interrupted"
        case click.UsageError():
            text = paragraph(worded(error).rstrip("."))
            command = (error.ctx.command_path if error.ctx else "mlc-deploy").removesuffix(" run")
            return f"{text[:1].lower()}{text[1:]}\n  try: {command} --help"
        case OSError():
            where = f"\n  in:  {paragraph(str(error.filename))}" if error.filename else ""
            mend = f"\n  try: {MENDS[error.errno]}" if error.errno in MENDS else ""
            return f"{paragraph(error.strerror or str(error)).lower()}{where}{mend}"
        case MemoryError():
            needed = f": {str(error)[:1].lower()}{str(error)[1:]}" if str(error) else ""
            return f"the memory is too small{needed}\n  try: {MORE_MEMORY}"
        case RuntimeError() if str(error) == NO_THREAD:
            return f"the system cannot start another thread\n  try: {MORE_MEMORY}"
        case _ if isinstance(error, MISTAKES):
            return str(error)
        case _:
            what = f"{type(error).__name__}: {paragraph(str(error))}"
            return (
                f"a mistake in mlc-deploy itself ({what})\n  try: --debug, and report what it says"
            )


def complain(text: str) -> None:
    color = False if os.environ.get("NO_COLOR") else None  # None: where stderr is a terminal
    click.secho("error: ", err=True, nl=False, color=color, fg="red", bold=True)
    click.echo("\n".join(shown(line, LONG) for line in text.split("\n")), err=True)
