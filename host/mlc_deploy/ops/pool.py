"""Pooling over windows of any number of spatial dimensions (NC…).

Attributes, per spatial dimension: kernel, strides, dilations, pads (beginnings, then ends);
ceil_mode, and for the average count_include_pad. With ceil_mode a window may reach beyond the
padding; its taps there are not read, and do not count. max_pool and avg_pool also take `layout`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, const, dtype_of, value_range
from ..te import Tensor
from .half import rounded, sums
from .layout import in_any_layout
from .nn import window_extent
from .reference import in_float64
from .registry import Array, Attrs, Operator, register, require
from .shape import flatten, pad_array, padded


def pool_extents(shape: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The spatial extents of the output. With ceil_mode a last window that would begin in the
    padding at the end is left out."""
    spatial = shape[2:]
    rank = len(spatial)
    pads = attrs["pads"]
    result: list[Any] = []
    for axis, extent in enumerate(spatial):
        k, s, d = (attrs[key][axis] for key in ("kernel", "strides", "dilations"))
        size = extent + pads[axis] + pads[rank + axis]
        out = window_extent(size, k, s, d, attrs["ceil_mode"])
        if attrs["ceil_mode"] and pads[rank + axis] + s > d * (k - 1) + 1:
            begin_inside = (extent + pads[axis] + s - 1) // s
            out = _extreme(min, te.minimum, out, begin_inside)
        result.append(out)
    return result


def _extreme(
    of_numbers: Callable[[Any, Any], Any], of_exprs: Callable[[Any, Any], Expr], a: Any, b: Any
) -> Any:
    """The smaller or larger of two extents."""
    return (of_exprs if isinstance(a, Expr) or isinstance(b, Expr) else of_numbers)(a, b)


def _check(name: str, shape: Sequence[Any], attrs: Attrs) -> None:
    rank = len(shape) - 2
    require(rank >= 1, f"{name}: data {list(shape)} has no spatial dimension")
    sizes = [len(attrs[key]) for key in ("kernel", "strides", "dilations")]
    fits = sizes == [rank] * 3 and len(attrs["pads"]) == 2 * rank
    require(fits, f"{name}: attributes are not for {rank} spatial dimensions")
    positive = all(v > 0 for key in ("kernel", "strides", "dilations") for v in attrs[key])
    require(positive, f"{name}: kernel, strides and dilations are positive")
    require(min(attrs["pads"]) >= 0, f"{name}: negative pads")
    for axis, out in enumerate(pool_extents(shape, attrs)):
        some = not isinstance(out, int) or out > 0
        require(some, f"{name}: the kernel {list(attrs['kernel'])} is larger than {list(shape)}")
        reach = attrs["dilations"][axis] * (attrs["kernel"][axis] - 1) + 1
        inside = max(attrs["pads"][axis], attrs["pads"][rank + axis]) < reach
        require(inside, f"{name}: pads {list(attrs['pads'])} are as large as the kernel")


def _overhang(shape: Sequence[Any], attrs: Attrs) -> list[Any]:
    """How far each dimension's last window reaches beyond data and padding."""
    rank = len(shape) - 2
    result: list[Any] = []
    for axis, out in enumerate(pool_extents(shape, attrs)):
        k, s, d = (attrs[key][axis] for key in ("kernel", "strides", "dilations"))
        size = shape[2 + axis] + attrs["pads"][axis] + attrs["pads"][rank + axis]
        over = (out - 1) * s + d * (k - 1) + 1 - size if attrs["ceil_mode"] else 0
        result.append(_extreme(max, te.maximum, over, 0))
    return result


def _all_pads(shape: Sequence[Any], attrs: Attrs) -> list[Any]:
    """pads for every dimension of the data, overhang included."""
    rank = len(shape) - 2
    over = _overhang(shape, attrs)
    ends = [attrs["pads"][rank + axis] + over[axis] for axis in range(rank)]
    return [0, 0, *attrs["pads"][:rank], 0, 0, *ends]


def _window(data: Tensor, attrs: Attrs, outputs: Sequence[Expr]) -> tuple[Any, list[Any]]:
    """The element under a window's taps, and the axes over the taps."""
    taps = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(attrs["kernel"])]
    place = [
        o * s + k * d
        for o, s, k, d in zip(outputs[2:], attrs["strides"], taps, attrs["dilations"], strict=True)
    ]
    return data[(outputs[0], outputs[1], *place)], taps


def _compute_max(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    _check("max_pool", x.shape, attrs)
    data = padded(x, _all_pads(x.shape, attrs), te.min_value(x.dtype))

    def element(*i: Expr) -> Expr:
        value, taps = _window(data, attrs, i)
        return te.max(value, taps)

    return [te.compute((*x.shape[:2], *pool_extents(x.shape, attrs)), element, name="max_pool")]


def _compute_avg(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    require(dtype_of(x.dtype).kind == "float", f"avg_pool: does not take {x.dtype}")
    _check("avg_pool", x.shape, attrs)
    total = _window_sums(x, attrs, "pool_sum")

    def mean(*i: Expr) -> Any:
        return total[i] / tap_count(x.shape, attrs, i).astype(total.dtype)

    return [rounded(te.compute(total.shape, mean, name="avg_pool"), x.dtype)]


def _window_sums(x: Tensor, attrs: Attrs, name: str) -> Tensor:
    data = padded(x, _all_pads(x.shape, attrs), 0)

    def element(*i: Expr) -> Expr:
        value, taps = _window(data, attrs, i)
        return te.sum(value.astype(sums(x.dtype)), taps)

    total: Tensor = te.compute((*x.shape[:2], *pool_extents(x.shape, attrs)), element, name=name)
    return total


def tap_count(shape: Sequence[Any], attrs: Attrs, index: Sequence[Expr]) -> Expr:
    """How many taps of the window at index count."""
    rank = len(shape) - 2
    over = _overhang(shape, attrs)
    count: Expr = const(1)
    for axis in range(rank):
        k, s, d = (attrs[key][axis] for key in ("kernel", "strides", "dilations"))
        before, after = attrs["pads"][axis], attrs["pads"][rank + axis]
        low, high = -before, shape[2 + axis] + after
        cut = not attrs["count_include_pad"] and after > 0
        if not attrs["count_include_pad"]:
            low, high = 0, shape[2 + axis]
        start = index[2 + axis] * s - before
        end: Expr = const(k)
        begin: Expr = const(0)
        if cut or not isinstance(over[axis], int) or over[axis]:
            end = te.minimum(k, (high - start + (d - 1)) // d)
        if low > -before:
            begin = te.maximum(0, (low - start + (d - 1)) // d)
        count = count * (end - begin)
    return count


def _taps(data: Array, attrs: Attrs, extents: Sequence[int]) -> Any:
    """The data under each tap, as an array of the output's shape, one after another."""
    for tap in itertools.product(*map(range, attrs["kernel"])):
        place = tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, s, n in zip(tap, attrs["dilations"], attrs["strides"], extents, strict=True)
        )
        yield data[(slice(None), slice(None), *place)]


def _evaluate_max(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    lowest = -np.inf if x.dtype.kind == "f" else value_range(str(x.dtype))[0]
    data = pad_array(x, _all_pads(x.shape, attrs), value=lowest)
    taps = _taps(data, attrs, pool_extents(x.shape, attrs))
    result = next(taps).copy()
    for tap in taps:
        np.maximum(result, tap, out=result)
    return [result]


def _evaluate_avg(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x = inputs[0]
    rank = x.ndim - 2
    extents = pool_extents(x.shape, attrs)
    pads = _all_pads(x.shape, attrs)
    data = pad_array(x, pads)
    # Ones where an element counts: the data, or the data and its padding; never the overhang.
    own = list(attrs["pads"]) if attrs["count_include_pad"] else [0] * (2 * rank)
    counted = np.ones((1, 1, *(n + own[a] + own[rank + a] for a, n in enumerate(x.shape[2:]))))
    rest = [p - o for p, o in zip([*pads[2 : 2 + rank], *pads[4 + rank :]], own, strict=True)]
    ones = pad_array(counted, [0, 0, *rest[:rank], 0, 0, *rest[rank:]])
    total = sum(_taps(data, attrs, extents))
    count = sum(_taps(ones, attrs, extents))
    return [total / count]


def _compute_sum(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    require(dtype_of(x.dtype).kind != "bool", "sum_pool: does not take bool")
    _check("sum_pool", x.shape, attrs)
    return [rounded(_window_sums(x, attrs, "sum_pool"), x.dtype)]


def _evaluate_sum(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    data = pad_array(x, _all_pads(x.shape, attrs))
    total = sum(_taps(data, attrs, pool_extents(x.shape, attrs)))
    return [total.astype(x.dtype, copy=False)]


# ------------------------------------------------------------------- where the maxima came from


def _compute_places(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The place of each window's maximum, the first of equal ones, as int64: its flat index in x.
    attrs also by_column, whether flat indices run down the columns of the last two dimensions."""
    (x,) = inputs
    top = _compute_max(inputs, attrs)[0]
    data = padded(x, _all_pads(x.shape, attrs), te.min_value(x.dtype), name="pad_again")
    order = _memory_order(x.ndim, attrs)
    shape = [x.shape[axis] for axis in order]
    rank = x.ndim - 2

    def element(*i: Expr) -> Expr:
        value, taps = _window(data, attrs, i)
        at: list[Any] = [i[0], i[1]]
        guards = [value.equal(top[i])]
        for axis, k in enumerate(taps):
            s, d = attrs["strides"][axis], attrs["dilations"][axis]
            at.append(i[2 + axis] * s + k * d - attrs["pads"][axis])
            if attrs["pads"][axis]:
                guards.append(at[-1] >= 0)
            if attrs["pads"][rank + axis] or attrs["ceil_mode"]:
                guards.append(at[-1] < x.shape[2 + axis])
        place = flatten([at[axis] for axis in order], shape)
        return te.min(te.select(te.all_of(*guards), place, const((1 << 31) - 1)), taps)

    place = te.compute(top.shape, element, name="place")
    return [te.compute(top.shape, lambda *i: place[i].astype("int64"), name="max_pool_places")]


def _memory_order(ndim: int, attrs: Attrs) -> list[int]:
    order = list(range(ndim))
    if attrs["by_column"] and ndim > 3:
        order[-2:] = reversed(order[-2:])
    return order


def _evaluate_places(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    (top,) = _evaluate_max(inputs, attrs)
    pads, extents = _all_pads(x.shape, attrs), pool_extents(x.shape, attrs)
    order = _memory_order(x.ndim, attrs)
    numbers = np.arange(x.size).reshape([x.shape[axis] for axis in order]).transpose(order)
    beyond = np.iinfo(np.int64).max
    places = _taps(pad_array(numbers, pads, value=beyond), attrs, extents)
    lowest = -np.inf if x.dtype.kind == "f" else value_range(str(x.dtype))[0]
    values = _taps(pad_array(x, pads, value=lowest), attrs, extents)
    result = np.full(top.shape, beyond)
    for place, value in zip(places, values, strict=True):
        result = np.minimum(result, np.where(value == top, place, beyond))
    return [result]


_MAX = in_any_layout(_compute_max, _evaluate_max)
_AVG = in_any_layout(_compute_avg, in_float64(_evaluate_avg))
for _op in (
    Operator("sum_pool", _compute_sum, in_float64(_evaluate_sum), "anchor", ("by_channel",)),
    Operator("max_pool_places", _compute_places, _evaluate_places, "anchor"),
    Operator("max_pool", *_MAX, "anchor", ("by_channel", "selects", "follows_half")),
    Operator("avg_pool", *_AVG, "anchor", ("by_channel", "follows_half")),
):
    register(_op)
