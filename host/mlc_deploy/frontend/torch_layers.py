"""Converters of ATen's layers: convolution, products, attention, pooling, norms, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from .torch_node import Converter, TorchNode, shape_of


def _each(value: Any, rank: int) -> list[int]:
    """One number per spatial dimension; a single one stands for all."""
    given = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return given * rank if len(given) == 1 else given


def _spatial_rank(n: TorchNode) -> int:
    return int(n.op[-2])  # conv2d, max_pool2d


def _batched(n: TorchNode, x: Value, rank: int) -> tuple[Any, bool]:
    """x with a batch dimension, and whether that had to be put in front."""
    shape = shape_of(x)
    if len(shape) == rank + 2:
        return x, False
    return n.emit("reshape", x, shape=(1, *shape)), True


def _unbatched(n: TorchNode, x: Value, added: bool) -> Any:
    return n.emit("reshape", x, shape=shape_of(x)[1:]) if added else x


# --------------------------------------------------------------------------------- convolutions


def _conv(
    n: TorchNode, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """One dimension becomes two, with height 1; the bias becomes an addition."""
    rank = len(shape_of(w)) - 2
    x, added = _batched(n, x, rank)
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    kernel = shape_of(w)[2:]
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0
                 for k, d in zip(kernel, dilations, strict=True)]  # fmt: skip
        before, after = [t // 2 for t in total], [t - t // 2 for t in total]
    else:
        before = after = _each(padding, rank)
    if rank == 1:
        x, w = (n.emit("reshape", v, shape=(*shape_of(v)[:2], 1, shape_of(v)[2])) for v in (x, w))
        strides, dilations = [1, *strides], [1, *dilations]
        before, after = [0, *before], [0, *after]
    op = "conv2d" if rank < 3 else "conv_nd"
    y = n.emit(
        op, x, w, strides=strides, pads=[*before, *after], dilations=dilations, groups=groups
    )
    y = _plus_channels(n, y, bias)
    if rank == 1:
        batch, channels, _, width = shape_of(y)
        y = n.emit("reshape", y, shape=(batch, channels, width))
    return _unbatched(n, y, added)


def _plus_channels(n: TorchNode, y: Value, bias: Value | None) -> Any:
    if bias is None:
        return y
    along = (-1,) + (1,) * (len(shape_of(y)) - 2)
    return n.emit("add", y, n.emit("reshape", bias, shape=(shape_of(bias)[0], *along[1:])))


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
    """What each pixel gives to each tap of its window, by a product; then the windows are summed.

    Weights [inputs, outputs / groups, taps ...].
    """
    inputs, share, *kernel = shape_of(w)
    rank, taps = len(kernel), math.prod(kernel)
    x, added = _batched(n, x, rank)
    batch, _, *extents = shape_of(x)
    strides, pads, more, dilations = (
        _each(v, rank) for v in (stride, padding, output_padding, dilation)
    )
    each, pixels = inputs // groups, math.prod(extents)
    weights = n.emit("reshape", w, shape=(groups, each, share * taps))
    columns = n.emit(
        "matmul",
        n.emit("transpose", weights, axes=(0, 2, 1)),
        n.emit("reshape", x, shape=(batch, groups, each, pixels)),
    )
    columns = n.emit("reshape", columns, shape=(batch, groups * share * taps, pixels))
    shape = [
        (e - 1) * s - 2 * p + d * (k - 1) + m + 1
        for e, s, p, d, k, m in zip(extents, strides, pads, dilations, kernel, more, strict=True)
    ]
    y = n.emit("col2im", columns, shape=shape, kernel=kernel, strides=strides,
               dilations=dilations, pads=pads * 2)  # fmt: skip
    return _unbatched(n, _plus_channels(n, y, bias), added)


# ------------------------------------------------------------------------------------- products


def _linear(n: TorchNode, x: Any, w: Any, bias: Any = None) -> Any:
    """x [..., K] times w [N, K] transposed; all rows are one matrix."""
    *rows, width = shape_of(x)
    flat = n.emit("reshape", x, shape=(math.prod(rows), width))
    y = n.emit("dense", flat, w, transpose_b=True)
    y = y if bias is None else n.emit("add", y, bias)
    return n.emit("reshape", y, shape=(*rows, shape_of(w)[0]))


def _matmul(n: TorchNode, a: Any, b: Any) -> Any:
    """As numpy's: vectors become matrices; a matrix on the right takes all rows at once."""
    left, right = shape_of(a), shape_of(b)
    if len(left) == 1:
        a = n.emit("reshape", a, shape=(1, *left))
    if len(right) == 1:
        b = n.emit("reshape", b, shape=(*right, 1))
    rows = shape_of(a)
    if len(shape_of(b)) == 2:
        flat = n.emit("reshape", a, shape=(math.prod(rows[:-1]), rows[-1]))
        y, batch = n.emit("dense", flat, b, transpose_b=False), rows[:-2]
    else:
        y = n.emit("matmul", a, b)
        batch = shape_of(y)[:-2]
    shape = (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
    return y if shape == shape_of(y) else n.emit("reshape", y, shape=shape)


def _plus_product(n: TorchNode, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * a @ b"""
    return n.emit("add", _scaled(n, x, beta), _scaled(n, _matmul(n, a, b), alpha))


def _scaled(n: TorchNode, x: Value, factor: float) -> Any:
    return x if factor == 1 else n.emit("multiply", x, n.constant(factor, x.type.dtype))


def _attention(
    n: TorchNode, q: Any, k: Any, v: Any, mask: Any = None, dropout: Any = 0.0,
    causal: bool = False, scale: Any = None, shared_heads: bool = False,
) -> Any:  # fmt: skip
    """softmax(q @ k^T * scale + mask) @ v. A row whose mask leaves nothing gives zeros."""
    if dropout:
        raise n.refuse("dropout in attention is not supported", "module.eval() before the export")
    if shared_heads:
        k, v = (_repeated_heads(n, t, shape_of(q)[-3]) for t in (k, v))
    rank = len(shape_of(k))
    turned = n.emit("transpose", k, axes=[*range(rank - 2), rank - 1, rank - 2])
    factor = 1 / math.sqrt(shape_of(q)[-1]) if scale is None else float(scale)
    scores = _matmul(n, _scaled(n, q, factor), turned)
    if causal:
        mask = Constant(np.tril(np.ones(shape_of(scores)[-2:], bool)))
    if mask is None:
        return _matmul(n, n.emit("softmax", scores, axis=rank - 1), v)
    if mask.type.dtype != "bool":
        scores = n.emit("add", scores, n.tensor(mask, n.dtype))
        return _matmul(n, n.emit("softmax", scores, axis=rank - 1), v)
    lowest = n.constant(np.finfo(n.dtype).min, n.dtype)
    share = n.emit("softmax", n.emit("where", mask, scores, lowest), axis=rank - 1)
    return _matmul(n, n.emit("where", mask, share, n.constant(0, n.dtype)), v)


def _repeated_heads(n: TorchNode, x: Value, heads: int) -> Any:
    """Each head as often as several queries share it: [..., H, L, E] to [..., heads, L, E]."""
    *batch, own, length, width = shape_of(x)
    shape = (*batch, own, heads // own, length, width)
    one = n.emit("reshape", x, shape=(*batch, own, 1, length, width))
    many = n.emit("broadcast_to", one, shape=shape)
    return n.emit("reshape", many, shape=(*batch, heads, length, width))


# -------------------------------------------------------------------------------------- pooling


def _max_pool(
    n: TorchNode, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    rank = int(n.op.removesuffix("_with_indices")[-2])
    x, added = _batched(n, x, rank)
    kernel, pads = _each(kernel, rank), _each(padding, rank) * 2
    strides, dilations = _each(stride or kernel, rank), _each(dilation, rank)
    y = n.emit("max_pool", x, kernel=kernel, strides=strides, dilations=dilations, pads=pads,
               ceil_mode=bool(ceil_mode))  # fmt: skip
    y = _unbatched(n, y, added)
    return [y] if n.op.endswith("indices") else y


def _avg_pool(
    n: TorchNode, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    include_pad: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial_rank(n)
    x, added = _batched(n, x, rank)
    kernel, pads = _each(kernel, rank), _each(padding, rank) * 2
    if divisor is not None and (ceil_mode or any(pads)):
        raise n.refuse("a divisor of one's own, with padding, is not supported")
    y = n.emit("avg_pool", x, kernel=kernel, strides=_each(stride or kernel, rank),
               dilations=[1] * rank, pads=pads, ceil_mode=bool(ceil_mode),
               count_include_pad=bool(include_pad))  # fmt: skip
    y = y if divisor is None else _scaled(n, y, math.prod(kernel) / divisor)
    return _unbatched(n, y, added)


def _adaptive_pool(n: TorchNode, x: Any, output_size: Any) -> Any:
    """Windows of equal size where the sizes divide; averages, else, by a matrix per dimension."""
    rank = _spatial_rank(n)
    x, added = _batched(n, x, rank)
    extents = shape_of(x)[2:]
    wanted = _each(output_size, rank)
    average = "avg" in n.op
    if all(out == 1 for out in wanted):
        op = "mean" if average else "max"
        y = n.emit(op, x, axes=list(range(2, 2 + rank)), keepdims=True)
    elif all(extent % out == 0 for extent, out in zip(extents, wanted, strict=True)):
        kernel = [extent // out for extent, out in zip(extents, wanted, strict=True)]
        attrs: dict[str, Any] = {"count_include_pad": False} if average else {}
        attrs |= {"kernel": kernel, "strides": kernel, "dilations": [1] * rank}
        op = "avg_pool" if average else "max_pool"
        y = n.emit(op, x, pads=[0] * (2 * rank), ceil_mode=False, **attrs)
    elif average:
        y = x
        for axis, out in enumerate(wanted, 2):
            y = _resample(n, y, axis, *_averages(shape_of(x)[axis], out))
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


def _resample(n: TorchNode, x: Value, axis: int, places: Any, shares: Any) -> Any:
    """Along an axis, output o is the sum of the elements at places[o], times shares[o]."""
    table = n.constant(places, "int32"), n.constant(shares, x.type.dtype)
    return n.emit("resample", x, *table, axis=axis)


# ---------------------------------------------------------------------------------------- norms


def _batch_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, momentum: Any,
    epsilon: float,
) -> Any:  # fmt: skip
    channels = shape_of(mean)
    scale = n.constant(np.ones(channels), mean.type.dtype) if scale is None else scale
    shift = n.constant(np.zeros(channels), mean.type.dtype) if shift is None else shift
    return [n.emit("batch_norm", x, scale, shift, mean, variance, epsilon=epsilon)]


def _affine(n: TorchNode, x: Value, scale: Value | None, shift: Value | None) -> Any:
    x = x if scale is None else n.emit("multiply", x, scale)
    return x if shift is None else n.emit("add", x, shift)


def _layer_norm(
    n: TorchNode, x: Any, shape: Sequence[int], scale: Any = None, shift: Any = None,
    epsilon: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    axes = list(range(-len(shape), 0))
    y = _affine(n, n.emit("layer_norm", x, axes=axes, epsilon=epsilon), scale, shift)
    return [y] if "native" in n.op else y


def _rms_norm(
    n: TorchNode, x: Any, shape: Sequence[int], scale: Any = None, epsilon: float | None = None
) -> Any:
    axes = list(range(-len(shape), 0))
    epsilon = float(np.finfo(n.dtype).eps) if epsilon is None else epsilon
    return _affine(n, n.emit("rms_norm", x, axes=axes, epsilon=epsilon), scale, None)


def _group_norm(
    n: TorchNode, x: Any, groups: int, scale: Any = None, shift: Any = None,
    epsilon: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    batch, channels, *rest = shape_of(x)
    grouped = n.emit("reshape", x, shape=(batch, groups, channels // groups, *rest))
    axes = list(range(2, 3 + len(rest)))
    normal = n.emit("layer_norm", grouped, axes=axes, epsilon=epsilon)
    along = (channels,) + (1,) * len(rest)
    parameters = (p if p is None else n.emit("reshape", p, shape=along) for p in (scale, shift))
    return _affine(n, n.emit("reshape", normal, shape=shape_of(x)), *parameters)


def _native_group_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, batch: int, channels: int, size: int,
    groups: int, epsilon: float,
) -> Any:  # fmt: skip
    return [_group_norm(n, x, groups, scale, shift, epsilon)]


def _instance_norm(
    n: TorchNode, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, of_input: bool,
    momentum: float, epsilon: float, *_: Any,
) -> Any:  # fmt: skip
    if of_input:
        return _group_norm(n, x, shape_of(x)[1], scale, shift, epsilon)
    return _batch_norm(n, x, scale, shift, mean, variance, momentum, epsilon)[0]


# ------------------------------------------------------------------------------------- resizing


def _nearest(n: TorchNode, x: Any, size: Any, *scales: Any) -> Any:
    """Output o takes the input floor(o / scale)."""
    for axis, (out, scale) in enumerate(_resized(n, x, size, scales), 2):
        extent = shape_of(x)[axis]
        places = np.floor(np.arange(out) / scale).astype(np.int64)
        x = n.emit("gather", x, Constant(np.minimum(places, extent - 1)), axis=axis)
    return x


def _bilinear(n: TorchNode, x: Any, size: Any, align_corners: bool, *scales: Any) -> Any:
    """Between two neighbours along each dimension, whose centres, or corners, are aligned."""
    for axis, (out, scale) in enumerate(_resized(n, x, size, scales), 2):
        extent = shape_of(x)[axis]
        if align_corners:
            place = np.arange(out) * ((extent - 1) / max(out - 1, 1))
        else:
            place = np.maximum((np.arange(out) + 0.5) / scale - 0.5, 0)
        below = np.minimum(np.floor(place).astype(np.int64), extent - 1)
        places = np.stack([below, np.minimum(below + 1, extent - 1)], 1)
        share = place - below
        x = _resample(n, x, axis, places, np.stack([1 - share, share], 1))
    return x


def _grid_sample(n: TorchNode, x: Any, grid: Any, mode: int, padding: int, corners: bool) -> Any:
    """The grid's (x, y) go from -1 to 1, from corner to corner or from edge to edge."""
    extents = [e - 1 if corners else e for e in shape_of(x)[2:]]
    rank = len(shape_of(grid))
    turned = n.emit("gather", grid, Constant(np.array([1, 0])), axis=rank - 1)
    half = n.constant([e / 2 for e in extents], n.dtype)
    centre = n.constant([e / 2 - (0 if corners else 0.5) for e in extents], n.dtype)
    place = n.emit("add", n.emit("multiply", turned, half), centre)
    return n.emit(
        "sample", x, place, mode=("linear", "nearest", "cubic")[mode],
        padding=("zeros", "border", "reflection")[padding], corners=bool(corners),
    )  # fmt: skip


def _resized(n: TorchNode, x: Value, size: Any, scales: Sequence[Any]) -> list[tuple[int, float]]:
    """Per spatial dimension, how many outputs and how many of them to an input."""
    extents = shape_of(x)[2:]
    factors = list(scales[0] or ()) if n.overload == "vec" else [s for s in scales if s is not None]
    outs = [int(s) for s in size] if size else [
        math.floor(extent * f) for extent, f in zip(extents, factors, strict=True)
    ]  # fmt: skip
    if len(factors) != len(outs):
        factors = [out / extent for out, extent in zip(outs, extents, strict=True)]
    return list(zip(outs, factors, strict=True))


LAYERS: dict[str, Converter] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        _max_pool,
    ),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _avg_pool),
    **dict.fromkeys(
        (
            *(f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)),
            *(f"_adaptive_avg_pool{rank}d" for rank in (2, 3)),
            *(f"adaptive_max_pool{rank}d" for rank in (1, 2, 3)),
        ),
        _adaptive_pool,
    ),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _plus_product),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv_transpose),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d"), _nearest),
    "_native_batch_norm_legit_no_training": _batch_norm,
    "convolution": _convolution,
    "grid_sampler_2d": _grid_sample,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "linear": _linear,
    "native_group_norm": _native_group_norm,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
    "upsample_bilinear2d": _bilinear,
}
