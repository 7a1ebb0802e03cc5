"""Converters of ONNX's layers: convolution, matrix products, pooling, normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Value
from ..ir import same_shape
from .extents import product
from .layers.indices import checked
from .layers.norms import affine, batch_statistics, group_norm, lp_norm, squared_deviations
from .layers.products import determinant, matmul, scaled
from .layers.shapes import expand, reshape
from .layers.transposed import conv_transpose, transposed_extents
from .layers.windows import (
    Window,
    conv,
    global_pool,
    pool,
    same_pads,
    spatial_rank,
)
from .node import shape_of
from .onnx_node import Converter, OnnxNode


def window_of(n: OnnxNode, extents: Sequence[int], kernel: Sequence[int]) -> Window:
    """The attributes of a window over data of these extents; auto_pad computes the pads."""
    rank = len(extents)
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    mode = n.attr("auto_pad", "NOTSET") or "NOTSET"
    match mode:
        case "NOTSET":
            pads = n.attr("pads", [0] * (2 * rank))
        case "VALID":
            pads = [0] * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER":
            pads = same_pads(extents, kernel, strides, dilations, mode == "SAME_LOWER")
        case _:
            raise ValueError(f"auto_pad '{mode}'")
    return Window(kernel, strides, dilations, pads)


def conv_window(n: OnnxNode, x: Value, w: Value) -> Window:
    """The window of a convolution of x with weights w."""
    kernel = list(shape_of(w)[2:])
    if not same_shape(n.attr("kernel_shape", kernel), kernel):
        raise ValueError(f"kernel_shape is not that of the weights {list(shape_of(w))}")
    return window_of(n, shape_of(x)[2:], kernel)


def _conv(n: OnnxNode) -> Any:
    x, w = n.input(0), n.input(1)
    window, groups = conv_window(n, x, w), n.attr("group", 1)
    return conv(n, x, w, window, n.optional(2), groups=groups)


def _conv_transpose(n: OnnxNode) -> Any:
    """The output's shape follows from the pads, or the pads from the shape."""
    x, w, rank = n.input(0), n.input(1), spatial_rank(n.input(0))
    extents, kernel, mode = shape_of(x)[2:], shape_of(w)[2:], n.attr("auto_pad", "NOTSET")
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    more, shape = n.attr("output_padding", [0] * rank), n.attr("output_shape", None)
    pads = n.attr("pads", [0] * (2 * rank)) if mode in ("", "NOTSET") else [0] * (2 * rank)
    if shape is None and mode.startswith("SAME"):
        shape = [extent * s for extent, s in zip(extents, strides, strict=True)]
    if shape is not None:
        whole = transposed_extents(extents, kernel, strides, dilations, more)
        total = [w - extent for w, extent in zip(whole, shape[-rank:], strict=True)]
        # A larger output than the natural one has zeros at its end, as in onnxruntime.
        small = [t if isinstance(t, int) and t < 0 else t // 2 for t in total]
        large = [t - s for t, s in zip(total, small, strict=True)]
        if mode == "SAME_UPPER":
            grown = [isinstance(t, int) and t < 0 for t in total]
            small, large = (
                [b if g else a for a, b, g in zip(x, y, grown, strict=True)]
                for x, y in ((small, large), (large, small))
            )
        pads = small + large if mode == "SAME_UPPER" else large + small
    window = Window(kernel, strides, dilations, pads)
    return conv_transpose(n, x, w, window, n.attr("group", 1), more, n.optional(2))


def _col2im(n: OnnxNode) -> Any:
    shape = [int(v) for v in n.known(1, "image_shape").reshape(-1)]
    kernel = [int(v) for v in n.known(2, "block_shape").reshape(-1)]
    return n.emit(
        "col2im", n.input(0), shape=shape, kernel=kernel, **window_of(n, shape, kernel).moves
    )


def _gemm(n: OnnxNode) -> Any:
    """alpha * a * b + beta * c"""
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if n.attr("transA", 0):
        a = n.emit("transpose", a, axes=(1, 0))
    y = n.emit("dense", a, b, transpose_b=bool(n.attr("transB", 0)))
    y = scaled(n, y, n.attr("alpha", 1.0))
    return y if c is None else n.emit("add", y, scaled(n, c, n.attr("beta", 1.0)))


def _pool(n: OnnxNode) -> Any:
    x, rank = n.input(0), spatial_rank(n.input(0))
    window = window_of(n, n.shape()[2:], n.attr("kernel_shape"))
    if len(window.kernel) != rank:
        raise ValueError(f"kernel_shape {list(window.kernel)} is not for {rank} dimensions")

    def pooled(op: str, x: Value = x, **attrs: Any) -> Value:
        return pool(n, op, x, window, n.attr("ceil_mode", 0), **attrs)

    match n.op:
        case "MaxPool" if any(n.outputs[1:]):
            by_column = bool(n.attr("storage_order", 0))
            return [pooled("max_pool"), pooled("max_pool_places", by_column=by_column)]
        case "MaxPool":
            return pooled("max_pool")
        case "LpPool":
            return lp_norm(n, x, n.attr("p", 2), lambda powers: pooled("sum_pool", powers))
    return pooled("avg_pool", count_include_pad=bool(n.attr("count_include_pad", 0)))


def _global_pool(n: OnnxNode) -> Any:
    x = n.input(0)
    if n.op == "GlobalLpPool":
        return lp_norm(n, x, n.attr("p", 2), lambda powers: global_pool(n, "sum", powers))
    return global_pool(n, {"GlobalAveragePool": "mean", "GlobalMaxPool": "max"}[n.op], x)


def _lp_normalization(n: OnnxNode) -> Any:
    """x / |x|, or 0 where |x| is 0."""
    x, axis = n.input(0), n.axis(-1)
    size = lp_norm(n, x, n.attr("p", 2), lambda y: n.emit("sum", y, axes=[axis], keepdims=True))
    zero, one = n.constant(0, x.type.dtype), n.constant(1, x.type.dtype)
    return n.emit("divide", x, n.emit("where", n.emit("equal", size, zero), one, size))


def _max_unpool(n: OnnxNode) -> Any:
    """Puts each element at its flat index in the output, and zeros elsewhere."""
    data, rank = n.shape(), spatial_rank(n.input(0))
    kernel = n.attr("kernel_shape")
    strides, pads = n.attr("strides", [1] * rank), n.attr("pads", [0] * (2 * rank))
    spatial = [
        (data[2 + d] - 1) * strides[d] - pads[d] - pads[rank + d] + kernel[d] for d in range(rank)
    ]
    given = n.optional(2) is not None
    shape = [int(v) for v in n.known(2, "output_shape")] if given else [*data[:2], *spatial]
    places = n.input(1)
    if given and shape[2:] != spatial:
        places = _moved_places(n, places, spatial, shape[2:])
    count = math.prod(data)
    zeros = n.constant(np.zeros(math.prod(shape)), n.dtype())
    places = checked(n, places, [math.prod(shape)], from_end=False)
    flat = [reshape(n, v, (count,)) for v in (places, n.input(0))]
    return reshape(n, n.emit("scatter_elements", zeros, *flat, axis=0, reduction="none"), shape)


def _moved_places(n: OnnxNode, places: Value, old: list[int], wanted: list[int]) -> Value:
    """Flat indices into images of one shape as flat indices into images of another."""

    def size(count: int) -> Value:
        return n.constant(count, "int64")

    inside = n.emit("mod", places, size(math.prod(old)), truncated=True)
    planes = n.emit("divide", places, size(math.prod(old)))
    total = n.emit("multiply", planes, size(math.prod(wanted)))
    for d in range(len(old)):
        step, own = math.prod(old[d + 1 :]), math.prod(wanted[d + 1 :])
        index = n.emit("divide", inside, size(step))
        inside = n.emit("mod", inside, size(step), truncated=True)
        total = n.emit("add", total, n.emit("multiply", index, size(own)))
    return total


def _batch_norm(n: OnnxNode) -> Any:
    """Training mode uses the batch's own statistics, and updates the running ones."""
    training = n.attr("training_mode", 0) or (n.opset < 14 and any(n.outputs[1:]))
    if not n.attr("spatial", 1) or (training and n.opset < 14):
        what = "training mode" if training else "statistics per element (spatial=0)"
        raise n.refuse(f"{what} is not supported")
    x, scale, shift, *running = (n.input(k) for k in range(5))
    epsilon, momentum = n.attr("epsilon", 1e-5), n.attr("momentum", 0.9)
    if not training:
        return n.emit("batch_norm", x, scale, shift, *running, epsilon=epsilon)
    own = batch_statistics(n, x)
    moved = [
        n.emit("add", scaled(n, old, momentum), scaled(n, now, 1 - momentum))
        for old, now in zip(running, own, strict=True)
    ]
    return [n.emit("batch_norm", x, scale, shift, *own, epsilon=epsilon), *moved]


def _instance_norm(n: OnnxNode) -> Any:
    x, scale, shift = (n.input(k) for k in range(3))
    spatial_rank(x)
    return group_norm(n, x, n.shape()[1], scale, shift, n.attr("epsilon", 1e-5))


def _layer_norm(n: OnnxNode) -> Any:
    x, epsilon, axis = n.input(0), n.attr("epsilon", 1e-5), n.axis(-1)
    shape = shape_of(x)
    # As a dense layer after it takes rows: fold_scale sees both.
    flat = reshape(n, x, (product(shape[:axis]), product(shape[axis:])))
    own = (v and reshape(n, v, (1, product(shape_of(v)))) for v in (n.input(1), n.optional(2)))
    y = affine(n, n.emit("layer_norm", flat, axes=[1], epsilon=epsilon), *own)
    y = reshape(n, y, shape)
    if not any(n.outputs[1:]):
        return y
    axes = list(range(axis, len(shape)))
    wide = n.cast(x, "float32")  # as `stash_type` says, whose default is the only one
    mean, squares = squared_deviations(n, wide, axes)
    variance = n.emit("mean", squares, axes=axes, keepdims=True)
    deviation = n.emit("sqrt", n.emit("add", variance, n.constant(epsilon, "float32")))
    return [y, mean, n.emit("reciprocal", deviation)]


def _mean_variance_norm(n: OnnxNode) -> Any:
    x, axes = n.input(0), n.attr("axes", [0, 2, 3])
    mean, squares = squared_deviations(n, x, axes)
    deviation = n.emit("sqrt", n.emit("mean", squares, axes=axes, keepdims=True))
    least = n.constant(1e-9, x.type.dtype)  # as ONNX's definition has it
    return n.emit("divide", n.emit("subtract", x, mean), n.emit("add", deviation, least))


def _group_norm(n: OnnxNode) -> Any:
    x, scale, shift = (n.input(k) for k in range(3))
    groups = n.attr("num_groups")
    if n.opset < 21:  # scale and bias have an element per group
        each = (groups, n.shape()[1] // groups)
        scale, shift = (
            reshape(n, expand(n, reshape(n, v, (groups, 1)), each), (product(each),))
            for v in (scale, shift)
        )
    return group_norm(n, x, groups, scale, shift, n.attr("epsilon", 1e-5))


# ONNX's own definitions of some norms subtract the square of the mean from the mean of squares. Few
# digits of such a variance are right where the mean is large.
LAYERS: dict[str, Converter] = {
    "AveragePool": _pool, "BatchNormalization": _batch_norm, "Col2Im": _col2im, "Conv": _conv,
    "ConvTranspose": _conv_transpose, "Gemm": _gemm, "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_pool, "GlobalMaxPool": _global_pool,
    "GroupNormalization": _group_norm, "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm, "LpNormalization": _lp_normalization, "LpPool": _pool,
    "MaxPool": _pool, "MaxUnpool": _max_unpool, "MeanVarianceNormalization": _mean_variance_norm,
    "Det": lambda n: determinant(n, n.input(0)),
    "MatMul": lambda n: matmul(n, n.input(0), n.input(1)),
}  # fmt: skip
