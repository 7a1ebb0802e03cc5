"""The values that an expression can have, lanes included: what both back ends take for proof that
a division, shift or conversion needs no check (docs/reference/numbers.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..ir import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    dtype_of,
    value_range,
)
from .linear import Ranges
from .normalize import expr_bounds

Interval = tuple[float, float]  # inclusive; a float may also be NaN
DEEP = 12  # no proof is looked for in larger expressions
STEPS: Mapping[str, Callable[[float], float]] = {
    "nearbyint": round, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
}  # fmt: skip


def value_bounds(e: Expr, ranges: Ranges, depth: int = DEEP) -> Interval:
    """The least and the largest value of an expression of numbers, in any of its lanes."""
    kind = dtype_of(e.dtype)
    if kind.kind == "float":
        every = -math.inf, math.inf
    else:
        every = value_range(kind.scalar)
    if depth == 0:
        return every
    low, high = _bounds(e, ranges, depth - 1, every)
    if kind.is_integer and kind.lanes == 1 and kind.bits >= 32 and not isinstance(e, (Load, Const)):
        least, most = expr_bounds(e, ranges)
        low = low if least is None else max(low, least)
        high = high if most is None else min(high, most)
    if kind.kind != "float" and not (every[0] <= low and high <= every[1]):
        return every  # it may wrap
    return low, high


def _bounds(e: Expr, ranges: Ranges, depth: int, every: Interval) -> Interval:
    match e:
        case Const(value) if not isinstance(value, float) or not math.isnan(value):
            return value, value
        case Broadcast(value):
            return value_bounds(value, ranges, depth)
        case Var() if e in ranges:
            start, end = ranges[e]
            return every[0] if start is None else start, every[1] if end is None else end
        case Select(_, a, b) | Call("if_then_else", (_, a, b)):
            (al, ah), (bl, bh) = (value_bounds(x, ranges, depth) for x in (a, b))
            return min(al, bl), max(ah, bh)
        case Binary("min" | "max" | "+" | "-" | "&" as op, a, b):
            if op in ("+", "-", "&") and dtype_of(e.dtype).kind == "float":
                return every  # the sum is rounded
            sides = value_bounds(a, ranges, depth), value_bounds(b, ranges, depth)
            return _combined(op, *sides, every)
        case Call("bounded", (_, least, most)):
            ends = value_bounds(least, ranges, depth), value_bounds(most, ranges, depth)
            return ends[0][0], ends[1][1]
        case Call(name, (a,)) if name in STEPS:
            low, high = value_bounds(a, ranges, depth)
            return _stepped(name, low), _stepped(name, high)
        case Cast(dtype, a) if dtype_of(dtype).kind == "float" or dtype_of(a.dtype).kind != "float":
            return value_bounds(a, ranges, depth)
    return every


def _combined(op: str, a: Interval, b: Interval, every: Interval) -> Interval:
    (al, ah), (bl, bh) = a, b
    match op:
        case "min":
            return min(al, bl), min(ah, bh)
        case "max":
            return max(al, bl), max(ah, bh)
        case "+":
            return al + bl, ah + bh
        case "-":
            return al - bh, ah - bl
    mask = [high for low, high in (a, b) if low >= 0]
    return (0, min(mask)) if mask else every


def _stepped(name: str, end: float) -> float:
    return end if math.isinf(end) else STEPS[name](end)


def divides(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether a / b is defined everywhere: b is not 0, nor -1 beside the least number."""
    low, high = value_bounds(b, ranges)
    if low <= 0 <= high:
        return False
    least = value_range(dtype_of(a.dtype).scalar)[0]
    return not low <= -1 <= high or value_bounds(a, ranges)[0] > least


def never_negative(a: Expr, b: Expr, ranges: Ranges) -> bool:
    """Whether neither side of a division is negative: all roundings are the same then."""
    return value_bounds(a, ranges)[0] >= 0 and value_bounds(b, ranges)[0] >= 0


def shifts(amount: Expr, ranges: Ranges) -> bool:
    """Whether a number of the amount's dtype can be shifted by it."""
    low, high = value_bounds(amount, ranges)
    return low >= 0 and high < dtype_of(amount.dtype).bits


def fits(x: Expr, dtype: str, ranges: Ranges) -> bool:
    """Whether a float, unless it is NaN, is within an integer's range."""
    low, high = value_bounds(x, ranges)
    least, most = value_range(dtype_of(dtype).scalar)
    return least <= low and high <= most
