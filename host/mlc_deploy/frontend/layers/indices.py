"""Indices that are run-time values. A model whose index lies outside of its axis is refused when it
runs, as onnxruntime, LiteRT and PyTorch do (docs/reference/indices.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.nodes import Constant, Value
from ...ir import Dim
from ...ops import evaluate
from ...ops.indices import OutsideError
from ...ops.shape import normal_axis
from ..node import Node, shape_of


def checked(n: Node, index: Value, extents: Sequence[Dim], from_end: bool = True) -> Value:
    """Indices of axes of these extents: one for all, or one for each element of a tuple. A run ends
    with an error where one lies outside. from_end: those below 0 count from the end."""
    if isinstance(index, Constant) and _lie_inside(index, extents, from_end):
        return index
    return n.emit("check_indices", index, extents=tuple(extents), from_end=from_end)


def _lie_inside(index: Constant, extents: Sequence[Dim], from_end: bool) -> bool:
    """Whether they do in every run."""
    if not all(isinstance(extent, int) for extent in extents):
        return not index.value.size
    try:
        evaluate("check_indices", (index.value,), {"extents": extents, "from_end": from_end})
    except OutsideError:
        return False
    return True


def gather(n: Node, x: Value, index: Value, axis: int, from_end: bool = True) -> Value:
    axis = normal_axis("gather", axis, len(shape_of(x)))
    return n.emit("gather", x, checked(n, index, [shape_of(x)[axis]], from_end), axis=axis)


def gather_elements(n: Node, x: Value, index: Value, axis: int, from_end: bool = True) -> Value:
    axis = normal_axis("gather_elements", axis, len(shape_of(x)))
    own = checked(n, index, [shape_of(x)[axis]], from_end)
    return n.emit("gather_elements", x, own, axis=axis)


def gather_nd(n: Node, x: Value, index: Value, batch_dims: int, from_end: bool = True) -> Value:
    own = _tuples(n, index, shape_of(x)[batch_dims:], from_end)
    return n.emit("gather_nd", x, own, batch_dims=batch_dims)


def scatter_elements(
    n: Node, x: Value, index: Value, updates: Value, axis: int, reduction: str
) -> Value:
    axis = normal_axis("scatter_elements", axis, len(shape_of(x)))
    own = checked(n, index, [shape_of(x)[axis]])
    return n.emit("scatter_elements", x, own, updates, axis=axis, reduction=reduction)


def scatter_nd(
    n: Node, x: Value, index: Value, updates: Value, reduction: str, from_end: bool = True
) -> Value:
    own = _tuples(n, index, shape_of(x), from_end)
    return n.emit("scatter_nd", x, own, updates, reduction=reduction)


def _tuples(n: Node, index: Value, extents: Sequence[Dim], from_end: bool) -> Value:
    """Index tuples, checked against the first extents. The operator refuses tuples that are longer,
    or of unknown length."""
    size: Any = shape_of(index)[-1] if shape_of(index) else 0
    if not isinstance(size, int) or not 0 < size <= len(extents):
        return index
    return checked(n, index, extents[:size], from_end)
