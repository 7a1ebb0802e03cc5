"""Tensors cut, joined and bent into other shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...graph.nodes import Constant, Value
from ...ops.shape import normal_axis
from ..node import Node, limited, shape_of


def reshape(n: Node, x: Value, shape: Sequence[int]) -> Value:
    return x if shape_of(x) == tuple(shape) else n.emit("reshape", x, shape=tuple(shape))


def filled_up(shape: Sequence[int], count: int) -> list[int]:
    """The shape of count elements, where -1 stands for the extent that is left."""
    rest = math.prod(extent for extent in shape if extent != -1)
    if -1 in shape and rest and count % rest:
        raise ValueError(f"{count} elements do not fill {list(shape)}")
    return [(count // rest if rest else 0) if extent == -1 else extent for extent in shape]


def without(n: Node, x: Value, axes: Sequence[int]) -> Value:
    """x without some axes of extent 1."""
    return reshape(n, x, [extent for d, extent in enumerate(shape_of(x)) if d not in axes])


def with_axis(n: Node, x: Value, axis: int) -> Value:
    """x with another axis of extent 1. A negative axis counts from the end of the result."""
    shape = list(shape_of(x))
    shape.insert(normal_axis("unsqueeze", axis, len(shape) + 1), 1)
    return reshape(n, x, shape)


def vector_along(n: Node, x: Value, axis: int, rank: int) -> Value:
    """A vector as a tensor of `rank` dimensions that broadcasts along one of them."""
    (extent,) = shape_of(x)
    return reshape(n, x, [extent if d == axis else 1 for d in range(rank)])


def expand(n: Node, x: Value, shape: Sequence[int]) -> Value:
    return x if shape_of(x) == tuple(shape) else n.emit("broadcast_to", x, shape=tuple(shape))


def transposed(n: Node, x: Value) -> Value:
    """The last two axes swapped."""
    rank = len(shape_of(x))
    return n.emit("transpose", x, axes=[*range(rank - 2), rank - 1, rank - 2])


# ----------------------------------------------------------------------------------------- parts


def part(n: Node, x: Value, along: Mapping[int, tuple[int, int, int]]) -> Value:
    """x cut along some axes: begin, step, extent."""
    every = [along.get(axis, (0, 1, extent)) for axis, extent in enumerate(shape_of(x))]
    if all(taken == (0, 1, e) for taken, e in zip(every, shape_of(x), strict=True)):
        return x
    begin, step, shape = (tuple(own) for own in zip(*every, strict=True))
    return n.emit("slice", x, begin=begin, step=step, shape=shape)


def rows(n: Node, x: Value, begin: int, count: int, axis: int = 0) -> Value:
    """`count` elements from `begin` on, along an axis."""
    return part(n, x, {axis: (begin, 1, count)})


def select(n: Node, x: Value, index: int, axis: int = 0) -> Value:
    """The element at `index` of an axis, without that axis."""
    return without(n, rows(n, x, index, 1, axis), [axis])


def taken(extent: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """begin, step and extent of Python's slice of an axis."""
    places = range(extent)[start:end:step]
    return (places.start if places else 0, step, len(places))


def split(n: Node, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Parts of these sizes, in order. Raises ValueError unless they add up to the axis."""
    if sum(sizes) != shape_of(x)[axis] or any(size < 0 for size in sizes):
        raise ValueError(
            f"the sizes {list(sizes)} do not add up to dimension {axis} of {list(shape_of(x))}"
        )
    begins = np.cumsum([0, *sizes]).tolist()
    return [rows(n, x, b, int(size), axis) for b, size in zip(begins, sizes, strict=False)]


def joined(n: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    return n.emit("concatenate", *parts, axis=axis) if len(parts) > 1 else parts[0]


def stacked(n: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    """Tensors of one shape joined along another axis. A negative axis counts from the end."""
    axis = normal_axis("stack", axis, len(shape_of(parts[0])) + 1)
    return joined(n, [with_axis(n, value, axis) for value in parts], axis)


# --------------------------------------------------------------------------------------- indices


def iota(n: Node, extent: int, rank: int, axis: int, dtype: str = "int64") -> Constant:
    """0, 1, … along an axis of `rank` dimensions."""
    shape = [extent if d == axis else 1 for d in range(rank)]
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


def top_k(n: Node, x: Value, k: int, axis: int, largest: bool) -> list[Value]:
    """The k largest (or smallest) elements along an axis, in order, and their places."""
    places = n.emit("top_k", x, axis=axis, k=k, largest=largest)
    return [n.emit("gather_elements", x, places, axis=axis), places]
