"""Inlining: elementwise producers and constants have no loops of their own."""

from __future__ import annotations

from contextlib import suppress

from mlc_targets import Target

from ...errors import ScheduleError
from ...ir import Const, Load, Store
from ...ops.cpu.default import inline_block
from ...schedule import Schedule


def inline(sch: Schedule, block: str, target: Target) -> Schedule:
    """B[i] = f(A[i]); C[i] = g(B[i])   =>   C[i] = g(f(A[i]))

    Not into a reduction, which would compute it again in every step, nor into a block that reads
    several of its elements at once, unless it is a copy or a constant.
    """
    body = sch.block(block).body
    value = body.value if isinstance(body, Store) else None
    if isinstance(value, Const):
        with suppress(ScheduleError):
            sch.compute_inline(block)
    elif isinstance(value, Load) or not _serves_twice(sch, block):
        inline_block(sch, block)
    return sch


def _serves_twice(sch: Schedule, block: str) -> bool:
    """Whether a consumer reads several of the block's elements at once."""
    made = {w.buffer for w in sch.block(block).writes}
    return any(
        sum(r.buffer in made for r in sch.block(consumer).reads) > 1
        for consumer in sch.get_consumers(block)
    )
