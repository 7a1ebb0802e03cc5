"""The loops of a scheduled function in a form to read: no blocks, and nothing flattened yet."""

from __future__ import annotations

from typing import Any

from ..arith import simplify
from ..ir import Block, Call, Expr, PrimFunc, is_const, rebuild, with_fields
from .blocks import lower_blocks
from .compact import compact_buffers
from .scratch import align_rows, double_buffers


def simple_loops(func: PrimFunc) -> PrimFunc:
    """A scheduled function as loops, stores and guards. Guards that a split made are marked
    `likely`. Buffers have the shape of their live part, with the aligned rows and halves that were
    asked for."""
    func = _simplified(func)
    func = with_fields(func, body=_guards_marked(func.body))
    func = compact_buffers(_simplified(lower_blocks(func)))
    return _simplified(double_buffers(align_rows(func)))


def _simplified(func: PrimFunc) -> PrimFunc:
    return with_fields(func, body=simplify(func.body))


def _guards_marked(m: Any) -> Any:
    """block where p   =>   block where likely(p)"""
    if isinstance(m, Expr):
        return m
    if isinstance(m, Block) and not is_const(m.predicate, True):
        m = with_fields(m, predicate=Call("likely", (m.predicate,), "bool"))
    return rebuild(m, _guards_marked)
