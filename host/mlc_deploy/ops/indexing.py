"""Operators whose indices are data: gather and scatter by element and by tuple, the largest
elements' places, running sums.

Negative indices count from the end. Where several updates meet one element, the last one stays.
A scatter is a search for each element of the output, and so is the place of the k-th largest:
quadratic, but in any order and in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Dim, Expr, IterVar, binary, const, dtype_of
from ..te import Tensor
from .elementwise import same_extent
from .registry import Array, Attrs, Operator, register, require
from .shape import flatten, normal_axis, unflatten

# ONNX's names of what a scatter does where an element is there already: the IR's operator, numpy's
COMBINE = {
    "add": ("+", np.add),
    "mul": ("*", np.multiply),
    "max": ("max", np.maximum),
    "min": ("min", np.minimum),
}


def wrapped_index(index: Expr, extent: Any) -> Expr:
    """An int32 index, where negative ones count from the end."""
    narrow = index.astype("int32")
    return te.select(narrow < 0, narrow + extent, narrow)


def inside(index: Expr, extent: Any) -> Expr:
    return te.minimum(te.maximum(index, 0), extent - 1)


def _wrapped_array(indices: Array, extent: int) -> Array:
    return np.where(indices < 0, indices + extent, indices)


# ---------------------------------------------------------------------------------------- gather


def _compute_gather_elements(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis. output[i, j] = x[indices[i, j], j] for axis 0; clamped into x."""
    x, indices = inputs
    axis = normal_axis("gather_elements", attrs["axis"], x.ndim)
    require(x.ndim == indices.ndim, f"gather_elements: {indices.ndim} dimensions for {x.ndim}")
    _refuse_larger("gather_elements", indices, x, axis)

    def element(*i: Expr) -> Expr:
        at: list[Any] = list(i)
        at[axis] = inside(wrapped_index(indices[i], x.shape[axis]), x.shape[axis])
        return x[tuple(at)]

    return [te.compute(indices.shape, element, name="gather_elements")]


def _refuse_larger(op: str, part: Tensor, whole: Tensor, axis: int) -> None:
    for d, (a, b) in enumerate(zip(part.shape, whole.shape, strict=True)):
        fits = d == axis or not isinstance(a, int) or not isinstance(b, int) or a <= b
        require(fits, f"{op}: indices {list(part.shape)} for {list(whole.shape)}")


def _grid(indices: Array, axis: int, extent: int) -> tuple[Array, ...]:
    """Where gather_elements and scatter_elements reach, as numpy's fancy index."""
    place: list[Array] = list(np.indices(indices.shape, sparse=True))
    place[axis] = np.clip(_wrapped_array(indices, extent), 0, extent - 1)
    return tuple(place)


def _evaluate_gather_elements(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices = inputs
    axis = attrs["axis"] % x.ndim
    return [x[_grid(indices, axis, x.shape[axis])]]


def _compute_gather_nd(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: batch_dims. The last dimension of indices holds tuples, which index x's dimensions
    after the batch dimensions."""
    x, indices = inputs
    batch = attrs["batch_dims"]
    size: Any = indices.shape[-1]
    require(isinstance(size, int), "gather_nd: index tuples of unknown length")
    require(batch + size <= x.ndim, f"gather_nd: tuples of {size} index {list(x.shape)}")
    front = indices.ndim - 1

    def element(*i: Expr) -> Expr:
        at = [
            inside(wrapped_index(indices[(*i[:front], k)], extent), extent)
            for k, extent in enumerate(x.shape[batch : batch + size])
        ]
        return x[(*i[:batch], *at, *i[front:])]

    shape = (*indices.shape[:-1], *x.shape[batch + size :])
    return [te.compute(shape, element, name="gather_nd")]


def _evaluate_gather_nd(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices = inputs
    batch, size = attrs["batch_dims"], indices.shape[-1]
    front = np.indices(indices.shape[:-1], sparse=True)[:batch]
    at = [
        np.clip(_wrapped_array(indices[..., k], extent), 0, extent - 1)
        for k, extent in enumerate(x.shape[batch : batch + size])
    ]
    return [x[(*front, *at)]]


# --------------------------------------------------------------------------------------- scatter


def _combined(x: Tensor, total: Tensor, reduction: str) -> Tensor:
    op = COMBINE[reduction][0]
    result: Tensor = te.compute(x.shape, lambda *i: binary(op, x[i], total[i]), name="scatter")
    return result


def _neutral(reduction: str, dtype: str) -> Expr:
    match reduction:
        case "max":
            return te.min_value(dtype)
        case "min":
            return te.max_value(dtype)
    return const(0 if reduction == "add" else 1, dtype)


def _check_scatter(op: str, x: Tensor, updates: Tensor, attrs: Attrs) -> None:
    known = attrs["reduction"] == "none" or attrs["reduction"] in COMBINE
    require(known, f"{op}: no reduction '{attrs['reduction']}'")
    require(x.dtype == updates.dtype, f"{op}: {updates.dtype} into {x.dtype}")
    arithmetic = attrs["reduction"] == "none" or dtype_of(x.dtype).kind != "bool"
    require(arithmetic, f"{op}: does not reduce {x.dtype}")


def _compute_scatter_elements(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, reduction. output[indices[i, j], j] = updates[i, j] for axis 0, x elsewhere."""
    x, indices, updates = inputs
    _check_scatter("scatter_elements", x, updates, attrs)
    axis = normal_axis("scatter_elements", attrs["axis"], x.ndim)
    require(x.ndim == indices.ndim, f"scatter_elements: {indices.ndim} dimensions for {x.ndim}")
    _refuse_larger("scatter_elements", indices, x, axis)
    fits = indices.ndim == updates.ndim and all(map(same_extent, indices.shape, updates.shape))
    require(fits, f"scatter_elements: {list(indices.shape)} indices, {list(updates.shape)} updates")
    k = te.reduce_axis((0, indices.shape[axis]), "k")

    def beside(i: Sequence[Expr], along: Any) -> tuple[tuple[Any, ...], Expr]:
        """Where updates have their element for a place of the output, and whether they do."""
        at: list[Any] = []
        guards = []
        for d, (index, part, whole) in enumerate(zip(i, indices.shape, x.shape, strict=True)):
            if d == axis:
                at.append(along)
            elif same_extent(part, whole):
                at.append(index)
            else:
                at.append(inside(index, part))
                guards.append(index < part)
        return tuple(at), te.all_of(*guards)

    def hit(i: Sequence[Expr]) -> tuple[tuple[Any, ...], Expr]:
        at, there = beside(i, k.var)
        return at, te.all_of(wrapped_index(indices[at], x.shape[axis]).equal(i[axis]), there)

    if attrs["reduction"] == "none":

        def last(*i: Expr) -> Expr:
            return te.max(te.select(hit(i)[1], k.var, const(-1)), k)

        place = te.compute(x.shape, last, name="place")

        def element(*i: Expr) -> Expr:
            at, _ = beside(i, inside(place[i], indices.shape[axis]))
            return te.select(place[i] >= 0, updates[at], x[i])

        return [te.compute(x.shape, element, name="scatter")]

    def update(*i: Expr) -> Expr:
        at, there = hit(i)
        value = te.select(there, updates[at], _neutral(attrs["reduction"], x.dtype))
        return te.reduce(COMBINE[attrs["reduction"]][0], value, k)

    return [_combined(x, te.compute(x.shape, update, name="updates"), attrs["reduction"])]


def _scattered(x: Array, place: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = x.copy()
    if reduction == "none":
        result[place] = updates
    else:
        COMBINE[reduction][1].at(result, place, updates)
    return result


def _evaluate_scatter_elements(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices, updates = inputs
    axis = attrs["axis"] % x.ndim
    place = _grid(indices, axis, x.shape[axis])
    return [_scattered(x, place, updates, attrs["reduction"])]


def _compute_scatter_nd(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: reduction. output[indices[i]] = updates[i]: the last dimension of indices holds
    tuples, which index x's first dimensions."""
    x, indices, updates = inputs
    _check_scatter("scatter_nd", x, updates, attrs)
    size: Any = indices.shape[-1]
    require(isinstance(size, int), "scatter_nd: index tuples of unknown length")
    require(size <= x.ndim, f"scatter_nd: tuples of {size} index {list(x.shape)}")
    wanted = (*indices.shape[:-1], *x.shape[size:])
    fits = len(wanted) == updates.ndim and all(map(same_extent, wanted, updates.shape))
    require(fits, f"scatter_nd: updates {list(updates.shape)}, not {list(wanted)}")
    front: tuple[Dim, ...] = indices.shape[:-1]
    over = [te.reduce_axis((0, extent), f"k{n}") for n, extent in enumerate(front or (1,))]
    at: tuple[IterVar, ...] = tuple(over) if front else ()

    def hit(i: Sequence[Expr]) -> Expr:
        return te.all_of(
            *(
                wrapped_index(indices[(*at, n)], x.shape[n]).equal(index)
                for n, index in enumerate(i[:size])
            )
        )

    if attrs["reduction"] == "none":

        def last(*i: Expr) -> Expr:
            number = flatten([k.var for k in at], front)
            return te.max(te.select(hit(i), number, const(-1)), over)

        place = te.compute(x.shape[:size], last, name="place")

        def element(*i: Expr) -> Expr:
            found = place[i[:size]]
            number = unflatten(te.maximum(found, 0), front) if front else ()
            return te.select(found >= 0, updates[(*number, *i[size:])], x[i])

        return [te.compute(x.shape, element, name="scatter")]

    def update(*i: Expr) -> Expr:
        neutral = _neutral(attrs["reduction"], x.dtype)
        value = te.select(hit(i), updates[(*at, *i[size:])], neutral)
        return te.reduce(COMBINE[attrs["reduction"]][0], value, over)

    return [_combined(x, te.compute(x.shape, update, name="updates"), attrs["reduction"])]


def _evaluate_scatter_nd(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices, updates = inputs
    place = tuple(
        np.clip(_wrapped_array(indices[..., n], x.shape[n]), 0, x.shape[n] - 1)
        for n in range(indices.shape[-1])
    )
    return [_scattered(x, place, updates, attrs["reduction"])]


# ------------------------------------------------------------------------- top_k, running sums


def _compute_top_k(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, k, largest. Places of the k largest (smallest), in order, as int64: an element's
    rank is how many come before it; of equal ones, the first comes first."""
    (x,) = inputs
    axis = normal_axis("top_k", attrs["axis"], x.ndim)
    extent, count = x.shape[axis], attrs["k"]
    enough = not isinstance(extent, int) or 0 <= count <= extent
    require(enough, f"top_k: {count} of the {extent} elements along axis {axis}")
    j = te.reduce_axis((0, extent), "j")

    def rank(*i: Expr) -> Expr:
        own, other = x[i], x[(*i[:axis], j, *i[axis + 1 :])]
        better = other > own if attrs["largest"] else other < own
        first = te.all_of(other.equal(own), j.var < i[axis])
        return te.sum(te.any_of(better, first).astype("int32"), j)

    ranks = te.compute(x.shape, rank, name="rank")
    k = te.reduce_axis((0, extent), "k")

    def place(*i: Expr) -> Expr:
        own = ranks[(*i[:axis], k, *i[axis + 1 :])]
        return te.max(te.select(own.equal(i[axis]), k.var, const(0)), k)

    shape = [count if d == axis else n for d, n in enumerate(x.shape)]
    places = te.compute(shape, place, name="place")
    return [te.compute(shape, lambda *i: places[i].astype("int64"), name="top_k")]


def _evaluate_top_k(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    axis = attrs["axis"] % x.ndim
    if attrs["largest"]:
        backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - backwards
    else:
        order = np.argsort(x, axis, kind="stable")
    return [np.take(order, range(attrs["k"]), axis).astype(np.int64)]


def _compute_cumulative(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, product (instead of sums), exclusive (without the element itself), reverse (from
    the end)."""
    (x,) = inputs
    axis = normal_axis("cumulative", attrs["axis"], x.ndim)
    require(dtype_of(x.dtype).kind != "bool", "cumulative: does not take bool")
    k = te.reduce_axis((0, x.shape[axis]), "k")
    neutral = const(int(attrs["product"]), x.dtype)

    def element(*i: Expr) -> Expr:
        here, there = (i[axis], k.var) if attrs["reverse"] else (k.var, i[axis])
        counts = here < there if attrs["exclusive"] else here <= there
        value = x[(*i[:axis], k, *i[axis + 1 :])]
        return te.reduce("*" if attrs["product"] else "+", te.select(counts, value, neutral), k)

    return [te.compute(x.shape, element, name="cumulative")]


def _evaluate_cumulative(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    axis = attrs["axis"] % x.ndim
    ordered = np.flip(x, axis) if attrs["reverse"] else x
    if attrs["exclusive"]:
        shape = [1 if d == axis else n for d, n in enumerate(x.shape)]
        front = np.full(shape, int(attrs["product"]), x.dtype)
        kept = np.take(ordered, range(x.shape[axis] - 1), axis)
        ordered = np.concatenate([front, kept], axis) if math.prod(x.shape) else ordered
    function = np.cumprod if attrs["product"] else np.cumsum
    result = function(ordered, axis, dtype=x.dtype)
    return [np.flip(result, axis) if attrs["reverse"] else result]


for _op in (
    Operator("gather_elements", _compute_gather_elements, _evaluate_gather_elements, "injective"),
    Operator("gather_nd", _compute_gather_nd, _evaluate_gather_nd, "injective"),
    Operator("scatter_elements", _compute_scatter_elements, _evaluate_scatter_elements, "anchor"),
    Operator("scatter_nd", _compute_scatter_nd, _evaluate_scatter_nd, "anchor"),
    Operator("top_k", _compute_top_k, _evaluate_top_k, "anchor"),
    Operator("cumulative", _compute_cumulative, _evaluate_cumulative, "anchor"),
):
    register(_op)
