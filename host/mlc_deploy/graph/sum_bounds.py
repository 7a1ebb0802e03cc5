"""Bounds for numbers that become bytes: from weights, biases and scales, for any data.

The scaled sums of a layer mostly fit in 8 bits. For any data they fit in 16 bits, unless all
weights have one sign. Kernels then narrow them without saturating twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ops import Array
from ..ops.quantize import SHORT
from .nodes import Call, Constant, Value, Var
from .rewrite import Rewriting

LAYERS = ("conv2d", "dense", "matmul")
BYTES = ("int8", "uint8")
MOST = (1 << 15) - 1
ROUNDED = 1.00001  # float32 sums and products of a few numbers have a smaller relative error


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of each channel, [C], or of all channels, [1]; int64 or float64."""

    low: Array
    high: Array

    def plus(self, other: Bounds) -> Bounds | None:
        if 1 not in (self.low.size, other.low.size) and self.low.size != other.low.size:
            return None
        return Bounds(self.low + other.low, self.high + other.high)

    def times(self, factor: Array) -> Bounds | None:
        """The bounds times one factor for each channel, or for all."""
        if 1 not in (self.low.size, factor.size) and self.low.size != factor.size:
            return None
        ends = self.low * factor.reshape(-1), self.high * factor.reshape(-1)
        return Bounds(np.minimum(*ends), np.maximum(*ends))


def short_floats(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """requantize(sums), quantize(x)   =>   the same with the attribute SHORT, where the rounded
    number plus the zero point fits in int16 for any data"""
    match call:
        case Call("requantize" | "quantize", (x, Constant(scale), Constant(zero)), attrs):
            if SHORT in attrs or zero.size != 1 or out.type.dtype not in BYTES:
                return None
            scaled = scale.astype(np.float64)
            if call.op == "requantize":
                known = _of_sums(graph, x)
            else:
                known = _of_floats(graph, x) if scaled.all() else None
                scaled = 1 / scaled
            known = None if known is None else known.times(scaled)
            if known is None:
                return None
            most = max(np.abs(known.low).max(), np.abs(known.high).max())
            if not most * ROUNDED + 1 + abs(int(zero.reshape(()))) <= MOST:
                return None
            return graph.emit(call.op, *call.args, **{**attrs, SHORT: True})
    return None


def _of_sums(graph: Rewriting, sums: Value) -> Bounds | None:
    """The bounds of a layer's sums with added constants."""
    match graph.call(sums, "add", *LAYERS):
        case Call("add", (x, other)):
            if isinstance(x, Constant):
                x, other = other, x
            known = _of_sums(graph, x) if isinstance(other, Constant) else None
            if known is None or x.type != sums.type:
                return None
            assert isinstance(other, Constant)
            added = other.value.reshape(-1).astype(np.int64)
            return known.plus(Bounds(added, added))
        case Call(_, (x, Constant(w)), attrs) as layer if x.type.dtype in BYTES:
            if "kernel_layout" in attrs or (layer.op != "conv2d" and w.ndim != 2):
                return None
            ends, rows = np.iinfo(x.type.dtype), _by_channel(layer, w.astype(np.int64))
            products = rows * int(ends.min), rows * int(ends.max)
            return Bounds(np.minimum(*products).sum(1), np.maximum(*products).sum(1))
    return None


def _by_channel(layer: Call, w: Array) -> Array:
    """The weights as [C, K]."""
    if layer.op == "conv2d":
        return w.reshape(w.shape[0], -1)
    return w if layer.attrs.get("transpose_b") else w.T


def _of_floats(graph: Rewriting, x: Value) -> Bounds | None:
    """The bounds of dequantized bytes and of their sums."""
    match graph.call(x, "dequantize", "add", "relu"):
        case Call("dequantize", (q, Constant(scale), Constant(zero))) if q.type.dtype in BYTES:
            if scale.size != 1 or zero.size != 1:
                return None
            ends, one = np.iinfo(q.type.dtype), int(zero.reshape(()))
            whole = Bounds(np.array([ends.min - one]), np.array([ends.max - one]))
            return whole.times(scale.astype(np.float64))
        case Call("add", (a, b)) if a.type == b.type:
            both = _of_floats(graph, a), _of_floats(graph, b)
            return None if both[0] is None or both[1] is None else both[0].plus(both[1])
        case Call("relu", (a,)):
            return _of_floats(graph, a)
    return None
