"""Windows over any number of spatial dimensions: convolution, and the last step of its transpose.

Attributes, per spatial dimension: kernel, strides, dilations, pads (beginnings, then ends).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, dtype_of
from ..te import Tensor
from .elementwise import same_extent
from .half import rounded, sums
from .nn import window_extent
from .products import conv_output_axes, conv_products
from .quantize import product, sum_dtype
from .reference import convolution, in_float64
from .registry import Array, Attrs, Operator, register, require, simplest
from .shape import flatten, pad_array, padded


def _every_pad(pads: Sequence[int]) -> list[int]:
    rank = len(pads) // 2
    return [0, 0, *pads[:rank], 0, 0, *pads[rank:]]


def _extents(spatial: Sequence[Any], kernel: Sequence[Any], attrs: Attrs) -> list[Any]:
    rank = len(spatial)
    pads = attrs["pads"]
    return [
        window_extent(n + pads[d] + pads[rank + d], k, attrs["strides"][d], attrs["dilations"][d])
        for d, (n, k) in enumerate(zip(spatial, kernel, strict=True))
    ]


def _compute_conv(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Data [N, C, ...], weights [O, C / groups, ...]; attrs also groups, and pad_value if not 0."""
    x, w = inputs
    rank, groups = x.ndim - 2, attrs["groups"]
    dtype = sum_dtype("conv_nd", x.dtype, w.dtype)
    require(rank >= 1 and x.ndim == w.ndim, f"conv_nd: {x.ndim} and {w.ndim} dimensions")
    sizes = [len(attrs["strides"]), len(attrs["dilations"]), len(attrs["pads"]) // 2]
    require(sizes == [rank] * 3, f"conv_nd: attributes are not for {rank} spatial dimensions")
    positive = min(*attrs["strides"], *attrs["dilations"], groups) > 0
    require(positive, "conv_nd: strides, dilations and groups are positive")
    require(min(attrs["pads"]) >= 0, "conv_nd: negative pads")
    fits = x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0
    require(fits, f"conv_nd: data {list(x.shape)}, weights {list(w.shape)}, {groups} groups")
    extents = _extents(x.shape[2:], w.shape[2:], attrs)
    inside = all(not isinstance(n, int) or n > 0 for n in extents)
    require(inside, f"conv_nd: the kernel {list(w.shape[2:])} is larger than {list(x.shape)}")
    data = padded(x, _every_pad(attrs["pads"]), attrs.get("pad_value", 0))
    per_group, depth = w.shape[0] // groups, w.shape[1]
    c = te.reduce_axis((0, depth), "c")
    taps = [te.reduce_axis((0, k), f"k{d}") for d, k in enumerate(w.shape[2:])]

    def element(n: Expr, f: Expr, *at: Expr) -> Expr:
        channel = f // per_group * depth + c if groups > 1 else c
        steps = zip(at, taps, attrs["strides"], attrs["dilations"], strict=True)
        place = [o * s + k * d for o, k, s, d in steps]
        value = product(data[(n, channel, *place)], w[(f, c, *taps)], sums(dtype))
        return te.sum(value, [c, *taps])

    shape = (x.shape[0], w.shape[0], *extents)
    return [rounded(te.compute(shape, element, name="conv_nd"), dtype)]


def _evaluate_conv(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, w = inputs
    dtype = sum_dtype("conv_nd", str(x.dtype), str(w.dtype))
    data = pad_array(x, _every_pad(attrs["pads"]), value=attrs.get("pad_value", 0))
    steps = attrs["strides"], attrs["dilations"]
    return [convolution(data, w, *steps, attrs["groups"], dtype)]


def _tap_slices(tap: Sequence[int], extents: Sequence[int], attrs: Attrs) -> list[slice]:
    steps = zip(tap, attrs["dilations"], attrs["strides"], extents, strict=True)
    return [slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, s, n in steps]


def _compute_col2im(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Columns [N, C * taps, windows] -> image [N, C, *shape]: every window's taps are added where
    they were taken from. attrs also shape, the image's."""
    (x,) = inputs
    shape, kernel = attrs["shape"], attrs["kernel"]
    taps = math.prod(kernel)
    extents = [simplest(n) for n in _extents(shape, kernel, attrs)]
    require(dtype_of(x.dtype).kind != "bool", "col2im: does not take bool")
    columns = x.shape[1]
    fits = x.ndim == 3 and isinstance(columns, int) and columns % max(taps, 1) == 0
    require(fits, f"col2im: columns {list(x.shape)} for a kernel {list(kernel)}")
    require(
        same_extent(simplest(x.shape[2]), simplest(math.prod(extents)))
        and all(n > 0 for n in extents if isinstance(n, int)),
        f"col2im: {x.shape[2]} windows, where an image {list(shape)} has {extents}",
    )
    reach = [d * (k - 1) + 1 for d, k in zip(attrs["dilations"], kernel, strict=True)]
    # Consecutive windows reach an element: the last of them begins at it, or just before.
    over = [
        te.reduce_axis((0, -(-r // s)), f"k{d}")
        for d, (r, s) in enumerate(zip(reach, attrs["strides"], strict=True))
    ]

    def element(n: Expr, c: Expr, *at: Expr) -> Expr:
        windows: list[Expr] = []
        own: list[Expr] = []
        guards: list[Expr] = []
        for d, (i, back) in enumerate(zip(at, over, strict=True)):
            stride, dilation, place = (
                attrs["strides"][d],
                attrs["dilations"][d],
                i + attrs["pads"][d],
            )
            window, offset = place // stride - back, place % stride + back * stride
            guards += [window >= 0, window < extents[d]]
            if reach[d] % stride:
                guards.append(offset < reach[d])
            if dilation > 1:
                guards.append((offset % dilation).equal(0))
            windows.append(window)
            own.append(offset // dilation)
        value = x[n, c * taps + flatten(own, kernel), flatten(windows, extents)]
        kept = te.if_then_else(te.all_of(*guards), value, 0)
        return te.sum(kept.astype(sums(x.dtype)), over)

    image = te.compute((x.shape[0], columns // taps, *shape), element, name="col2im")
    return [rounded(image, x.dtype)]


def _evaluate_col2im(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    shape, kernel, pads = attrs["shape"], attrs["kernel"], attrs["pads"]
    rank = len(shape)
    extents = _extents(shape, kernel, attrs)
    columns = x.reshape(x.shape[0], x.shape[1] // math.prod(kernel), *kernel, *extents)
    around = [n + pads[d] + pads[rank + d] for d, n in enumerate(shape)]
    image = np.zeros((*columns.shape[:2], *around), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        place = _tap_slices(tap, extents, attrs)
        taken: Any = (slice(None), slice(None), *tap)
        image[(slice(None), slice(None), *place)] += columns[taken]
    kept = [slice(pads[d], pads[d] + n) for d, n in enumerate(shape)]
    return [image[(slice(None), slice(None), *kept)]]


register(
    Operator(
        "conv_nd",
        _compute_conv,
        _evaluate_conv,
        "anchor",
        ("products",),
        output_axes=conv_output_axes,
        multiplies=conv_products(),
    )
)
register(Operator("col2im", _compute_col2im, in_float64(_evaluate_col2im), "anchor"))
