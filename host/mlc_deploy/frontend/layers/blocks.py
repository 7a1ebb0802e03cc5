"""Products with weights of few bits and a scale per block (ops/block_scaled.py)."""

from __future__ import annotations

import math

from ...graph.nodes import Constant, Value
from ...ops import Array
from ..node import Node, shape_of
from .shapes import reshape


def times_blocks(
    n: Node, x: Value, w: Constant, scale: Value, zeros: Array | None, bits: int, rounds: bool
) -> Value:
    """x [..., K] times weights [N, B, bytes] in two's complement, with the blocks' zero points int8
    [N, B], in x's dtype. K may be less than the blocks hold. rounds: whether x is rounded to int8,
    with a scale for each row."""
    *rows, width = shape_of(x)
    columns, blocks, stored = w.type.sizes
    flat = reshape(n, x, (math.prod(rows), width))
    if more := blocks * stored * 8 // bits - width:
        flat = n.emit("pad", flat, pads=(0, 0, 0, more), mode="constant", value=0.0)
    constants = [w, scale]
    if zeros is not None and zeros.any():
        constants.append(Constant(zeros))
    if rounds:
        q, by_row = n.emit_several("quantize_rows", n.cast(flat, "float32"))
        y = n.emit("dense_blocks", q, *constants, bits=bits, narrow=True)
        y = n.cast(n.emit("multiply", y, by_row), x.type.dtype)
    else:
        y = n.emit("dense_blocks", flat, *constants, bits=bits)
    return reshape(n, y, (*rows, columns))
