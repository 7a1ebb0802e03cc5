"""What is under way: one line per stage on stderr, with the seconds it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Display
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from .tables import line


class Progress:
    """Stages, and notes for those who asked for them with -v."""

    def __init__(self, verbose: bool) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.verbose = verbose

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage under way; on a terminal it is shown with its seconds, and a line remains."""
        began = time.perf_counter()
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Display(*columns, console=self.console, transient=True) as display:
                display.add_task(name)
                yield
        else:
            yield
        self.console.print(f"{name:<10}{time.perf_counter() - began:8.2f} s", style="dim")

    def note(self, text: str) -> None:
        if self.verbose:
            self.console.print(line(f"  {text}", "dim"))

    def warn(self, text: str) -> None:
        self.console.print(line(f"warning: {text}", "yellow"))
