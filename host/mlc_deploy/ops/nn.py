"""Convolution, matrix products, and the normalizations that are not mere arithmetic.

Convolutions are NCHW with OIHW weights; one dimension is two with height 1. Attributes: strides
and dilations (height, width), pads (top, left, bottom, right), groups, and pad_value (default 0).

int8 and uint8, mixed or not, give int32 (for zero points see quantize.py).

Weights may be packed: then kernel_layout names their layout, source_layout the plain one, and
channels the number of outputs, which tiles may exceed (other axes are whole tiles).

conv2d's attribute row_taps, (taps, channels, width), says that the weights' input channels are the
taps of a kernel's row, one channel after the other, with zeros up to width and to whole tiles.

conv2d's attribute row_shifts, (rows of taps, shifts, high), says that the weights repeat the
kernel's rows: for each shift there are `high` rows, with the kernel's shifted down by so many. The
first shift is 0.

conv2d's data may be in blocks of channels, NCHW4c: then data_layout names their layout, and
out_layout the result's (default: data_layout). Blocks divide the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, const, dtype_of
from ..te import Tensor
from .elementwise import broadcast_shape, element_at, same_extent
from .half import rounded, sums
from .layout import Layout, in_layout, layout, pack, packed_index, plain_sizes, unpack
from .products import conv_output_axes, conv_products, matrix_output_axes, matrix_products
from .quantize import product, sum_dtype
from .reference import convolution, in_float64, matrix_product
from .registry import Array, Attrs, Operator, register, require
from .shape import pad_array, padded

MOST_PRODUCTS = 8  # in a power that is computed by products


def window_extent(
    size: Any, kernel: Any, stride: int, dilation: int, ceil_mode: bool = False
) -> Any:
    """How many windows of a kernel fit into size (padding included) elements."""
    room = size - (dilation * (kernel - 1) + 1)
    return (room + (stride - 1 if ceil_mode else 0)) // stride + 1


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by plain index, however they are packed."""

    sizes: tuple[Any, ...]
    at: Callable[..., Expr]


def packed_axis(packed: Layout) -> str:
    """The axis of the outputs: O of a convolution's weights, N of a matrix."""
    return "O" if "O" in packed.order else "N"


def data_layouts(attrs: Attrs) -> tuple[Layout, Layout]:
    """The layouts of the data and of the result."""
    data = attrs.get("data_layout", "NCHW")
    return layout(data), layout(attrs.get("out_layout", data))


def _packed_sizes(packed: Layout, shape: Sequence[Any], attrs: Attrs) -> dict[str, Any]:
    """The sizes of axes without the zeros that fill up packed weights: attrs["channels"] for
    outputs and, where given, attrs["in_channels"] for inputs and attrs["row_shifts"] for rows."""
    inputs = {"I": attrs["in_channels"]} if "in_channels" in attrs else {}
    rows = {"H": attrs["row_shifts"][0]} if "row_shifts" in attrs else {}
    return {**plain_sizes(packed, shape), packed_axis(packed): attrs["channels"], **inputs, **rows}


def weights_of(w: Tensor, attrs: Attrs, plain: str) -> Weights:
    """The weights of an operator whose plain layout is `plain`; attributes as _packed_sizes takes
    them."""
    if "kernel_layout" not in attrs:
        return Weights(w.shape, lambda *i: w[i])
    packed = layout(attrs["kernel_layout"])
    require(w.ndim == len(packed.order), f"weights {list(w.shape)} are not in {packed.text}")
    sizes = _packed_sizes(packed, w.shape, attrs)
    if "row_taps" in attrs:
        taps, channels, width = attrs["row_taps"]

        def of_tap(f: Expr, c: Expr, ky: Expr, kx: Expr) -> Expr:
            return w[packed_index(packed, {"O": f, "I": c * width + kx, "H": ky, "W": const(0)})]

        return Weights((sizes["O"], channels, sizes["H"], taps), of_tap)

    def at(*i: Expr) -> Expr:
        return w[packed_index(packed, dict(zip(plain, i, strict=True)))]

    return Weights(tuple(sizes[axis] for axis in plain), at)


def plain_weights(w: Array, attrs: Attrs) -> Array:
    """Weights in the operator's plain layout."""
    if "kernel_layout" not in attrs:
        return w
    packed, plain = layout(attrs["kernel_layout"]), attrs["source_layout"]
    sizes = _packed_sizes(packed, w.shape, attrs)
    whole = unpack(w, packed.text, plain, [sizes[axis] for axis in plain])
    if "row_taps" not in attrs:
        return whole
    taps, channels, width = attrs["row_taps"]
    rows = whole[:, : channels * width].reshape(-1, channels, width, whole.shape[2])
    return rows[:, :, :taps].transpose(0, 1, 3, 2)


def taps_as_channels(w: Array, width: int) -> Array:
    """Weights [O, C, KH, KW] as [O, C * width, KH, 1], which attribute row_taps describes."""
    wide = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, width - w.shape[3])))
    return wide.transpose(0, 1, 3, 2).reshape(w.shape[0], -1, w.shape[2], 1)


def rows_shifted(w: Array, shifts: Sequence[int], high: int) -> Array:
    """Weights [O, I, KH, KW] as [O, I, shifts * high, KW], which attribute row_shifts describes."""
    below = (high - w.shape[2] - n for n in shifts)
    return np.concatenate(
        [
            np.pad(w, ((0, 0), (0, 0), (n, rest), (0, 0)))
            for n, rest in zip(shifts, below, strict=True)
        ],
        axis=2,
    )


def without_filling(w: Array, attrs: Attrs) -> Array:
    """Packed weights with zeros wherever they hold no plain weight, as kernels may expect."""
    if "kernel_layout" not in attrs:
        return w
    plain = plain_weights(w, attrs)
    if "row_taps" in attrs:
        plain = taps_as_channels(plain, attrs["row_taps"][2])
    if "row_shifts" in attrs:
        plain = rows_shifted(plain, *attrs["row_shifts"][1:])
    return pack(plain, attrs["source_layout"], attrs["kernel_layout"])


def _compute_conv2d(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    x, w = inputs
    weights = weights_of(w, attrs, "OIHW")
    data_layout, out_layout = data_layouts(attrs)
    fits = x.ndim == len(data_layout.order) and len(weights.sizes) == 4
    require(fits, f"conv2d: {data_layout.text} of {x.ndim} dimensions, weights of {w.ndim}")
    dtype = sum_dtype("conv2d", x.dtype, w.dtype)
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    top, left, bottom, right = attrs["pads"]
    groups = attrs["groups"]
    require(min(sh, sw, dh, dw, groups) > 0, "conv2d: strides, dilations and groups are positive")
    require(min(attrs["pads"]) >= 0, "conv2d: negative pads")
    out_channels, group_in, kh, kw = weights.sizes
    batch, channels, in_height, in_width = plain_sizes(data_layout, x.shape).values()
    fits = channels == group_in * groups and out_channels % groups == 0
    require(
        fits, f"conv2d: {channels} channels, weights {list(w.shape)}, {groups} groups do not fit"
    )
    group_out = out_channels // groups
    rest = [0] * (x.ndim - 4)
    border = (0, 0, top, left, *rest, 0, 0, bottom, right, *rest)
    data = padded(x, border, attrs.get("pad_value", 0))
    height = window_extent(in_height + top + bottom, kh, sh, dh)
    width = window_extent(in_width + left + right, kw, sw, dw)
    positive = all(not isinstance(extent, int) or extent > 0 for extent in (height, width))
    require(positive, f"conv2d: the kernel {[kh, kw]} is larger than the data {list(x.shape)}")
    c = te.reduce_axis((0, group_in), "c")
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

    def element(n: Expr, f: Expr, y: Expr, x: Expr) -> Expr:
        channel = f // group_out * group_in + c if groups > 1 else c.var
        at = {"N": n, "C": channel, "H": y * sh + ky * dh, "W": x * sw + kx * dw}
        return te.sum(
            product(
                data[packed_index(data_layout, at)],
                weights.at(f, c.var, ky.var, kx.var),
                sums(dtype),
            ),
            (c, ky, kx),
        )

    require(
        not out_layout.tiles or out_channels % out_layout.tiles["C"][0] == 0,
        f"conv2d: {out_channels} channels in {out_layout.text}",
    )
    total = in_layout(out_layout, (batch, out_channels, height, width), element, "conv2d")
    return [rounded(total, dtype)]


def _evaluate_conv2d(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    w = plain_weights(inputs[1], attrs)
    data_layout, out_layout = data_layouts(attrs)
    sizes = plain_sizes(data_layout, inputs[0].shape)
    x = unpack(inputs[0], data_layout.text, "NCHW", list(sizes.values()))
    top, left, bottom, right = attrs["pads"]
    dtype = sum_dtype("conv2d", str(x.dtype), str(w.dtype))
    border = attrs.get("pad_value", 0)
    data = pad_array(x, (0, 0, top, left, 0, 0, bottom, right), value=border)
    steps = attrs["strides"], attrs["dilations"]
    result = convolution(data, w, *steps, attrs["groups"], dtype)
    return [pack(result, "NCHW", out_layout.text)]


def _compute_dense(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """x [M, K] times w: [N, K] where attrs has transpose_b, else [K, N]."""
    x, w = inputs
    weights = weights_of(w, attrs, "NK" if attrs["transpose_b"] else "KN")
    require(x.ndim == len(weights.sizes) == 2, f"dense: {x.ndim} and {w.ndim} dimensions, not 2")
    dtype = sum_dtype("dense", x.dtype, w.dtype)
    transposed = attrs["transpose_b"]
    n, k = weights.sizes if transposed else weights.sizes[::-1]
    fits = same_extent(x.shape[1], k)
    require(fits, f"dense: {list(x.shape)} and weights {list(w.shape)} do not fit")
    over = te.reduce_axis((0, k), "k")

    def element(i: Expr, j: Expr) -> Expr:
        weight = weights.at(j, over.var) if transposed else weights.at(over.var, j)
        return te.sum(product(x[i, over], weight, sums(dtype)), over)

    return [rounded(te.compute((x.shape[0], n), element, name="dense"), dtype)]


def _evaluate_dense(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, w = inputs[0], plain_weights(inputs[1], attrs)
    dtype = sum_dtype("dense", str(x.dtype), str(w.dtype))
    return [matrix_product(x, w.T if attrs["transpose_b"] else w, dtype)]


def _compute_matmul(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """[..., M, K] times [..., K, N], or [..., N, K] where attrs has transpose_b; the leading
    dimensions broadcast."""
    a, b = inputs
    require(a.ndim >= 2 and b.ndim >= 2, f"matmul: {a.ndim} and {b.ndim} dimensions")
    dtype = sum_dtype("matmul", a.dtype, b.dtype)
    inner, columns = b.shape[-2:][::-1] if attrs.get("transpose_b") else b.shape[-2:]
    fits = same_extent(a.shape[-1], inner)
    require(fits, f"matmul: {list(a.shape)} and {list(b.shape)} do not fit")
    batch = broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]])
    over = te.reduce_axis((0, a.shape[-1]), "k")

    def element(*i: Expr) -> Expr:
        left = element_at(a, (*i[:-1], over.var))
        place = (i[-1], over.var) if attrs.get("transpose_b") else (over.var, i[-1])
        right = element_at(b, (*i[:-2], *place))
        return te.sum(product(left, right, sums(dtype)), over)

    shape = (*batch, a.shape[-2], columns)
    return [rounded(te.compute(shape, element, name="matmul"), dtype)]


def _evaluate_matmul(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    a, b = inputs
    b = np.swapaxes(b, -1, -2) if attrs.get("transpose_b") else b
    dtype = sum_dtype("matmul", str(a.dtype), str(b.dtype))
    return [matrix_product(a, b, dtype)]


def _compute_batch_norm(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, per channel (axis 1)."""
    x, scale, shift, mean, variance = inputs
    for t in inputs[1:]:
        fits = t.ndim == 1 and x.ndim >= 2 and same_extent(t.shape[0], x.shape[1])
        require(fits, f"batch_norm: parameter {list(t.shape)} for data {list(x.shape)}")

    def element(*i: Expr) -> Expr:
        c = i[1]
        factor = scale[c] / te.sqrt(variance[c] + attrs["epsilon"])
        return (x[i] - mean[c]) * factor + shift[c]

    return [te.compute(x.shape, element, name="batch_norm")]


def _evaluate_batch_norm(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x = inputs[0]
    along = (1, -1) + (1,) * (x.ndim - 2)
    scale, shift, mean, variance = (a.reshape(along) for a in inputs[1:])
    factor = scale / np.sqrt(variance + attrs["epsilon"])
    return [(x - mean) * factor + shift]


def _compute_lrn(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """x / (bias + alpha / size * (sum of squares over size channels around)) ^ beta."""
    (x,) = inputs
    size, alpha, beta, bias = (attrs[key] for key in ("size", "alpha", "beta", "bias"))
    kind = dtype_of(x.dtype).kind
    require(kind == "float" and x.ndim >= 2 and size > 0, f"lrn: {x.dtype}{list(x.shape)}")
    before, kept = (size - 1) // 2, sums(x.dtype)
    k = te.reduce_axis((0, size), "k")

    def square(*i: Expr) -> Expr:
        c = i[1] + k - before
        value = x[(i[0], c, *i[2:])].astype(kept)
        return te.sum(value * value, k, where=te.all_of(c >= 0, c < x.shape[1]))

    squares = te.compute(x.shape, square, name="squares")

    def element(*i: Expr) -> Expr:
        return x[i].astype(kept) / _power(squares[i] * (alpha / size) + bias, beta)

    return [rounded(te.compute(x.shape, element, name="lrn"), x.dtype)]


def _power(base: Expr, exponent: float) -> Expr:
    """base ^ exponent, without a call into the C library for each lane.

    Multiples of 1/4 up to MOST_PRODUCTS are products of the base and its roots, each rounded as
    IEEE 754 says. Others are e ^ (exponent * ln base): the absolute error of this argument becomes
    the relative error of the result, and a base below 0 gives NaN.
    """
    quarters = 4 * exponent
    if not (quarters.is_integer() and 0 < exponent <= MOST_PRODUCTS):
        return te.exp(te.log(base) * exponent)
    whole, rest = divmod(int(quarters), 4)
    root = te.sqrt(base)
    factors = [base] * whole + [root] * (rest // 2) + [te.sqrt(root)] * (rest % 2)
    return reduce(mul, factors)


def _evaluate_lrn(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, size = inputs[0], attrs["size"]
    before = (size - 1) // 2
    channels = x.shape[1]
    squares = np.zeros_like(x)
    for offset in range(-before, size - before):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            squares[:, low:high] += x[:, low + offset : high + offset] ** 2
    scale = squares * (attrs["alpha"] / size) + attrs["bias"]
    return [x / scale ** attrs["beta"]]


for _op in (
    Operator(
        "conv2d",
        _compute_conv2d,
        _evaluate_conv2d,
        "anchor",
        ("products",),
        output_axes=conv_output_axes,
        multiplies=conv_products(),
    ),
    Operator(
        "dense",
        _compute_dense,
        _evaluate_dense,
        "anchor",
        ("products",),
        output_axes=matrix_output_axes,
        multiplies=matrix_products,
    ),
    Operator(
        "matmul",
        _compute_matmul,
        _evaluate_matmul,
        "anchor",
        ("products",),
        output_axes=matrix_output_axes,
        multiplies=matrix_products,
    ),
    Operator(
        "batch_norm",
        _compute_batch_norm,
        in_float64(_evaluate_batch_norm),
        "injective",
        ("follows_half",),
    ),
    Operator("lrn", _compute_lrn, in_float64(_evaluate_lrn), "anchor"),
):
    register(_op)
