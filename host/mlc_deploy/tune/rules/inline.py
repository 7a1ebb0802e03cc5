"""Inlining: elementwise producers and constants have no loops of their own."""

from __future__ import annotations

from contextlib import suppress

from mlc_targets import Target

from ...errors import ScheduleError
from ...ir import Const, Store
from ...ops.cpu.default import inline_block
from ...schedule import Schedule


def inline(sch: Schedule, block: str, target: Target) -> Schedule:
    """B[i] = f(A[i]); C[i] = g(B[i])   =>   C[i] = g(f(A[i]))

    Not into a reduction, which would compute it anew in every step, unless it is a copy or a
    constant.
    """
    body = sch.block(block).body
    if isinstance(body, Store) and isinstance(body.value, Const):
        with suppress(ScheduleError):
            sch.compute_inline(block)
    else:
        inline_block(sch, block)
    return sch
