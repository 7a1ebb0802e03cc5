"""Matrix products."""

from __future__ import annotations

import math

from ...graph.nodes import Value
from ..node import Node, shape_of
from .shapes import reshape


def matmul(n: Node, a: Value, b: Value) -> Value:
    """numpy's matmul. Vectors become matrices. If b is a matrix, all rows of a are one matrix."""
    left, right = shape_of(a), shape_of(b)
    if not left or not right:
        raise ValueError("an input is a scalar")
    if len(left) == 1:
        a = reshape(n, a, (1, *left))
    if len(right) == 1:
        b = reshape(n, b, (*right, 1))
    if len(shape_of(b)) == 2:
        y, batch = rows_times(n, a, b), shape_of(a)[:-2]
    else:
        y = n.emit("matmul", a, b)
        batch = shape_of(y)[:-2]
    return reshape(n, y, (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())))


def rows_times(n: Node, x: Value, w: Value, transpose: bool = False) -> Value:
    """x [..., K] as a matrix of its rows, times w [K, N], or times w [N, K] transposed."""
    *rows, width = shape_of(x)
    flat = reshape(n, x, (math.prod(rows), width))
    return n.emit("dense", flat, w, transpose_b=transpose)


def scaled(n: Node, x: Value, factor: float) -> Value:
    return x if factor == 1 else n.emit("multiply", x, n.constant(factor, x.type.dtype))
