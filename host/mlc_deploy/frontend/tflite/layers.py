"""Converters of layers: convolutions, matrix products, pooling, in floats and in integers.

Quantized layers compute integer sums here; their epilogue is in quantized.py. Float layers with
int8 weights quantize their data themselves (hybrid.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.nodes import Constant, Value
from ...ir import is_const, same_shape
from ..layers.integers import integer_conv, integer_matmul
from ..layers.norms import lp_norm
from ..layers.shapes import reshape
from ..layers.transposed import conv_transpose
from ..layers.windows import Window, conv, pool, same_pads
from ..node import shape_of
from .file import Array, Quantization
from .hybrid import hybrid_conv, hybrid_dense, is_hybrid
from .node import EIGHT_BITS, Converter, TfliteNode
from .quantized import activation_range, requantized, requantized_once

PADDINGS = {0: "SAME", 1: "VALID"}


def channels_first(n: TfliteNode, x: Value) -> Value:
    """[batch, height, width, channels] as [batch, channels, height, width]."""
    if len(shape_of(x)) != 4:
        raise ValueError(f"data of shape {list(shape_of(x))} has not 4 dimensions")
    return n.emit("transpose", x, axes=(0, 3, 1, 2))


def channels_last(n: TfliteNode, x: Value) -> Value:
    return n.emit("transpose", x, axes=(0, 2, 3, 1))


def activated(n: TfliteNode, x: Value) -> Value:
    """x after the activation that the operator's options name."""
    match n.option("FusedActivationFunction", 0):
        case 0:
            return x
        case 1:
            return n.emit("relu", x)
        case 2:
            return n.emit("clip", x, min=-1, max=1)
        case 3:
            return n.emit("clip", x, min=0, max=6)
        case 4:
            return n.emit("tanh", x)
        case other:
            raise ValueError(f"the fused activation {other} is not supported")


def window_of(n: TfliteNode, extents: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of an operator's options over data of these extents."""
    strides = [n.option("StrideH"), n.option("StrideW")]
    dilations = [n.option("DilationHFactor", 1), n.option("DilationWFactor", 1)]
    if min(*strides, *dilations, *kernel) < 1:
        raise ValueError(f"kernel {list(kernel)}, strides {strides}, dilations {dilations}")
    padding = PADDINGS.get(n.option("Padding"))
    if padding is None:
        raise ValueError(f"the padding {n.option('Padding')}")
    pads = same_pads(extents, kernel, strides, dilations) if padding == "SAME" else [0] * 4
    return Window(list(kernel), strides, dilations, pads)


# ------------------------------------------------------------------------------- convolutions


def _conv(n: TfliteNode) -> Any:
    """Weights [outputs, height, width, inputs / groups]."""
    x, w = channels_first(n, n.input(0)), n.input(1)
    own = shape_of(channels_first(n, w))
    channels = shape_of(x)[1]
    if not own[1] or channels % own[1]:
        raise ValueError(f"{channels} channels of data, weights {list(shape_of(w))}")
    return _convolution(n, x, n.emit("transpose", w, axes=(0, 3, 1, 2)), channels // own[1])


def _depthwise(n: TfliteNode) -> Any:
    """Weights [1, height, width, outputs], each channel's outputs side by side."""
    x, w = channels_first(n, n.input(0)), n.input(1)
    channels = shape_of(x)[1]
    one, height, width, outputs = shape_of(w)
    if not is_const(one, 1) or outputs % channels:
        raise ValueError(f"{channels} channels of data, weights {list(shape_of(w))}")
    w = reshape(n, n.emit("transpose", w, axes=(3, 0, 1, 2)), (outputs, 1, height, width))
    return _convolution(n, x, w, channels)


def _convolution(n: TfliteNode, x: Value, w: Value, groups: int) -> Value:
    window = window_of(n, shape_of(x)[2:], shape_of(w)[2:])
    if n.is_quantized():
        w, zero = plain_weights(n, w)
        zero_x = n.constant(n.affine(0).zero, n.dtype(0))
        sums = integer_conv(n, x, w, window, groups, zero_x, zero)
        return channels_last(n, _epilogue(n, sums, 1))
    if is_hybrid(n):
        return activated(n, channels_last(n, hybrid_conv(n, x, w, window, groups)))
    return activated(n, channels_last(n, conv(n, x, w, window, n.optional(2), groups=groups)))


def plain_weights(n: TfliteNode, w: Value) -> tuple[Value, Value | None]:
    """Weights as int8, and their zero point (None for 0). int8 weights have no zero point."""
    zero = weights_quantization(n).zeros
    if w.type.dtype == "int8":
        if zero.any():
            raise ValueError("weights of int8 have a zero point")
        return w, None
    if not isinstance(w, Constant) or zero.size != 1:
        raise ValueError("weights of uint8 must be constant, and quantized per tensor")
    whole = w.value.astype(np.int32) - int(zero[0])
    if whole.size == 0 or (whole.min() >= -128 and whole.max() <= 127):
        return Constant(whole.astype(np.int8), w.name), None
    signed = (w.value.astype(np.int32) - 128).astype(np.int8)
    return Constant(signed, w.name), n.constant(int(zero[0]) - 128, "int8")


def weights_quantization(n: TfliteNode) -> Quantization:
    tensor = n.given[1]
    if tensor is None or tensor.quantization is None or tensor.kind not in ("INT8", "UINT8"):
        raise ValueError("the weights are not quantized to 8 bits")
    return tensor.quantization


def _epilogue(n: TfliteNode, sums: Value, axis: int) -> Value:
    """Adds bias, scale, zero point and activation to int32 sums; `axis` is that of the outputs."""
    if n.dtype(0) not in EIGHT_BITS:
        raise ValueError(f"data of {n.dtype(0)} are not supported, quantized")
    own = [-1 if d == axis else 1 for d in range(len(shape_of(sums)))][axis:]
    bias = n.optional(2)
    if bias is not None:
        if bias.type.dtype != "int32":
            raise ValueError(f"a bias of {bias.type.dtype} is not supported")
        sums = n.emit("add", sums, reshape(n, bias, [shape_of(bias)[0], *own[1:]]))
    real = layer_scales(n)
    if real.size not in (1, shape_of(sums)[axis]):
        raise ValueError(f"{real.size} scales for {shape_of(sums)[axis]} outputs")
    factor = real.reshape(own) if real.size > 1 else real.reshape(())
    made = requantized_once if n.op == "FULLY_CONNECTED" else requantized
    return made(n, sums, factor)


def layer_scales(n: TfliteNode) -> Any:
    """The real factors of a layer's sums. In convolutions of uint8, LiteRT multiplies the two
    scales as float32."""
    x, y = n.affine(0).scale, np.float64(n.affine_out().scale)
    w = weights_quantization(n).scales
    if n.dtype(0) == "uint8" and n.op != "FULLY_CONNECTED":
        return (x * w).astype(np.float64) / y
    return np.float64(x) * w.astype(np.float64) / y


def _transpose_conv(n: TfliteNode) -> Any:
    """Inputs: the output's shape, weights [outputs, height, width, inputs], data, bias."""
    w, x = n.input(1), n.input(2)
    shape = n.ints(0, "output_shape")
    if len(shape) != 4:
        raise ValueError(f"an output of shape {shape}")
    if {x.type.dtype, w.type.dtype} != {"float32"}:
        raise n.refuse("a transposed convolution is supported of float32 only")
    same = PADDINGS.get(n.option("Padding")) == "SAME"
    strides = [n.option("StrideH"), n.option("StrideW")]
    return activated(n, _transposed(n, x, w, shape[1:3], strides, same, n.optional(3)))


def _transpose_conv_bias(n: TfliteNode) -> Any:
    """MediaPipe's Convolution2DTransposeBias: data, weights as above, bias. Its options are three
    numbers of four bytes: padding (1 SAME, 2 VALID), then the strides along width and height."""
    x, w = n.input(0), n.input(1)
    if len(n.custom) < 12:
        raise ValueError("the options are cut off")
    padding, *turned = (int(v) for v in np.frombuffer(n.custom[:12], "<i4"))
    strides, kernel, own = turned[::-1], shape_of(w)[1:3], shape_of(x)[1:3]
    if padding not in (1, 2):
        raise ValueError(f"the padding {padding}")
    beyond = kernel if padding == 2 else strides
    extents = [(i - 1) * s + e for i, s, e in zip(own, strides, beyond, strict=True)]
    return _transposed(n, x, w, extents, strides, padding == 1, n.input(2))


def _transposed(
    n: TfliteNode,
    x: Value,
    w: Value,
    extents: Sequence[int],
    strides: Sequence[int],
    same: bool,
    bias: Value | None,
) -> Value:
    """The transposed convolution of x with these weights, with output of these spatial extents."""
    x, w = channels_first(n, x), n.emit("transpose", w, axes=(3, 0, 1, 2))
    kernel, own = shape_of(w)[2:], shape_of(x)[2:]
    if min(strides) < 1 or min(extents) < 1 or max(strides) > 1 << 16:
        raise ValueError(f"strides {list(strides)}, extents {list(extents)}")
    whole = [(i - 1) * s + k for i, s, k in zip(own, strides, kernel, strict=True)]
    more = [w - e for w, e in zip(whole, extents, strict=True)]
    before = [max(m, 0) // 2 if same else 0 for m in more]
    after = [m - b for m, b in zip(more, before, strict=True)]
    window = Window(list(kernel), list(strides), [1, 1], [*before, *after])
    return channels_last(n, conv_transpose(n, x, w, window, 1, [0, 0], bias))


# ---------------------------------------------------------------------------- matrix products


def _fully_connected(n: TfliteNode) -> Any:
    """Weights [outputs, inputs]. Data of any rank are reshaped to rows of `inputs` numbers."""
    x, w = n.input(0), n.input(1)
    if n.option("WeightsFormat", 0) != 0:
        raise ValueError("shuffled weights are not supported")
    outputs, width = shape_of(w)
    shape = shape_of(x)
    if not width or math.prod(shape) % width:
        raise ValueError(f"data {list(shape)}, weights {list(shape_of(w))}")
    flat = reshape(n, x, (math.prod(shape) // width, width))
    if n.is_quantized():
        w, zero = plain_weights(n, w)
        zero_x = n.constant(n.affine(0).zero, n.dtype(0))
        transposed_w = n.emit("transpose", w, axes=(1, 0))
        sums = integer_matmul(n, flat, transposed_w, zero_x, zero)
        y = _epilogue(n, sums, 1)
    elif is_hybrid(n):
        y = activated(n, hybrid_dense(n, flat, w))
    else:
        y = n.emit("dense", flat, w, transpose_b=True)
        bias = n.optional(2)
        y = activated(n, y if bias is None else n.emit("add", y, bias))
    keep = n.option("KeepNumDims", False) and same_shape(shape[-1:], (width,))
    return reshape(n, y, (*shape[:-1], outputs)) if keep else y


def _batch_matmul(n: TfliteNode) -> Any:
    def turned(number: int, flag: str) -> Value:
        value = n.input(number)
        rank = len(shape_of(value))
        if not n.option(flag, False):
            return value
        return n.emit("transpose", value, axes=(*range(rank - 2), rank - 1, rank - 2))

    a, b = turned(0, "AdjX"), turned(1, "AdjY")
    if a.type.dtype != b.type.dtype or a.type.dtype not in ("float32", "int8"):
        raise ValueError(f"{a.type.dtype} times {b.type.dtype} is not supported")
    if a.type.dtype == "float32":
        return n.emit("matmul", a, b)
    x, y, z = n.affine(0), n.affine(1), n.affine_out()
    zeros = (n.constant(side.zero, "int8") for side in (x, y))
    sums = integer_matmul(n, a, b, *zeros)
    return requantized(n, sums, np.float64(x.scale * y.scale) / np.float64(z.scale))


# ------------------------------------------------------------------------------------ pooling


def _pool(n: TfliteNode) -> Any:
    x = channels_first(n, n.input(0))
    window = window_of(n, shape_of(x)[2:], [n.option("FilterHeight"), n.option("FilterWidth")])
    if not n.is_quantized():
        return activated(n, channels_last(n, _pooled(n, x, window)))
    if n.affine(0) != n.affine_out():
        raise ValueError("input and output are quantized differently")
    low, high = activation_range(n)
    y = pool(n, "max_pool", x, window, False) if n.op == "MAX_POOL_2D" else _average(n, x, window)
    return channels_last(n, n.emit("clip", y, min=low, max=high))


def _pooled(n: TfliteNode, x: Value, window: Window) -> Value:
    match n.op:
        case "MAX_POOL_2D":
            return pool(n, "max_pool", x, window, False)
        case "AVERAGE_POOL_2D":
            return pool(n, "avg_pool", x, window, False, count_include_pad=False)

    def total(powers: Value) -> Value:  # L2_POOL_2D: the root of the mean of squares
        return pool(n, "avg_pool", powers, window, False, count_include_pad=False)

    return lp_norm(n, x, 2, total)


def _average(n: TfliteNode, x: Value, window: Window) -> Value:
    """The mean of the elements within the data, as a whole number; halves away from 0."""
    own = n.cast(x, "int32")
    sums = pool(n, "sum_pool", own, window, False)
    counts = _inside(window, shape_of(x)[2:], shape_of(sums)[2:])
    same = bool((counts == counts.flat[0]).all())
    number = n.constant(counts.flat[0] if same else counts, "int32")
    half: Value = n.constant(number.value // 2, "int32")
    if x.type.dtype == "int8":
        positive = n.emit("greater", sums, n.constant(0, "int32"))
        half = n.emit("where", positive, half, n.emit("negative", half))
    return n.cast(n.emit("divide", n.emit("add", sums, half), number), x.type.dtype)


def _inside(window: Window, extents: Sequence[int], made: Sequence[int]) -> Array:
    """How many elements of data of these extents are in each window: [1, 1, *made]."""
    along: list[Array] = []
    for axis, (extent, count) in enumerate(zip(extents, made, strict=True)):
        first = np.arange(count) * window.strides[axis] - window.pads[axis]
        along.append(np.minimum(first + window.kernel[axis], extent) - np.maximum(first, 0))
    return np.asarray(np.multiply.outer(*along)[None, None])


LAYERS: dict[str, Converter] = {
    "AVERAGE_POOL_2D": _pool, "BATCH_MATMUL": _batch_matmul, "CONV_2D": _conv,
    "CUSTOM Convolution2DTransposeBias": _transpose_conv_bias, "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected, "L2_POOL_2D": _pool, "MAX_POOL_2D": _pool,
    "TRANSPOSE_CONV": _transpose_conv,
}  # fmt: skip
