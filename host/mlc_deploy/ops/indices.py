"""Indices that are run-time values: compared first, narrowed after.

Addresses are int32, indices often int64. A conversion to int32 wraps: 2^32 + 1 would become 1. So
every operator that addresses memory by a run-time value uses these functions:

    from_front(index, extent)   an index counted from the front, in the dtype it came in
    inside(index, extent)       the nearest place in [0, extent), int32
    is_inside(index, extent)    whether `inside` would not move it
    narrowed(index)             int32, of an index that is_inside

They keep memory safe; they do not say that an index is wrong. The operator `check_indices` does:
front ends put it before operators whose standard refuses an index outside of its axis
(docs/reference/indices.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import (
    Call,
    Evaluate,
    Expr,
    If,
    Let,
    Stmt,
    Var,
    const,
    dtype_of,
    expr,
    is_const,
    not_,
    seq,
)
from ..te import Tensor
from .loops import nest, put
from .registry import Array, Attrs, Operator, register, require

BAD_EXTENT, BAD_INDEX = 3, 4  # mlc_status in device_runtime/include/mlc_abi.h
NARROW = "int32"


class OutsideError(ValueError):
    """An index lies outside of its axis: the model's input is wrong, not the model."""


def failed(status: int = BAD_INDEX) -> Stmt:
    """Ends the kernel with a status."""
    return Evaluate(Call("ret", (const(status),), "int32"))


# ------------------------------------------------------------------------------------ expressions


def _comparable(index: Expr) -> Expr:
    """The index in a dtype in which an int32 extent can be added and compared."""
    kind = dtype_of(index.dtype)
    if kind.bits < 32:
        return index.astype(NARROW)
    if kind.kind != "uint":
        return index
    if kind.bits == 32:
        return index.astype("int64")
    most = const((1 << 63) - 1, index.dtype)
    return te.minimum(index, most).astype("int64")


def from_front(index: Expr, extent: Any) -> Expr:
    """An index of an axis, those below 0 counted from the end."""
    wide = _comparable(index)
    return te.select(wide < 0, wide + _like(extent, wide), wide)


def is_inside(index: Expr, extent: Any) -> Expr:
    wide = _comparable(index)
    return te.all_of(wide >= 0, wide < _like(extent, wide))


def inside(index: Expr, extent: Any) -> Expr:
    """The nearest place in [0, extent), as an int32."""
    wide = _comparable(index)
    return narrowed(te.minimum(te.maximum(wide, 0), _like(extent, wide) - 1))


def narrowed(index: Expr) -> Expr:
    """int32 of an index that is inside of an axis."""
    return index.astype(NARROW)


def _like(extent: Any, index: Expr) -> Expr:
    return expr(extent).astype(index.dtype)


# ----------------------------------------------------------------------------------------- arrays


def from_front_array(indices: Array, extent: Any) -> Array:
    return np.where(indices < 0, indices + extent, indices)


def inside_array(indices: Array, extent: int) -> Array:
    """The nearest places, counted from the front, of indices that may count from the end."""
    return np.clip(from_front_array(indices, extent), 0, max(extent - 1, 0))


# ---------------------------------------------------------------------------------- check_indices


def _compute_check_indices(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: extents, from_end. int32 indices, counted from the front, of indices of any integer
    dtype. The kernel returns MLC_BAD_INDEX where one lies outside of its axis.

    One extent is that of every index. Several are those of the last dimension's elements: index
    tuples. from_end: indices below 0 count from the end; else they are outside.
    """
    (indices,) = inputs
    extents = attrs["extents"]
    require(dtype_of(indices.dtype).is_integer, f"check_indices: of {indices.dtype}")
    tuples = len(extents) > 1
    fits = not tuples or (indices.ndim > 0 and is_const(indices.shape[-1], len(extents)))
    require(fits, f"check_indices: {len(extents)} extents for {list(indices.shape)}")
    shape = indices.shape[:-1] if tuples else indices.shape

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        (given,), (made,) = ins, outs

        def checked(at: Sequence[Any], extent: Any) -> Stmt:
            own = given[tuple(at)]
            place = from_front(own, extent) if attrs["from_end"] else _comparable(own)
            index = Var("index", place.dtype)
            bad = If(not_(is_inside(index, extent)), failed())
            return Let(index, place, seq((bad, put(made, at, narrowed(index)))))

        def element(i: tuple[Var, ...]) -> Stmt:
            if not tuples:
                return checked(i, extents[0])
            return seq(tuple(checked((*i, const(k)), e) for k, e in enumerate(extents)))

        return nest(shape, element)

    return [te.extern(indices.shape, [indices], body, name="check_indices", dtype=NARROW)]


def _evaluate_check_indices(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (indices,) = inputs
    extents = np.array(attrs["extents"], np.int64)
    extent = extents if len(extents) > 1 else extents[0]
    unsigned = indices.dtype == np.uint64
    wide = np.minimum(indices, np.iinfo(np.int64).max if unsigned else indices).astype(np.int64)
    place = from_front_array(wide, extent) if attrs["from_end"] else wide
    outside = (place < 0) | (place >= extent)
    if outside.any():
        found, size = wide[outside][0], np.broadcast_to(extent, wide.shape)[outside][0]
        raise OutsideError(f"index {found} is outside of an axis of {size}")
    return [place.astype(np.int32)]


register(Operator("check_indices", _compute_check_indices, _evaluate_check_indices, "opaque"))
