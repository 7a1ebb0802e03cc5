"""Vectors, unrolled loops and threads for blocks that no other rule took."""

from __future__ import annotations

from mlc_targets import Target

from ...ops.cpu.default import by_rows, schedule_block
from ...schedule import Schedule
from .shared import is_untouched


def parallelize_vectorize_unroll(sch: Schedule, block: str, target: Target) -> Schedule:
    """Inner loops fused and cut into vectors, several of them unrolled in one iteration, the
    outermost loop parallel; reductions with a vector of neighbouring results, some of their steps
    unrolled.

    If no stage is scheduled, all may be computed row by row, in one loop.
    """
    blocks = sch.get_blocks()
    if not is_untouched(sch, block):
        return sch
    if len(blocks) > 1 and all(is_untouched(sch, b) for b in blocks):
        possible = by_rows(sch)[1] is not None
        if possible and sch.sample_categorical([0, 1], [0.3, 0.7]):
            joined, row = by_rows(sch)
            assert row is not None
            for name in blocks:
                schedule_block(joined, name, target, row)
            joined.parallel(row)
            return joined
    schedule_block(sch, block, target)
    return sch
