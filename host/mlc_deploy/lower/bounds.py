"""Bound checks: an option for programs written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ir import (
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Node,
    PrimFunc,
    Ramp,
    Stmt,
    Store,
    any_of,
    bottom_up,
    cast,
    const,
    evaluated,
    expr,
    is_const,
    rebuild,
    seq,
)
from ..ir.build import compare
from ..passes.context import option, required
from .bodies import with_body

OUT_OF_BOUNDS = 1  # mlc_status in device_runtime/include/mlc_abi.h


@required
def check_bounds(func: PrimFunc) -> PrimFunc:
    """B[i] = A[j]
    =>   if j < 0 or j >= size(A): return 1;  if i < 0 or i >= size(B): return 1;  B[i] = A[j]

    The option "lower.bound_check" turns it on. Simplification removes the checks that always hold.
    A load under a condition is checked under that condition.
    """
    if not option("lower.bound_check"):
        return func

    def visit(m: Any) -> Any:
        match m:
            case Expr():
                return m
            case Store(buffer, (index,), value):
                seen: set[Node] = set()
                loads = [*_checks(value, seen), *_checks(index, seen)]
                checks = [*loads, *_check(buffer.shape[0], index)]
                return seq([*checks, m]) if checks else m
            case If(condition):
                return _after(_checks(condition), rebuild(m, visit))
            case Let(_, value):
                return _after(_checks(value), rebuild(m, visit))
            case For():
                return _after(_checks(m.extent), rebuild(m, visit))
            case Evaluate(Call("prefetch")):
                return m  # it loads nothing
            case Evaluate(value):
                return _after(_checks(value), m)
        return rebuild(m, visit)

    return with_body(func, visit(func.body))


def _after(checks: Iterator[Stmt], s: Stmt) -> Stmt:
    before = list(checks)
    return seq([*before, s]) if before else s


def _checks(e: Node, seen: set[Node] | None = None) -> Iterator[Stmt]:
    """Checks of the loads in an expression, in order of evaluation. Nodes in `seen` are checked
    already."""
    seen = set() if seen is None else seen
    for n in bottom_up(e, seen, evaluated):
        seen.add(n)
        match n:
            case Call("if_then_else", (condition, a, b)):
                then, otherwise = (list(_checks(side, set(seen))) for side in (a, b))
                if then or otherwise:
                    yield If(condition, seq(then), seq(otherwise) if otherwise else None)
            case Load(buffer, (index,)):
                yield from _check(buffer.shape[0], index)


def _check(size: int | Expr, index: Expr) -> Iterator[Stmt]:
    base, least, reach = index, expr(0), expr(0)
    if isinstance(index, Ramp):
        base, reach = index.base, index.stride * (index.lanes - 1)
        if is_const(compare("<", index.stride, 0), True):  # backwards
            least, reach = -reach, expr(0)
    # The ends move, not the index: a loaded one could wrap.
    least, extent = cast(base.dtype, least), cast(base.dtype, expr(size) - reach)
    outside = any_of(compare("<", base, least), compare(">=", base, extent))
    if not is_const(outside, False):
        yield If(outside, Evaluate(Call("ret", (const(OUT_OF_BOUNDS),), "int32")))
