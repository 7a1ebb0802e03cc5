"""Progress on stderr: a line per stage, with its seconds; and all stages, for a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from mlc_rpc import screen

from .tables import Record, line

Say = Callable[[str], None]
QUIET_SECONDS = 15.0  # between lines about one stage, without a terminal
SURE = 3  # kernels that must be done before the remaining time is estimated


class Progress:
    """Stages, and with -v notes."""

    def __init__(self, verbose: bool) -> None:
        self.console = Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self.verbose = verbose
        self.steps: list[Record] = []  # name, begin_s (since the progress was made), seconds
        self._began = time.perf_counter()

    @contextmanager
    def stage(self, name: str, kept: bool = True) -> Iterator[Say]:
        """Shows a stage and its progress while it runs: live on a terminal, elsewhere by a line
        from time to time. If `kept`, a line with its seconds remains."""
        began = time.perf_counter()
        if self.console.is_terminal:
            from rich.progress import Progress as Display  # here: only terminals need it
            from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Display(*columns, console=self.console, transient=True) as display:
                task = display.add_task(name)

                def say(text: str) -> None:
                    display.update(task, description=f"{name:<10}{text}")

                # Whoever asks a person stops the display: it would write over the question.
                with screen.shown(screen.Display(say, display.stop, display.start)):
                    yield say
        else:
            rarely = _rarely(lambda text: self.console.print(f"{name:<10}{text}", style="dim"))
            with screen.shown(screen.Display(rarely)):
                yield rarely
        seconds = time.perf_counter() - began
        self.steps.append({"name": name, "begin_s": began - self._began, "seconds": seconds})
        if kept:
            self.console.print(f"{name:<10}{seconds:8.2f} s", style="dim")

    def note(self, text: str) -> None:
        if self.verbose:
            self.console.print(line(f"  {text}", "dim"))

    def warn(self, text: str) -> None:
        self.console.print(line(f"warning: {text}", "yellow"))


def _rarely(say: Say, clock: Callable[[], float] = time.perf_counter) -> Say:
    """Passes a text on if nothing was said for QUIET_SECONDS."""
    last = clock()

    def say_rarely(text: str) -> None:
        nonlocal last
        if clock() - last >= QUIET_SECONDS:
            last = clock()
            say(text)

    return say_rarely


def kernel_progress(
    say: Say, clock: Callable[[], float] = time.perf_counter
) -> Callable[[int, int], None]:
    """A callback that says how many kernels are compiled, and how long the others will take."""
    began = clock()

    def counted(done: int, most: int) -> None:
        nonlocal began
        if not done:  # another program begins
            began = clock()
        left = (clock() - began) / done * (most - done) if done >= SURE and done < most else None
        about = "" if left is None else f", about {max(round(left), 1)} s left"
        say(f"{done} of {most} kernels{about}")

    return counted
