"""Unrolled loops become sequences."""

from __future__ import annotations

from typing import Any

from ..errors import LowerError
from ..ir import Const, Expr, For, PrimFunc, const, rebuild, seq, substitute, with_fields
from ..ir.printer import loop_header

MOST_STATEMENTS = 1 << 16


def unroll_loops(func: PrimFunc) -> PrimFunc:
    """for i in unrolled(n): S   =>   S[i := 0]; …; S[i := n-1]

    Raises LowerError for extents that are not constant, or would make more than 2^16 copies.
    """

    def visit(m: Any, copies: int) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and m.kind == "unrolled":
            if not isinstance(m.extent, Const):
                raise LowerError(
                    f"unroll: loop '{m.name}' has extent {m.extent}, which is not a constant",
                    where=loop_header(m),
                    mend=f"split '{m.name}' by a constant first, then unroll its inner loop",
                )
            turns = int(m.extent)
            if copies * turns > MOST_STATEMENTS:
                raise LowerError(
                    f"unroll: loop '{m.name}' would make {copies * turns} copies of its body",
                    where=loop_header(m),
                    mend="unroll fewer loops around each other",
                )
            body = visit(m.body, copies * turns)
            return seq(substitute(body, {m.var: const(n, m.var.dtype)}) for n in range(turns))
        return rebuild(m, lambda child: visit(child, copies))

    return with_fields(func, body=visit(func.body, 1))
