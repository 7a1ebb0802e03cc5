"""Loop partition: hot loops lose their guards, which stay in the few turns that need them."""

from __future__ import annotations

from typing import Any

from ..arith import Bounds, Linear, bounds, expr_bounds, linear, simplify
from ..ir import (
    Binary,
    Compare,
    Const,
    Expr,
    For,
    If,
    PrimFunc,
    Stmt,
    Var,
    const,
    rebuild,
    seq,
    statements,
    substitute,
    with_fields,
)


def partition_loops(func: PrimFunc) -> PrimFunc:
    """for i in range(n): if a*i + r < b: S
    =>   for i in range(m): S;   for i in range(n - m): if a*(i+m) + r < b: S[i := i + m]

    where for i < m the guard holds whatever the loops inside do. Loops of constant extent only.
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
                turns = int(m.extent)
                free = min(_free_turns(m, ranges), default=turns)
                if 0 < free < turns:
                    return _cut(m, free, ranges)
            body = _partition(m.body, inside)
            return m if body is m.body else with_fields(m, body=body)
        return rebuild(m, visit)

    done: Stmt = visit(s)
    return done


def _cut(loop: For, free: int, ranges: dict[Var, Bounds]) -> Stmt:
    kind = loop.kind if loop.kind != "parallel" else "serial"
    turns = int(loop.extent)  # type: ignore[call-overload]
    head = For(loop.var, const(free), kind, loop.body, loop.annotations)
    shifted = substitute(loop.body, {loop.var: loop.var + free})
    tail = For(loop.var, const(turns - free), kind, shifted, loop.annotations)
    return seq(_partition(simplify(part, ranges), ranges) for part in (head, tail))


def _free_turns(loop: For, ranges: dict[Var, Bounds]) -> list[int]:
    """For each guard in the loop that the loop can decide: the number of first turns in which it
    certainly holds."""
    turns = int(loop.extent)  # type: ignore[call-overload]
    known = dict(ranges)
    for s in statements(loop.body):
        if isinstance(s, For):
            high = expr_bounds(s.extent, known)[1]
            known[s.var] = (0, None if high is None else high - 1)
    found: list[int] = []
    for s in statements(loop.body):
        if isinstance(s, If):
            for guard in conjuncts(s.condition):
                free = _turns_below(guard, loop.var, known)
                if free is not None and 0 < free < turns:
                    found.append(free)
    return found


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that a condition is the conjunction of."""
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


def _turns_below(guard: Expr, var: Var, known: dict[Var, Bounds]) -> int | None:
    """n such that `guard` holds for var < n whatever the others; None for other guards."""
    if not (isinstance(guard, Compare) and guard.op in ("<", "<=")):
        return None
    form = linear(guard.a, known).plus(linear(guard.b, known), -1)
    if guard.op == "<=":
        form = form.plus(Linear(-1, {}))
    step = form.terms.get(var)
    if step is None or step < 0:
        return None
    rest = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not var})
    high = bounds(rest, known)[1]
    return None if high is None else -(high // step)
