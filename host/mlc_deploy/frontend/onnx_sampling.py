"""Converters of operators that read images between their pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImporterError
from ..graph.nodes import Value
from ..ir import dtype_of, value_range
from ..ops.shape import normal_axis
from .onnx_layers import window_pads
from .onnx_node import Converter, OnnxNode, limited, static_shape
from .onnx_quantize import cast

Table = NDArray[Any]

# ---------------------------------------------------------------------------------------- Resize


def source_coordinates(
    transform: str, extent: int, size: int, scale: float, region: tuple[float, float]
) -> Table:
    """Where along an axis of `extent` elements each of `size` outputs lies."""
    o = np.arange(limited(size, "an axis"), dtype=np.float64)
    length = scale * extent
    match transform:
        case "half_pixel":
            return (o + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (o + 0.5) / scale - 0.5 if length != 1 else np.full(size, -0.5)
        case "half_pixel_symmetric":
            shift = extent / 2 * (1 - size / length)
            return shift + (o + 0.5) / scale - 0.5
        case "asymmetric":
            return o / scale
        case "align_corners":
            return o * (extent - 1) / (length - 1) if length != 1 else o * 0
        case "tf_crop_and_resize":
            begin, end = region
            if length == 1:
                return np.full(size, (begin + end) * (extent - 1) / 2)
            return begin * (extent - 1) + o * (end - begin) * (extent - 1) / (length - 1)
    raise ValueError(f"coordinate_transformation_mode '{transform}'")


def nearest(places: Table, mode: str, extent: int) -> Table:
    match mode:
        case "round_prefer_floor":
            index = np.ceil(places - 0.5)
        case "round_prefer_ceil":
            index = np.floor(places + 0.5)
        case "floor":
            index = np.floor(places)
        case "ceil":
            index = np.ceil(places)
        case _:
            raise ValueError(f"nearest_mode '{mode}'")
    return np.clip(index, 0, extent - 1).astype(np.int64)


def interpolation(
    places: Table, extent: int, cubic: float | None, shrink: float, exclude: bool
) -> tuple[Table, Table]:
    """Indices and weights [size, taps]: linear, or cubic with that parameter. shrink < 1 widens the
    kernel by 1 / shrink (antialias); exclude gives taps outside the data no weight."""
    reach = math.ceil((1 if cubic is None else 2) / shrink)
    limited(len(places) * 2 * reach, "a table of weights")
    taps = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(taps - places[:, None]) * shrink
    if cubic is None:
        weights = np.maximum(1 - distance, 0)
    else:
        a = cubic
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if exclude:
        weights = np.where((taps < 0) | (taps >= extent), 0, weights)
    if exclude or shrink < 1:
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(taps, 0, extent - 1).astype(np.int32), weights


def _sizes(n: OnnxNode, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """The new extents of the axes, and by how much they grow."""
    old = [n.shape()[axis] for axis in axes]
    if n.op == "Upsample" or n.opset < 11:
        scales = n.attr("scales", None) or n.known(1, "scales").tolist()
    elif n.optional(3) is not None and static_shape(n.input(3)) != (0,):
        sizes = [int(v) for v in n.known(3, "sizes")]
        scales = [new / own for new, own in zip(sizes, old, strict=True)]
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return sizes, scales
        scale = {"not_larger": min, "not_smaller": max}[policy](scales)
        return [int(scale * own + 0.5) for own in old], [scale] * len(old)
    else:
        scales = [float(v) for v in n.known(2, "scales")]
    sizes = [int(np.float32(own) * np.float32(s)) for own, s in zip(old, scales, strict=True)]
    return sizes, scales


def _resize(n: OnnxNode) -> Any:
    """One axis after the other: by constant indices, or by a weighted sum of them."""
    x, rank, plain = n.input(0), len(n.shape()), n.op == "Upsample" or n.opset < 11
    mode = n.attr("mode", "nearest")
    axes = [normal_axis(n.op, a, rank) for a in n.attr("axes", list(range(rank)))]
    sizes, scales = _sizes(n, axes)
    transform = n.attr("coordinate_transformation_mode", "asymmetric" if plain else "half_pixel")
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if transform == "tf_crop_and_resize":
        region = [float(v) for v in n.fixed(1, "roi")]
    shown: dict[int, Table] = {}
    steps = zip(axes, sizes, scales, region[: len(axes)], region[len(axes) :], strict=True)
    real = x if mode == "nearest" or n.dtype().startswith("float") else cast(n, x, "float32")
    for axis, size, scale, begin, end in steps:
        extent = n.shape()[axis]
        places = source_coordinates(transform, extent, size, scale, (begin, end))
        if transform == "tf_crop_and_resize":
            shown[axis] = (places >= 0) & (places <= extent - 1)
        if size == extent and np.array_equal(places, np.arange(size)):
            continue
        if mode == "nearest":
            default = "floor" if plain else "round_prefer_floor"
            index = nearest(places, n.attr("nearest_mode", default), extent)
            real = n.emit("gather", real, n.constant(index, "int64"), axis=axis)
            continue
        cubic = n.attr("cubic_coeff_a", -0.75) if mode == "cubic" else None
        shrink = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
        exclude = bool(n.attr("exclude_outside", 0))
        index, weights = interpolation(places, extent, cubic, shrink, exclude)
        tables = n.constant(index, "int32"), n.constant(weights, real.type.dtype)
        real = n.emit("resample", real, *tables, axis=axis)
    if not all(inside.all() for inside in shown.values()):
        value = n.constant(n.attr("extrapolation_value", 0.0), real.type.dtype)
        for axis, inside in shown.items():
            along = inside.reshape([-1 if d == axis else 1 for d in range(rank)])
            real = n.emit("where", n.constant(along, "bool"), real, value)
    return _whole(n, real, n.dtype())


def _whole(n: OnnxNode, value: Value, dtype: str) -> Value:
    """Interpolated numbers as integers again: truncated, and saturated."""
    if value.type.dtype == dtype:
        return value
    if dtype_of(dtype).is_integer:
        low, high = value_range(dtype)
        value = n.emit("clip", value, min=low, max=high)
    return cast(n, value, dtype)


# ------------------------------------------------------------------------------ at places of data


def _grid_sample(n: OnnxNode) -> Any:
    """The grid says x, y(, z) from -1 to 1; ours is pixels, outermost dimension first."""
    spatial = n.shape()[2:]
    grid, rank = n.input(1), len(spatial)
    shape = n.shape(1)
    begin = [0] * (len(shape) - 1) + [rank - 1]
    grid = n.emit("slice", grid, begin=begin, step=[1] * (len(shape) - 1) + [-1], shape=shape)
    dtype = grid.type.dtype
    corners = bool(n.attr("align_corners", 0))
    place = n.emit("add", grid, n.constant(1, dtype))
    if corners:
        place = n.emit("multiply", place, n.constant(0.5, dtype))
        place = n.emit("multiply", place, n.constant([e - 1 for e in spatial], dtype))
    else:
        place = n.emit("multiply", place, n.constant(spatial, dtype))
        place = n.emit("subtract", place, n.constant(1, dtype))
        place = n.emit("multiply", place, n.constant(0.5, dtype))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.attr("mode", "linear"))
    return n.emit(
        "sample",
        n.input(0),
        place,
        mode=mode or n.attr("mode", "linear"),
        padding=n.attr("padding_mode", "zeros"),
        corners=corners,
    )


def _roi_align(n: OnnxNode) -> Any:
    """The mean of samples at fixed fractions of each region."""
    ratio, mode = n.attr("sampling_ratio", 0), n.attr("mode", "avg")
    if ratio <= 0 or mode != "avg":
        what = "a number of samples that depends on the regions (sampling_ratio 0)"
        raise ImporterError(
            f"{what if mode == 'avg' else f'mode {mode}'} is not supported", where=n.place
        )
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    half = n.attr("coordinate_transformation_mode", default) == "half_pixel"
    count, channels = n.shape(1)[0], n.shape(0)[1]
    height, width = n.attr("output_height", 1), n.attr("output_width", 1)
    dtype = n.dtype(1)
    rois = n.emit("multiply", n.input(1), n.constant(n.attr("spatial_scale", 1.0), dtype))
    if half:
        rois = n.emit("subtract", rois, n.constant(0.5, dtype))

    def column(k: int) -> Any:
        return n.emit("slice", rois, begin=[0, k], step=[1, 1], shape=[count, 1])

    places: list[Value] = []
    kept: Any = None
    for first, bins, extent, along in ((1, height, n.shape()[2], 0), (0, width, n.shape()[3], 1)):
        size = n.emit("subtract", column(first + 2), column(first))
        if not half:
            size = n.emit("maximum", size, n.constant(1, dtype))
        fractions = (np.arange(bins * ratio) + 0.5) / (ratio * bins)
        place = n.emit("multiply", size, n.constant(fractions[None], dtype))
        place = n.emit("add", column(first), place)
        own = (count, bins * ratio, 1, 1) if along == 0 else (count, 1, bins * ratio, 1)
        place = n.emit("reshape", place, shape=own)
        inside = n.emit(
            "logical_and",
            n.emit("greater_equal", place, n.constant(-1, dtype)),
            n.emit("less_equal", place, n.constant(extent, dtype)),
        )
        kept = inside if kept is None else n.emit("logical_and", kept, inside)
        wide = (count, height * ratio, width * ratio, 1)
        places.append(n.emit("broadcast_to", place, shape=wide))
    images = n.emit("gather", n.input(0), n.input(2), axis=0)
    place = n.emit("concatenate", *places, axis=3)
    y = n.emit("sample", images, place, mode="linear", padding="border", corners=True)
    kept = n.emit("reshape", kept, shape=(count, 1, height * ratio, width * ratio))
    y = n.emit("where", kept, y, n.constant(0, n.dtype()))
    y = n.emit("reshape", y, shape=(count, channels, height, ratio, width, ratio))
    return n.emit("mean", y, axes=[3, 5], keepdims=False)


def _deform_conv(n: OnnxNode) -> Any:
    """The data sampled under each tap of each window, times the weights."""
    x, w = n.shape(0), n.shape(1)
    batch, channels = x[:2]
    kernel, spatial = w[2:], n.shape(2)[2:]
    rank, taps, windows = len(kernel), math.prod(kernel), math.prod(spatial)
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = window_pads(n, x[2:], kernel, strides, dilations)
    parts, groups = n.attr("offset_group", 1), n.attr("group", 1)
    dtype = n.dtype(2)
    base = np.zeros((taps, *spatial, rank))
    for d in range(rank):
        tap = np.indices(kernel)[d].reshape(taps, *(1,) * rank) * dilations[d]
        window = np.indices(spatial)[d] * strides[d] - pads[d]
        base[..., d] = tap + window
    offset = n.emit("reshape", n.input(2), shape=(batch * parts, taps, rank, *spatial))
    offset = n.emit("transpose", offset, axes=(0, 1, *range(3, 3 + rank), 2))
    place = n.emit("add", offset, n.constant(base, dtype))
    data = n.emit("reshape", n.input(0), shape=(batch * parts, channels // parts, *x[2:]))
    y = n.emit("sample", data, place, mode="linear", padding="zeros", corners=True)
    if n.optional(4) is not None:
        mask = n.emit("reshape", n.input(4), shape=(batch * parts, 1, taps, *spatial))
        y = n.emit("multiply", y, mask)
    y = n.emit("reshape", y, shape=(batch, groups, channels // groups * taps, windows))
    weights = n.emit("reshape", n.input(1), shape=(groups, w[0] // groups, w[1] * taps))
    y = n.emit("reshape", n.emit("matmul", weights, y), shape=(batch, w[0], *spatial))
    if n.optional(3) is not None:
        bias = n.emit("reshape", n.input(3), shape=(w[0], *(1,) * rank))
        y = n.emit("add", y, bias)
    return y


SAMPLING: dict[str, Converter] = {
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Upsample": _resize,
}
