"""Operators of the script. Between two expressions they make exactly the written node. With a
Python number beside an expression they simplify as tensor expressions do (i * 1 is i)."""

from __future__ import annotations

from ..ir import (
    Binary,
    Compare,
    Expr,
    ExprLike,
    Not,
    Select,
    binary,
    call,
    compare,
    dtype_of,
    expr,
    with_lanes,
)
from ..ir import not_ as negated
from ..ir.build import broadcast, promoted, require_operator
from ..ir.nodes import Call


def operate(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b`. Raises TypeError for dtypes that do not fit each other or the operator."""
    if op in ("and", "or"):
        for side in (a, b):
            _require_bool(side, op)
    if not (isinstance(a, Expr) and isinstance(b, Expr)):
        return binary(op, a, b)
    x, y = promoted(a, b, op)
    require_operator(op, x, y)
    return Binary(op, x, y, x.dtype)


def relate(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b` for a comparison."""
    if not (isinstance(a, Expr) and isinstance(b, Expr)):
        return compare(op, a, b)
    x, y = promoted(a, b)
    return Compare(op, x, y, with_lanes("bool", dtype_of(x.dtype).lanes))


def invert(a: ExprLike) -> Expr:
    """`not a`."""
    _require_bool(a, "not")
    return Not(a, a.dtype) if isinstance(a, Expr) else negated(expr(a))


def choose(condition: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """a if the condition is true, else b. Both are evaluated."""
    _require_bool(condition, "T.Select")
    x, y = promoted(a, b)
    if not isinstance(condition, Expr):
        return x if condition else y
    lanes = max(dtype_of(condition.dtype).lanes, dtype_of(x.dtype).lanes)
    x, y = broadcast(x, lanes), broadcast(y, lanes)
    return Select(condition, x, y, x.dtype)


def choose_lazily(condition: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """a if the condition is true, else b. Only the one taken is evaluated."""
    _require_bool(condition, "T.if_then_else")
    x, y = promoted(a, b)
    if not isinstance(condition, Expr):
        return x if condition else y
    return Call("if_then_else", (condition, x, y), x.dtype)


def likely(condition: ExprLike) -> Expr:
    _require_bool(condition, "T.likely")
    test = expr(condition)
    return call("likely", test.dtype, test)


def _require_bool(condition: ExprLike, who: str) -> None:
    value = expr(condition)
    if dtype_of(value.dtype).kind != "bool":
        raise TypeError(
            f"'{who}' of '{value}', which is {value.dtype}\n"
            f"  try: a comparison, such as {value} != 0"
        )
