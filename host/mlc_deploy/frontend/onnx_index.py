"""Converters of operators whose indices are data, and of those that index arithmetic expresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Value
from ..ops.shape import normal_axis
from .onnx_file import dtype_name
from .onnx_node import Converter, OnnxNode, limited, static_shape
from .onnx_quantize import cast


def _axis(n: OnnxNode, default: int = 0, rank: int | None = None) -> int:
    return normal_axis(n.op, n.attr("axis", default), len(n.shape()) if rank is None else rank)


def iota(n: OnnxNode, extent: int, rank: int, axis: int, dtype: str = "int64") -> Value:
    """0, 1, … along an axis of `rank` dimensions."""
    shape = [extent if d == axis else 1 for d in range(rank)]
    return n.constant(np.arange(limited(extent, "an axis")).reshape(shape), dtype)


def _gather_elements(n: OnnxNode) -> Any:
    return n.emit("gather_elements", n.input(0), n.input(1), axis=_axis(n))


def _gather_nd(n: OnnxNode) -> Any:
    return n.emit("gather_nd", n.input(0), n.input(1), batch_dims=n.attr("batch_dims", 0))


def _scatter_elements(n: OnnxNode) -> Any:
    inputs = (n.input(k) for k in range(3))
    reduction = n.attr("reduction", "none")
    return n.emit("scatter_elements", *inputs, axis=_axis(n), reduction=reduction)


def _scatter_nd(n: OnnxNode) -> Any:
    inputs = (n.input(k) for k in range(3))
    return n.emit("scatter_nd", *inputs, reduction=n.attr("reduction", "none"))


def _compress(n: OnnxNode) -> Any:
    """The elements where a condition holds, whose number is the output's shape."""
    x = n.input(0)
    if n.attr("axis", None) is None:
        x = n.emit("reshape", x, shape=(math.prod(n.shape()),))
    axis = _axis(n, 0, len(static_shape(x)))
    (places,) = np.nonzero(n.known(1, "condition").reshape(-1))
    return n.emit("gather", x, n.constant(places, "int64"), axis=axis)


def _top_k(n: OnnxNode) -> Any:
    k = int(n.known(1, "K").item()) if n.opset >= 10 else n.attr("k")
    x, axis = n.input(0), _axis(n, -1)
    places = n.emit("top_k", x, axis=axis, k=k, largest=bool(n.attr("largest", 1)))
    return [n.emit("gather_elements", x, places, axis=axis), places]


def _cumulative(n: OnnxNode) -> Any:
    axis = normal_axis(n.op, int(n.known(1, "axis").item()), len(n.shape()))
    flags = {key: bool(n.attr(key, 0)) for key in ("exclusive", "reverse")}
    return n.emit("cumulative", n.input(0), axis=axis, product=n.op == "CumProd", **flags)


def _hardmax(n: OnnxNode) -> Any:
    """1 at the first of the largest elements, 0 elsewhere. Before opset 13, over all dimensions
    from axis on."""
    x, shape = n.input(0), n.shape()
    axis = _axis(n, -1 if n.opset >= 13 else 1)
    if n.opset < 13:
        x = n.emit("reshape", x, shape=(math.prod(shape[:axis]), math.prod(shape[axis:])))
        axis = 1
    own = static_shape(x)
    place = n.emit("argmax", x, axis=axis, keepdims=True, last=False)
    chosen = n.emit("equal", place, iota(n, own[axis], len(own), axis))
    return n.emit("reshape", cast(n, chosen, x.type.dtype), shape=shape)


def _trilu(n: OnnxNode) -> Any:
    """The elements on one side of the k-th diagonal, which may be known only when it runs."""
    x, (rows, columns) = n.input(0), n.shape()[-2:]
    offset = n.constant(np.arange(columns) - np.arange(rows)[:, None], "int64")
    k = n.optional(1) or n.constant(0, "int64")
    k = n.emit("reshape", cast(n, k, "int64"), shape=())
    kept = n.emit("greater_equal" if n.attr("upper", 1) else "less_equal", offset, k)
    return n.emit("where", kept, x, n.constant(0, x.type.dtype))


def _eye_like(n: OnnxNode) -> Any:
    code = n.attr("dtype", 0)
    dtype = dtype_name(code, "the result", n.place) if code else n.dtype()
    rows, columns = n.shape()
    limited(rows * columns, "a matrix")
    return n.constant(np.eye(rows, columns, n.attr("k", 0)), dtype)


def _one_hot(n: OnnxNode) -> Any:
    depth = int(n.known(1, "depth").item())
    places, values = cast(n, n.input(0), "int64"), n.input(2)
    shape = static_shape(places)
    axis = _axis(n, -1, len(shape) + 1)
    wide = n.emit("reshape", places, shape=(*shape[:axis], 1, *shape[axis:]))
    below = n.emit("less", wide, n.constant(0, "int64"))
    turned = n.emit("add", wide, n.constant(depth, "int64"))
    wide = n.emit("where", below, turned, wide)
    hot = n.emit("equal", wide, iota(n, depth, len(shape) + 1, axis))
    off, on = (
        n.emit("reshape", n.emit("slice", values, begin=[k], step=[1], shape=[1]), shape=())
        for k in (0, 1)
    )
    return n.emit("where", hot, on, off)


def _reverse_sequence(n: OnnxNode) -> Any:
    """Each batch's first elements, as many as its length says, back to front."""
    x, shape = n.input(0), n.shape()
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    rank = len(shape)
    along = [shape[batch] if d == batch else 1 for d in range(rank)]
    lengths = n.emit("reshape", cast(n, n.input(1), "int64"), shape=along)
    t = iota(n, shape[time], rank, time)
    turned = n.emit("subtract", n.emit("subtract", lengths, n.constant(1, "int64")), t)
    places = n.emit("where", n.emit("less", t, lengths), turned, t)
    places = n.emit("broadcast_to", places, shape=shape)
    return n.emit("gather_elements", x, places, axis=time)


def _tensor_scatter(n: OnnxNode) -> Any:
    """A cache whose elements from write_indices[b] on are the update's; in mode circular, around
    its end."""
    past, update = n.input(0), n.input(1)
    shape, count = n.shape(0), n.shape(1)
    rank = len(shape)
    axis = _axis(n, -2)
    begin = n.optional(2) or n.constant(np.zeros(shape[0]), "int64")
    begin = n.emit("reshape", begin, shape=(shape[0], *(1,) * (rank - 1)))
    place = n.emit("subtract", iota(n, shape[axis], rank, axis), begin)
    if n.attr("mode", "linear") == "circular":
        place = n.emit("mod", place, n.constant(shape[axis], "int64"), truncated=False)
    zero = n.constant(0, "int64")
    inside = n.emit(
        "logical_and",
        n.emit("greater_equal", place, zero),
        n.emit("less", place, n.constant(count[axis], "int64")),
    )
    place = n.emit("clip", place, min=0, max=count[axis] - 1)
    place = n.emit("broadcast_to", place, shape=shape)
    return n.emit("where", inside, n.emit("gather_elements", update, place, axis=axis), past)


# ---------------------------------------------------------------------------------------- einsum


def _einsum(n: OnnxNode) -> Any:
    """Two factors are a matrix product where their letters allow it."""
    inputs = [n.input(k) for k in range(len(n.inputs))]
    terms, result = _explicit(n.attr("equation"), [len(static_shape(v)) for v in inputs])
    if len(inputs) == 2 and all(len(set(t)) == len(t) for t in terms):
        product = _as_matmul(n, inputs, terms, result)
        if product is not None:
            return product
    return n.emit("einsum", *inputs, equation=f"{','.join(terms)}->{result}")


def _explicit(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The terms and the result, ellipses as letters of their own."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{len(ranks)} inputs for '{equation}'")
    used = set(equation)
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used]
    hidden = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    most = max(hidden)
    dots = "".join(spare[:most])
    full = [t.replace("...", dots[most - own :]) for t, own in zip(terms, hidden, strict=True)]
    if not arrow:
        letters = "".join(full)
        once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots)
        result = "..." * any("..." in t for t in terms) + "".join(once)
    return full, result.replace("...", dots)


def _as_matmul(
    n: OnnxNode, inputs: Sequence[Value], terms: Sequence[str], result: str
) -> Value | None:
    a, b = terms
    sizes: dict[str, int] = {}
    for term, value in zip(terms, inputs, strict=True):
        for letter, size in zip(term, static_shape(value), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    batch = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]
    if not summed or any(c not in result for c in (*rows, *columns)):
        return None

    def arranged(value: Value, term: str, groups: Sequence[Sequence[str]]) -> Value:
        order = [term.index(c) for group in groups for c in group]
        value = n.emit("transpose", value, axes=order)
        shape = [math.prod(sizes[c] for c in group) for group in groups]
        flat: Value = n.emit("reshape", value, shape=shape)
        return flat

    left = arranged(inputs[0], a, (batch, rows, summed))
    right = arranged(inputs[1], b, (batch, summed, columns))
    letters = [*batch, *rows, *columns]
    y = n.emit("reshape", n.emit("matmul", left, right), shape=[sizes[c] for c in letters])
    order = [letters.index(c) for c in result]
    final: Value = n.emit("transpose", y, axes=order)
    return final


INDEXING: dict[str, Converter] = {
    "Compress": _compress,
    "CumProd": _cumulative,
    "CumSum": _cumulative,
    "Einsum": _einsum,
    "EyeLike": _eye_like,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Hardmax": _hardmax,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Trilu": _trilu,
}
