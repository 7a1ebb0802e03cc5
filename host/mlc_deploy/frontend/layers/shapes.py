"""Tensors cut, joined and bent into other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...graph.extents import LARGEST
from ...graph.nodes import Value
from ...ir import Binary, Dim, Expr, is_const, same_shape
from ...ops.elementwise import same_extent
from ...ops.shape import normal_axis
from ..extents import larger, product, rest, simplified, smaller
from ..node import Node, limited, shape_of


def reshape(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    return x if same_shape(shape_of(x), shape) else n.emit("reshape", x, shape=tuple(shape))


def filled_up(shape: Sequence[Dim], old: Sequence[Dim]) -> list[Dim]:
    """The shape of the elements of an old one, where -1 stands for the extent that is left."""
    given = [extent for extent in shape if not is_const(extent, -1)]
    count, part = product(old), product(given)
    known = isinstance(part, int) and isinstance(count, int)
    if known and len(given) < len(shape) and part and count % part:
        raise ValueError(f"{count} elements do not fill {list(shape)}")
    return [rest(old, given) if is_const(extent, -1) else extent for extent in shape]


def without(n: Node, x: Value, axes: Sequence[int]) -> Value:
    """x without some axes of extent 1."""
    return reshape(n, x, [extent for d, extent in enumerate(shape_of(x)) if d not in axes])


def with_axis(n: Node, x: Value, axis: int) -> Value:
    """x with another axis of extent 1. A negative axis counts from the end of the result."""
    shape: list[Dim] = list(shape_of(x))
    shape.insert(normal_axis("unsqueeze", axis, len(shape) + 1), 1)
    return reshape(n, x, shape)


def vector_along(n: Node, x: Value, axis: int, rank: int) -> Value:
    """A vector as a tensor of `rank` dimensions that broadcasts along one of them."""
    (extent,) = shape_of(x)
    return reshape(n, x, [extent if d == axis else 1 for d in range(rank)])


def expand(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    return x if same_shape(shape_of(x), shape) else n.emit("broadcast_to", x, shape=tuple(shape))


def transposed(n: Node, x: Value) -> Value:
    """The last two axes swapped."""
    rank = len(shape_of(x))
    return n.emit("transpose", x, axes=[*range(rank - 2), rank - 1, rank - 2])


# ----------------------------------------------------------------------------------------- parts


def part(n: Node, x: Value, along: Mapping[int, tuple[Dim, int, Dim]]) -> Value:
    """x cut along some axes: begin, step, extent."""
    every = [along.get(axis, (0, 1, extent)) for axis, extent in enumerate(shape_of(x))]
    if all(same_shape(taken, (0, 1, e)) for taken, e in zip(every, shape_of(x), strict=True)):
        return x
    begin, step, shape = (tuple(own) for own in zip(*every, strict=True))
    return n.emit("slice", x, begin=begin, step=step, shape=shape)


def rows(n: Node, x: Value, begin: Dim, count: Dim, axis: int = 0) -> Value:
    """`count` elements from `begin` on, along an axis."""
    return part(n, x, {axis: (begin, 1, count)})


def select(n: Node, x: Value, index: int, axis: int = 0) -> Value:
    """The element at `index` of an axis, without that axis."""
    return without(n, rows(n, x, index, 1, axis), [axis])


def taken(
    n: Node, extent: int, start: int | None, end: int | None, step: int
) -> tuple[Any, int, Any]:
    """begin, step and extent of Python's slice of an axis."""
    if any(isinstance(e, Expr) for e in (extent, start, end)):
        least, most = (0, extent) if step > 0 else (-1, simplified(extent - 1))
        first, last = (least, most) if step > 0 else (most, least)
        start, end = (_from_front(n, extent, index, step) for index in (start, end))
        begin = _place(extent, start, first, least, most)
        stop = _place(extent, end, last, least, most)
        # What begins after the end has no element, as what begins at the end has none.
        behind = _place(extent, start, first, least, LARGEST) if step > 0 else begin
        length = _apart(stop, behind) if step > 0 else begin - stop
        count = length if abs(step) == 1 else (length + abs(step) - 1) // abs(step)
        return (begin, step, n.extents.own(n, larger(simplified(count), 0)))
    places = range(extent)[start:end:step]
    return (places.start if places else 0, step, len(places))


def _apart(stop: Any, begin: Any) -> Any:
    """stop - begin. From max(n - k, 0) to n there are min(n, k) elements."""
    match begin:
        case Binary("max", a, b):
            return smaller(simplified(stop - a), simplified(stop - b))
    return stop - begin


def _from_front(n: Node, extent: Any, index: Any, step: int) -> Any:
    """An index that is not negative, where it is computed from extents: it counts from the end of
    the axis if it is below 0. Other indices unchanged. Raises ValueError for an index of unknown
    sign and a negative step."""
    if not isinstance(index, Expr):
        return index
    low, high = n.extents.bounds(index)
    if low is not None and low >= 0:
        return index
    from_end = n.extents.bounded(extent + index)
    whole = isinstance(from_end, int) and from_end == 0
    if high is not None and (high < 0 or (high == 0 and whole)):
        return larger(from_end, 0)  # -n of n rows: where that is 0, so is the extent
    if step < 0:
        raise ValueError(f"a slice with step {step} from '{index}', which may be negative or not")
    place = n.extents.value(n, index)
    counted = n.emit("add", place, n.extents.value(n, extent))
    zero = n.constant(0, "int64")
    chosen = n.emit("where", n.emit("less", place, zero), counted, place)
    return n.extents.add(n, "begin", n.emit("maximum", chosen, zero), LARGEST)


def _place(extent: Any, index: Any, default: Any, least: int, most: Any) -> Any:
    """An index as it is within an axis, from `least` to `most`."""
    if index is None:
        return default
    if isinstance(index, int) and abs(index) >= LARGEST:
        return most if index > 0 else least
    if isinstance(index, int) and index < 0:
        return larger(simplified(extent + index), least)
    return 0 if isinstance(index, int) and index == least else smaller(index, most)


def grown(n: Node, x: Value, most: int) -> Value:
    """x with as many rows as these, those after its own being zeros."""
    return x if is_const(shape_of(x)[0], most) else n.emit("grow", x, axis=0, extent=most)


def counted_rows(n: Node, x: Value, count: Value, name: str) -> Value:
    """The first rows of x, `count` of them, int64[]: an extent known at run time."""
    extent = n.extents.add(n, name, count, n.extents.largest(shape_of(x)[0]))
    return n.emit("first", x, count, extent=extent)


def nonzero(n: Node, x: Value) -> Value:
    """The index tuples, int64[found, rank], of elements that are not zero. As many stand in all
    that is taken by one mask, so they are looked for once."""
    known = n.extents.places.get(x)
    if known is None:
        places, count = n.emit_several("nonzero", x)
        known = n.extents.places[x] = counted_rows(n, places, count, "found")
    return known


def split(n: Node, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Parts of these sizes, in order. Raises ValueError unless they add up to the axis."""
    begins = [simplified(b) for b in accumulate(sizes, initial=0)]
    whole = same_extent(begins[-1], shape_of(x)[axis])
    if not whole or any(isinstance(size, int) and size < 0 for size in sizes):
        raise ValueError(
            f"the sizes {list(sizes)} do not add up to dimension {axis} of {list(shape_of(x))}"
        )
    own = [n.extents.own(n, size) for size in sizes]
    return [rows(n, x, b, size, axis) for b, size in zip(begins, own, strict=False)]


MOST_LENGTHS = 16  # of parts that one kernel joins


def joined(n: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    """Tensors one after the other. Many of unknown lengths are joined by groups, as a kernel takes
    each length as an operand."""
    parts = [v for v in parts if not is_const(shape_of(v)[axis], 0)] or parts[:1]
    lengths = {shape_of(v)[axis] for v in parts if isinstance(shape_of(v)[axis], Expr)}
    if len(lengths) > MOST_LENGTHS and len(parts) > MOST_LENGTHS:
        groups = range(0, len(parts), MOST_LENGTHS)
        return joined(n, [joined(n, parts[g : g + MOST_LENGTHS], axis) for g in groups], axis)
    whole = n.emit("concatenate", *parts, axis=axis) if len(parts) > 1 else parts[0]
    if len(lengths) < 2 or axis % len(shape_of(whole)):
        return whole
    extent = n.extents.named(n, shape_of(whole)[0])
    return n.emit("first", whole, n.extents.value(n, extent), extent=extent)


def stacked(n: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    """Tensors of one shape joined along another axis. A negative axis counts from the end."""
    axis = normal_axis("stack", axis, len(shape_of(parts[0])) + 1)
    return joined(n, [with_axis(n, value, axis) for value in parts], axis)


# --------------------------------------------------------------------------------------- indices


def iota(n: Node, extent: Dim, rank: int, axis: int, dtype: str = "int64") -> Value:
    """0, 1, … along an axis of `rank` dimensions."""
    shape = [extent if d == axis else 1 for d in range(rank)]
    if isinstance(extent, Expr):
        whole = iota(n, n.extents.largest(extent), rank, axis, dtype)
        return n.emit("slice", whole, begin=(0,) * rank, step=(1,) * rank, shape=shape)
    return n.constant(np.arange(limited(extent, "an axis")).reshape(shape), dtype)


def from_front(n: Node, index: Value, extent: int) -> Value:
    """int64 indices of an axis, those that count from its end counted from its front."""
    below = n.emit("less", index, n.constant(0, "int64"))
    return n.emit("where", below, n.emit("add", index, n.constant(extent, "int64")), index)


def within(n: Node, x: Value, low: float, high: float) -> Value:
    """Where low <= x <= high."""
    above = n.emit("greater_equal", x, n.constant(low, x.type.dtype))
    below = n.emit("less_equal", x, n.constant(high, x.type.dtype))
    return n.emit("logical_and", above, below)


def top_k(n: Node, x: Value, k: Any, axis: int, largest: bool) -> list[Value]:
    """The k largest (or smallest) elements along an axis, in order, and their places."""
    places = n.emit("top_k", x, axis=axis, k=k, largest=largest)
    return [n.emit("gather_elements", x, places, axis=axis), places]
