"""Images read between their pixels: at places known at run time (sample), or at fixed places along
one axis (resample)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, const, dtype_of
from ..ir.build import compare
from ..te import Tensor
from .elementwise import same_extent
from .half import rounded, sums
from .indices import from_front, inside, inside_array
from .quantize import product
from .reference import in_float64
from .registry import Array, Attrs, Operator, register, require
from .shape import normal_axis

MODES = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}  # the taps along a dimension
PADDINGS = ("zeros", "border", "reflection")
CUBIC = -0.75  # the parameter of Keys' kernel
FAR = -4.0  # a place whose taps are all below 0


# ---------------------------------------------------------------------------------------- sample
#
# The same arithmetic runs on expressions and on arrays: `m` has minimum, floor and so on.


class _Expressions:
    floor = staticmethod(te.floor)
    round = staticmethod(te.nearbyint)
    fmod = staticmethod(te.fmod)
    abs = staticmethod(te.abs)
    where = staticmethod(te.select)
    minimum = staticmethod(te.minimum)
    maximum = staticmethod(te.maximum)

    @staticmethod
    def is_finite(x: Expr) -> Expr:
        return compare("<", te.abs(x), math.inf)

    @staticmethod
    def integer(x: Expr) -> Expr:
        return x.astype("int32")


class _Arrays:
    floor = staticmethod(np.floor)
    round = staticmethod(np.rint)
    fmod = staticmethod(np.fmod)
    abs = staticmethod(np.abs)
    where = staticmethod(np.where)
    is_finite = staticmethod(np.isfinite)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)

    @staticmethod
    def integer(x: Array) -> Array:
        return x.astype(np.int32)


def _placed(m: Any, p: Any, extent: int, attrs: Attrs) -> Any:
    """A coordinate in pixels, brought back into the image as the padding says. With a border, cubic
    interpolation leaves it outside: PyTorch and onnxruntime bring only its taps back, which gives
    other numbers within two pixels of the image; onnx's reference moves the coordinate."""
    # NaN and infinities stand for -1 of ONNX's coordinates, as in onnxruntime.
    p = m.where(m.is_finite(p), p, 0.0 if attrs["corners"] else -0.5)
    if attrs["mode"] == "nearest":
        p = m.round(p)
    match attrs["padding"]:
        case "border" if attrs["mode"] != "cubic":
            p = m.minimum(m.maximum(p, 0), extent - 1)
        case "reflection":
            low, length = (0.0, extent - 1.0) if attrs["corners"] else (-0.5, float(extent))
            if not length:
                return p * 0
            turn = m.fmod(m.abs(p - low), 2 * length)
            p = m.minimum(turn, 2 * length - turn) + low
            p = m.minimum(m.maximum(p, 0), extent - 1) if attrs["mode"] == "nearest" else p
    p = m.where(p > extent + 3, extent + 3, p)  # beyond, all taps are outside anyway
    return m.where(p < FAR, FAR, p)


def _weights(rest: Any, mode: str) -> list[Any]:
    """The weights of the taps, for a place `rest` beyond a pixel; None is 1."""
    if mode == "nearest":
        return [None]
    if mode == "linear":
        return [1 - rest, rest]
    a = CUBIC

    def near(x: Any) -> Any:
        return (x * (a + 2) - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(rest + 1), near(rest), near(1 - rest), far(2 - rest)]


def _pixel(m: Any, index: Any, extent: int, attrs: Attrs) -> Any:
    """A tap's index, inside the image."""
    if attrs["padding"] == "reflection" and extent > 1:
        period = 2 * (extent - 1) if attrs["corners"] else 2 * extent
        turn = index % period
        last = period if attrs["corners"] else period - 1
        return m.minimum(turn, last - turn)
    return m.minimum(m.maximum(index, 0), extent - 1)


def _check_sample(x: Tensor, place: Tensor, of: Sequence[Tensor], attrs: Attrs) -> None:
    rank = x.ndim - 2
    known = attrs["mode"] in MODES and attrs["padding"] in PADDINGS
    require(known, f"sample: mode '{attrs['mode']}', padding '{attrs['padding']}'")
    fits = rank >= 1 and place.ndim >= 2 and same_extent(place.shape[-1], rank)
    images = of[0].shape if of else x.shape[:1]
    fits = fits and len(images) == 1 and same_extent(place.shape[0], images[0])
    require(fits, f"sample: places {list(place.shape)} in {list(x.shape)}")
    require(dtype_of(place.dtype).kind == "float", f"sample: places are {place.dtype}")
    interpolates = attrs["mode"] == "nearest" or dtype_of(x.dtype).kind == "float"
    require(interpolates, f"sample: does not interpolate {x.dtype}")
    require(attrs["mode"] != "cubic" or rank <= 2, f"sample: cubic in {rank} dimensions")


def _compute_sample(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """x [N, C, *S] at place [N, *P, rank of S], in pixels -> [N, C, *P]. Or at place [M, *P, rank
    of S] of the images with the numbers [M].

    attrs: mode (nearest, linear, cubic), padding (zeros, border, reflection), and corners, whether
    reflection is about the outermost pixels' centres rather than their edges.
    """
    x, place, *of = inputs
    _check_sample(x, place, of, attrs)
    m, mode = _Expressions, attrs["mode"]
    spatial: tuple[Any, ...] = x.shape[2:]
    places = [
        te.compute(
            place.shape[:-1],
            lambda *i, d=d, n=n: _placed(m, place[(*i, d)], n, attrs),
            name=f"place{d}",
        )
        for d, n in enumerate(spatial)
    ]

    def element(n: Expr, c: Expr, *at: Expr) -> Expr:
        image = inside(from_front(of[0][n], x.shape[0]), x.shape[0]) if of else n
        own = [p[(n, *at)] for p in places]
        base = [m.floor(p) for p in own]
        weights = [
            _weights((p - b).astype(_weight(x)), mode) for p, b in zip(own, base, strict=True)
        ]
        total: Expr | None = None
        for tap in itertools.product(range(len(MODES[mode])), repeat=len(spatial)):
            index = [b.astype("int32") + MODES[mode][t] for b, t in zip(base, tap, strict=True)]
            pixel = x[
                (image, c, *(_pixel(m, i, e, attrs) for i, e in zip(index, spatial, strict=True)))
            ]
            if attrs["padding"] == "zeros":
                there = [te.all_of(i >= 0, i < e) for i, e in zip(index, spatial, strict=True)]
                pixel = te.if_then_else(te.all_of(*there), pixel, 0)
            for d, t in enumerate(tap):
                factor = weights[d][t]
                pixel = pixel if factor is None else pixel * factor
            total = pixel if total is None else total + pixel
        assert total is not None
        return total

    shape = (place.shape[0], x.shape[1], *place.shape[1:-1])
    return [te.compute(shape, element, name="sample")]


def _weight(x: Tensor) -> str:
    """The dtype of weights: x's, so that products stay in it."""
    return str(x.dtype) if dtype_of(str(x.dtype)).kind == "float" else "float32"


def _evaluate_sample(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, place, *of = inputs
    m, spatial, mode = _Arrays, x.shape[2:], attrs["mode"]
    own = [_placed(m, place[..., d], n, attrs) for d, n in enumerate(spatial)]
    base = [m.floor(p) for p in own]
    sums = np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype
    # Places are rounded as the expressions round them: they choose pixels. Products are exact.
    weights = [_weights((p - b).astype(np.float64), mode) for p, b in zip(own, base, strict=True)]
    total = np.zeros((*place.shape[:-1], x.shape[1]), sums)
    images = inside_array(of[0], len(x)) if of else np.arange(len(x))
    batch = images.reshape(-1, *(1,) * (place.ndim - 2))
    for tap in itertools.product(range(len(MODES[mode])), repeat=len(spatial)):
        index = [m.integer(b) + MODES[mode][t] for b, t in zip(base, tap, strict=True)]
        inside = tuple(_pixel(m, i, e, attrs) for i, e in zip(index, spatial, strict=True))
        pixel = np.moveaxis(x, 1, -1)[(batch, *inside)].astype(sums, copy=False)
        if attrs["padding"] == "zeros":
            there = [(i >= 0) & (i < e) for i, e in zip(index, spatial, strict=True)]
            pixel = np.where(np.logical_and.reduce(there)[..., None], pixel, 0).astype(sums)
        for d, t in enumerate(tap):
            factor = weights[d][t]
            pixel = pixel if factor is None else pixel * factor[..., None]
        total = total + pixel
    return [np.moveaxis(total, -1, 1).astype(x.dtype, copy=False)]


# -------------------------------------------------------------------------------------- resample


def _compute_resample(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, inside (default False). Along the axis, element o is the sum over taps t of
    x[indices[o, t]] * weights[o, t]; indices are int32, weights of x's dtype. Indices outside are
    moved to the first or last element; inside: there are none."""
    x, indices, weights = inputs
    axis = normal_axis("resample", attrs["axis"], x.ndim)
    require(dtype_of(x.dtype).kind == "float", f"resample: does not take {x.dtype}")
    fits = indices.ndim == weights.ndim == 2 and weights.dtype == x.dtype
    fits = fits and all(map(same_extent, indices.shape, weights.shape))
    require(fits, f"resample: indices {list(indices.shape)}, weights {list(weights.shape)}")
    tap = te.reduce_axis((0, indices.shape[1]), "t")

    def element(*i: Expr) -> Expr:
        at = indices[i[axis], tap]
        if not attrs.get("inside"):
            at = te.minimum(te.maximum(at, const(0)), x.shape[axis] - 1)
        value = x[(*i[:axis], at, *i[axis + 1 :])]
        return te.sum(product(value, weights[i[axis], tap], sums(x.dtype)), tap)

    shape = [indices.shape[0] if d == axis else n for d, n in enumerate(x.shape)]
    return [rounded(te.compute(shape, element, name="resample"), x.dtype)]


def _evaluate_resample(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices, weights = inputs
    axis = attrs["axis"] % x.ndim
    along = (1,) * axis + indices.shape[:1] + (1,) * (x.ndim - axis - 1)
    places = np.clip(indices, 0, x.shape[axis] - 1)
    total: Any = sum(
        np.take(x, places[:, tap], axis) * weights[:, tap].reshape(along)
        for tap in range(indices.shape[1])
    )
    return [total]


register(Operator("sample", _compute_sample, _evaluate_sample, "anchor"))
register(
    Operator("resample", _compute_resample, in_float64(_evaluate_resample), "anchor", ("along",))
)
