"""Regions: the box of a buffer that a block touches while some loops run through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ir import Dim, Expr, Region, Var, const, expr, is_const, substitute, walk
from .linear import (
    Atom,
    Bounds,
    Linear,
    Opaque,
    Product,
    Quotient,
    Ranges,
    Remainder,
    to_expr,
)
from .normalize import bounds, linear, simplify_expr


def relax(e: Expr, extent: int, relaxed: Ranges, ranges: Ranges) -> tuple[Expr, int] | None:
    """The interval [minimum, minimum + extent) that covers [e, e + extent) while the variables in
    `relaxed` run over their ranges; minimum is in terms of the others. None where it has no bound.
    """
    known = {**ranges, **relaxed}
    form = linear(e, known)
    fixed = Linear(form.constant, {})
    low, high = 0, 0
    for atom, coefficient in form.terms.items():
        if not _mentions(atom, relaxed):
            fixed = fixed.plus(Linear(0, {atom: coefficient}))
            continue
        moved = _relax_atom(atom, relaxed, known)
        if moved is None:
            return None
        base, (a, b) = moved
        fixed = fixed.plus(base, coefficient)
        low += min(coefficient * a, coefficient * b)
        high += max(coefficient * a, coefficient * b)
    minimum = fixed.plus(Linear(low, {}))
    return to_expr(minimum, e.dtype), high - low + extent


def _relax_atom(
    atom: Atom, relaxed: Ranges, known: Ranges
) -> tuple[Linear, tuple[int, int]] | None:
    """(base, (low, high)) with base + low <= atom <= base + high for every relaxed value."""
    zero = Linear(0, {})
    match atom:
        case Quotient(form, divisor):
            fixed = Linear(
                form.constant, {a: c for a, c in form.terms.items() if not _mentions(a, relaxed)}
            )
            low, high = bounds(form.plus(fixed, -1), known)
            if low is None or high is None:
                return None
            if fixed.is_constant:
                whole = fixed.constant
                return zero, ((whole + low) // divisor, (whole + high) // divisor)
            start = Linear(0, {Quotient(fixed.plus(Linear(low, {})), divisor): 1})
            return start, (0, (high - low + divisor - 1) // divisor)
        case Remainder(form, divisor):
            low, high = bounds(form, known)
            if low is not None and high is not None and low // divisor == high // divisor:
                return zero, (low % divisor, high % divisor)
            return zero, (0, divisor - 1)
    low, high = bounds(Linear(0, {atom: 1}), known)
    return None if low is None or high is None else (zero, (low, high))


def _mentions(atom: Atom, relaxed: Ranges) -> bool:
    match atom:
        case Var():
            return atom in relaxed
        case Quotient(form, _) | Remainder(form, _):
            return any(_mentions(a, relaxed) for a in form.terms)
        case Product(factors):
            return any(_mentions(a, relaxed) for a in factors)
        case Opaque():
            return any(n in relaxed for n in walk(atom.expr) if isinstance(n, Var))
    raise TypeError(atom)


Interval = tuple[Expr, Expr]  # minimum, extent


def region_under(
    region: Region, bindings: dict[Var, Expr], relaxed: Ranges, ranges: Ranges
) -> list[Interval]:
    """Per dimension (minimum, extent) of a block's region while the `relaxed` loops run, in terms
    of the loops outside; the whole dimension where no bound is known. Clipped to the buffer."""
    intervals: list[Interval] = []
    for low, extent, size in zip(region.minimum, region.extent, region.buffer.shape, strict=True):
        found = None
        if is_const(extent, 1) or not _symbolic(extent):
            found = relax(substitute(low, bindings), int(extent), relaxed, ranges)  # type: ignore[call-overload]
        intervals.append(whole(size) if found is None else _clipped(found, size, ranges))
    return intervals


def _symbolic(extent: Expr) -> bool:
    return any(isinstance(n, Var) for n in walk(extent))


def whole(size: Dim) -> Interval:
    return const(0), expr(size)


def _clipped(found: tuple[Expr, int], size: Dim, ranges: Ranges) -> Interval:
    minimum, extent = found
    if isinstance(size, int):
        low, high = bounds(linear(minimum, ranges), ranges)
        if low is not None and low == high:  # a constant start: clip both ends
            start = max(low, 0)
            stop = min(low + extent, size)
            return const(start), const(max(stop - start, 0))
        if extent >= size:
            return whole(size)
    return minimum, const(extent)


def union(
    a: Sequence[Interval], b: Sequence[Interval], shape: Sequence[Dim], ranges: Ranges
) -> list[Interval]:
    """The smallest box around both; a whole dimension where they cannot be compared."""
    result: list[Interval] = []
    for (low_a, extent_a), (low_b, extent_b), size in zip(a, b, shape, strict=True):
        gap: Bounds = bounds(linear(low_b, ranges).plus(linear(low_a, ranges), -1), ranges)
        if gap[0] is None or gap[0] != gap[1] or _symbolic(extent_a) or _symbolic(extent_b):
            same = gap == (0, 0) and linear(extent_a, ranges) == linear(extent_b, ranges)
            result.append((low_a, extent_a) if same else whole(size))
            continue
        first = low_a if gap[0] >= 0 else low_b
        stop_a = int(extent_a) + (0 if gap[0] >= 0 else -gap[0])  # type: ignore[call-overload]
        stop_b = int(extent_b) + max(gap[0], 0)  # type: ignore[call-overload]
        result.append((first, const(max(stop_a, stop_b))))
    return result


def union_all(
    boxes: Iterable[Sequence[Interval]], shape: Sequence[Dim], ranges: Ranges
) -> list[Interval] | None:
    """The smallest box around all; None for no boxes."""
    total: list[Interval] | None = None
    for box in boxes:
        total = list(box) if total is None else union(total, box, shape, ranges)
    if total is None:
        return None
    return [(simplify_expr(low, ranges), simplify_expr(n, ranges)) for low, n in total]
