"""Operators whose indices are known at run time: gather and scatter by element and by tuple, the
places of numbers in a sorted list, the largest elements' places, running sums.

Negative indices count from the end. Where several updates meet one element, the last one stays; an
update outside of the tensor is left out. Scatters, searches and running sums are serial loops. A
heap finds the largest elements, serially as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, If, Stmt, Var, binary, const, dtype_of, expr, not_, seq
from ..te import Tensor
from .elementwise import same_extent
from .heap import Heap, last_by
from .indices import (
    BAD_EXTENT,
    OutsideError,
    failed,
    from_front,
    from_front_array,
    inside,
    inside_array,
    is_inside,
    narrowed,
)
from .loops import each, levels_of, nest, number, put
from .radix import key
from .reference import exact
from .registry import Array, Attrs, Operator, register, require
from .shape import normal_axis

# ONNX's names of a scatter's reduction with the element already there: the IR's operator, numpy's
COMBINE = {
    "add": ("+", np.add),
    "mul": ("*", np.multiply),
    "max": ("max", np.maximum),
    "min": ("min", np.minimum),
}


# ---------------------------------------------------------------------------------------- gather


def _compute_gather_elements(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis. output[i, j] = x[indices[i, j], j] for axis 0; clamped into x."""
    x, indices = inputs
    axis = _axis_of_elements("gather_elements", indices, x, attrs)

    def element(*i: Expr) -> Expr:
        at: list[Any] = list(i)
        at[axis] = inside(from_front(indices[i], x.shape[axis]), x.shape[axis])
        return x[tuple(at)]

    return [te.compute(indices.shape, element, name="gather_elements")]


def _axis_of_elements(op: str, indices: Tensor, x: Tensor, attrs: Attrs) -> int:
    """The axis that the indices count on. The other axes of the indices must fit x."""
    axis = normal_axis(op, attrs["axis"], x.ndim)
    require(x.ndim == indices.ndim, f"{op}: {indices.ndim} dimensions for {x.ndim}")
    for d, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)):
        fits = d == axis or not isinstance(a, int) or not isinstance(b, int) or a <= b
        require(fits, f"{op}: indices {list(indices.shape)} for {list(x.shape)}")
    return axis


def _grid(indices: Array, axis: int) -> tuple[Array, ...]:
    """The elements that gather_elements reads and scatter_elements writes, as numpy's fancy
    index."""
    place: list[Array] = list(np.indices(indices.shape, sparse=True))
    place[axis] = indices
    return tuple(place)


def _evaluate_gather_elements(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices = inputs
    axis = attrs["axis"] % x.ndim
    extent = x.shape[axis]
    return [x[_grid(inside_array(indices, extent), axis)]]


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
            inside(from_front(indices[(*i[:front], k)], extent), extent)
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
        inside_array(indices[..., k], extent)
        for k, extent in enumerate(x.shape[batch : batch + size])
    ]
    return [x[(*front, *at)]]


# --------------------------------------------------------------------------------------- scatter


def _scatter(
    inputs: Sequence[Tensor],
    attrs: Attrs,
    front: Sequence[Any],
    place: Callable[[Tensor, Sequence[Expr]], list[Expr]],
) -> Sequence[Tensor]:
    """x with updates applied in order. front: the shape of the updates' indices. place(indices, i):
    where update i goes in x's first dimensions; it covers the other dimensions."""
    x, *_ = inputs

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        (made,), (source, indices, updates) = outs, ins

        def update(i: Sequence[Var]) -> Stmt:
            wide = place(indices, i)
            within = [is_inside(n, extent) for n, extent in zip(wide, x.shape, strict=False)]
            at = [*map(narrowed, wide)]

            def element(rest: Sequence[Var]) -> Stmt:
                value, there = updates[(*i, *rest)], (*at, *rest)
                if attrs["reduction"] != "none":
                    value = binary(COMBINE[attrs["reduction"]][0], made[there], value)
                return put(made, there, value)

            return If(te.all_of(*within), nest(x.shape[len(at) :], element, "r"))

        copy = nest(x.shape, lambda i: put(made, i, source[i]), "c")
        return seq((copy, nest(front, update)))

    return [te.extern(x.shape, list(inputs), body, name="scatter", dtype=x.dtype)]


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
    axis = _axis_of_elements("scatter_elements", indices, x, attrs)
    fits = indices.ndim == updates.ndim and all(map(same_extent, indices.shape, updates.shape))
    require(fits, f"scatter_elements: {list(indices.shape)} indices, {list(updates.shape)} updates")

    def place(indices: Tensor, i: Sequence[Expr]) -> list[Expr]:
        return [*i[:axis], from_front(indices[tuple(i)], x.shape[axis]), *i[axis + 1 :]]

    return _scatter(inputs, attrs, indices.shape, place)


def _scattered(x: Array, place: Sequence[Array], updates: Array, reduction: str) -> Array:
    """x with the updates whose places lie in it."""
    place = np.broadcast_arrays(*place)
    within = [(n >= 0) & (n < extent) for n, extent in zip(place, x.shape, strict=False)]
    if place:
        kept = np.logical_and.reduce(within)
        place, updates = [n[kept] for n in place], updates[kept]
    result = exact(x).copy() if reduction in ("add", "mul") and x.dtype.kind == "f" else x.copy()
    if reduction == "none":
        result[tuple(place)] = updates
    else:
        COMBINE[reduction][1].at(result, tuple(place), updates)
    return result.astype(x.dtype, copy=False)


def _evaluate_scatter_elements(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices, updates = inputs
    axis = attrs["axis"] % x.ndim
    place = _grid(from_front_array(indices, x.shape[axis]), axis)
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

    def place(indices: Tensor, i: Sequence[Expr]) -> list[Expr]:
        return [from_front(indices[(*i, n)], x.shape[n]) for n in range(size)]

    return _scatter(inputs, attrs, indices.shape[:-1], place)


def _evaluate_scatter_nd(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices, updates = inputs
    place = [from_front_array(indices[..., n], x.shape[n]) for n in range(indices.shape[-1])]
    return [_scattered(x, place, updates, attrs["reduction"])]


# ------------------------------------------------------------------- find, top_k, running sums


def _compute_find(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The place of each number in sorted keys, as int64: of equal keys the last one's; the number
    of keys where none is equal. Each step halves the keys in question."""
    x, keys = inputs
    count: Any = keys.shape[0] if keys.ndim == 1 else 0
    require(isinstance(count, int) and count > 0, f"find: keys of shape {list(keys.shape)}")
    require(x.dtype == keys.dtype, f"find: {x.dtype} among {keys.dtype}")

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        (x, keys), (found,) = ins, outs

        def element(i: tuple[Var, ...]) -> Stmt:
            at, left = number(found, *i), count
            steps = [put(found, i, 0)]
            while left > 1:
                half = left // 2
                steps.append(put(found, i, te.select(keys[at + half] <= x[i], at + half, at)))
                left -= half
            return seq((*steps, If(not_(keys[at].equal(x[i])), put(found, i, count))))

        return nest(x.shape, element)

    return [te.extern(x.shape, [x, keys], body, name="find", dtype="int64")]


def _evaluate_find(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, keys = inputs
    place = np.maximum(np.searchsorted(keys, x, side="right") - 1, 0)
    return [np.where(keys[place] == x, place, len(keys)).astype(np.int64)]


def _compute_top_k(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, k, largest. Places of the k largest (smallest), in order, as int64; of equal
    ones, the first comes first; NaNs are equal, and larger than numbers. A heap holds the best so
    far, the last of them on top."""
    (x,) = inputs
    axis = normal_axis("top_k", attrs["axis"], x.ndim)
    extent, k = x.shape[axis], attrs["k"]
    known = isinstance(extent, int) and isinstance(k, int)
    require(not known or 0 <= k <= extent, f"top_k: {k} of the {extent} elements along axis {axis}")
    shape = [k if d == axis else n for d, n in enumerate(x.shape)]
    count = expr(k)
    too_many = () if known else (If(count > extent, failed(BAD_EXTENT)),)

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        best, keys, places, state = outs
        heap = Heap(keys, places, state, count, levels_of(k), last_by(attrs["largest"]))

        def row(index: Sequence[Var]) -> Stmt:
            before, behind = index[:axis], index[axis:]

            def entry(i: Expr) -> tuple[Expr, Expr]:
                return key(ins[0][(*before, i, *behind)]), i

            def other(t: Var) -> Stmt:
                i = count + t
                own, worst = entry(i)[0], keys[0]
                better = own > worst if attrs["largest"] else own < worst  # not where equal
                return If(better, heap.sunk(const(0), count, entry(i), "more"))

            def last(t: Var) -> Stmt:
                own = put(best, (*before, count - 1 - t, *behind), places[0])
                return seq((own, heap.without_first(count - t, "next")))

            return seq(
                (
                    *too_many,
                    each("i", count, lambda i: seq(heap.hold(i, entry(i)))),
                    heap.made(count, "h"),
                    each("t", extent - count, other),
                    each("o", count, last),
                )
            )

        return nest([*x.shape[:axis], *x.shape[axis + 1 :]], row)

    made = te.extern(
        [shape, (k + 1,), (k + 1,), (3,)], [x], body, name="top_k",
        dtype=["int64", key(const(0, x.dtype)).dtype, "int32", "int32"],
    )  # fmt: skip
    return [made[0]]


def _evaluate_top_k(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    axis = attrs["axis"] % x.ndim
    if attrs["k"] > x.shape[axis]:
        raise OutsideError(f"the {attrs['k']} largest or smallest of {x.shape[axis]}")
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
    extent, op = x.shape[axis], "*" if attrs["product"] else "+"
    neutral = const(int(attrs["product"]), x.dtype)

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        (made,), (source,) = outs, ins

        def turn(before: Sequence[Var], t: Var) -> Stmt:
            here, last = (extent - 1 - t, extent - t) if attrs["reverse"] else (t, t - 1)

            def element(behind: Sequence[Var], first: bool) -> Stmt:
                own, previous = ((*before, n, *behind) for n in (here, last))
                added = source[previous if attrs["exclusive"] else own]
                begin = neutral if attrs["exclusive"] else source[own]
                return put(made, own, begin if first else binary(op, made[previous], added))

            first, others = (
                nest(x.shape[axis + 1 :], partial(element, first=first), name)
                for first, name in ((True, "f"), (False, "b"))
            )
            return If(t.equal(0), first, others)

        return nest(x.shape[:axis], lambda before: each("t", extent, partial(turn, before)))

    return [te.extern(x.shape, [x], body, name="cumulative", dtype=x.dtype)]


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
    result = function(ordered, axis, dtype=np.float64 if x.dtype.kind == "f" else x.dtype)
    return [(np.flip(result, axis) if attrs["reverse"] else result).astype(x.dtype, copy=False)]


for _op in (
    Operator("gather_elements", _compute_gather_elements, _evaluate_gather_elements, "injective"),
    Operator("gather_nd", _compute_gather_nd, _evaluate_gather_nd, "injective"),
    Operator("scatter_elements", _compute_scatter_elements, _evaluate_scatter_elements, "opaque"),
    Operator("scatter_nd", _compute_scatter_nd, _evaluate_scatter_nd, "opaque"),
    Operator("find", _compute_find, _evaluate_find, "opaque"),
    Operator("top_k", _compute_top_k, _evaluate_top_k, "opaque"),
    Operator("cumulative", _compute_cumulative, _evaluate_cumulative, "opaque"),
):
    register(_op)
