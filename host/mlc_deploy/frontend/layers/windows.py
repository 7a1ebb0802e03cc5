"""Kernels that move over data [batch, channels, spatial …]: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.nodes import Value
from ...ir import Expr
from ..extents import larger
from ..node import Node, shape_of, with_dims
from .shapes import expand, vector_along, with_axis, without


@dataclass(frozen=True, slots=True)
class Window:
    """The extents of a kernel and its moves, per spatial dimension. pads: all beginnings, then all
    ends. Raises ValueError if the lists are not for equally many dimensions."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        if not len(self.strides) == len(self.dilations) == rank or len(self.pads) != 2 * rank:
            raise ValueError(f"strides, dilations and pads are not for {rank} dimensions")

    @property
    def moves(self) -> dict[str, Any]:
        """strides, dilations and pads as attributes of an operator."""
        return {"strides": self.strides, "dilations": self.dilations, "pads": self.pads}

    def along(self, axis: int) -> Window:
        """The window along one dimension, a single element high along the others."""
        rank = len(self.kernel)

        def own(values: Sequence[int], rest: int) -> list[int]:
            return [v if d % rank == axis else rest for d, v in enumerate(values)]

        return Window(
            own(self.kernel, 1), own(self.strides, 1), own(self.dilations, 1), own(self.pads, 0)
        )

    def of_rows(self) -> Window:
        """A window of one dimension as one of two, with height 1."""
        pads = [0, self.pads[0], 0, self.pads[1]]
        return Window([1, *self.kernel], [1, *self.strides], [1, *self.dilations], pads)


def same_pads(
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    more_in_front: bool = False,
) -> list[Any]:
    """The pads for ceil(extent / stride) outputs. The larger half of an odd number is at the end,
    or with more_in_front at the beginning."""
    before, after = list[Any](), list[Any]()
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        reach = d * (k - 1)
        total = reach if s == 1 else larger((-(-extent // s) - 1) * s + reach + 1 - extent, 0)
        before.append((total + more_in_front) // 2)
        after.append(total - before[-1])
    return before + after


def spatial_rank(x: Value) -> int:
    rank = len(shape_of(x)) - 2
    if rank < 1:
        raise ValueError(f"data of shape {list(shape_of(x))} has no spatial dimension")
    return rank


def by_channel(n: Node, x: Value, rank: int) -> Value:
    """A vector with an element per channel, in the shape that broadcasts to data of a rank."""
    return vector_along(n, x, 0, rank - 1)


def conv(
    n: Node, x: Value, w: Value, window: Window, bias: Value | None = None, **attrs: Any
) -> Value:
    """A convolution; one dimension becomes two. The bias becomes an addition. attrs: groups, and
    pad_value of integers. A dynamic extent of a one-dimensional result is named, so that a reshape
    to it and back gives the same extent."""
    if spatial_rank(x) == 1:
        x, w = (with_axis(n, v, 2) for v in (x, w))
        y = without(n, conv(n, x, w, window.of_rows(), bias, **attrs), [2])
        return with_dims(n, y, [n.extents.own(n, extent) for extent in shape_of(y)])
    if any(isinstance(p, Expr) for p in window.pads):
        x, window = _padded(n, x, window, attrs.get("pad_value", 0))
    op = "conv2d" if spatial_rank(x) == 2 else "conv_nd"  # conv2d has schedules of its own
    return biased(n, n.emit(op, x, w, **window.moves, **attrs), bias)


def _padded(n: Node, x: Value, window: Window, value: float) -> tuple[Value, Window]:
    """x with the border that a window asks for, and the window without it."""
    half = len(window.pads) // 2
    own = [n.extents.own(n, p) for p in window.pads]
    pads = [0, 0, *own[:half], 0, 0, *own[half:]]
    padded = n.emit("pad", x, pads=pads, mode="constant", value=value)
    shape = [n.extents.own(n, extent) for extent in shape_of(padded)]
    return with_dims(n, padded, shape), replace(window, pads=[0] * len(window.pads))


def biased(n: Node, y: Value, bias: Value | None) -> Value:
    """y, with a bias for each channel."""
    return y if bias is None else n.emit("add", y, by_channel(n, bias, len(shape_of(y))))


FEWER = 4  # times fewer taps of each dimension by itself pay for the values that lie in between


def pool(n: Node, op: str, x: Value, window: Window, ceil_mode: Any, **attrs: Any) -> Value:
    """op: max_pool, max_pool_places, avg_pool or sum_pool. The maximum over a large window is one
    over its columns of those over its rows."""
    if ceil_mode:
        window = replace(window, kernel=_within(window, shape_of(x)[2:]))
    if op == "max_pool" and math.prod(window.kernel) > FEWER * sum(window.kernel):
        for axis in range(len(window.kernel)):
            x = pool(n, op, x, window.along(axis), ceil_mode, **attrs)
        return x
    if any(isinstance(p, Expr) for p in window.pads):
        return _bordered_pool(n, op, x, window, ceil_mode, **attrs)
    moves = window.moves | {"ceil_mode": bool(ceil_mode)}
    return n.emit(op, x, kernel=window.kernel, **moves, **attrs)


def _bordered_pool(
    n: Node, op: str, x: Value, window: Window, ceil_mode: Any, **attrs: Any
) -> Value:
    """A pool whose border is computed from dynamic sizes. Raises ValueError for max_pool_places."""
    if op == "max_pool_places":
        raise ValueError("places of maxima within a border whose size is not known")
    kind = np.dtype(x.type.dtype)
    least = np.iinfo(kind).min if kind.kind in "iu" else -math.inf
    bordered, inner = _padded(n, x, window, least if op == "max_pool" else 0)
    if op != "avg_pool" or attrs["count_include_pad"]:
        return pool(n, op, bordered, inner, ceil_mode, **attrs)
    ones = expand(n, n.constant(1, x.type.dtype), (1, 1, *shape_of(x)[2:]))
    counts, _ = _padded(n, ones, window, 0)
    sums = (pool(n, "sum_pool", v, inner, ceil_mode) for v in (bordered, counts))
    return n.emit("divide", *sums)


def _within(window: Window, extents: Sequence[Any]) -> list[int]:
    """The window's extents without what lies beyond the data and its border, where ceil_mode makes
    a single window of one that is larger."""
    kernel, half = list(window.kernel), len(window.kernel)
    for d, extent in enumerate(extents[:half]):
        bordered = window.pads[d] + extent + window.pads[d + half]
        fits = isinstance(bordered, int) and window.dilations[d] == 1
        if fits and 0 < bordered < kernel[d] < bordered + window.strides[d]:
            kernel[d] = bordered
    return kernel


def global_pool(n: Node, op: str, x: Value) -> Value:
    """op: mean, max or sum."""
    return n.emit(op, x, axes=list(range(2, 2 + spatial_rank(x))), keepdims=True)
