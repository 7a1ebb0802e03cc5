"""Converters of ATen's layers: convolution, products, attention, pooling, norms, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import is_const
from .layers.norms import affine, batch_statistics, group_norm
from .layers.products import matmul, rows_times, scaled
from .layers.resize import (
    axes_in_order,
    grid_sample,
    interpolated,
    nearest,
    resampled,
    source_coordinates,
)
from .layers.shapes import expand, reshape, transposed, with_axis, without
from .layers.transposed import conv_transpose
from .layers.windows import Window, conv, global_pool, pool, same_pads
from .node import shape_of
from .torch_node import Converter, TorchNode


def _each(value: Any, rank: int) -> list[int]:
    """A number per spatial dimension. A single number holds for all of them."""
    given = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return given * rank if len(given) == 1 else given


def _spatial_rank(n: TorchNode) -> int:
    return int(n.op[-2])  # conv2d, max_pool2d


def _batched(n: TorchNode, x: Value, rank: int) -> tuple[Value, bool]:
    """x with a batch dimension, and whether x had none."""
    added = len(shape_of(x)) < rank + 2
    return with_axis(n, x, 0) if added else x, added


def _unbatched(n: TorchNode, x: Value, added: bool) -> Value:
    return without(n, x, [0]) if added else x


# --------------------------------------------------------------------------------- convolutions


def _conv(
    n: TorchNode, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    kernel = shape_of(w)[2:]
    rank = len(kernel)
    x, added = _batched(n, x, rank)
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    match padding:
        case "same":
            pads = same_pads(shape_of(x)[2:], kernel, strides, dilations)
        case "valid":
            pads = [0] * (2 * rank)
        case _:
            pads = _each(padding, rank) * 2
    window = Window(kernel, strides, dilations, pads)
    return _unbatched(n, conv(n, x, w, window, bias, groups=groups), added)


def _convolution(
    n: TorchNode, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    if transposed:
        return _conv_transpose(n, x, w, bias, stride, padding, output_padding, groups, dilation)
    return _conv(n, x, w, bias, stride, padding, dilation, groups)


def _conv_transpose(
    n: TorchNode, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    kernel = shape_of(w)[2:]
    rank = len(kernel)
    x, added = _batched(n, x, rank)
    pads, more = _each(padding, rank) * 2, _each(output_padding, rank)
    window = Window(kernel, _each(stride, rank), _each(dilation, rank), pads)
    return _unbatched(n, conv_transpose(n, x, w, window, groups, more, bias), added)


# ------------------------------------------------------------------------------------- products


def _linear(n: TorchNode, x: Any, w: Any, bias: Any = None) -> Any:
    """x [..., K] times w [N, K] transposed, or times a vector [K]."""
    *outputs, width = shape_of(w)
    matrix = reshape(n, w, (math.prod(outputs), width))
    y = affine(n, rows_times(n, x, matrix, transpose=True), None, bias)
    return reshape(n, y, (*shape_of(x)[:-1], *outputs))


def _matmul(n: TorchNode, a: Any, b: Any) -> Any:
    return matmul(n, a, b)


def _plus_product(n: TorchNode, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * a @ b"""
    return n.emit("add", scaled(n, x, beta), scaled(n, matmul(n, a, b), alpha))


def _attention(
    n: TorchNode, q: Any, k: Any, v: Any, mask: Any = None, dropout: Any = 0.0,
    causal: bool = False, scale: Any = None, shared_heads: bool = False,
) -> Any:  # fmt: skip
    """softmax(q @ k^T * scale + mask) @ v. A row whose mask leaves nothing gives zeros."""
    if dropout:
        raise n.refuse("dropout in attention is not supported", "module.eval() before the export")
    if shared_heads:
        k, v = (_repeated_heads(n, t, shape_of(q)[-3]) for t in (k, v))
    factor = 1 / math.sqrt(shape_of(q)[-1]) if scale is None else float(scale)
    scores = matmul(n, scaled(n, q, factor), transposed(n, k))
    axis = len(shape_of(scores)) - 1
    if causal:
        mask = Constant(np.tril(np.ones(shape_of(scores)[-2:], bool)))
    if mask is not None and mask.type.dtype == "bool":
        lowest = n.constant(np.finfo(n.dtype).min, n.dtype)
        share = n.emit("softmax", n.emit("where", mask, scores, lowest), axis=axis)
        return matmul(n, n.emit("where", mask, share, n.constant(0, n.dtype)), v)
    if mask is not None:
        scores = n.emit("add", scores, n.cast(mask, n.dtype))
    return matmul(n, n.emit("softmax", scores, axis=axis), v)


def _repeated_heads(n: TorchNode, x: Value, heads: int) -> Any:
    """Repeats each head for the queries that share it: [..., H, L, E] to [..., heads, L, E]."""
    *batch, own, length, width = shape_of(x)
    many = expand(n, with_axis(n, x, -3), (*batch, own, heads // own, length, width))
    return reshape(n, many, (*batch, heads, length, width))


# -------------------------------------------------------------------------------------- pooling


def _pool_window(kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int) -> Window:
    kernel, pads = _each(kernel, rank), _each(padding, rank) * 2
    return Window(kernel, _each(stride or kernel, rank), _each(dilation, rank), pads)


def _max_pool(
    n: TorchNode, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    rank = int(n.op.removesuffix("_with_indices")[-2])
    x, added = _batched(n, x, rank)
    window = _pool_window(kernel, stride, padding, dilation, rank)
    y = _unbatched(n, pool(n, "max_pool", x, window, ceil_mode), added)
    return [y] if n.op.endswith("indices") else y


def _avg_pool(
    n: TorchNode, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    include_pad: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial_rank(n)
    x, added = _batched(n, x, rank)
    window = _pool_window(kernel, stride, padding, 1, rank)
    if divisor is not None and (ceil_mode or any(window.pads)):
        raise n.refuse("a divisor of one's own, with padding, is not supported")
    y = pool(n, "avg_pool", x, window, ceil_mode, count_include_pad=bool(include_pad))
    y = y if divisor is None else scaled(n, y, math.prod(window.kernel) / divisor)
    return _unbatched(n, y, added)


def _adaptive_pool(n: TorchNode, x: Any, output_size: Any) -> Any:
    """Windows of equal size if the sizes divide; else averages are weighted sums per dimension."""
    rank = _spatial_rank(n)
    x, added = _batched(n, x, rank)
    extents = shape_of(x)[2:]
    wanted = _each(output_size, rank)
    average = "avg" in n.op
    if all(is_const(out, 1) for out in wanted):
        y = global_pool(n, "mean" if average else "max", x)
    elif all(is_const(extent % out, 0) for extent, out in zip(extents, wanted, strict=True)):
        kernel = [extent // out for extent, out in zip(extents, wanted, strict=True)]
        attrs: dict[str, Any] = {"count_include_pad": False} if average else {}
        window = _pool_window(kernel, kernel, 0, 1, rank)
        y = pool(n, "avg_pool" if average else "max_pool", x, window, False, **attrs)
    elif average:
        y = x
        for axis, out in enumerate(wanted, 2):
            y = resampled(n, y, axis, *_averages(shape_of(x)[axis], out))
    else:
        raise n.refuse(f"adaptive maxima of {list(extents)} to {wanted} are not supported")
    y = _unbatched(n, y, added)
    return y if average else [y]


def _averages(extent: int, out: int) -> tuple[Any, Any]:
    """Output o averages the elements from floor(o * extent / out) to ceil((o + 1) * extent / out):
    their places and shares, [out, most of them]."""
    o = np.arange(out)
    begin, end = o * extent // out, -(-(o + 1) * extent // out)
    places = begin[:, None] + np.arange((end - begin).max())
    shares = (places < end[:, None]) / (end - begin)[:, None]
    return np.minimum(places, extent - 1), shares


# ---------------------------------------------------------------------------------------- norms


def _batch_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, momentum: Any,
    epsilon: float,
) -> Any:  # fmt: skip
    channels = shape_of(mean)
    scale = n.constant(np.ones(channels), mean.type.dtype) if scale is None else scale
    shift = n.constant(np.zeros(channels), mean.type.dtype) if shift is None else shift
    return [n.emit("batch_norm", x, scale, shift, mean, variance, epsilon=epsilon)]


def _own_batch_norm(n: TorchNode, x: Any, scale: Any, shift: Any, *rest: Any) -> Any:
    """Without running statistics: those of x itself, as where a module standardizes weights."""
    if n.overload != "no_stats":
        raise n.refuse("the module is in training mode", "module.eval() before the export")
    _, momentum, epsilon = rest
    return _batch_norm(n, x, scale, shift, *batch_statistics(n, x), momentum, epsilon)


def _layer_norm(
    n: TorchNode, x: Any, shape: Sequence[int], scale: Any = None, shift: Any = None,
    epsilon: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    axes = list(range(-len(shape), 0))
    y = affine(n, n.emit("layer_norm", x, axes=axes, epsilon=epsilon), scale, shift)
    return [y] if "native" in n.op else y


def _rms_norm(
    n: TorchNode, x: Any, shape: Sequence[int], scale: Any = None, epsilon: float | None = None
) -> Any:
    axes = list(range(-len(shape), 0))
    epsilon = float(np.finfo(n.dtype).eps) if epsilon is None else epsilon
    return affine(n, n.emit("rms_norm", x, axes=axes, epsilon=epsilon), scale, None)


def _group_norm(
    n: TorchNode, x: Any, groups: int, scale: Any = None, shift: Any = None,
    epsilon: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    return group_norm(n, x, groups, scale, shift, epsilon)


def _native_group_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, batch: int, channels: int, size: int,
    groups: int, epsilon: float,
) -> Any:  # fmt: skip
    return [group_norm(n, x, groups, scale, shift, epsilon)]


def _instance_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, of_input: bool,
    momentum: float, epsilon: float, *_: Any,
) -> Any:  # fmt: skip
    if of_input:
        return group_norm(n, x, shape_of(x)[1], scale, shift, epsilon)
    return _batch_norm(n, x, scale, shift, mean, variance, momentum, epsilon)[0]


# ------------------------------------------------------------------------------------- resizing


def _nearest(n: TorchNode, x: Any, size: Any, *scales: Any) -> Any:
    for axis, (out, scale) in enumerate(_resized(n, x, size, scales), 2):
        places = source_coordinates("asymmetric", shape_of(x)[axis], out, scale)
        x = nearest(n, x, axis, places, "floor")
    return x


def _interpolated(n: TorchNode, x: Any, size: Any, align_corners: bool, *scales: Any) -> Any:
    cubic = -0.75 if "bicubic" in n.op else None
    resized, extents = _resized(n, x, size, scales), shape_of(x)[2:]
    for k in axes_in_order(extents, [out for out, _ in resized]):
        (out, scale), extent = resized[k], extents[k]
        if align_corners:
            places = source_coordinates("align_corners", extent, out, out / extent)
        else:
            places = source_coordinates("half_pixel", extent, out, scale)
        x = interpolated(n, x, k + 2, places, cubic)
    return x


def _grid_sample(n: TorchNode, x: Any, grid: Any, mode: int, padding: int, corners: bool) -> Any:
    kind = ("linear", "nearest", "cubic")[mode]
    outside = ("zeros", "border", "reflection")[padding]
    return grid_sample(n, x, grid, kind, outside, bool(corners))


def _resized(n: TorchNode, x: Value, size: Any, scales: Sequence[Any]) -> list[tuple[int, float]]:
    """Per spatial dimension the output extent and the scale."""
    extents = shape_of(x)[2:]
    factors = list(scales[0] or ()) if n.overload == "vec" else [s for s in scales if s is not None]
    outs = [int(s) for s in size] if size else [
        math.floor(extent * f) for extent, f in zip(extents, factors, strict=True)
    ]  # fmt: skip
    if len(factors) != len(outs):
        factors = [out / extent for out, extent in zip(outs, extents, strict=True)]
    return list(zip(outs, factors, strict=True))


LAYERS: dict[str, Converter] = {
    **dict.fromkeys((f"conv{rank}d" for rank in (1, 2, 3)), _conv),
    **dict.fromkeys((f"conv_transpose{rank}d" for rank in (1, 2, 3)), _conv_transpose),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool2d_with_indices",
                     "max_pool3d_with_indices"), _max_pool),
    **dict.fromkeys((f"avg_pool{rank}d" for rank in (1, 2, 3)), _avg_pool),
    **dict.fromkeys((f"adaptive_{op}_pool{rank}d" for op in ("avg", "max") for rank in (1, 2, 3)),
                    _adaptive_pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _adaptive_pool),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _plus_product),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d"), _nearest),
    **dict.fromkeys(("upsample_bicubic2d", "upsample_bilinear2d"), _interpolated),
    "_native_batch_norm_legit": _own_batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "convolution": _convolution,
    "grid_sampler_2d": _grid_sample,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "linear": _linear,
    "native_group_norm": _native_group_norm,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
}  # fmt: skip
