"""Converters of operators that read images between their pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import Dim, Expr, dtype_of, is_const, same_shape, value_range
from ..ops.elementwise import same_extent
from ..ops.shape import normal_axis
from .extents import simplified
from .layers.indices import checked
from .layers.products import scaled
from .layers.resize import (
    Table,
    at_places,
    axes_in_order,
    crop_places,
    grid_sample,
    interpolated,
    nearest,
    source_coordinates,
)
from .layers.shapes import (
    expand,
    iota,
    reshape,
    rows,
    select,
    transposed,
    vector_along,
    with_axis,
    within,
)
from .layers.windows import by_channel
from .node import limited, shape_of
from .onnx_layers import window_of
from .onnx_node import Converter, OnnxNode

SLACK = 1e-5  # of a scale of 32 bits that stands for 1 by a whole number
OPEN_TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def is_open(*extents: Dim) -> bool:
    """Whether one of them is known only at run time."""
    return any(isinstance(e, Expr) for e in extents)


def _is_plain(n: OnnxNode) -> bool:
    """Whether it resizes as Upsample does, instead of with the attributes of opset 11."""
    return n.op == "Upsample" or n.opset < 11


def _transform(n: OnnxNode) -> str:
    default = "asymmetric" if _is_plain(n) else "half_pixel"
    return str(n.attr("coordinate_transformation_mode", default))


def _rounding(n: OnnxNode) -> str:
    return str(n.attr("nearest_mode", "floor" if _is_plain(n) else "round_prefer_floor"))


def _sizes(n: OnnxNode, axes: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The output extents of the axes, and their scales: None where they are known only at run
    time."""
    old = [n.shape()[axis] for axis in axes]
    if _is_plain(n):
        scales = n.attr("scales", None) or n.known(1, "scales").tolist()
    elif n.optional(3) is not None and not same_shape(shape_of(n.input(3)), (0,)):
        sizes = n.dims(3, "sizes")
        pairs = zip(sizes, old, strict=True)
        scales = [None if is_open(*pair) else pair[0] / pair[1] for pair in pairs]
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return sizes, scales
        scale = {"not_larger": min, "not_smaller": max}[policy](scales)
        return [int(scale * own + 0.5) for own in old], [scale] * len(old)
    else:
        scales = [float(v) for v in n.known(2, "scales")]
    return [_times(n, own, s) for own, s in zip(old, scales, strict=True)], scales


def _times(n: OnnxNode, extent: Dim, scale: float) -> Dim:
    """An extent times a scale, rounded down."""
    if not isinstance(extent, Expr):
        return int(np.float32(extent) * np.float32(scale))
    if scale == round(scale):
        return simplified(extent * round(scale))
    if abs(1 / scale - round(1 / scale)) < SLACK:
        return simplified(extent // round(1 / scale))
    what = f"a dynamic dimension is resized by {scale:g}"
    raise n.refuse(what, "a whole scale, 1 by a whole number, or sizes")


def _resize(n: OnnxNode) -> Any:
    """Resizes one axis after the other, by indices or weights: constant ones, unless extents
    are dynamic."""
    x, rank = n.input(0), len(n.shape())
    mode = n.attr("mode", "nearest")
    if mode == "nearest" and is_open(*n.shape()):
        repeated = _repeated(n, x)
        if repeated is not None:
            return repeated
    axes = [normal_axis(n.op, a, rank) for a in n.attr("axes", list(range(rank)))]
    sizes, scales = _sizes(n, axes)
    transform = _transform(n)
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if transform == "tf_crop_and_resize":
        if not isinstance(n.input(1), Constant):
            return _crop(n, axes, sizes, scales)
        region = [float(v) for v in n.fixed(1, "roi")]
    shown: dict[int, Table] = {}
    edges = region[: len(axes)], region[len(axes) :]
    steps = list(zip(axes, sizes, scales, *edges, strict=True))
    extents = [n.shape()[axis] for axis in axes]
    if not is_open(*extents, *sizes):
        steps = [steps[k] for k in axes_in_order(extents, sizes)]
    real = x if mode == "nearest" or n.dtype().startswith("float") else n.cast(x, "float32")
    for axis, size, scale, begin, end in steps:
        extent = n.shape()[axis]
        if is_open(extent, size):
            if not same_extent(extent, size):
                real = _resized_to(n, real, axis, size, scale)
            continue
        places = source_coordinates(transform, extent, size, scale, (begin, end))
        if transform == "tf_crop_and_resize":
            shown[axis] = (places >= 0) & (places <= extent - 1)
        if is_const(extent, size) and np.array_equal(places, np.arange(size)):
            continue
        if mode == "nearest":
            real = nearest(n, real, axis, places, _rounding(n))
            continue
        cubic = n.attr("cubic_coeff_a", -0.75) if mode == "cubic" else None
        shrink = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
        exclude = bool(n.attr("exclude_outside", 0))
        real = interpolated(n, real, axis, places, cubic, shrink, exclude)
    if not all(inside.all() for inside in shown.values()):
        value = n.constant(n.attr("extrapolation_value", 0.0), real.type.dtype)
        for axis, inside in shown.items():
            along = inside.reshape([-1 if d == axis else 1 for d in range(rank)])
            real = n.emit("where", n.constant(along, "bool"), real, value)
    return _whole(n, real, n.dtype())


def _resized_to(n: OnnxNode, x: Value, axis: int, size: Dim, scale: float | None) -> Value:
    """x with another extent along an axis, one of which is dynamic; at computed places."""
    extent, size = shape_of(x)[axis], n.extents.own(n, size)
    mode = n.attr("mode", "nearest")
    transform = _transform(n)
    if mode == "cubic" or n.attr("antialias", 0) or transform not in OPEN_TRANSFORMS:
        raise n.refuse(
            f"a dynamic dimension is resized in mode '{mode}', by '{transform}'",
            f"linear or nearest, without antialias, by {', '.join(OPEN_TRANSFORMS)}",
        )

    def real(e: Dim) -> Value:
        return n.cast(n.extents.value(n, e), "float32")

    one, half = n.constant(1, "float32"), n.constant(0.5, "float32")
    places = n.cast(iota(n, size, 1, 0), "float32")
    if scale is None:
        ratio: Value = n.emit("divide", real(size), real(extent))
    else:
        ratio = n.constant(scale, "float32")
    if transform == "align_corners":
        last = n.emit("maximum", n.emit("subtract", real(size), one), one)
        places = n.emit("multiply", places, n.emit("subtract", real(extent), one))
        places = n.emit("divide", places, last)
    elif transform == "asymmetric":
        places = n.emit("divide", places, ratio)
    else:
        places = n.emit("divide", n.emit("add", places, half), ratio)
        places = n.emit("subtract", places, half)
    if transform == "pytorch_half_pixel":
        several = n.emit("greater", real(size), one)
        places = n.emit("where", several, places, n.constant(0, "float32"))
    if mode == "linear":
        return at_places(n, x, axis, places, linear=True)
    return n.emit("gather", x, n.cast(_whole_places(n, places), "int64"), axis=axis)


def _whole_places(n: OnnxNode, places: Value) -> Value:
    """The places of the nearest elements, none of them below 0."""
    half = n.constant(0.5, "float32")
    match _rounding(n):
        case "round_prefer_floor":
            whole = n.emit("ceil", n.emit("subtract", places, half))
        case "round_prefer_ceil":
            whole = n.emit("floor", n.emit("add", places, half))
        case rounding:
            whole = n.emit(rounding, places)
    return n.emit("maximum", whole, n.constant(0, "float32"))


def _repeated(n: OnnxNode, x: Value) -> Value | None:
    """Each element as often as a scale says, of dynamic extents; None where that is not
    what resizing does."""
    at = 1 if _is_plain(n) else 2
    scales: list[float] = n.attr("scales", [])
    if not scales and isinstance(n.optional(at), Constant):
        scales = n.known(at, "scales").tolist()
    rank = len(shape_of(x))
    axes = [normal_axis(n.op, a, rank) for a in n.attr("axes", list(range(rank)))]
    transform = _transform(n)
    fits = {"asymmetric": ("floor",), "half_pixel": ("round_prefer_floor", "round_prefer_ceil")}
    whole = len(scales) == len(axes) and all(s == round(s) >= 1 for s in scales)
    if not whole or _rounding(n) not in fits.get(transform, ()):
        return None
    for axis, scale in zip(axes, map(round, scales), strict=True):
        shape: list[Any] = list(shape_of(x))
        if scale > 1:
            around = shape[: axis + 1], shape[axis + 1 :]
            wide = expand(n, with_axis(n, x, axis + 1), [*around[0], scale, *around[1]])
            shape[axis] = simplified(shape[axis] * scale)
            x = reshape(n, wide, shape)
    return x


def _crop(n: OnnxNode, axes: list[int], sizes: list[int], scales: list[float]) -> Any:
    """Resizes a region known at run time."""
    mode = n.attr("mode", "nearest")
    if (
        mode == "cubic"
        or n.attr("antialias", 0)
        or (
            mode == "nearest"
            and n.attr("nearest_mode", "round_prefer_floor") != "round_prefer_floor"
        )
    ):
        raise n.refuse(
            "this way of sampling a region that is known at run time is not supported",
            "mode linear, or a model in which 'roi' is constant",
        )
    own, rank, dtype = n.dtype(), len(n.shape()), n.dtype()
    real = n.input(0) if own.startswith("float") else n.cast(n.input(0), "float32")
    value = n.constant(n.attr("extrapolation_value", 0.0), real.type.dtype)
    region = [select(n, n.input(1), k) for k in range(2 * len(axes))]
    edges = zip(axes, sizes, scales, region[: len(axes)], region[len(axes) :], strict=True)
    inside: list[Value] = []
    for axis, size, scale, begin, end in edges:
        extent = n.shape()[axis]
        places = crop_places(n, begin, end, extent, size, scale)
        inside.append(vector_along(n, within(n, places, 0, extent - 1), axis, rank))
        real = at_places(n, real, axis, places, mode == "linear")
    for along in inside:
        real = n.emit("where", along, real, value)
    return _whole(n, real, dtype)


def _whole(n: OnnxNode, value: Value, dtype: str) -> Value:
    """Interpolated numbers in the input's dtype: integers are truncated and saturated."""
    if value.type.dtype == dtype:
        return value
    if dtype_of(dtype).is_integer:
        low, high = value_range(dtype)
        value = n.emit("clip", value, min=low, max=high)
    return n.cast(value, dtype)


# ------------------------------------------------------------------------------ at places of data


def _grid_sample(n: OnnxNode) -> Any:
    mode = n.attr("mode", "linear").removeprefix("bi")  # opsets before 20 say "bilinear"
    padding, corners = n.attr("padding_mode", "zeros"), bool(n.attr("align_corners", 0))
    return grid_sample(n, n.input(0), n.input(1), mode, padding, corners)


def _affine_grid(n: OnnxNode) -> Any:
    """Where the pixels of an image lie, from -1 to 1, moved by theta [N, rank, rank + 1]."""
    corners = bool(n.attr("align_corners", 0))
    spatial = [int(extent) for extent in n.known(1, "size")][2:]
    rank = len(spatial)
    count = limited(math.prod(spatial), "a grid")
    middles = [(2 * np.arange(extent) + 1) / extent - 1 for extent in spatial]
    # With corners the outermost middles lie at -1 and 1; a single pixel stays where it is.
    edges = [e / max(-e[0], 1 / len(e)) for e in middles]
    places = np.meshgrid(*(edges if corners else middles), indexing="ij")
    table = np.stack([*places[::-1], np.ones(spatial)], -1).reshape(1, count, rank + 1)
    moved = n.emit("matmul", n.constant(table, n.dtype()), transposed(n, n.input(0)))
    return reshape(n, moved, (n.shape()[0], *spatial, rank))


def _roi_align(n: OnnxNode) -> Any:
    """The mean of samples at fixed fractions of each region, or the largest term of their sums."""
    ratio, mode = n.attr("sampling_ratio", 0), n.attr("mode", "avg")
    if ratio <= 0:
        what = "a number of samples that depends on the regions (sampling_ratio 0)"
        raise n.refuse(f"{what} is not supported")
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    half = n.attr("coordinate_transformation_mode", default) == "half_pixel"
    count, channels = n.shape(1)[0], n.shape(0)[1]
    height, width = n.attr("output_height", 1), n.attr("output_width", 1)
    dtype = n.dtype(1)
    rois = scaled(n, n.input(1), n.attr("spatial_scale", 1.0))
    if half:
        rois = n.emit("subtract", rois, n.constant(0.5, dtype))
    left, top, right, bottom = (rows(n, rois, k, 1, 1) for k in range(4))
    places: list[Value] = []
    inside: list[Value] = []
    for first, last, bins, extent, axis in (
        (top, bottom, height, n.shape()[2], 1),
        (left, right, width, n.shape()[3], 2),
    ):
        size = n.emit("subtract", last, first)
        if not half:
            size = n.emit("maximum", size, n.constant(1, dtype))
        fractions = (np.arange(bins * ratio) + 0.5) / (ratio * bins)
        place = n.emit("multiply", size, n.constant(fractions[None], dtype))
        place = n.emit("add", first, place)
        own = [count, 1, 1, 1]
        own[axis] = bins * ratio
        place = reshape(n, place, own)
        inside.append(within(n, place, -1, extent))
        places.append(expand(n, place, (count, height * ratio, width * ratio, 1)))
    images = n.input(0)
    of = checked(n, n.input(2), [n.shape()[0]], from_end=False)
    place = n.emit("concatenate", *places, axis=3)
    if mode == "max":
        y = _largest_term(n, images, place, of)
    else:
        y = n.emit("sample", images, place, of, mode="linear", padding="border", corners=True)
    kept = n.emit("logical_and", *inside)
    kept = reshape(n, kept, (count, 1, height * ratio, width * ratio))
    y = n.emit("where", kept, y, n.constant(0, n.dtype()))
    y = reshape(n, y, (count, channels, height, ratio, width, ratio))
    return n.emit("max" if mode == "max" else "mean", y, axes=[3, 5], keepdims=False)


def _largest_term(n: OnnxNode, images: Value, place: Value, of: Value) -> Value:
    """The largest product of a neighbour and its weight, as onnx and onnxruntime define mode max,
    of images [N, C, H, W] at places [M, …, 2], each of the image with a number [M]."""
    dtype = place.type.dtype
    last = n.constant([extent - 1 for extent in shape_of(images)[2:]], dtype)
    zero, one = n.constant(0, dtype), n.constant(1, dtype)
    place = n.emit("minimum", n.emit("maximum", place, zero), last)
    low = n.emit("floor", place)
    up = n.emit("subtract", place, low)
    sides = ((low, n.emit("subtract", one, up)), (n.emit("add", low, one), up))
    terms: list[Value] = []
    for (y, y_share), (x, x_share) in product(sides, sides):
        corner = n.emit("concatenate", rows(n, y, 0, 1, 3), rows(n, x, 1, 1, 3), axis=3)
        share = n.emit("multiply", select(n, y_share, 0, 3), select(n, x_share, 1, 3))
        attrs = {"mode": "nearest", "padding": "border", "corners": True}
        found = n.emit("sample", images, corner, of, **attrs)
        terms.append(n.emit("multiply", found, with_axis(n, n.cast(share, n.dtype()), 1)))
    return reduce(lambda a, b: n.emit("maximum", a, b), terms)


def _deform_conv(n: OnnxNode) -> Any:
    """The data sampled under each tap of each window, times the weights."""
    x, w = n.shape(0), n.shape(1)
    batch, channels = x[:2]
    kernel, spatial = w[2:], n.shape(2)[2:]
    rank, taps = len(kernel), math.prod(kernel)
    window = window_of(n, x[2:], kernel)
    parts, groups = n.attr("offset_group", 1), n.attr("group", 1)
    base = np.zeros((taps, *spatial, rank))
    for d in range(rank):
        tap = np.indices(kernel)[d].reshape(taps, *(1,) * rank) * window.dilations[d]
        base[..., d] = tap + np.indices(spatial)[d] * window.strides[d] - window.pads[d]
    offset = reshape(n, n.input(2), (batch * parts, taps, rank, *spatial))
    offset = n.emit("transpose", offset, axes=(0, 1, *range(3, 3 + rank), 2))
    place = n.emit("add", offset, n.constant(base, n.dtype(2)))
    data = reshape(n, n.input(0), (batch * parts, channels // parts, *x[2:]))
    y = n.emit("sample", data, place, mode="linear", padding="zeros", corners=True)
    mask, bias = n.optional(4), n.optional(3)
    if mask is not None:
        y = n.emit("multiply", y, reshape(n, mask, (batch * parts, 1, taps, *spatial)))
    y = reshape(n, y, (batch, groups, channels // groups * taps, math.prod(spatial)))
    weights = reshape(n, n.input(1), (groups, w[0] // groups, w[1] * taps))
    y = reshape(n, n.emit("matmul", weights, y), (batch, w[0], *spatial))
    return y if bias is None else n.emit("add", y, by_channel(n, bias, len(x)))


SAMPLING: dict[str, Converter] = {
    "AffineGrid": _affine_grid, "DeformConv": _deform_conv, "GridSample": _grid_sample,
    "Resize": _resize, "RoiAlign": _roi_align, "Upsample": _resize,
}  # fmt: skip
