"""Loops over vectors whose number is known only at run time, unrolled in part."""

from __future__ import annotations

from typing import Any

from ..arith import Bounds, simplify_expr, turn_range
from ..ir import (
    BOUNDED,
    SCALARS,
    Call,
    Const,
    Expr,
    For,
    Let,
    Load,
    PrimFunc,
    Seq,
    Store,
    Var,
    binary,
    const,
    dtype_of,
    rebuild,
    substitute,
    symbols_of,
    walk,
)
from ..ir.names import names_of
from ..passes.context import optional
from .bodies import with_body

TURNS = 4  # of a loop with a dynamic extent that become one
MOST_LOADS = 4  # of an iteration: with more, the loop's own instructions are few beside it


@optional(level=2)
def unroll_open_loops(func: PrimFunc) -> PrimFunc:
    """for i in range(n): S
    =>   let m = n // 4: for i in range(m): S[i := 4*i]; …; S[i := 4*i + 3]
         for i in range(n - 4*m): S[i := 4*m + i]

    where S only stores vectors, from few loads. Schedules cannot unroll such a loop without a guard
    for the iterations that are left over.
    """
    dimensions = {v for b in func.buffers for v in symbols_of(b)}
    if not dimensions or SCALARS in func.attrs:  # sizes of several kernels: schedules unroll these
        return func
    names = names_of(func)

    def visit(m: Any, ranges: dict[Var, Bounds]) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For):
            inside = {**ranges, m.var: turn_range(m.extent, ranges)}
            few = inside[m.var][1]
            if not _is_short(m) or (few is not None and few < 2 * TURNS):
                return with_body(m, visit(m.body, inside))
            turns = Var(names.fresh(f"{m.name}_fours"), m.var.dtype)
            number = binary("max", m.extent, const(0, m.var.dtype)) // TURNS
            done = turns * TURNS
            copies = (substitute(m.body, {m.var: m.var * TURNS + k}) for k in range(TURNS))
            rest = substitute(m.body, {m.var: m.var + done})
            parts = (
                For(m.var, turns, "serial", Seq(tuple(copies)), m.annotations),
                For(m.var, m.extent - done, "serial", rest, m.annotations),
            )
            return Let(turns, simplify_expr(number, ranges), Seq(parts))
        return rebuild(m, lambda child: visit(child, ranges))

    return with_body(func, visit(func.body, dict.fromkeys(dimensions, (0, None))))


def _is_short(loop: For) -> bool:
    """Whether a loop of dynamic extent only stores vectors, from few loads and without long
    calls."""
    stores = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    inside = list(walk(loop.body))
    return (
        loop.kind == "serial"
        and not isinstance(loop.extent, Const)
        and all(isinstance(s, Store) and dtype_of(s.value.dtype).lanes > 1 for s in stores)
        and sum(isinstance(n, Load) for n in inside) <= MOST_LOADS
        and all(n.name in ("abs", BOUNDED) for n in inside if isinstance(n, Call))
    )
