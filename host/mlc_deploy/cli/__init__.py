"""mlc-deploy, the command line: arguments become a job, and its result a table.

signals   what a signal does from the first line on
ending    how the process ends: by itself, or by a signal at any moment
main      the commands, and their groups in --help
groups    groups of commands, alike by every version of click
run       the job: compile, deploy, check, time
options   options that commands share, and how their values are read
place     the target and the board
progress  progress on stderr
report    the result on stdout
errors    errors on stderr, and exit statuses

A command imports the compiler when it runs: signals are set up first, and `--help` is quick.
"""

import os
import sys

__all__ = ["main"]

# Python looks for cycles once so many objects were made. With its default (700), the start of the
# compiler takes a tenth longer, though it makes few cycles.
MANY_OBJECTS = 50_000


def main() -> None:
    """Runs the process `mlc-deploy`, and ends it."""
    try:
        from .signals import catch_signals

        catch_signals()
        _open_streams()
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        os._exit(130)
    import gc

    gc.set_threshold(MANY_OBJECTS)
    from .ending import end_with  # these take a while
    from .main import main as run

    end_with(run)


def _open_streams() -> None:
    """Whoever starts this process may have closed a standard stream: Python then has None for it,
    and the next file would get its number. Whatever the encoding of the others, a character that it
    lacks is replaced: gbk, cp932 and ascii have few of those in models' names and in our tables."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = getattr(sys, name)
        if stream is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, open(number, mode, closefd=False))
        elif mode == "w":
            stream.reconfigure(errors="replace")
