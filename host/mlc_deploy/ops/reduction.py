"""Operators that reduce axes of their input: sums, extrema and their places, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Const, Dim, Expr, IterVar, compare, const, dtype_of
from ..ir.lanes import number_or
from ..te import Tensor
from .elementwise import divide_array
from .fast import fast_exp, fast_exp_array
from .half import rounded, sums
from .reference import in_float64
from .registry import Array, Attrs, Operator, Trait, register, require
from .shape import normal_axis

COMBINE = {"sum": "+", "prod": "*", "max": "max", "min": "min", "mean": "+"}


class _Axes:
    """The axes of a reduction, and how an output's index becomes the input's."""

    def __init__(self, op: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> None:
        self.reduced = tuple(sorted(normal_axis(op, axis, x.ndim) for axis in axes))
        require(len(set(self.reduced)) == len(axes) > 0, f"{op}: axes {list(axes)}")
        self.keepdims = keepdims
        self.over = {
            axis: te.reduce_axis(_range(x.shape[axis]), f"k{axis}") for axis in self.reduced
        }
        self.shape = [
            1 if axis in self.over else extent
            for axis, extent in enumerate(x.shape)
            if keepdims or axis not in self.over
        ]
        self.rank = x.ndim

    @property
    def iters(self) -> list[IterVar]:
        return list(self.over.values())

    def source(self, index: Sequence[Expr]) -> tuple[Any, ...]:
        own = iter(index)
        result: list[Any] = []
        for axis in range(self.rank):
            if axis in self.over:
                result.append(self.over[axis])
                if self.keepdims:
                    next(own)
            else:
                result.append(next(own))
        return tuple(result)


def _range(extent: Dim) -> Any:
    return (0, extent)


def _identity(extremum: str, dtype: str) -> Any:
    """The extremum of no elements."""
    value = te.min_value(dtype) if extremum == "max" else te.max_value(dtype)
    assert isinstance(value, Const)
    return value.value


def _turned_over(attrs: Attrs, axes: tuple[int, ...]) -> tuple[dict[str, Any], Sequence[int]]:
    """A reduction before a transpose of its argument (registry.Turned)."""
    over = sorted(axes[n] for n in attrs["axes"])
    before = {**attrs, "axes": over}
    if attrs["keepdims"]:
        return before, axes
    left = [axis for axis in range(len(axes)) if axis not in over]
    return before, [left.index(axis) for axis in axes if axis in left]


def _turned_along(attrs: Attrs, axes: tuple[int, ...]) -> tuple[dict[str, Any], Sequence[int]]:
    return {"axis": axes[attrs["axis"]]}, axes


def _reduction(name: str) -> Operator:
    """attrs: axes (at least one), keepdims; of max and min skips_nan (False where left out): NaN is
    not an element."""

    def compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        (x,) = inputs
        require(dtype_of(x.dtype).kind != "bool", f"{name}: does not take bool")
        axes = _Axes(name, x, attrs["axes"], attrs["keepdims"])
        kept = x.dtype if name in ("max", "min") else sums(x.dtype)
        skips = attrs.get("skips_nan", False) and dtype_of(x.dtype).kind == "float"

        def part(value: Expr) -> Expr:
            return number_or(value, _identity(name, x.dtype)) if skips else value

        total = te.compute(
            axes.shape,
            lambda *i: te.reduce(COMBINE[name], part(x[axes.source(i)]).astype(kept), axes.iters),
            name="sum" if name == "mean" else name,
        )
        if name != "mean":
            return [rounded(total, x.dtype)]
        count: Any = 1
        for axis in axes.reduced:
            count = count * x.shape[axis]
        if dtype_of(x.dtype).kind != "float":
            return [te.compute(axes.shape, lambda *i: te.truncdiv(total[i], count), name=name)]
        if not isinstance(count, int):
            mean = te.compute(axes.shape, lambda *i: total[i] / count.astype(kept), name=name)
            return [rounded(mean, x.dtype)]
        share = 1.0 / count if count else math.nan
        mean = te.compute(axes.shape, lambda *i: total[i] * const(share, kept), name=name)
        return [rounded(mean, x.dtype)]

    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        x, axes, keepdims = inputs[0], tuple(attrs["axes"]), attrs["keepdims"]
        if name == "mean" and x.dtype.kind != "f":
            total = np.sum(x, axes, dtype=x.dtype, keepdims=keepdims)
            count = np.prod([x.shape[axis] for axis in axes])
            return [divide_array(np.asarray(total), np.asarray(count, x.dtype)).astype(x.dtype)]
        if name == "mean":
            total = np.sum(x, axes, keepdims=keepdims, dtype=np.float64)
            count = math.prod(x.shape[axis] for axis in axes)
            return [np.asarray(total / count).astype(x.dtype, copy=False)]
        function = getattr(np, name)
        options: dict[str, Any] = {"dtype": np.float64 if x.dtype.kind == "f" else x.dtype}
        if name in ("max", "min"):
            options = {"initial": _identity(name, str(x.dtype))}
            if attrs.get("skips_nan", False) and x.dtype.kind == "f":
                x = np.where(np.isnan(x), options["initial"], x)
        result = function(x, axis=axes, keepdims=keepdims, **options)
        return [np.asarray(result).astype(x.dtype, copy=False)]

    traits: tuple[Trait, ...] = ("reduces",)
    if name in ("max", "min"):
        traits += ("selects",)
    if name in ("max", "min", "mean"):
        traits += ("follows_half",)
    return Operator(name, compute, evaluate, "reduction", traits, turned=_turned_over)


def _place(name: str, extremum: str) -> Operator:
    """attrs: axis, keepdims, last (of equal ones, take the last), skips_nan (False where left out).
    Gives int64.

    A NaN is found before all numbers, as in numpy and PyTorch. With skips_nan it is as in loops
    that compare with the best so far, those of onnxruntime and LiteRT: only one in the first place
    is found.
    """

    def compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        (x,) = inputs
        floats = dtype_of(x.dtype).kind == "float"
        skips = floats and attrs.get("skips_nan", False)
        worst = _identity(extremum, x.dtype)

        def number(value: Expr) -> Expr:
            return number_or(value, worst) if skips else value

        best_axes = _Axes(name, x, [attrs["axis"]], True)
        best = te.compute(
            best_axes.shape,
            lambda *i: te.reduce(extremum, number(x[best_axes.source(i)]), best_axes.iters),
            name=extremum,
        )
        axes = _Axes(name, x, [attrs["axis"]], attrs["keepdims"])
        (axis,) = axes.reduced
        (k,) = axes.iters
        nowhere = const(-1 if attrs["last"] else (1 << 31) - 1)

        def element(*i: Expr) -> Expr:
            at = axes.source(i)
            top = best[tuple(const(0) if d == axis else a for d, a in enumerate(at))]
            found = x[at].equal(top)
            if floats and not skips:
                found = te.any_of(found, compare("!=", x[at], x[at]))
            return te.reduce("max" if attrs["last"] else "min", te.select(found, k.var, nowhere), k)

        place = te.compute(axes.shape, element, name="place")

        def found(*i: Expr) -> Expr:
            at: Expr = place[i]
            if skips:
                first = x[tuple(const(0) if d == axis else a for d, a in enumerate(axes.source(i)))]
                at = te.select(first.equal(first), at, const(0))
            return at.astype("int64")

        return [te.compute(axes.shape, found, name=name)]

    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        (x,) = inputs
        axis, find = attrs["axis"], getattr(np, name)
        if attrs.get("skips_nan", False) and x.dtype.kind == "f":
            best = (np.fmax if extremum == "max" else np.fmin).reduce(x, axis, keepdims=True)
            first = np.isnan(np.take(x, [0], axis))
            places: Array = np.indices(x.shape, sparse=True)[axis]
            x, find = np.where(first, places == 0, x == best), np.argmax
        if attrs["last"]:
            place = x.shape[axis] - 1 - find(np.flip(x, axis), axis, keepdims=attrs["keepdims"])
        else:
            place = find(x, axis, keepdims=attrs["keepdims"])
        return [np.asarray(place, np.int64)]

    return Operator(name, compute, evaluate, "anchor")


def _softmax(name: str) -> Operator:
    """attrs: axis. e^(x - max) / sum, or its logarithm."""
    log = name == "log_softmax"
    exp, exp_array = (fast_exp, fast_exp_array) if name == "fast_softmax" else (te.exp, np.exp)

    def compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        (x,) = inputs
        require(dtype_of(x.dtype).kind == "float", f"{name}: does not take {x.dtype}")
        top_axes = _Axes(name, x, [attrs["axis"]], False)
        sum_axes = _Axes(name, x, [attrs["axis"]], False)
        (axis,) = top_axes.reduced
        kept = sums(x.dtype)

        def rest(i: Sequence[Expr]) -> tuple[Expr, ...]:
            return (*i[:axis], *i[axis + 1 :])

        top = te.compute(
            top_axes.shape, lambda *i: te.max(x[top_axes.source(i)], top_axes.iters), name="top"
        )

        def below(*i: Expr) -> Any:
            return x[i].astype(kept) - top[rest(i)].astype(kept)

        power = te.compute(x.shape, lambda *i: exp(below(*i)), name="power")
        total = te.compute(
            sum_axes.shape,
            lambda *i: te.sum(power[sum_axes.source(i)], sum_axes.iters),
            name="total",
        )
        if log:
            result = te.compute(x.shape, lambda *i: below(*i) - te.log(total[rest(i)]), name=name)
        else:
            result = te.compute(x.shape, lambda *i: power[i] / total[rest(i)], name=name)
        return [rounded(result, x.dtype)]

    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        x, axis = inputs[0], attrs["axis"]
        below = x - x.max(axis, keepdims=True)
        power = exp_array(below)
        total = power.sum(axis, keepdims=True)
        return [below - np.log(total) if log else power / total]

    traits: tuple[Trait, ...] = ("not_negative", "follows_half") if not log else ()
    return Operator(name, compute, in_float64(evaluate), "anchor", traits, turned=_turned_along)


for _name in COMBINE:
    register(_reduction(_name))
register(_place("argmax", "max"))
register(_place("argmin", "min"))
register(_softmax("softmax"))
register(_softmax("log_softmax"))
register(_softmax("fast_softmax"))
