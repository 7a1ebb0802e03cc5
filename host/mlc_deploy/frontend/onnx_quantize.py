"""Converters of quantized operators: integer sums, corrections for zero points, requantization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Value
from ..ir import is_const
from ..ops.quantize import STORED, SUMS
from ..ops.shape import normal_axis
from .layers.integers import integer_conv, integer_matmul, is_zero
from .layers.shapes import expand, reshape, rows, vector_along, with_axis
from .layers.windows import global_pool
from .narrow import BY_CODE, NarrowFloat, NarrowInteger
from .node import shape_of
from .onnx_layers import conv_window
from .onnx_node import Converter, OnnxNode


def _along(n: OnnxNode, value: Value, shape: Sequence[int], axis: int, block: int = 0) -> Value:
    """A scale or zero point in a shape that broadcasts to the data's. It is a scalar, or has one
    element per element or per block of the axis."""
    own = shape_of(value)
    if is_const(math.prod(own), 1) and not block:
        return reshape(n, value, ())
    axis = normal_axis(n.op, axis, len(shape))
    if len(own) == 1 and not block:
        return vector_along(n, value, axis, len(shape))
    if len(own) != len(shape):
        raise ValueError(f"scales {list(own)} for data {list(shape)}")
    size = block or -(-shape[axis] // own[axis])
    wide = [*own[: axis + 1], size, *own[axis + 1 :]]
    spread = expand(n, with_axis(n, value, axis + 1), wide)
    spread = reshape(n, spread, [*own[:axis], own[axis] * size, *own[axis + 1 :]])
    return rows(n, spread, 0, shape[axis], axis)


def _parameters(
    n: OnnxNode, data: Value, first: int, stored: str, axis: int = 1, block: int = 0
) -> tuple[Value, Value]:
    """A scale and its zero point (inputs `first` and the next), broadcastable to the data."""
    scale, shape = n.input(first), shape_of(data)
    zero = n.optional(first + 1) or n.constant(np.zeros(shape_of(scale)), stored)
    return _along(n, scale, shape, axis, block), _along(n, zero, shape, axis, block)


def _linear(n: OnnxNode, dtype: str) -> tuple[Value, Value]:
    """Scale and zero point of QuantizeLinear and DequantizeLinear."""
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    return _parameters(n, n.input(0), 1, dtype, axis, block)


def dynamic_quantize(n: OnnxNode, x: Value) -> list[Value]:
    """x as uint8 with the scale and the zero point of its own range, 0 included. NaN is not part of
    the range; of zeros alone the scale is 1."""
    axes, zero = tuple(range(len(shape_of(x)))), n.constant(0, x.type.dtype)
    ends = []
    for name, op in (("min", "minimum"), ("max", "maximum")):
        end = n.emit(name, x, axes=axes, keepdims=False, skips_nan=True) if axes else x
        ends.append(n.emit(op, end, zero))
    low, high = ends
    span = n.emit("divide", n.emit("subtract", high, low), n.constant(255, x.type.dtype))
    scale = n.emit("where", n.emit("equal", high, low), n.constant(1, x.type.dtype), span)
    place = n.emit("divide", n.emit("negative", low), scale)  # NaN of an infinite end
    place = n.emit("where", n.emit("isnan", place), n.constant(255, x.type.dtype), place)
    one = n.constant(1, x.type.dtype)
    point = n.emit("quantize", place, one, n.constant(0, "uint8"))
    return [n.emit("quantize", x, scale, point), scale, point]


def _dynamic_quantize_linear(n: OnnxNode) -> Any:
    return dynamic_quantize(n, n.input(0))


def _quantize_linear(n: OnnxNode) -> Any:
    zero = n.optional(2)
    kind = BY_CODE.get(n.attr("output_dtype", 0)) if zero is None else n.kind(2)
    for k in (0, 1):
        n.inputs[k] = n.real(k)
    match kind:
        case NarrowFloat():
            scale, shift = _linear_floats(n)
            y = n.emit("divide", n.cast(n.input(0), scale.type.dtype), scale)
            y = y if shift is None else n.emit("add", n.cast(y, "float32"), shift)
            return n.written(y, kind, saturate=bool(n.attr("saturate", 1)))
        case NarrowInteger(range=(low, high)):
            y = n.emit("quantize", n.input(0), *_linear(n, kind.carrier))
            return n.marked(n.emit("clip", y, min=low, max=high), kind)
    dtype = n.dtype_of("output_dtype", "uint8") if zero is None else zero.type.dtype
    _refuse_unstored(n, dtype)
    return n.emit("quantize", n.input(0), *_linear(n, dtype))


def _linear_floats(n: OnnxNode) -> tuple[Value, Value | None]:
    """Scale and zero point for quantized numbers that are narrow floats."""
    zero, where = n.optional(2), (n.shape(), n.attr("axis", 1), n.attr("block_size", 0))
    shift = None if is_zero(zero) else _along(n, n.real(2), *where)
    return _along(n, n.input(1), *where), shift


def _refuse_unstored(n: OnnxNode, dtype: str) -> None:
    if dtype not in STORED:
        what = f"quantized numbers of type {dtype} are not supported"
        raise n.refuse(what, f"one of {', '.join(STORED)}")


def _dequantize_linear(n: OnnxNode) -> Any:
    """Constants stay quantized: integer operators take them as they are."""
    q = n.input(0)
    kind = BY_CODE.get(n.attr("output_dtype", 0)) or n.kind(1)
    n.inputs[1] = n.real(1)
    result: Value
    if isinstance(n.kind(0), NarrowFloat):
        scale, shift = _linear_floats(n)
        x = n.real(0) if shift is None else n.emit("subtract", n.real(0), shift)
        result = n.emit("multiply", x, n.cast(scale, "float32"))
        result = n.cast(result, scale.type.dtype)
    else:
        if q.type.dtype != SUMS:
            _refuse_unstored(n, q.type.dtype)
        result = n.call("dequantize", q, *_linear(n, q.type.dtype))
    if kind is not None:
        return n.written(result, kind)
    return n.cast(result, n.dtype_of("output_dtype", result.type.dtype))


# ---------------------------------------------------------------------------------- integer sums


def _integer_conv(n: OnnxNode, x: Value, w: Value, zx: Value | None, zw: Value | None) -> Value:
    window, groups = conv_window(n, x, w), n.attr("group", 1)
    return integer_conv(n, x, w, window, groups, None if zx is None else _along(n, zx, (), 0), zw)


def _conv_integer(n: OnnxNode) -> Any:
    return _integer_conv(n, n.input(0), n.input(1), n.optional(2), n.optional(3))


def _matmul_integer(n: OnnxNode) -> Any:
    return integer_matmul(n, n.input(0), n.input(1), n.optional(2), n.optional(3))


def _multiplier(n: OnnxNode, x: Value, w: Value, y: Value) -> Value:
    """x * w / y, in float32."""
    x, w, y = (n.cast(v, "float32") for v in (x, w, y))
    return n.emit("divide", n.emit("multiply", x, w), y)


def _qlinear_conv(n: OnnxNode) -> Any:
    x, xs, xz, w, ws, wz, ys, yz = (n.input(k) for k in range(8))
    sums = _integer_conv(n, x, w, xz, wz)
    rank = len(shape_of(sums))
    bias = n.optional(8)
    if bias is not None:
        sums = n.emit("add", sums, reshape(n, bias, (*shape_of(bias), *(1,) * (rank - 2))))
    multiplier = _multiplier(n, *(_along(n, s, shape_of(sums), 1) for s in (xs, ws, ys)))
    return n.emit("requantize", sums, multiplier, _along(n, yz, shape_of(sums), 1))


def _qlinear_matmul(n: OnnxNode) -> Any:
    """Scales and zero points of a are for its rows, those of b for its columns."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (n.input(k) for k in range(8))
    sums = integer_matmul(n, a, b, a_zero, b_zero)
    shape, rank = shape_of(sums), len(shape_of(sums))
    scales = (
        _along(n, a_scale, shape, rank - 2),
        _along(n, b_scale, shape, rank - 1),
        _along(n, y_scale, shape, rank - 2),
    )
    return n.emit("requantize", sums, _multiplier(n, *scales), _along(n, y_zero, shape, rank - 2))


# ------------------------------------------------------ onnxruntime's own: numbers in between

POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def channels_first(convert: Converter) -> Converter:
    """A converter for channels-first data, made to take channels-last data as well."""

    def converted(n: OnnxNode) -> Any:
        if not (n.op.startswith("Nhwc") or n.attr("channels_last", 0)):
            return convert(n)
        rank = len(n.shape())
        n.inputs[0] = n.emit("transpose", n.input(0), axes=(0, rank - 1, *range(1, rank - 1)))
        return n.emit("transpose", convert(n), axes=(0, *range(2, rank), 1))

    return converted


def _real(n: OnnxNode, first: int) -> Value:
    """The real numbers of three inputs from `first` on: a tensor, its scale, its zero point."""
    q = n.input(first)
    result: Value = n.call("dequantize", q, *_parameters(n, q, first + 1, q.type.dtype))
    return result


def _stored(n: OnnxNode, value: Value, first: int, dtype: str) -> Value:
    return n.emit("quantize", value, *_parameters(n, value, first, dtype))


def _qlinear_binary(n: OnnxNode) -> Any:
    op = {"QLinearAdd": "add", "QLinearMul": "multiply"}[n.op]
    return _stored(n, n.emit(op, _real(n, 0), _real(n, 3)), 6, n.dtype())


def _qlinear_unary(n: OnnxNode) -> Any:
    x = _real(n, 0)
    match n.op:
        case "QLinearSigmoid":
            y = n.emit("sigmoid", x)
        case "QLinearLeakyRelu":
            y = n.emit("leaky_relu", x, alpha=n.attr("alpha", 0.01))
        case "QLinearSoftmax":
            y = n.emit("softmax", x, axis=n.axis(-1))
        case "QLinearAveragePool":
            (y,) = n.standard("AveragePool", x, keep=POOL)
        case "QLinearReduceMean":
            axes = n.attr("axes", list(range(len(n.shape()))))
            y = n.emit("mean", x, axes=axes, keepdims=bool(n.attr("keepdims", 1)))
        case _:
            y = global_pool(n, "mean", x)
    return _stored(n, y, 3, n.dtype())


def _qlinear_where(n: OnnxNode) -> Any:
    y = n.emit("where", n.input(0), _real(n, 1), _real(n, 4))
    return _stored(n, y, 7, n.dtype(1))


def _qlinear_concat(n: OnnxNode) -> Any:
    parts = [_real(n, first) for first in range(2, len(n.inputs), 3)]
    zero = n.input(1)
    return _stored(n, n.emit("concatenate", *parts, axis=n.attr("axis")), 0, zero.type.dtype)


def _qgemm(n: OnnxNode) -> Any:
    """alpha * a * b + c. c is quantized with the scale of the sums, alpha * sa * sb."""
    a, a_scale, a_zero, b, b_scale, b_zero = (n.input(k) for k in range(6))
    if n.attr("transA", 0):
        a = n.emit("transpose", a, axes=(1, 0))
    if n.attr("transB", 0):
        b = n.emit("transpose", b, axes=(1, 0))
    sums = integer_matmul(n, a, b, a_zero, b_zero)
    if (c := n.optional(6)) is not None:
        sums = n.emit("add", sums, c)
    shape = shape_of(sums)
    alpha = n.constant(n.attr("alpha", 1.0), "float32")
    a_scale, b_scale = _along(n, a_scale, shape, 0), _along(n, b_scale, shape, 1)
    scale = n.emit("multiply", alpha, n.emit("multiply", a_scale, b_scale))
    if n.optional(7) is None:
        return n.emit("multiply", n.cast(sums, "float32"), scale)
    multiplier = n.emit("divide", scale, _along(n, n.input(7), shape, 0))
    zero = n.optional(8) or n.constant(0, a.type.dtype)
    return n.emit("requantize", sums, multiplier, _along(n, zero, shape, 0))


QUANTIZED: dict[str, Converter] = {
    "ConvInteger": _conv_integer, "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer, "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul, "QuantizeLinear": _quantize_linear,
    "com.microsoft::DequantizeLinear": _dequantize_linear, "com.microsoft::QGemm": _qgemm,
    "com.microsoft::QLinearAdd": _qlinear_binary, "com.microsoft::QLinearConcat": _qlinear_concat,
    "com.microsoft::QLinearAveragePool": channels_first(_qlinear_unary),
    "com.microsoft::QLinearConv": channels_first(_qlinear_conv),
    "com.microsoft::QLinearGlobalAveragePool": channels_first(_qlinear_unary),
    "com.microsoft::QLinearReduceMean": _qlinear_unary,
    "com.microsoft::QLinearLeakyRelu": _qlinear_unary, "com.microsoft::QLinearMul": _qlinear_binary,
    "com.microsoft::QLinearSigmoid": _qlinear_unary,
    "com.microsoft::QLinearSoftmax": _qlinear_unary,
    "com.microsoft::QLinearWhere": _qlinear_where,
    "com.microsoft::QuantizeLinear": _quantize_linear,
}  # fmt: skip
