"""Relax's words on images: resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..nodes import Constant
from .parts import Emits, Made, call, fixed, in_order, refused, result_in, several, shape_of, tensor

WORD = "image.resize2d"
PLAIN = "NCHW"
ROUNDINGS = ("round", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def resize2d(
    e: Emits,
    data: Any,
    size: Any,
    roi: Any = None,
    layout: str = PLAIN,
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "round",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str | None = None,
) -> Made:
    x = in_order(e, WORD, tensor(WORD, data), layout, PLAIN)
    wanted, extents = several(WORD, "size", size, 2), fixed(WORD, shape_of(x)[2:])
    if coordinate_transformation_mode == "tf_crop_and_resize":
        raise refused(f"R.{WORD}: mode 'tf_crop_and_resize' is not supported", "half_pixel")
    made = None
    for axis, (extent, out) in enumerate(zip(extents, wanted, strict=True), 2):
        if made is not None:
            x = e.emit(made)
        places = _places(coordinate_transformation_mode, extent, out)
        match method:
            case "nearest_neighbor":
                index = np.clip(_rounded(places, rounding_method), 0, extent - 1)
                made = call("gather", x, Constant(index.astype("int64")), axis=axis)
            case "linear" | "cubic":
                taps, shares = _taps(places, method, cubic_alpha, bool(cubic_exclude), extent)
                tables = Constant(taps.astype("int32")), Constant(shares.astype(x.type.dtype))
                made = call("resample", x, *tables, axis=axis)
            case _:
                raise refused(f"R.{WORD}: no method '{method}'", "nearest_neighbor, linear, cubic")
    return result_in(layout, PLAIN, made, e)  # type: ignore[arg-type]


def _places(mode: str, extent: int, out: int) -> NDArray[Any]:
    """The place in the data that each element of the result stands for."""
    o = np.arange(out)
    match mode:
        case "half_pixel":
            return (o + 0.5) * (extent / out) - 0.5
        case "pytorch_half_pixel":
            return (o + 0.5) * (extent / out) - 0.5 if out > 1 else np.zeros(1)
        case "align_corners":
            return o * ((extent - 1) / (out - 1)) if out > 1 else np.zeros(1)
        case "asymmetric":
            return o * (extent / out)
    modes = "half_pixel, pytorch_half_pixel, align_corners, asymmetric"
    raise refused(f"R.{WORD}: no coordinate_transformation_mode '{mode}'", modes)


def _rounded(places: NDArray[Any], how: str) -> NDArray[Any]:
    match how:
        case "floor":
            return np.floor(places + 1e-5)
        case "ceil":
            return np.ceil(places - 1e-5)
        case "round_prefer_floor":
            return np.ceil(places - 0.5)
        case "round" | "round_prefer_ceil" | "":
            return np.floor(places + 0.5)
    raise refused(f"R.{WORD}: no rounding_method '{how}'", ", ".join(ROUNDINGS))


def _taps(
    places: NDArray[Any], method: str, a: float, exclude: bool, extent: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The places that each element of the result is a sum of, and their weights."""
    low = np.floor(places)
    if method == "linear":
        t = places - low
        taps, shares = low[:, None] + [0, 1], np.stack([1 - t, t], 1)
    else:
        taps = low[:, None] + [-1, 0, 1, 2]
        far = np.abs(places[:, None] - taps)
        near = ((a + 2) * far - (a + 3)) * far * far + 1
        outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        shares = np.where(far <= 1, near, np.where(far < 2, outer, 0))
    if exclude:
        shares = np.where((taps >= 0) & (taps < extent), shares, 0)
        shares = shares / shares.sum(1, keepdims=True)
    return taps, shares


def table() -> dict[str, Any]:
    return {"image.resize2d": resize2d}
