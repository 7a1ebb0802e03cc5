"""The state of a tuning under way: a table on a terminal, a line every 15 s elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live

from mlc_rpc.screen import Display
from mlc_rpc.screen import shown as lent

from .progress import Progress
from .tables import add_row, line, plain_table
from .tune_report import clock_text, task_cells, task_columns, task_record

if TYPE_CHECKING:
    from ..tune.tune import State

LINE_SECONDS = 15.0  # between lines when stderr is not a terminal
MOST_ROWS = 24  # tasks that are shown


@contextmanager
def shown(progress: Progress) -> Iterator[Callable[[State], None]]:
    """A function that shows the state of a run."""
    console = progress.console
    if console.is_terminal:
        now: State | None = None
        with Live(
            console=console,
            get_renderable=lambda: line("") if now is None else standing(now),
            refresh_per_second=1,  # for the clock
            transient=True,
        ) as live:

            def show(state: State) -> None:
                nonlocal now
                now = state
                live.refresh()

            with lent(Display(lambda text: None, live.stop, live.start)):
                yield show
        return
    last = -LINE_SECONDS

    def tell_now_and_then(state: State) -> None:
        nonlocal last
        if state.told < state.trials and time.perf_counter() - last < LINE_SECONDS:
            return
        last = time.perf_counter()
        console.print(line(standing_line(state), "dim"))

    yield tell_now_and_then


def standing_line(state: State) -> str:
    left = state.left
    rest = "" if left is None else f", about {clock_text(left)} more"
    return (
        f"{state.told:>6} of {state.trials} trials, {clock_text(state.seconds)}{rest}, "
        f"{_gain(state)}: {state.stage}"
    )


def standing(state: State) -> Group:
    """A row per task, the costliest first, and the line below."""
    table = plain_table(*task_columns(state.objective), ("trials", True), ("share", True))
    total = sum(t.share for t in state.tasks if isfinite(t.share))
    ranked = sorted(state.tasks, key=lambda t: -t.share if isfinite(t.share) else 0)
    for t in ranked[:MOST_ROWS]:
        share = f"{t.share / total:.1%}" if isfinite(t.share) and total else ""
        add_row(
            table, t.task.name, *task_cells(task_record(t, state.objective)), f"{t.trials}", share
        )
    return Group(table, line(standing_line(state), "dim", short=True))


def _gain(state: State) -> str:
    known = [t for t in state.tasks if isfinite(t.baseline) and isfinite(t.best)]
    before = sum(t.task.weight * t.baseline for t in known)
    now = sum(t.task.weight * min(t.best, t.baseline) for t in known)
    what = {"seconds": "time", "predicted": "predicted time"}.get(state.objective, "instructions")
    return f"{now / before:.1%} of the default kernels' {what}" if before else "no result yet"
