"""A decoder returns only the logits of the last token, so its last layer computes no other row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir import Dim, is_const
from ..ops import operator
from .dims import same_dim
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite


def last_rows(function: Function) -> Function:
    """row(f(x))   =>   f(row(x)), for layers, reshapes and elementwise calls f"""
    return rewrite(function, (_of_elementwise, _of_reshape, _of_layer))


def _axis(call: Call) -> int | None:
    """The axis along which a slice takes one element, if it cuts no other axis."""
    if call.op != "slice":
        return None
    shape, taken = call.args[0].type.shape, call.attrs["shape"]
    cut = [d for d, (n, size) in enumerate(zip(taken, shape, strict=True)) if not _same(n, size)]
    return cut[0] if len(cut) == 1 and is_const(taken[cut[0]], 1) else None


def _same(a: Dim, b: Dim) -> bool:
    return same_dim(a, b)


def _row(graph: Rewriting, x: Value, axis: int, begin: Dim) -> Value:
    shape = x.type.shape
    return graph.emit(
        "slice", x, begin=tuple(begin if d == axis else 0 for d in range(len(shape))),
        step=(1,) * len(shape), shape=tuple(1 if d == axis else n for d, n in enumerate(shape)),
    )  # fmt: skip


def _inner(graph: Rewriting, call: Call) -> tuple[int, Call] | None:
    """(the axis of a slice, the call before it), if nothing else reads the call's result."""
    axis = _axis(call)
    if axis is None or not graph.once(call.args[0]):
        return None
    made = graph.binding(call.args[0])
    inner = made.call if made is not None else None
    return (axis, inner) if isinstance(inner, Call) else None


def _of_elementwise(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """slice(f(x, y))   =>   f(slice(x), slice(y))"""
    found = _inner(graph, call)
    if found is None or operator(found[1].op).pattern != "elementwise":
        return None
    axis, inner = found
    rank, extent = len(out.type.shape), call.args[0].type.shape[axis]

    def part(x: Value) -> Value:
        own = axis - rank + len(x.type.shape)
        whole = own >= 0 and _same(x.type.shape[own], extent)
        return _row(graph, x, own, call.attrs["begin"][axis]) if whole else x

    return graph.emit(inner.op, *map(part, inner.args), **inner.attrs)


def _of_reshape(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """slice(reshape(x))   =>   reshape(slice(x)), where the reshape keeps the axis"""
    found = _inner(graph, call)
    if found is None or found[1].op != "reshape":
        return None
    axis, inner = found
    (x,) = inner.args
    to, of = call.args[0].type.shape, x.type.shape
    for own, extent in enumerate(of):
        before = _count(of[:own])
        if _same(extent, to[axis]) and before is not None and before == _count(to[:axis]):
            row = _row(graph, x, own, call.attrs["begin"][axis])
            return graph.emit("reshape", row, shape=out.type.shape)
    return None


def _count(extents: Sequence[Dim]) -> int | None:
    known = [n for n in extents if isinstance(n, int)]
    return math.prod(known) if len(known) == len(extents) else None


def _of_layer(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """slice(x * w)   =>   slice(x) * w"""
    found = _inner(graph, call)
    if found is None or found[1].op not in ("dense", "dense_blocks", "matmul"):
        return None
    axis, inner = found
    x, w, *rest = inner.args
    rows = len(out.type.shape) - 2
    weights = isinstance(w, Constant) or graph.call(w, "dequantize", "transpose") is not None
    if (
        axis != rows
        or len(x.type.shape) != rows + 2
        or not weights
        or inner.attrs.get("transpose_a")
    ):
        return None
    row = _row(graph, x, axis, call.attrs["begin"][axis])
    return graph.emit(inner.op, row, w, *rest, **inner.attrs)
