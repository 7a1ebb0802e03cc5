"""Products with weights of few bits that are scaled by blocks (ops/block_scaled.py)."""

from __future__ import annotations

import math

from ...graph.nodes import Constant, Value
from ...ops import Array
from ..node import Node, shape_of
from .shapes import reshape


def times_blocks(
    n: Node, x: Value, w: Constant, scale: Value, zeros: Array | None, bits: int
) -> Value:
    """x [..., K] as int8 times weights [N, B, bytes] in two's complement, with the blocks' zero
    points int8 [N, B], in x's dtype. K may be less than the blocks hold."""
    *rows, width = shape_of(x)
    columns, blocks, stored = w.value.shape
    flat = reshape(n, x, (math.prod(rows), width))
    if more := blocks * stored * 8 // bits - width:
        flat = n.emit("pad", flat, pads=(0, 0, 0, more), mode="constant", value=0.0)
    q, by_row = n.call("quantize_rows", n.cast(flat, "float32"))
    arguments = [q, w, scale]
    if zeros is not None and zeros.any():
        arguments.append(Constant(zeros))
    y = n.emit("dense_blocks", *arguments, bits=bits, narrow=True)
    y = n.cast(n.emit("multiply", y, by_row), x.type.dtype)
    return reshape(n, y, (*rows, columns))
