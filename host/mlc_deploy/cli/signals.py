"""The signals that end the command, from its first line on (ending.py has the rest).

Nothing is imported here that takes time: until it is, Ctrl-C is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has all of them
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def catch_signals() -> None:
    """From now on a signal ends this process, quietly."""
    set_handlers(lambda number, _: leave(number))


def set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """For all of SIGNALS but those that are ignored, as they are under nohup."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def leave(number: int, before: bytes = b"") -> NoReturn:
    """Ends this process, says why, and does nothing else."""
    say(before + told(number))
    os._exit(128 + number)


def told(number: int) -> bytes:
    """What to say of a signal."""
    what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return f"error: {what}\n".encode()


def say(text: bytes) -> None:
    """Writes to stderr whatever else is being written there."""
    try:
        os.write(2, text)
    except OSError:  # there is no terminal any more
        pass
