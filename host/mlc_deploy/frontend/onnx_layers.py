"""Converters of ONNX's layers: convolution, matrix products, pooling, normalization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.nodes import Value
from ..ops.shape import normal_axis
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


def conv_op(data: Sequence[int]) -> str:
    """One and two dimensions have schedules of their own."""
    return "conv2d" if len(data) <= 4 else "conv_nd"


def conv_attrs(n: OnnxNode, data: Sequence[int], weights: Sequence[int]) -> dict[str, Any]:
    """The attributes of a convolution of data with weights of these shapes."""
    rank, kernel = len(data) - 2, list(weights[2:])
    if list(n.attr("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape is not that of the weights {list(weights)}")
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = window_pads(n, data[2:], kernel, strides, dilations)
    if not len(strides) == len(dilations) == rank == len(kernel) or len(pads) != 2 * rank:
        raise ValueError(f"strides, dilations and pads are not for {rank} dimensions")
    groups = n.attr("group", 1)
    return {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}


def windows(n: OnnxNode, op: str, x: Value, w: Value, attrs: Mapping[str, Any]) -> Value:
    """A convolution; one dimension becomes two, with height 1."""
    data, weights = static_shape(x), static_shape(w)
    if len(data) != 3:
        result: Value = n.emit(op, x, w, **attrs)
        return result
    flat = dict(attrs)
    for key in ("strides", "dilations"):
        flat[key] = [1, *attrs[key]]
    flat["pads"] = [0, attrs["pads"][0], 0, attrs["pads"][1]]
    x = n.emit("reshape", x, shape=(*data[:2], 1, data[2]))
    w = n.emit("reshape", w, shape=(*weights[:2], 1, weights[2]))
    y = n.emit(op, x, w, **flat)
    batch, channels, _, width = static_shape(y)
    line: Value = n.emit("reshape", y, shape=(batch, channels, width))
    return line


def _conv(n: OnnxNode) -> Any:
    """The bias becomes an addition."""
    x, w = n.input(0), n.input(1)
    _spatial_rank(n)
    y = windows(n, conv_op(n.shape()), x, w, conv_attrs(n, n.shape(0), n.shape(1)))
    return _biased(n, y, n.optional(2))


def _biased(n: OnnxNode, y: Value, bias: Value | None) -> Value:
    if bias is None:
        return y
    shape = (static_shape(y)[1], *(1,) * (len(static_shape(y)) - 2))
    result: Value = n.emit("add", y, n.emit("reshape", bias, shape=shape))
    return result


def _conv_transpose(n: OnnxNode) -> Any:
    """Each input element's column of outputs, a matrix product, added up where they overlap."""
    rank, data, weights = _spatial_rank(n), n.shape(0), n.shape(1)
    kernel, groups = weights[2:], n.attr("group", 1)
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    more = n.attr("output_padding", [0] * rank)
    whole = [
        s * (extent - 1) + d * (k - 1) + 1 + m
        for extent, k, s, d, m in zip(data[2:], kernel, strides, dilations, more, strict=True)
    ]
    shape, pads = _transposed_extents(n, whole, data[2:], strides)
    batch, channels, places = data[0], data[1], math.prod(data[2:])
    if channels != weights[0] or channels % groups:
        raise ValueError(f"{channels} channels, weights {list(weights)}, {groups} groups")
    columns = weights[1] * math.prod(kernel)
    grouped = (groups, channels // groups)
    w = n.emit("reshape", n.input(1), shape=(*grouped, columns))
    w = n.emit("transpose", w, axes=(0, 2, 1))
    x = n.emit("reshape", n.input(0), shape=(batch, *grouped, places))
    y = n.emit("reshape", n.emit("matmul", w, x), shape=(batch, groups * columns, places))
    cut = [max(p, 0) for p in pads]  # negative ones are zeros beyond what the input reaches
    reached = [w - cut[d] - cut[rank + d] for d, w in enumerate(whole)]
    attrs = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": cut}
    y = n.emit("col2im", y, shape=reached, **attrs)
    if cut != list(pads):
        more = [c - p for c, p in zip(cut, pads, strict=True)]
        every = [0, 0, *more[:rank], 0, 0, *more[rank:]]
        y = n.emit("pad", y, pads=every, mode="constant", value=0)
    if list(static_shape(y)[2:]) != list(shape):
        raise ValueError(f"the output would have the shape {list(static_shape(y))}, not {shape}")
    return _biased(n, y, n.optional(2))


def _transposed_extents(
    n: OnnxNode, whole: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """A transposed convolution's output shape and pads, either of which gives the other."""
    rank, mode = len(whole), n.attr("auto_pad", "NOTSET") or "NOTSET"
    shape = n.attr("output_shape", None)
    if shape is None and mode in ("NOTSET", "VALID"):
        pads = n.attr("pads", [0] * (2 * rank)) if mode == "NOTSET" else [0] * (2 * rank)
        return [w - pads[d] - pads[rank + d] for d, w in enumerate(whole)], pads
    if shape is None:
        shape = [extent * s for extent, s in zip(extents, strides, strict=True)]
    shape = shape[-rank:]
    total = [w - extent for w, extent in zip(whole, shape, strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return shape, [*small, *large] if mode == "SAME_UPPER" else [*large, *small]


def _col2im(n: OnnxNode) -> Any:
    shape = [int(v) for v in n.known(1, "image_shape").reshape(-1)]
    kernel = [int(v) for v in n.known(2, "block_shape").reshape(-1)]
    rank = len(shape)
    return n.emit(
        "col2im",
        n.input(0),
        shape=shape,
        kernel=kernel,
        strides=n.attr("strides", [1] * rank),
        dilations=n.attr("dilations", [1] * rank),
        pads=n.attr("pads", [0] * (2 * rank)),
    )


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
    rank = _spatial_rank(n)
    kernel = n.attr("kernel_shape")
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = window_pads(n, n.shape()[2:], kernel, strides, dilations)
    x = n.input(0)
    attrs: dict[str, Any] = {"kernel": kernel, "strides": strides, "dilations": dilations}
    attrs |= {"pads": pads, "ceil_mode": bool(n.attr("ceil_mode", 0))}
    match n.op:
        case "MaxPool" if any(n.outputs[1:]):
            by_column = bool(n.attr("storage_order", 0))
            places = n.emit("max_pool_places", x, by_column=by_column, **attrs)
            return [n.emit("max_pool", x, **attrs), places]
        case "MaxPool":
            return n.emit("max_pool", x, **attrs)
        case "LpPool":
            p = n.attr("p", 2)
            return _root(n, n.emit("sum_pool", _power(n, x, p), **attrs), p)
    include = bool(n.attr("count_include_pad", 0))
    return n.emit("avg_pool", x, count_include_pad=include, **attrs)


def _power(n: OnnxNode, x: Value, p: int) -> Value:
    """|x| ^ p"""
    size: Value = n.emit("abs", x)
    match p:
        case 1:
            return size
        case 2:
            square: Value = n.emit("multiply", x, x)
            return square
    power: Value = n.emit("power", size, n.constant(p, x.type.dtype))
    return power


def _root(n: OnnxNode, x: Value, p: int) -> Value:
    match p:
        case 1:
            return x
        case 2:
            square: Value = n.emit("sqrt", x)
            return square
    root: Value = n.emit("power", x, n.constant(1 / p, x.type.dtype))
    return root


def _global_pool(n: OnnxNode) -> Any:
    axes = list(range(2, 2 + _spatial_rank(n)))
    if n.op == "GlobalLpPool":
        p = n.attr("p", 2)
        return _root(n, n.emit("sum", _power(n, n.input(0), p), axes=axes, keepdims=True), p)
    op = {"GlobalAveragePool": "mean", "GlobalMaxPool": "max"}[n.op]
    return n.emit(op, n.input(0), axes=axes, keepdims=True)


def _lp_normalization(n: OnnxNode) -> Any:
    """x / |x|, and 0 where all of x is 0."""
    x, p = n.input(0), n.attr("p", 2)
    axis = normal_axis(n.op, n.attr("axis", -1), len(n.shape()))
    size = _root(n, n.emit("sum", _power(n, x, p), axes=[axis], keepdims=True), p)
    zero, one = n.constant(0, x.type.dtype), n.constant(1, x.type.dtype)
    return n.emit("divide", x, n.emit("where", n.emit("equal", size, zero), one, size))


def _max_unpool(n: OnnxNode) -> Any:
    """Every element goes to its place in the output's memory; zeros elsewhere."""
    data, rank = n.shape(), _spatial_rank(n)
    kernel = n.attr("kernel_shape")
    strides, pads = n.attr("strides", [1] * rank), n.attr("pads", [0] * (2 * rank))
    spatial = [
        (data[2 + d] - 1) * strides[d] - pads[d] - pads[rank + d] + kernel[d] for d in range(rank)
    ]
    given = n.optional(2) is not None
    shape = [int(v) for v in n.known(2, "output_shape")] if given else [*data[:2], *spatial]
    places = n.input(1)
    if given and shape[2:] != spatial:  # places are in the smaller image
        inside = n.emit("mod", places, n.constant(math.prod(spatial), "int64"), truncated=True)
        planes = n.emit("divide", places, n.constant(math.prod(spatial), "int64"))
        total = n.emit("multiply", planes, n.constant(math.prod(shape[2:]), "int64"))
        for d in range(rank):
            step, own = math.prod(spatial[d + 1 :]), math.prod(shape[3 + d :])
            index = n.emit("divide", inside, n.constant(step, "int64"))
            inside = n.emit("mod", inside, n.constant(step, "int64"), truncated=True)
            index = n.emit("multiply", index, n.constant(own, "int64"))
            total = n.emit("add", total, index)
        places = total
    count = math.prod(data)
    zeros = n.constant(np.zeros(math.prod(shape)), n.dtype())
    flat = [n.emit("reshape", v, shape=(count,)) for v in (places, n.input(0))]
    y = n.emit("scatter_elements", zeros, *flat, axis=0, reduction="none")
    return n.emit("reshape", y, shape=shape)


def _batch_norm(n: OnnxNode) -> Any:
    """In training mode by the batch's own statistics, which also move the running ones."""
    training = n.attr("training_mode", 0) or (n.opset < 14 and any(n.outputs[1:]))
    if not n.attr("spatial", 1) or (training and n.opset < 14):
        what = "training mode" if training else "statistics per element (spatial=0)"
        raise ImporterError(f"{what} is not supported", where=n.place)
    x, scale, shift, mean, variance = (n.input(k) for k in range(5))
    epsilon = n.attr("epsilon", 1e-5)
    if not training:
        return n.emit("batch_norm", x, scale, shift, mean, variance, epsilon=epsilon)
    axes = [axis for axis in range(len(n.shape())) if axis != 1]
    channels = n.shape()[1]
    own_mean = n.emit("mean", x, axes=axes, keepdims=True)
    centred = n.emit("subtract", x, own_mean)
    own_variance = n.emit("mean", n.emit("multiply", centred, centred), axes=axes, keepdims=True)
    own = [n.emit("reshape", v, shape=(channels,)) for v in (own_mean, own_variance)]
    momentum = n.attr("momentum", 0.9)

    def moved(running: Value, now: Value) -> Any:
        dtype = running.type.dtype
        kept = n.emit("multiply", running, n.constant(momentum, dtype))
        return n.emit("add", kept, n.emit("multiply", now, n.constant(1 - momentum, dtype)))

    y = n.emit("batch_norm", x, scale, shift, *own, epsilon=epsilon)
    return [y, moved(mean, own[0]), moved(variance, own[1])]


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
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "LpPool": _pool,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "MaxUnpool": _max_unpool,
}
