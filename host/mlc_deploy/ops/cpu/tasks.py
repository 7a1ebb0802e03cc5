"""Which loops of a block threads share."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Const
from ...schedule import Schedule
from ..tile import FEW_TASKS

PARALLEL_ELEMENTS = 1 << 14  # for fewer, a thread costs more than it saves


def in_parallel(sch: Schedule, loops: Sequence[str]) -> None:
    """Makes the outermost of nested loops one parallel loop: as many of them as have FEW_TASKS
    iterations. It ends before a loop whose extent only the run time knows, unless it has one
    iteration: each task divides its number by the extents inside."""
    taken: list[str] = []
    turns = 1
    for loop in loops:
        extent = sch.loop(loop).extent
        if turns >= FEW_TASKS or (turns > 1 and not isinstance(extent, Const)):
            break
        taken.append(loop)
        turns *= int(extent) if isinstance(extent, Const) else FEW_TASKS
    sch.parallel(sch.fuse(*taken) if len(taken) > 1 else taken[0])
