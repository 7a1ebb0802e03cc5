"""Narrowing: 64-bit index arithmetic becomes 32-bit where its bounds allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arith import Bounds, Known, expr_bounds, turn_range
from ..ir import (
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    For,
    Let,
    Load,
    PrimFunc,
    Store,
    Var,
    cast,
    const,
    dtype_of,
    once,
    rebuild,
    substitute,
    value_range,
    with_fields,
)
from ..ir.build import binary, compare
from ..passes.context import optional
from .bodies import with_body

NARROW, WIDE = "int32", "int64"
ARITHMETIC = ("+", "-", "*", "//", "%", "min", "max")


@optional(level=1)
def narrow_indices(func: PrimFunc) -> PrimFunc:
    """for i: int64 in range(n): if i*8 + j < m: B[i*8 + j] = x
    =>   for i: int32 in range(n): if i*8 + j < m: B[i*8 + j] = x

    where every intermediate value fits. LLVM does not see the variables' bounds, so on 32-bit ARM
    it would compare register pairs. Addresses have pointer width in any case.
    """
    return with_body(func, _scope({})(func.body))


def _scope(ranges: dict[Var, Bounds]) -> Callable[[Any], Any]:
    """The rewriting for a scope where the variables have these ranges."""
    known = Known(ranges)

    @once
    def narrowed(e: Any) -> Expr | None:
        """An int64 expression in int32, or None where an intermediate value may not fit."""
        match e:
            case Cast(_, a) if a.dtype == NARROW:
                return a
            case Const(value):
                return const(int(value), NARROW) if _fits((int(value), int(value))) else None
            case Binary(op, a, b) if op in ARITHMETIC and _fits(expr_bounds(e, known)):
                x, y = narrowed(a), narrowed(b)
                return None if x is None or y is None else binary(op, x, y)
        return None

    @once
    def visit(m: Any) -> Any:
        match m:
            case For():
                turns = turn_range(m.extent, known)
                if m.var.dtype == WIDE and _fits(expr_bounds(m.extent, known)):
                    var = Var(m.var.name, NARROW)
                    body = substitute(m.body, {m.var: Cast(WIDE, var)})
                    extent = narrowed(m.extent) or cast(NARROW, m.extent)
                    inside = _scope({**ranges, m.var: turns, var: turns})
                    return For(var, extent, m.kind, inside(body), m.annotations)
                return rebuild(m, _scope({**ranges, m.var: turns}))
            case Let():
                if dtype_of(m.var.dtype).is_integer and dtype_of(m.var.dtype).lanes == 1:
                    return rebuild(m, _scope({**ranges, m.var: expr_bounds(m.value, known)}))
            case Load() | Store():
                inner = rebuild(m, visit)
                if any(_index(i) is not i for i in inner.indices):
                    inner = with_fields(inner, indices=tuple(map(_index, inner.indices)))
                return inner
            case Compare(op, a, b) if a.dtype == WIDE:
                x, y = narrowed(a), narrowed(b)
                if x is not None and y is not None:
                    return compare(op, x, y)
            case Cast(dtype, a) if a.dtype == WIDE:
                narrow = narrowed(a)
                if narrow is not None:
                    return cast(dtype, narrow)
            case Binary(dtype="int64"):
                narrow = narrowed(m)
                if narrow is not None:
                    return cast(WIDE, narrow)
        return rebuild(m, visit)

    return visit


def _index(e: Expr) -> Expr:
    """An index without its last cast, which addresses do not need."""
    return e.a if isinstance(e, Cast) and e.dtype == WIDE and e.a.dtype == NARROW else e


def _fits(of: Bounds) -> bool:
    least, most = value_range(NARROW)
    return of[0] is not None and of[1] is not None and least <= of[0] and of[1] <= most
