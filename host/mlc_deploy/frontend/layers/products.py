"""Matrix products."""

from __future__ import annotations

import math

from ...graph.nodes import Value
from ...ir import same_dim
from ..node import Node, shape_of
from .loops import loop
from .shapes import expand, iota, reshape, with_axis


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


def determinant(n: Node, x: Value) -> Value:
    """The determinants of matrices x [..., K, K], by elimination with the largest pivot of each
    column. Raises ValueError for matrices that are not square."""
    *front, rows, size = shape_of(x)
    if not same_dim(rows, size):
        raise ValueError(f"a determinant of {list(shape_of(x))}")
    count, dtype = math.prod(front), x.type.dtype
    places, zero = iota(n, size, 2, 1), n.constant(0, dtype)

    def step(turn: Value, own: list[Value], _: list[Value]) -> tuple[list[Value], list[Value]]:
        matrix, product = own
        column = n.emit("gather", matrix, reshape(n, turn, ()), axis=2)
        left = n.emit("greater_equal", places, turn)
        largest = n.emit("where", left, n.emit("abs", column), n.constant(-1, dtype))
        pivot = n.emit("argmax", largest, axis=1, keepdims=True, last=False)
        other = n.emit("where", n.emit("equal", places, pivot), turn, places)
        other = n.emit("where", n.emit("equal", places, turn), pivot, other)
        swapped = expand(n, with_axis(n, other, 2), (count, size, size))
        matrix = n.emit("gather_elements", matrix, swapped, axis=1)
        row = n.emit("gather", matrix, reshape(n, turn, ()), axis=1)
        column = n.emit("gather", matrix, reshape(n, turn, ()), axis=2)
        own_pivot = n.emit("gather", row, reshape(n, turn, (1,)), axis=1)
        none = n.emit("equal", own_pivot, zero)
        share = n.emit("divide", column, n.emit("where", none, n.constant(1, dtype), own_pivot))
        share = n.emit("where", n.emit("greater", places, turn), share, zero)
        taken = n.emit("multiply", with_axis(n, share, 2), with_axis(n, row, 1))
        still = n.emit("equal", pivot, turn)
        signed = n.emit("where", still, own_pivot, n.emit("negative", own_pivot))
        return [n.emit("subtract", matrix, taken), n.emit("multiply", product, signed)], []

    ones = expand(n, n.constant(1, dtype), (count, 1))
    ends, _ = loop(n, size, [reshape(n, x, (count, size, size)), ones], step)
    return reshape(n, ends[1], front)
