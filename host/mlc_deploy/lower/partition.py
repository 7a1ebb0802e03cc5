"""Loop partition: hot loops lose their guards, which stay in the few turns that need them."""

from __future__ import annotations

from typing import Any

from ..arith import Bounds, Linear, bounds, expr_bounds, linear, simplify
from ..ir import (
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    For,
    If,
    PrimFunc,
    Stmt,
    Var,
    const,
    dtype_of,
    rebuild,
    seq,
    substitute,
    walk,
    with_fields,
)


def partition_loops(func: PrimFunc) -> PrimFunc:
    """for i in range(n): if a*i + r < b: S
    =>   for i in range(m): S;   for i in range(n - m): if a*(i+m) + r < b: S[i := i + m]

    where for i < m the guard holds whatever the loops inside do; and likewise for guards from below,
    and for those of if_then_else. Loops of constant extent only.
    """
    return with_fields(func, body=_partition(func.body, {}))


def _partition(s: Stmt, ranges: dict[Var, Bounds]) -> Stmt:
    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For):
            high = expr_bounds(m.extent, ranges)[1]
            inside = {**ranges, m.var: (0, None if high is None else high - 1)}
            if m.kind in ("serial", "parallel", "unrolled") and isinstance(m.extent, Const):
                cuts = _cuts(m, ranges)
                if cuts:
                    return _cut(m, min(cuts), ranges)
            body = _partition(m.body, inside)
            return m if body is m.body else with_fields(m, body=body)
        return rebuild(m, visit)

    done: Stmt = visit(s)
    return done


def _cut(loop: For, at: int, ranges: dict[Var, Bounds]) -> Stmt:
    kind = loop.kind if loop.kind != "parallel" else "serial"
    turns = int(loop.extent)  # type: ignore[call-overload]
    head = For(loop.var, const(at), kind, loop.body, loop.annotations)
    shifted = substitute(loop.body, {loop.var: loop.var + at})
    tail = For(loop.var, const(turns - at), kind, shifted, loop.annotations)
    return seq(_partition(simplify(part, ranges), ranges) for part in (head, tail))


def _cuts(loop: For, ranges: dict[Var, Bounds]) -> list[int]:
    """For each guard in the loop that the loop can decide: the turn where it begins to hold, or
    to be in doubt."""
    turns = int(loop.extent)  # type: ignore[call-overload]
    known = dict(ranges)
    guards: list[Expr] = []
    for n in walk(loop.body):
        match n:
            case For():
                high = expr_bounds(n.extent, known)[1]
                known[n.var] = (0, None if high is None else high - 1)
            case If(condition) | Call("if_then_else", (condition, _, _)):
                guards.extend(conjuncts(condition))
    found = (_turn_of(guard, loop.var, known) for guard in guards)
    return [n for n in found if n is not None and 0 < n < turns]


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that a condition is the conjunction of."""
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


def _turn_of(guard: Expr, var: Var, known: dict[Var, Bounds]) -> int | None:
    """n such that, whatever the other variables, `guard` holds for all var < n (when it bounds var
    from above) or for all var >= n (from below); None for other guards."""
    if not isinstance(guard, Compare) or guard.op not in ("<", "<=", ">", ">="):
        return None
    kind = dtype_of(guard.a.dtype)
    if not kind.is_integer or kind.lanes > 1:
        return None
    form = linear(guard.a, known).plus(linear(guard.b, known), -1)
    if guard.op in (">", ">="):
        form = form.times(-1)
    if guard.op in ("<=", ">="):
        form = form.plus(Linear(-1, {}))
    step = form.terms.get(var)  # the guard is: form < 0
    if step is None:
        return None
    rest = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not var})
    high = bounds(rest, known)[1]
    if high is None:
        return None
    return -(high // step) if step > 0 else high // -step + 1
