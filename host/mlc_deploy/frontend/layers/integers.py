"""Sums of products of quantized numbers, with what their zero points contribute."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.nodes import Constant, Value
from ...ir import is_const
from ...ops.quantize import SUMS
from ..node import Node, shape_of
from .shapes import expand, reshape, with_axis
from .windows import Window, conv


def is_zero(zero: Value | None) -> bool:
    return zero is None or (isinstance(zero, Constant) and not zero.value.any())


def _corrected(
    n: Node,
    sums: Value,
    zeros: tuple[Value | None, Value | None],
    sums_of: tuple[Any, Any],
    count: int,
) -> Value:
    """sum((x - zx) * (w - zw)) from sum(x * w) over count products.

    zeros are zx and zw; sums_of are functions that emit sum(x) and sum(w). All of them broadcast
    against the sums.
    """
    zx, zw = (None if is_zero(z) or z is None else n.cast(z, SUMS) for z in zeros)
    if zw is not None:
        sums = n.emit("subtract", sums, n.emit("multiply", zw, sums_of[0]()))
    if zx is not None:
        sums = n.emit("subtract", sums, n.emit("multiply", zx, sums_of[1]()))
    if zx is not None and zw is not None:
        product = n.emit("multiply", zx, zw)
        sums = n.emit("add", sums, n.emit("multiply", product, n.constant(count, SUMS)))
    return sums


def integer_conv(
    n: Node,
    x: Value,
    w: Value,
    window: Window,
    groups: int,
    zx: Value | None,
    zw: Value | None,
) -> Value:
    """The int32 sums of a convolution of x - zx with w - zw. zx is a scalar; zw is a scalar or has
    an element per output channel."""
    rank, fill = len(window.kernel), dict[str, Any]()
    if isinstance(zx, Constant):
        fill = {"pad_value": int(zx.value)}
    elif zx is not None and any(window.pads):
        pads = window.pads
        every = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
        x = n.emit("pad_with", x, n.cast(zx, x.type.dtype), pads=every)
        window = replace(window, pads=[0] * (2 * rank))
    sizes = shape_of(w)

    def sum_x() -> Value:
        ones = n.constant(np.ones((groups, *sizes[1:])), w.type.dtype)
        total = conv(n, x, ones, window, groups=groups, **fill)
        if groups == 1:
            return total
        batch, _, *spatial = shape_of(total)
        spread = (batch, groups, sizes[0] // groups, *spatial)
        total = expand(n, with_axis(n, total, 2), spread)
        return reshape(n, total, (batch, sizes[0], *spatial))

    def sum_w() -> Value:
        axes = range(1, len(sizes))
        total = n.emit("sum", n.cast(w, SUMS), axes=list(axes), keepdims=False)
        return reshape(n, total, (sizes[0], *(1,) * rank))

    if zw is not None:
        count = math.prod(shape_of(zw))
        zw = reshape(n, zw, () if is_const(count, 1) else (count, *(1,) * rank))
    sums = conv(n, x, w, window, groups=groups, **fill)
    return _corrected(n, sums, (zx, zw), (sum_x, sum_w), math.prod(sizes[1:]))


def integer_matmul(n: Node, a: Value, b: Value, za: Value | None, zb: Value | None) -> Value:
    """The int32 sums of numpy's matmul of a - za and b - zb. za is a scalar or has an element per
    row, zb per column."""
    left, right = shape_of(a), shape_of(b)
    if len(left) < 2 or len(right) < 2:
        raise ValueError("vectors are not supported")

    def sum_of(x: Value, axis: int) -> Value:
        return n.emit("sum", n.cast(x, SUMS), axes=[axis], keepdims=True)

    if za is not None and len(shape_of(za)) == 1:
        za = reshape(n, za, (*shape_of(za), 1))
    sums = n.emit("matmul", a, b)
    sides = (lambda: sum_of(a, len(left) - 1), lambda: sum_of(b, len(right) - 2))
    return _corrected(n, sums, (za, zb), sides, left[-1])
