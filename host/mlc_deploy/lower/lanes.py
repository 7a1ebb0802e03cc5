"""Conditions that differ from lane to lane: when they hold for all lanes, and for which."""

from __future__ import annotations

from ..arith import Bounds, Linear, bounds, linear, to_expr
from ..ir import (
    Binary,
    Buffer,
    Compare,
    Const,
    Expr,
    Load,
    Node,
    Var,
    all_of,
    bottom_up,
    children,
    dtype_of,
    walk,
)
from ..ir.build import DIVISIONS, compare, conjuncts

Ranges = dict[Var, Bounds]


def uses(n: Node, v: Var) -> bool:
    return any(m is v for m in walk(n))


def using(e: Expr, lane: Var) -> set[Node]:
    """The nodes of e that use the lane."""
    found: set[Node] = set()
    seen: set[Node] = set()
    for n in bottom_up(e, seen):
        seen.add(n)
        if n is lane or not found.isdisjoint(children(n)):
            found.add(n)
    return found


def split_uniform(condition: Expr, lane: Var) -> tuple[Expr, Expr]:
    """(the part of a conjunction that is the same in all lanes, the part that is not)."""
    parts = conjuncts(condition)
    return (
        all_of(*(c for c in parts if not uses(c, lane))),
        all_of(*(c for c in parts if uses(c, lane))),
    )


def below_zero(guard: Expr, known: Ranges) -> Linear | None:
    """The form that is below 0 where a comparison of integers holds; None for other guards."""
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
    return form


def lane_form(guard: Expr, lane: Var) -> tuple[int, Linear, str] | None:
    """(step, rest, dtype) such that the guard is `step * lane + rest < 0`; None for others."""
    form = below_zero(guard, {})
    if form is None or lane not in form.terms:
        return None
    assert isinstance(guard, Compare)
    dtype, rest = guard.a.dtype, form.without(lane)
    if dtype_of(dtype).bits < 32 or uses(to_expr(rest, dtype), lane):
        return None
    return form.terms[lane], rest, dtype


def holding_lanes(condition: Expr, lane: Var, lanes: int) -> tuple[int, int] | None:
    """[first, end) of the lanes where a conjunction holds, where that is a constant range."""
    first, end = 0, lanes
    for guard in conjuncts(condition):
        found = lane_form(guard, lane)
        if found is None or not found[1].is_constant:
            return None
        step, rest, _ = found
        if step > 0:  # lane < -rest / step
            end = min(end, -(rest.constant // step))
        else:  # lane > rest / -step
            first = max(first, rest.constant // -step + 1)
    return first, max(first, end)


def in_all_lanes(condition: Expr, lane: Var, lanes: int) -> Expr | None:
    """A condition without the lane: whether a conjunction holds in every lane. None where a part is
    not linear in the lane."""
    whole: list[Expr] = []
    for guard in conjuncts(condition):
        found = lane_form(guard, lane)
        if found is None:
            return None
        step, rest, dtype = found
        extreme = rest.plus(Linear(step * (lanes - 1), {})) if step > 0 else rest
        positive = Linear(0, {a: c for a, c in extreme.terms.items() if c > 0})
        other = positive.plus(extreme, -1)
        whole.append(compare("<", to_expr(positive, dtype), to_expr(other, dtype)))
    return all_of(*whole)


def within(buffer: Buffer, index: Expr, ranges: Ranges) -> bool:
    """Whether a flat index is certainly inside its buffer."""
    (size,) = buffer.shape
    low, high = bounds(linear(index, ranges), ranges)
    if low is None or high is None or not isinstance(size, int):
        return False
    return 0 <= low and high < size


def safe(e: Expr, ranges: Ranges) -> bool:
    """Whether e may be evaluated wherever the ranges hold: its loads are inside their buffers, and
    no integer divisor may be 0."""
    for n in walk(e):
        match n:
            case Load(buffer, (index,)) if not within(buffer, index, ranges):
                return False
            case Binary(op, _, by, dtype) if op in DIVISIONS:
                whole = dtype_of(dtype).is_integer
                if whole and not (isinstance(by, Const) and by.value != 0):
                    return False
    return True
