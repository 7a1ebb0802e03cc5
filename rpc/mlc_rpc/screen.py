"""The person's terminal, which has one writer at a time: a live display, or a question.

A program that shows a display lends it by `shown`. Whoever asks a person stops it by `asking`, so
that the question stays on the screen. Whoever moves many bytes tells the display by `Meter`.
"""

from __future__ import annotations

import getpass
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mlc_targets.text import shown as escaped

SAY_SECONDS = 0.5  # between two texts about the same bytes
SURE_SECONDS = 2.0  # of moving until the remaining time is estimated


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Display:
    """`say` shows a text beside the stage's name; `stop` clears the display, `start` shows it
    again."""

    say: Callable[[str], None]
    stop: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing


_displays: list[Display] = []
_terminal = threading.RLock()  # held by whoever asks


@contextmanager
def shown(display: Display) -> Iterator[None]:
    """Lends a display while the block runs."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


@contextmanager
def asking() -> Iterator[None]:
    """Owns the terminal while the block runs: no display is live, and nobody else asks."""
    with _terminal:
        stopped = list(_displays)
        for display in reversed(stopped):
            display.stop()
        try:
            yield
        finally:
            for display in stopped:
                if display in _displays:
                    display.start()


def can_ask() -> bool:
    """Whether a person sits at a terminal."""
    try:
        return bool(sys.stdin and sys.stdin.isatty())
    except ValueError:  # it is closed
        return False


def ask(question: str, echo: bool = False) -> str:
    """What a person types, without echo. Raises EOFError where nobody answers."""
    question = escaped(question.strip()) + " "
    with asking():
        if not echo:
            return getpass.getpass(question)
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise EOFError
        return answer.rstrip("\r\n")


class Meter:
    """Says how far a transfer of `total` bytes is: "1.2 of 6.4 MB, about 35 s left"."""

    def __init__(
        self, total: int, name: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._name, self._clock = total, name, clock
        self._began = self._said = clock()
        self._done = 0

    def moved(self, size: int) -> None:
        """`size` bytes more have arrived at the other end."""
        self._done += size
        now = self._clock()
        if not _displays or self._done > self._total or now - self._said < SAY_SECONDS:
            return
        self._said = now
        seconds, left = now - self._began, self._total - self._done
        about = ""
        if seconds >= SURE_SECONDS and self._done and left:
            about = f", about {max(round(seconds / self._done * left), 1)} s left"
        _displays[-1].say(f"{self._name}{_of(self._done, self._total)}{about}")


def _of(done: int, total: int) -> str:
    """1.2 of 6.4 MB"""
    unit, name = (1e6, "MB") if total >= 1e6 else (1e3, "kB")
    return f"{done / unit:.1f} of {total / unit:.1f} {name}"
