"""The loops of a scheduled function in a form to read: no blocks, and nothing flattened yet."""

from __future__ import annotations

from typing import Any

from ..arith import simplify
from ..ir import Block, Call, Expr, PrimFunc, is_const, rebuild, with_fields
from .blocks import lower_blocks
from .compact import compact_buffers
from .scratch import align_rows, double_buffers


def simple_loops(func: PrimFunc) -> PrimFunc:
    """What a schedule has made of a function: its loops, stores and guards, each guard that a split
    put there marked `likely`; buffers have the shape of what is live of them, their rows and halves
    as they were asked for."""
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
