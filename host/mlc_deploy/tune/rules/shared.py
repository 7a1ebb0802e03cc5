"""Facts about a schedule that several rules need."""

from __future__ import annotations

from ...ir import Const
from ...schedule import Schedule


def is_untouched(sch: Schedule, block: str) -> bool:
    """Whether a block's loops are as they were stated: serial, its own, results in memory."""
    own = set(sch.get_loops(block))
    return (
        all(sch.loop(n).kind == "serial" for n in own)
        and all(w.buffer.scope == "global" for w in sch.block(block).writes)
        and not any(own & set(sch.get_loops(b)) for b in sch.get_blocks() if b != block)
    )


def extent_of(sch: Schedule, loop: str) -> int | None:
    """A loop's iterations; None where they are known only at run time."""
    extent = sch.loop(loop).extent
    return int(extent) if isinstance(extent, Const) else None
