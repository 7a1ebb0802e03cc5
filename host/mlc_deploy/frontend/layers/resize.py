"""Samples images between pixels: at constant places (resizing), and at places known at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.nodes import Value
from ..node import Node, limited, shape_of
from .products import scaled
from .shapes import stacked, with_axis

Table = NDArray[Any]


def source_coordinates(
    transform: str, extent: int, size: int, scale: float, region: tuple[float, float] = (0, 1)
) -> Table:
    """The places of `size` outputs along an axis of `extent` elements. ONNX's Resize defines
    transform and region."""
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


def nearest(n: Node, x: Value, axis: int, places: Table, rounding: str) -> Value:
    """The elements nearest to the places on an axis."""
    match rounding:
        case "round_prefer_floor":
            index = np.ceil(places - 0.5)
        case "round_prefer_ceil":
            index = np.floor(places + 0.5)
        case "floor":
            index = np.floor(places)
        case "ceil":
            index = np.ceil(places)
        case _:
            raise ValueError(f"nearest_mode '{rounding}'")
    extent = shape_of(x)[axis]
    inside = np.clip(index, 0, extent - 1)
    times = len(inside) // max(extent, 1)
    if np.array_equal(inside, np.arange(extent).repeat(times)):
        return n.emit("repeat", x, axis=axis, times=times)
    return n.emit("gather", x, n.constant(inside, "int64"), axis=axis)


def axes_in_order(extents: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The order in which axes are resized one after the other, with the least work: those that
    shrink, then those that grow, the last one first, whose elements cost most."""
    grows = [size > extent for extent, size in zip(extents, sizes, strict=True)]
    return sorted(range(len(grows)), key=lambda n: (grows[n], -n if grows[n] else n))


def interpolated(
    n: Node,
    x: Value,
    axis: int,
    places: Table,
    cubic: float | None = None,
    shrink: float = 1,
    exclude: bool = False,
) -> Value:
    """Weighted sums of the neighbours of places on an axis.

    The weights are linear, or cubic with the given parameter. shrink < 1 widens the kernel by
    1 / shrink (antialias). exclude gives neighbours outside of the data no weight.
    """
    extent = shape_of(x)[axis]
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
    return resampled(n, x, axis, np.clip(taps, 0, extent - 1), weights)


def crop_places(n: Node, begin: Value, end: Value, extent: int, size: int, scale: float) -> Value:
    """As source_coordinates for tf_crop_and_resize, in float32, with begin and end as data:
    scalars."""
    o, length = np.arange(limited(size, "an axis")), scale * extent
    share = o / (length - 1) if length != 1 else np.full(size, 0.5)
    ends = zip((begin, end), (1 - share, share), strict=True)
    near, far = (
        n.emit("multiply", n.cast(edge, "float32"), n.constant((extent - 1) * part, "float32"))
        for edge, part in ends
    )
    return n.emit("add", near, far)


def at_places(n: Node, x: Value, axis: int, places: Value, linear: bool) -> Value:
    """x along an axis at places [P], float32, known at run time. linear: interpolates; else the
    nearest element, of two the lower one."""
    low = n.emit("floor", places)
    up = n.emit("subtract", places, low)
    if not linear:
        half, one = n.constant(0.5, "float32"), n.constant(1, "float32")
        up = n.emit("where", n.emit("greater", up, half), one, n.constant(0, "float32"))
    down = n.emit("subtract", n.constant(1, "float32"), up)
    weights = n.cast(stacked(n, [down, up], 1), x.type.dtype)
    taps = n.emit("add", with_axis(n, n.cast(low, "int32"), 1), n.constant([0, 1], "int32"))
    return n.emit("resample", x, taps, weights, axis=axis)


def resampled(n: Node, x: Value, axis: int, places: Table, weights: Table) -> Value:
    """Along an axis, output o is the sum of the elements at places[o], all of them inside, times
    weights[o]."""
    tables = n.constant(places, "int32"), n.constant(weights, x.type.dtype)
    return n.emit("resample", x, *tables, axis=axis, inside=True)


def grid_sample(
    n: Node,
    x: Value,
    grid: Value,
    mode: str,
    padding: str,
    corners: bool,
) -> Value:
    """x at the places of a grid, (x, y) or (x, y, z) from -1 to 1.

    With corners, -1 and 1 are the centres of the outermost pixels, else the edges of the image. The
    operator `sample` takes places in pixels, the outermost dimension first. mode is linear, nearest
    or cubic; padding is zeros, border or reflection.
    """
    *front, rank = shape_of(grid)
    begin, step = [0] * len(front) + [rank - 1], [1] * len(front) + [-1]
    grid = n.emit("slice", grid, begin=begin, step=step, shape=(*front, rank))
    dtype, extents = grid.type.dtype, shape_of(x)[2:]
    place = n.emit("add", grid, n.constant(1, dtype))
    if corners:
        steps = n.constant([extent - 1 for extent in extents], dtype)
        place = n.emit("multiply", scaled(n, place, 0.5), steps)
    else:
        place = n.emit("multiply", place, n.constant(extents, dtype))
        place = scaled(n, n.emit("subtract", place, n.constant(1, dtype)), 0.5)
    return n.emit("sample", x, place, mode=mode, padding=padding, corners=corners)
