"""What several rules ask of a schedule."""

from __future__ import annotations

from ...ir import Const
from ...schedule import Schedule


def is_untouched(sch: Schedule, block: str) -> bool:
    """Whether a block's loops are as they were stated: serial, its own, results in memory."""
    found = sch.block(block)
    loops = [sch.loop(n) for n in sch.get_loops(block)]
    others = [b for b in sch.get_blocks() if b != block]
    return (
        all(loop.kind == "serial" for loop in loops)
        and all(w.buffer.scope == "global" for w in found.writes)
        and not any(set(sch.get_loops(block)) & set(sch.get_loops(b)) for b in others)
    )


def extent_of(sch: Schedule, loop: str) -> int | None:
    """A loop's turns; None where they are known only at run time."""
    extent = sch.loop(loop).extent
    return int(extent) if isinstance(extent, Const) else None
