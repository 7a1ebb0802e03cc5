"""Simplification of statements, by the ranges of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from ..ir import (
    Block,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Let,
    Node,
    Seq,
    Stmt,
    Var,
    const,
    dtype_of,
    rebuild,
    substitute,
)
from .linear import Bounds, Known, Linear, Ranges
from .normalize import expr_bounds, linear, simplify_expr

N = TypeVar("N", bound=Node)


def simplify(n: N, ranges: Ranges | None = None) -> N:
    """n with its expressions simplified, loops of one iteration and empty statements removed.

    Guards that the ranges decide are removed. The loops around add ranges.
    """
    known = Known(ranges or {})

    def bind(var: Var, extent: Expr) -> None:
        turns = turn_range(extent, known)
        top = linear(extent, known).plus(Linear(-1, {})) if turns[1] is None else None
        known.bind(var, turns, top)

    def visit(m: Any) -> Any:
        match m:
            case Expr():
                return simplify_expr(m, known)
            case For():
                return _for(m)
            case Block():
                for i in m.iters:
                    bind(i.var, i.extent)
                return rebuild(m, visit)
            case IterVar():
                extent = visit(m.extent)
                binding = simplify_expr(m.binding, known)
                if extent is m.extent and binding is m.binding:
                    return m
                return IterVar(m.var, extent, m.kind, binding)
            case If():
                condition = visit(m.condition)
                if isinstance(condition, Const):
                    taken = m.then if condition.value else m.otherwise
                    return Seq(()) if taken is None else visit(taken)
                then = visit(m.then)
                otherwise = None if m.otherwise is None else visit(m.otherwise)
                if is_empty(then) and (otherwise is None or is_empty(otherwise)):
                    return Seq(())
                if condition is m.condition and then is m.then and otherwise is m.otherwise:
                    return m
                return If(condition, then, otherwise)
            case Let():
                value = visit(m.value)
                if dtype_of(m.var.dtype).is_integer and dtype_of(m.var.dtype).lanes == 1:
                    known.bind(m.var, expr_bounds(value, known))
                if isinstance(value, (Const, Var)):
                    return visit(substitute(m.body, {m.var: value}))
                body = visit(m.body)
                return m if value is m.value and body is m.body else Let(m.var, value, body)
            case Seq():
                kept = rebuild(m, visit)
                if isinstance(kept, Seq) and any(is_empty(s) for s in kept.stmts):
                    left = tuple(s for s in kept.stmts if not is_empty(s))
                    return left[0] if len(left) == 1 else Seq(left)
                return kept
        return rebuild(m, visit)

    def _for(m: For) -> Stmt:
        extent = visit(m.extent)
        if isinstance(extent, Const):
            if extent.value <= 0:
                return Seq(())
            if extent.value == 1 and not m.annotations:
                return cast(Stmt, visit(substitute(m.body, {m.var: const(0, m.var.dtype)})))
        bind(m.var, extent)
        body = visit(m.body)
        if is_empty(body):
            return Seq(())
        if extent is m.extent and body is m.body:
            return m
        return For(m.var, extent, m.kind, body, m.annotations)

    return cast(N, visit(n))


def is_empty(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.stmts


def turn_range(extent: Expr, ranges: Ranges) -> Bounds:
    """The range of the variable of a loop of this extent."""
    high = expr_bounds(extent, ranges)[1]
    return 0, None if high is None else max(high - 1, 0)


def loop_ranges(loops: Sequence[For], ranges: Ranges | None = None) -> dict[Var, Bounds]:
    """`ranges`, and those of the variables of nested loops, outermost first."""
    known = dict(ranges or {})
    for loop in loops:
        known[loop.var] = turn_range(loop.extent, known)
    return known


def equal(a: Expr, b: Expr, ranges: Ranges | None = None) -> bool:
    """Whether two integer expressions are certainly equal."""
    return linear(a, ranges or {}) == linear(b, ranges or {})
