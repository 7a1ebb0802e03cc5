"""The signals that end the command, from its first line on (ending.py has the rest).

It imports nothing slow: before it, Ctrl-C is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # some systems lack some
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def catch_signals() -> None:
    """From now on a signal ends this process without a traceback."""
    set_handlers(lambda number, _: leave(number))


def set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Sets the handler of SIGNALS, but not of ignored ones (nohup)."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def leave(number: int, before: bytes = b"") -> NoReturn:
    """Says why, and ends this process at once."""
    say(before + told(number))
    os._exit(128 + number)


def told(number: int) -> bytes:
    """The message of a signal."""
    what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return f"error: {what}\n".encode()


def say(text: bytes) -> None:
    """Writes to stderr, without a lock."""
    try:
        os.write(2, text)
    except OSError:  # the terminal is gone
        pass
