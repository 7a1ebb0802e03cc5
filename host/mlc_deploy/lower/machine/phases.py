"""Phases that return stay part of their kernel."""

from __future__ import annotations

from typing import Any

from ...ir import Call, Expr, For, PrimFunc, rebuild, walk, with_fields
from ...passes.context import required
from ..annotations import PHASE
from ..bodies import with_body


@required
def join_phases(func: PrimFunc) -> PrimFunc:
    """for i in range(n, annotations={PHASE}): … return …   =>   for i in range(n): … return …

    A phase becomes a function of its own, which cannot return from the kernel.
    """

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and PHASE in m.annotations and _returns(m):
            m = with_fields(m, annotations={k: v for k, v in m.annotations.items() if k != PHASE})
        return rebuild(m, visit)

    body = visit(func.body)
    return with_body(func, body)


def _returns(loop: For) -> bool:
    return any(isinstance(n, Call) and n.name == "ret" for n in walk(loop))
