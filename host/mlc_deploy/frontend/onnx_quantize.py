"""Converters of quantized operators: to integer sums, corrected for zero points, requantized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.nodes import Constant, Value
from ..ops.quantize import STORED, SUMS
from ..ops.shape import normal_axis
from .onnx_file import dtype_name
from .onnx_layers import conv_attrs, conv_op, windows
from .onnx_node import Converter, OnnxNode, static_shape


def cast(n: OnnxNode, value: Value, dtype: str) -> Value:
    result: Value = value if value.type.dtype == dtype else n.emit("cast", value, dtype=dtype)
    return result


def _along(n: OnnxNode, value: Value, shape: Sequence[int], axis: int, block: int = 0) -> Value:
    """A scale or zero point as it broadcasts to data of that shape: a scalar, one per element of
    axis, or one per block of it."""
    own = static_shape(value)
    if math.prod(own) == 1 and not block:
        return _reshaped(n, value, ())
    axis = normal_axis(n.op, axis, len(shape))
    if len(own) == 1 and not block:
        along = [1] * len(shape)
        along[axis] = own[0]
        return _reshaped(n, value, along)
    if len(own) != len(shape):
        raise ValueError(f"scales {list(own)} for data {list(shape)}")
    size = block or -(-shape[axis] // own[axis])
    spread = [*own[: axis + 1], 1, *own[axis + 1 :]]
    wide = [*own[: axis + 1], size, *own[axis + 1 :]]
    value = n.emit("broadcast_to", _reshaped(n, value, spread), shape=wide)
    value = _reshaped(n, value, [*own[:axis], own[axis] * size, *own[axis + 1 :]])
    if own[axis] * size == shape[axis]:
        return value
    rank = len(shape)
    cut: Value = n.emit("slice", value, begin=[0] * rank, step=[1] * rank, shape=list(shape))
    return cut


def _reshaped(n: OnnxNode, value: Value, shape: Sequence[int]) -> Value:
    if static_shape(value) == tuple(shape):
        return value
    result: Value = n.emit("reshape", value, shape=tuple(shape))
    return result


def _zeros(n: OnnxNode, like: Value, dtype: str) -> Constant:
    return n.constant(np.zeros(static_shape(like)), dtype)


def _quantize_linear(n: OnnxNode) -> Any:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    code = n.attr("output_dtype", 0)
    dtype = (
        zero.type.dtype if zero else dtype_name(code, "the result", n.place) if code else "uint8"
    )
    _refuse_unstored(n, dtype)
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    zero = zero or _zeros(n, scale, dtype)
    scale, zero = (_along(n, v, n.shape(), axis, block) for v in (scale, zero))
    return n.emit("quantize", x, scale, zero)


def _refuse_unstored(n: OnnxNode, dtype: str) -> None:
    if dtype not in STORED:
        what = f"quantized numbers of type {dtype} are not supported"
        raise ImporterError(what, where=n.place, mend=f"one of {', '.join(STORED)}")


def _dequantize_linear(n: OnnxNode) -> Any:
    """Constants are not folded: integer operators take them as they are."""
    q, scale = n.input(0), n.input(1)
    if q.type.dtype != SUMS:
        _refuse_unstored(n, q.type.dtype)
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    zero = n.optional(2) or _zeros(n, scale, q.type.dtype)
    scale, zero = (_along(n, v, n.shape(), axis, block) for v in (scale, zero))
    code = n.attr("output_dtype", 0)
    result = n.call("dequantize", q, scale, zero)
    return cast(n, result, dtype_name(code, "the result", n.place)) if code else result


# ---------------------------------------------------------------------------------- integer sums


def _is_zero(zero: Value | None) -> bool:
    return zero is None or (isinstance(zero, Constant) and not zero.value.any())


def _corrected(
    n: OnnxNode,
    sums: Value,
    zeros: tuple[Value | None, Value | None],
    sums_of: tuple[Any, Any],
    count: int,
) -> Value:
    """sum((x - zx) * (w - zw)) from sum(x * w) over count products.

    zeros broadcast against the sums, as do sums_of: functions that give sum(x) and sum(w).
    """
    zx, zw = (None if _is_zero(z) or z is None else cast(n, z, SUMS) for z in zeros)
    if zw is not None:
        sums = n.emit("subtract", sums, n.emit("multiply", zw, sums_of[0]()))
    if zx is not None:
        sums = n.emit("subtract", sums, n.emit("multiply", zx, sums_of[1]()))
    if zx is not None and zw is not None:
        product = n.emit("multiply", zx, zw)
        sums = n.emit("add", sums, n.emit("multiply", product, n.constant(count, SUMS)))
    return sums


def integer_conv(n: OnnxNode, x: Value, w: Value, zx: Value | None, zw: Value | None) -> Value:
    """The int32 sums of a convolution of x - zx with w - zw; zx is one number, zw also one per
    channel of the output."""
    op, attrs = conv_op(static_shape(x)), conv_attrs(n, static_shape(x), static_shape(w))
    rank = len(attrs["strides"])
    if zx is not None:
        zx = _along(n, zx, (), 0)
    if isinstance(zx, Constant):
        attrs["pad_value"] = int(zx.value)
    elif zx is not None and any(attrs["pads"]):
        pads = attrs["pads"]
        every = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
        x = n.emit("pad_with", x, cast(n, zx, x.type.dtype), pads=every)
        attrs["pads"] = [0] * (2 * rank)
    sizes = static_shape(w)

    def sum_x() -> Value:
        groups = attrs["groups"]
        ones = n.constant(np.ones((groups, *sizes[1:])), w.type.dtype)
        total = windows(n, op, x, ones, attrs)
        if groups == 1:
            return total
        batch, _, *spatial = static_shape(total)
        spread = (batch, groups, sizes[0] // groups, *spatial)
        total = n.emit("reshape", total, shape=(batch, groups, 1, *spatial))
        total = n.emit("broadcast_to", total, shape=spread)
        return _reshaped(n, total, (batch, sizes[0], *spatial))

    def sum_w() -> Value:
        axes = range(1, len(sizes))
        total = n.emit("sum", cast(n, w, SUMS), axes=list(axes), keepdims=False)
        return _reshaped(n, total, (sizes[0], *(1,) * rank))

    if zw is not None:
        count = math.prod(static_shape(zw))
        zw = _reshaped(n, zw, () if count == 1 else (count, *(1,) * rank))
    sums = windows(n, op, x, w, attrs)
    return _corrected(n, sums, (zx, zw), (sum_x, sum_w), math.prod(sizes[1:]))


def integer_matmul(n: OnnxNode, a: Value, b: Value, za: Value | None, zb: Value | None) -> Value:
    """The int32 sums of (a - za) times (b - zb), as numpy's matmul has them; za is one number or
    one per row, zb one number or one per column."""
    left, right = static_shape(a), static_shape(b)
    if len(left) < 2 or len(right) < 2:
        raise ValueError("vectors are not supported")

    def sum_of(x: Value, axis: int) -> Value:
        total: Value = n.emit("sum", cast(n, x, SUMS), axes=[axis], keepdims=True)
        return total

    if za is not None and len(static_shape(za)) == 1:
        za = _reshaped(n, za, (*static_shape(za), 1))
    sums = n.emit("matmul", a, b)
    sides = (lambda: sum_of(a, len(left) - 1), lambda: sum_of(b, len(right) - 2))
    return _corrected(n, sums, (za, zb), sides, left[-1])


def _conv_integer(n: OnnxNode) -> Any:
    return integer_conv(n, n.input(0), n.input(1), n.optional(2), n.optional(3))


def _matmul_integer(n: OnnxNode) -> Any:
    return integer_matmul(n, n.input(0), n.input(1), n.optional(2), n.optional(3))


def _multiplier(n: OnnxNode, x: Value, w: Value, y: Value) -> Value:
    """x * w / y, in float32."""
    x, w, y = (cast(n, v, "float32") for v in (x, w, y))
    result: Value = n.emit("divide", n.emit("multiply", x, w), y)
    return result


def _qlinear_conv(n: OnnxNode) -> Any:
    x, xs, xz, w, ws, wz, ys, yz = (n.input(k) for k in range(8))
    sums = integer_conv(n, x, w, xz, wz)
    rank = len(static_shape(sums))
    bias = n.optional(8)
    if bias is not None:
        sums = n.emit("add", sums, _reshaped(n, bias, (*static_shape(bias), *(1,) * (rank - 2))))
    multiplier = _multiplier(n, *(_along(n, s, static_shape(sums), 1) for s in (xs, ws, ys)))
    return n.emit("requantize", sums, multiplier, _along(n, yz, static_shape(sums), 1))


def _qlinear_matmul(n: OnnxNode) -> Any:
    """Scales and zero points of a are for its rows, those of b for its columns."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (n.input(k) for k in range(8))
    sums = integer_matmul(n, a, b, a_zero, b_zero)
    shape, rank = static_shape(sums), len(static_shape(sums))
    scales = (
        _along(n, a_scale, shape, rank - 2),
        _along(n, b_scale, shape, rank - 1),
        _along(n, y_scale, shape, rank - 2),
    )
    return n.emit("requantize", sums, _multiplier(n, *scales), _along(n, y_zero, shape, rank - 2))


# ------------------------------------------------------ onnxruntime's own: numbers in between


def _real(n: OnnxNode, first: int) -> Value:
    """What the three inputs from `first` on stand for: a tensor, its scale, its zero point."""
    q, scale = n.input(first), n.input(first + 1)
    zero = n.optional(first + 2) or _zeros(n, scale, q.type.dtype)
    scale, zero = (_along(n, v, static_shape(q), 1) for v in (scale, zero))
    result: Value = n.call("dequantize", q, scale, zero)
    return result


def _stored(n: OnnxNode, value: Value, first: int, dtype: str) -> Value:
    scale = n.input(first)
    zero = n.optional(first + 1) or _zeros(n, scale, dtype)
    scale, zero = (_along(n, v, static_shape(value), 1) for v in (scale, zero))
    result: Value = n.emit("quantize", value, scale, zero)
    return result


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
            y = n.emit("softmax", x, axis=normal_axis(n.op, n.attr("axis", -1), len(n.shape())))
        case _:
            axes = list(range(2, len(n.shape())))
            y = n.emit("mean", x, axes=axes, keepdims=True)
    return _stored(n, y, 3, n.dtype())


def _qlinear_concat(n: OnnxNode) -> Any:
    parts = [_real(n, first) for first in range(2, len(n.inputs), 3)]
    zero = n.input(1)
    return _stored(n, n.emit("concatenate", *parts, axis=n.attr("axis")), 0, zero.type.dtype)


def _qgemm(n: OnnxNode) -> Any:
    """alpha * a * b + c, where c is as the integer sums are: of scale alpha * sa * sb."""
    a, a_scale, a_zero, b, b_scale, b_zero = (n.input(k) for k in range(6))
    if n.attr("transA", 0):
        a = n.emit("transpose", a, axes=(1, 0))
    if n.attr("transB", 0):
        b = n.emit("transpose", b, axes=(1, 0))
    sums = integer_matmul(n, a, b, a_zero, b_zero)
    if (c := n.optional(6)) is not None:
        sums = n.emit("add", sums, c)
    shape = static_shape(sums)
    alpha = n.constant(n.attr("alpha", 1.0), "float32")
    a_scale, b_scale = _along(n, a_scale, shape, 0), _along(n, b_scale, shape, 1)
    scale = n.emit("multiply", alpha, n.emit("multiply", a_scale, b_scale))
    if n.optional(7) is None:
        return n.emit("multiply", cast(n, sums, "float32"), scale)
    multiplier = n.emit("divide", scale, _along(n, n.input(7), shape, 0))
    zero = n.optional(8) or n.constant(0, a.type.dtype)
    return n.emit("requantize", sums, multiplier, _along(n, zero, shape, 0))


QUANTIZED: dict[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize_linear,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize_linear,
    "com.microsoft::DequantizeLinear": _dequantize_linear,
    "com.microsoft::QGemm": _qgemm,
    "com.microsoft::QLinearAdd": _qlinear_binary,
    "com.microsoft::QLinearConcat": _qlinear_concat,
    "com.microsoft::QLinearGlobalAveragePool": _qlinear_unary,
    "com.microsoft::QLinearLeakyRelu": _qlinear_unary,
    "com.microsoft::QLinearMul": _qlinear_binary,
    "com.microsoft::QLinearSigmoid": _qlinear_unary,
    "com.microsoft::QLinearSoftmax": _qlinear_unary,
    "com.microsoft::QuantizeLinear": _quantize_linear,
}
