"""Guard hoisting: a guard that is the same in all iterations is tested once, outside of the
loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arith import simplify_expr
from ..ir import (
    Binary,
    Const,
    Expr,
    For,
    If,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    all_of,
    is_const,
    rebuild,
    same_expr,
    seq,
    walk,
    with_fields,
)
from ..ir.build import DIVISIONS, conjuncts
from ..passes.context import optional
from .bodies import with_body
from .lanes import uses
from .partition import where_kept


@optional(level=2)
def hoist_guards(func: PrimFunc) -> PrimFunc:
    """B[i] = v if c else B[i]   =>   if c: B[i] = v
    for i in range(n): if c: S   =>   if c: for i in range(n): S
    if c: S; if c and d: T       =>   if c: (S; if d: T)
    if d: if c: S                =>   if d and c: S
    for i in range(n):                if c: for i in range(n): S
        if c: S else: T          =>   else: for i in range(n): T

    where c reads no buffer, divides only by constants, and does not use the loop's variable. A
    parallel loop stays outermost.
    """
    return with_body(func, _hoisted(func.body))


def _hoisted(m: Any) -> Any:
    if isinstance(m, Expr):
        return m
    match rebuild(m, _hoisted):
        case Store(buffer, where, Load(read, there)) if buffer is read and all(
            same_expr(a, b) for a, b in zip(where, there, strict=True)
        ):
            return Seq(())
        case Store() as s:
            kept = where_kept(s)
            return s if kept is None or not _pure(kept.condition) else kept
        case For(body=Seq(())) | If(then=Seq(()), otherwise=None):
            return Seq(())
        case If(outer, If(inner, then, None), None) if _pure(inner):
            return If(all_of(outer, inner), then)
        case For(kind=kind, body=If(condition, then, None)) as loop if kind != "parallel":
            parts = conjuncts(condition)
            fixed = [c for c in parts if _pure(c) and not uses(c, loop.var)]
            if not fixed:
                return loop
            return _guarded(fixed, with_fields(loop, body=_guarded(_others(parts, fixed), then)))
        case For(kind=kind, body=If(condition, then, Stmt() as other)) as loop if (
            kind != "parallel" and _pure(condition) and not uses(condition, loop.var)
        ):
            return If(condition, with_fields(loop, body=then), with_fields(loop, body=other))
        case Seq(stmts) if any(isinstance(x, Seq) for x in stmts):
            return _hoisted(seq(stmts))
        case Seq((_, *_) as stmts) if shared := _shared(stmts):
            return _guarded(shared, Seq(tuple(_without(shared, x) for x in stmts)))
        case other:
            return other


def _pure(condition: Expr) -> bool:
    """Whether it may be evaluated in other places, too."""
    return not any(
        isinstance(n, Load)
        or (isinstance(n, Binary) and n.op in DIVISIONS and not isinstance(n.b, Const))
        for n in walk(condition)
    )


def _shared(stmts: Sequence[Stmt]) -> list[Expr]:
    """The conditions that all the statements are under."""
    first, *others = stmts
    if not isinstance(first, If) or first.otherwise is not None:
        return []
    found = [c for c in conjuncts(first.condition) if _pure(c)]
    for s in others:
        if not isinstance(s, If) or s.otherwise is not None:
            return []
        found = [c for c in found if _contains(conjuncts(s.condition), c)]
    return found


def _contains(parts: Sequence[Expr], condition: Expr) -> bool:
    return any(same_expr(c, condition) for c in parts)


def _others(parts: Sequence[Expr], left_out: Sequence[Expr]) -> list[Expr]:
    return [c for c in parts if not _contains(left_out, c)]


def _without(shared: Sequence[Expr], s: Stmt) -> Stmt:
    assert isinstance(s, If)
    return _guarded(_others(conjuncts(s.condition), shared), s.then)


def _guarded(conditions: Sequence[Expr], s: Stmt) -> Stmt:
    condition = simplify_expr(all_of(*conditions), {})
    return s if is_const(condition, True) else If(condition, s)
