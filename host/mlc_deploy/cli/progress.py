"""Progress on stderr: a line per stage, with its seconds; and all stages, for a record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Display
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from .tables import Record, line


class Progress:
    """Stages, and with -v notes."""

    def __init__(self, verbose: bool) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.verbose = verbose
        self.steps: list[Record] = []  # name, begin_s (since the progress was made), seconds
        self._began = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows a stage while it runs, on a terminal; a line with its seconds remains."""
        began = time.perf_counter()
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Display(*columns, console=self.console, transient=True) as display:
                display.add_task(name)
                yield
        else:
            yield
        seconds = time.perf_counter() - began
        self.steps.append({"name": name, "begin_s": began - self._began, "seconds": seconds})
        self.console.print(f"{name:<10}{seconds:8.2f} s", style="dim")

    def note(self, text: str) -> None:
        if self.verbose:
            self.console.print(line(f"  {text}", "dim"))

    def warn(self, text: str) -> None:
        self.console.print(line(f"warning: {text}", "yellow"))
