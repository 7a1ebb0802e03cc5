"""Converters of ONNX's layers: convolution, matrix products, pooling, normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import ImporterError
from ..graph.nodes import Value
from .onnx_node import Converter, OnnxNode, static_shape


def window_pads(
    n: OnnxNode, extents: Sequence[int], kernel: Sequence[int], strides: Any, dilations: Any
) -> list[int]:
    """pads (beginnings, then ends), computed from the data's extents where auto_pad says so."""
    mode = n.attr("auto_pad", "NOTSET") or "NOTSET"
    if mode == "NOTSET":
        given: list[int] = n.attr("pads", [0] * (2 * len(kernel)))
        return given
    if mode == "VALID":
        return [0] * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad '{mode}'")
    before, after = [], []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        total = max((math.ceil(extent / s) - 1) * s + d * (k - 1) + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before + after


def _spatial_rank(n: OnnxNode) -> int:
    rank = len(n.shape()) - 2
    if rank < 1:
        raise ValueError(f"data of shape {list(n.shape())} has no spatial dimension")
    return rank


def _conv(n: OnnxNode) -> Any:
    """One dimension becomes two, with height 1; the bias becomes an addition."""
    x, w = n.input(0), n.input(1)
    rank = _spatial_rank(n)
    if rank > 2:
        raise ImporterError(f"convolution over {rank} dimensions is not supported", where=n.place)
    data, weights = n.shape(0), n.shape(1)
    kernel = list(weights[2:])
    if list(n.attr("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape is not that of the weights {list(weights)}")
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = window_pads(n, data[2:], kernel, strides, dilations)
    if not len(strides) == len(dilations) == rank == len(kernel) or len(pads) != 2 * rank:
        raise ValueError(f"strides, dilations and pads are not for {rank} dimensions")
    if rank == 1:
        x = n.emit("reshape", x, shape=(*data[:2], 1, data[2]))
        w = n.emit("reshape", w, shape=(*weights[:2], 1, weights[2]))
        strides, dilations = [1, *strides], [1, *dilations]
        pads = [0, pads[0], 0, pads[1]]
    y = n.emit(
        "conv2d", x, w, strides=strides, pads=pads, dilations=dilations, groups=n.attr("group", 1)
    )
    bias = n.optional(2)
    if bias is not None:
        y = n.emit("add", y, n.emit("reshape", bias, shape=(weights[0], 1, 1)))
    if rank == 1:
        batch, channels, _, width = static_shape(y)
        y = n.emit("reshape", y, shape=(batch, channels, width))
    return y


def _gemm(n: OnnxNode) -> Any:
    """alpha * a * b + beta * c"""
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if n.attr("transA", 0):
        a = n.emit("transpose", a, axes=(1, 0))
    y = n.emit("dense", a, b, transpose_b=bool(n.attr("transB", 0)))
    y = _scaled(n, y, n.attr("alpha", 1.0))
    return y if c is None else n.emit("add", y, _scaled(n, c, n.attr("beta", 1.0)))


def _scaled(n: OnnxNode, x: Value, factor: float) -> Value:
    result: Value = x if factor == 1.0 else n.emit("multiply", x, n.constant(factor, x.type.dtype))
    return result


def _matmul(n: OnnxNode) -> Any:
    """As numpy's: vectors become matrices; a matrix on the right takes all rows at once."""
    a, b = n.input(0), n.input(1)
    left, right = n.shape(0), n.shape(1)
    if not left or not right:
        raise ValueError("an input is a scalar")
    if len(left) == 1:
        a = n.emit("reshape", a, shape=(1, *left))
    if len(right) == 1:
        b = n.emit("reshape", b, shape=(*right, 1))
    rows = static_shape(a)
    if len(static_shape(b)) == 2:
        if len(rows) > 2:
            a = n.emit("reshape", a, shape=(math.prod(rows[:-1]), rows[-1]))
        y = n.emit("dense", a, b, transpose_b=False)
        batch = rows[:-2]
    else:
        y = n.emit("matmul", a, b)
        batch = static_shape(y)[:-2]
    shape = [*batch, *left[-2:-1], *right[-1:]] if len(right) > 1 else [*batch, *left[-2:-1]]
    return y if tuple(shape) == static_shape(y) else n.emit("reshape", y, shape=shape)


def _pool(n: OnnxNode) -> Any:
    n.refuse_outputs(1, "holds the places of the maxima")
    rank = _spatial_rank(n)
    kernel = n.attr("kernel_shape")
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = window_pads(n, n.shape()[2:], kernel, strides, dilations)
    attrs: dict[str, Any] = {"kernel": kernel, "strides": strides, "dilations": dilations}
    attrs |= {"pads": pads, "ceil_mode": bool(n.attr("ceil_mode", 0))}
    if n.op == "MaxPool":
        return n.emit("max_pool", n.input(0), **attrs)
    include = bool(n.attr("count_include_pad", 0))
    return n.emit("avg_pool", n.input(0), count_include_pad=include, **attrs)


def _global_pool(n: OnnxNode) -> Any:
    axes = range(2, 2 + _spatial_rank(n))
    op = {"GlobalAveragePool": "mean", "GlobalMaxPool": "max"}[n.op]
    return n.emit(op, n.input(0), axes=list(axes), keepdims=True)


def _batch_norm(n: OnnxNode) -> Any:
    training = n.attr("training_mode", 0) or (n.opset < 14 and any(n.outputs[1:]))
    if training or not n.attr("spatial", 1):
        what = "training mode" if training else "statistics per element (spatial=0)"
        raise ImporterError(f"{what} is not supported", where=n.place)
    parameters = [n.input(k) for k in range(1, 5)]
    return n.emit("batch_norm", n.input(0), *parameters, epsilon=n.attr("epsilon", 1e-5))


def _instance_norm(n: OnnxNode) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, over each image's channel."""
    x, rank = n.input(0), _spatial_rank(n)
    axes = list(range(2, 2 + rank))
    along = (n.shape(1)[0],) + (1,) * rank
    scale, shift = (n.emit("reshape", n.input(k), shape=along) for k in (1, 2))
    centred = n.emit("subtract", x, n.emit("mean", x, axes=axes, keepdims=True))
    squares = n.emit("multiply", centred, centred)
    variance = n.emit("mean", squares, axes=axes, keepdims=True)
    epsilon = n.constant(n.attr("epsilon", 1e-5), x.type.dtype)
    deviation = n.emit("sqrt", n.emit("add", variance, epsilon))
    scaled = n.emit("multiply", n.emit("divide", centred, deviation), scale)
    return n.emit("add", scaled, shift)


def _lrn(n: OnnxNode) -> Any:
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    values = {key: n.attr(key, default) for key, default in defaults.items()}
    return n.emit("lrn", n.input(0), size=n.attr("size"), **values)


LAYERS: dict[str, Converter] = {
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "MatMul": _matmul,
    "MaxPool": _pool,
}
