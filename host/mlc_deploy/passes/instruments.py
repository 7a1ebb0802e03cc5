"""Instruments: objects that watch the passes of a PassContext run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO


class Instrument:
    """A PassContext calls these methods. Each does nothing until it is overridden.

    One instrument may watch passes in several threads at once.
    """

    def enter(self) -> None:
        """The context is entered."""

    def before(self, name: str, program: Any) -> None:
        """A pass is about to run."""

    def after(self, name: str, program: Any, changed: bool) -> None:
        """A pass has run. `changed` is False if it returned the same program object."""

    def exit(self) -> None:
        """The context is left."""


class TimingInstrument(Instrument):
    """The time of each pass: `seconds` and `runs` by pass, `render()` as a table."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.runs: dict[str, int] = {}
        self._began: dict[int, float] = {}
        self._lock = threading.Lock()

    def before(self, name: str, program: Any) -> None:
        self._began[threading.get_ident()] = time.perf_counter()

    def after(self, name: str, program: Any, changed: bool) -> None:
        took = time.perf_counter() - self._began.pop(threading.get_ident())
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            self.runs[name] = self.runs.get(name, 0) + 1

    def render(self) -> str:
        """A table of the passes with milliseconds, slowest first."""
        total = sum(self.seconds.values())
        rows = [("pass", "runs", "ms", "share")]
        for name, took in sorted(self.seconds.items(), key=lambda item: -item[1]):
            share = f"{took / total:.0%}" if total else ""
            rows.append((name, str(self.runs[name]), f"{took * 1e3:.2f}", share))
        rows.append(("all", str(sum(self.runs.values())), f"{total * 1e3:.2f}", ""))
        widths = [max(len(row[n]) for row in rows) for n in range(4)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(row[n].rjust(widths[n]) for n in (1, 2, 3))]
            ).rstrip()
            for row in rows
        )


class PrintInstrument(Instrument):
    """Prints the program, or "(unchanged)", after the named passes, or after all. With `before`,
    also prints the program before each. Prints to `file` (default: stderr)."""

    def __init__(
        self, passes: Iterable[str] = (), *, before: bool = False, file: TextIO | None = None
    ) -> None:
        self._passes = frozenset(passes)
        self._before = before
        self._file = file

    def before(self, name: str, program: Any) -> None:
        if self._before:
            self._print(name, "before", program, str(program))

    def after(self, name: str, program: Any, changed: bool) -> None:
        self._print(name, "after", program, str(program) if changed else "(unchanged)")

    def _print(self, name: str, when: str, program: Any, text: str) -> None:
        if not self._passes or name in self._passes:
            heading = f"--- {getattr(program, 'name', '')}: {when} {name}"
            print(f"{heading}\n{text}", file=self._file or sys.stderr)
