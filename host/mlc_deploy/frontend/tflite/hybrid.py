"""Float layers with int8 weights (dynamic range): the data are quantized when the model runs.

Each row of a matrix product, and each image of a convolution, has a scale of its own. The sums are
integers; the scales of data and weights turn them into floats.
"""

from __future__ import annotations

import math

from ...graph.nodes import Value
from ..layers.integers import integer_matmul
from ..layers.shapes import reshape
from ..layers.windows import Window, conv
from ..node import shape_of
from .node import TfliteNode
from .quantized import rounded_away

MOST = 127.0


def is_hybrid(n: TfliteNode) -> bool:
    w = n.given[1]
    return n.dtype(0) == "float32" and w is not None and w.kind in ("INT8", "INT4")


def _scales(n: TfliteNode, outputs: int, per_output: tuple[int, ...]) -> Value:
    tensor = n.given[1]
    found = None if tensor is None else tensor.quantization
    if found is None or found.zeros.any() or found.scales.size not in (1, outputs):
        raise ValueError("the weights' scales are damaged")
    return n.constant(found.scales.reshape(() if found.scales.size == 1 else per_output), "float32")


def _symmetric(n: TfliteNode, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """x as int8 from -127 to 127, and its scale: the largest |x| over some axes becomes 127."""
    size = n.emit("max", n.emit("abs", x), axes=axes, keepdims=True)
    zero, one = n.constant(0, "float32"), n.constant(1, "float32")
    most = n.constant(MOST, "float32")
    empty = n.emit("equal", size, zero)
    span = n.emit("where", empty, most, size)
    units = n.emit("multiply", x, n.emit("divide", most, span))
    stored = n.emit("clip", rounded_away(n, units), min=-127, max=127)
    scale = n.emit("where", empty, one, n.emit("divide", size, most))
    return n.cast(stored, "int8"), scale


def _asymmetric(n: TfliteNode, x: Value, axes: list[int]) -> tuple[Value, Value, Value]:
    """x as int8, its scale and its zero point (int32). 0 is among the numbers."""
    zero = n.constant(0, "float32")
    low = n.emit("minimum", n.emit("min", x, axes=axes, keepdims=True), zero)
    high = n.emit("maximum", n.emit("max", x, axes=axes, keepdims=True), zero)
    empty = n.emit("equal", low, high)
    span = n.emit("subtract", high, low)
    span = n.emit("where", empty, n.constant(255, "float32"), span)
    scale = n.emit("divide", span, n.constant(255, "float32"))
    # LiteRT computes a zero point from either end and takes the one with the smaller error.
    by_low = n.emit("subtract", n.constant(-128, "float32"), n.emit("divide", low, scale))
    by_high = n.emit("subtract", n.constant(127, "float32"), n.emit("divide", high, scale))
    error_low = n.emit(
        "add", n.constant(128, "float32"), n.emit("abs", n.emit("divide", low, scale))
    )
    error_high = n.emit(
        "add", n.constant(127, "float32"), n.emit("abs", n.emit("divide", high, scale))
    )
    nearer = n.emit("less", error_low, error_high)
    point = n.emit("clip", n.emit("where", nearer, by_low, by_high), min=-128.0, max=127.0)
    offset = n.emit("where", empty, n.constant(0, "int32"), rounded_away(n, point))
    units = n.emit("multiply", x, n.emit("divide", n.constant(1, "float32"), scale))
    moved = n.emit("add", n.cast(offset, "float32"), units)
    stored = n.emit("clip", rounded_away(n, moved), min=-128, max=127)
    return n.cast(stored, "int8"), scale, offset


def hybrid_dense(n: TfliteNode, x: Value, w: Value) -> Value:
    """x [rows, inputs] times w [outputs, inputs], plus the bias."""
    outputs = shape_of(w)[0]
    scales = _scales(n, outputs, (outputs,))
    if n.option("AsymmetricQuantizeInputs", False):
        q, scale, offset = _asymmetric(n, x, [1])
    else:
        q, scale = _symmetric(n, x, [1])
        offset = None
    sums = integer_matmul(n, q, n.emit("transpose", w, axes=(1, 0)), None, None)
    if offset is not None:
        sums = n.emit("subtract", sums, n.emit("multiply", offset, _sums(n, w, (outputs,))))
    y = n.emit("multiply", n.cast(sums, "float32"), n.emit("multiply", scale, scales))
    bias = n.optional(2)
    return y if bias is None else n.emit("add", y, bias)


def hybrid_conv(n: TfliteNode, x: Value, w: Value, window: Window, groups: int) -> Value:
    """x [batch, channels, height, width], w [outputs, inputs / groups, height, width]. Data for
    weights with one scale are quantized symmetrically."""
    outputs = shape_of(w)[0]
    scales = _scales(n, outputs, (outputs, 1, 1))
    axes = list(range(1, len(shape_of(x))))
    if math.prod(shape_of(scales)) > 1 or groups > 1:
        q, scale, offset = _asymmetric(n, x, axes)
        centred = n.emit("subtract", n.cast(q, "int32"), offset)
        # The zero point is known only at run time, so it is subtracted first: the pads then are 0.
        sums = conv(n, centred, n.cast(w, "int32"), window, groups=groups)
    else:
        q, scale = _symmetric(n, x, axes)
        sums = conv(n, q, w, window, groups=groups)
    y = n.emit("multiply", n.emit("multiply", n.cast(sums, "float32"), scales), scale)
    bias = n.optional(2)
    return y if bias is None else n.emit("add", y, reshape(n, bias, (outputs, 1, 1)))


def _sums(n: TfliteNode, w: Value, shape: tuple[int, ...]) -> Value:
    total = n.emit("sum", n.cast(w, "int32"), axes=list(range(1, len(shape_of(w)))), keepdims=False)
    return reshape(n, total, shape)
