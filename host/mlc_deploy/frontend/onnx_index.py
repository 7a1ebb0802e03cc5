"""Converters of operators that index by data, or that comparisons with indices express."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import Dim, same_dim
from ..ops.shape import normal_axis
from .extents import product, simplified
from .layers.indices import checked, gather_elements, gather_nd, scatter_elements, scatter_nd
from .layers.shapes import (
    counted_rows,
    expand,
    from_front,
    iota,
    nonzero,
    reshape,
    rows,
    select,
    top_k,
    vector_along,
    with_axis,
    within,
)
from .node import shape_of
from .onnx_node import Converter, OnnxNode

# What is left out of a suppression: the most of a class, and the thresholds of covering and scores.
SUPPRESSION = ((0, "int64"), (0.0, "float32"), (float("-inf"), "float32"))


def _gather_elements(n: OnnxNode) -> Any:
    return gather_elements(n, n.input(0), n.input(1), n.axis(0))


def _scatter_elements(n: OnnxNode) -> Any:
    x, index, updates = (n.input(k) for k in range(3))
    return scatter_elements(n, x, index, updates, n.axis(0), n.attr("reduction", "none"))


def _gather_nd(n: OnnxNode) -> Any:
    return gather_nd(n, n.input(0), n.input(1), n.attr("batch_dims", 0))


def _scatter_nd(n: OnnxNode) -> Any:
    x, index, updates = (n.input(k) for k in range(3))
    return scatter_nd(n, x, index, updates, n.attr("reduction", "none"))


def _compress(n: OnnxNode) -> Any:
    """The elements where a condition holds. Their number is the output's extent."""
    x = n.input(0)
    if n.attr("axis", None) is None:
        x = reshape(n, x, (math.prod(n.shape()),))
    axis = n.axis(0, len(shape_of(x)))
    chosen = n.input(1)
    if isinstance(chosen, Constant):
        (places,) = np.nonzero(chosen.value.reshape(-1))
        return n.emit("gather", x, n.constant(places, "int64"), axis=axis)
    extent = shape_of(x)[axis]
    count = shape_of(chosen)[0]
    if isinstance(extent, int) and isinstance(count, int) and count > extent:
        chosen = rows(n, chosen, 0, extent)
    found = nonzero(n, chosen)
    return n.emit("gather", x, reshape(n, found, shape_of(found)[:1]), axis=axis)


def _unique(n: OnnxNode) -> Any:
    """The different elements, or parts along an axis; their number is the outputs' extent."""
    x, axis = n.input(0), n.attr("axis", None)
    if axis is None:
        x, axis = reshape(n, x, (math.prod(n.shape()),)), 0
    axis = normal_axis(n.op, axis, len(shape_of(x)))
    order = [axis, *(a for a in range(len(shape_of(x))) if a != axis)]
    front = n.emit("transpose", x, axes=order)
    extent, *rest = shape_of(front)
    flat = reshape(n, front, (extent, math.prod(rest)))
    in_order = bool(n.attr("sorted", 1))
    first, inverse, often, count = n.emit_several("unique", flat, sorted=in_order)
    places = counted_rows(n, first, count, "different")
    own = shape_of(places)[0]
    counts = n.emit("first", often, count, extent=own)
    return [n.emit("gather", x, places, axis=axis), places, inverse, counts]


def _top_k(n: OnnxNode) -> Any:
    k = n.dims(1, "K")[0] if n.opset >= 10 else n.attr("k")
    return top_k(n, n.input(0), n.extents.own(n, k), n.axis(-1), bool(n.attr("largest", 1)))


def _non_max_suppression(n: OnnxNode) -> Any:
    """Of every class the boxes with the highest scores that no better one covers too much."""
    boxes, scores = n.input(0), n.input(1)
    given = [n.optional(number) for number in (2, 3, 4)]
    limit, overlap, least = (
        n.constant(default, dtype) if value is None else reshape(n, value, ())
        for value, (default, dtype) in zip(given, SUPPRESSION, strict=True)
    )
    most = n.extents.largest(product(scores.type.shape))
    if isinstance(limit, Constant):
        per_class = max(0, min(int(limit.value), n.extents.largest(scores.type.shape[2])))
        most = per_class * n.extents.largest(product(scores.type.shape[:2]))
    centered = bool(n.attr("center_point_box", 0))
    chosen, count = n.emit_several(
        "suppress", boxes, scores, limit, overlap, least, centered=centered, most=most
    )
    return counted_rows(n, chosen, count, "selected")


def _cumulative(n: OnnxNode) -> Any:
    axis = normal_axis(n.op, n.whole(1, "axis"), len(n.shape()))
    flags = {key: bool(n.attr(key, 0)) for key in ("exclusive", "reverse")}
    return n.emit("cumulative", n.input(0), axis=axis, product=n.op == "CumProd", **flags)


def _hardmax(n: OnnxNode) -> Any:
    """1 at the first of the largest elements, 0 elsewhere. Before opset 13, all dimensions from
    axis on count as one."""
    x, shape = n.input(0), n.shape()
    axis = n.axis(-1 if n.opset >= 13 else 1)
    if n.opset < 13:
        x, axis = reshape(n, x, n.two_dimensional(axis)), 1
    own = shape_of(x)
    place = n.emit("argmax", x, axis=axis, keepdims=True, last=False)
    chosen = n.emit("equal", place, iota(n, own[axis], len(own), axis))
    return reshape(n, n.cast(chosen, x.type.dtype), shape)


def _trilu(n: OnnxNode) -> Any:
    """The elements on one side of the k-th diagonal. k may be data."""
    x, (rows, columns) = n.input(0), n.shape()[-2:]
    k = n.optional(1) or n.constant(0, "int64")
    k = reshape(n, n.cast(k, "int64"), ())
    side = "greater_equal" if n.attr("upper", 1) else "less_equal"
    kept = n.emit(side, _diagonals(n, rows, columns), k)
    return n.emit("where", kept, x, n.constant(0, x.type.dtype))


def _diagonals(n: OnnxNode, rows: Dim, columns: Dim) -> Value:
    """Which diagonal each element of a matrix is on, int64: 0 is the main one."""
    return n.emit("subtract", iota(n, columns, 2, 1), iota(n, rows, 2, 0))


def _eye_like(n: OnnxNode) -> Any:
    diagonals = _diagonals(n, *n.shape())
    on_it = n.emit("equal", diagonals, n.constant(n.attr("k", 0), "int64"))
    return n.cast(on_it, n.dtype_of("dtype", n.dtype()))


def _one_hot(n: OnnxNode) -> Any:
    depth = n.whole(1, "depth")
    places, values = n.cast(n.input(0), "int64"), n.input(2)
    rank = len(shape_of(places)) + 1
    axis = n.axis(-1, rank)
    wide = from_front(n, with_axis(n, places, axis), depth)
    hot = n.emit("equal", wide, iota(n, depth, rank, axis))
    return n.emit("where", hot, select(n, values, 1), select(n, values, 0))


def _reverse_sequence(n: OnnxNode) -> Any:
    """Turns round the first elements of each batch; lengths says how many."""
    x, shape = n.input(0), n.shape()
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    counts = checked(n, n.input(1), [simplified(shape[time] + 1)], from_end=False)
    lengths = vector_along(n, n.cast(counts, "int64"), batch, len(shape))
    t = iota(n, shape[time], len(shape), time)
    turned = n.emit("subtract", n.emit("subtract", lengths, n.constant(1, "int64")), t)
    places = n.emit("where", n.emit("less", t, lengths), turned, t)
    places = expand(n, places, shape)
    return n.emit("gather_elements", x, places, axis=time)


def _tensor_scatter(n: OnnxNode) -> Any:
    """A cache in which the update stands from write_indices[b] on; in mode circular it wraps around
    the end."""
    past, update = n.input(0), n.input(1)
    shape, count = n.shape(0), n.shape(1)
    rank = len(shape)
    axis = n.axis(-2)
    begin = n.optional(2) or n.constant(np.zeros(shape[0]), "int64")
    begin = vector_along(n, begin, 0, rank)
    place = n.emit("subtract", iota(n, shape[axis], rank, axis), begin)
    if n.attr("mode", "linear") == "circular":
        place = n.emit("mod", place, n.constant(shape[axis], "int64"), truncated=False)
    last = count[axis] - 1
    inside = within(n, place, 0, last)
    place = expand(n, n.emit("clip", place, min=0, max=last), shape)
    return n.emit("where", inside, n.emit("gather_elements", update, place, axis=axis), past)


# ---------------------------------------------------------------------------------------- einsum


def _einsum(n: OnnxNode) -> Any:
    """Factors meet two by two, in an order that takes few products: all at once would take a
    product for every combination of all letters."""
    values = n.every()
    terms, result = _explicit(n.attr("equation"), [len(shape_of(v)) for v in values])
    values, terms = _without_ones(n, values, terms)
    for places in _meetings(n, values, terms, result):
        met = [(values.pop(k), terms.pop(k)) for k in sorted(places, reverse=True)][::-1]
        wanted = _kept("".join(t for _, t in met), "".join(terms) + result) if terms else result
        values.append(_contracted(n, [v for v, _ in met], [t for _, t in met], wanted))
        terms.append(wanted)
    return values[0]


def _without_ones(
    n: OnnxNode, values: Sequence[Value], terms: Sequence[str]
) -> tuple[list[Value], list[str]]:
    """The factors without dimensions of 1 whose letter is larger elsewhere: those broadcast."""
    extents = [dict(zip(t, shape_of(v), strict=True)) for t, v in zip(terms, values, strict=True)]
    larger = {c for each in extents for c, extent in each.items() if not _is_one(extent)}
    made, kept = [], []
    for value, term, own in zip(values, terms, extents, strict=True):
        left = [c for c in term if not (_is_one(own[c]) and c in larger)]
        same = len(left) == len(term)
        made.append(value if same else reshape(n, value, [own[c] for c in left]))
        kept.append("".join(left))
    return made, kept


def _is_one(extent: Dim) -> bool:
    return isinstance(extent, int) and extent == 1


def _meetings(
    n: OnnxNode, values: Sequence[Value], terms: Sequence[str], result: str
) -> list[tuple[int, ...]]:
    """Which factors meet, step by step; what they make stands after the others from then on."""
    if len(values) < 3:
        return [tuple(range(len(values)))]
    shapes = [[n.extents.largest(extent) for extent in shape_of(v)] for v in values]
    whole = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    path, _ = np.einsum_path(f"{','.join(terms)}->{result}", *whole, optimize="greedy")
    return list(path[1:])


def _kept(term: str, wanted: str) -> str:
    """The letters of a term that are wanted elsewhere, each once."""
    return "".join(c for c in dict.fromkeys(term) if c in wanted)


def _contracted(n: OnnxNode, values: list[Value], terms: list[str], result: str) -> Value:
    """Two factors are summed over what is theirs alone, and become a matrix product if there is
    more to sum over."""
    if len(values) == 2:
        for k in (0, 1):
            own, other = terms[k], terms[1 - k]
            left = _kept(own, other + result)
            if left != own:
                values[k], terms[k] = n.emit("einsum", values[k], equation=f"{own}->{left}"), left
        product = _as_matmul(n, values, terms, result)
        if product is not None:
            return product
    summed: Value = n.emit("einsum", *values, equation=f"{','.join(terms)}->{result}")
    return summed


def _explicit(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The terms and the result, with letters in the place of ellipses."""
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
        for letter, size in zip(term, shape_of(value), strict=True):
            if not same_dim(sizes.setdefault(letter, size), size):
                return None
    batch = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]
    if not summed:
        return None

    def arranged(value: Value, term: str, groups: Sequence[Sequence[str]]) -> Value:
        order = [term.index(c) for group in groups for c in group]
        value = n.emit("transpose", value, axes=order)
        shape = [math.prod(sizes[c] for c in group) for group in groups]
        return reshape(n, value, shape)

    left = arranged(inputs[0], a, (batch, rows, summed))
    right = arranged(inputs[1], b, (batch, summed, columns))
    letters = [*batch, *rows, *columns]
    y = reshape(n, n.emit("matmul", left, right), [sizes[c] for c in letters])
    return n.emit("transpose", y, axes=[letters.index(c) for c in result])


INDEXING: dict[str, Converter] = {
    "Compress": _compress, "CumProd": _cumulative, "CumSum": _cumulative, "Einsum": _einsum,
    "EyeLike": _eye_like, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "Hardmax": _hardmax, "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot, "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements, "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter, "TopK": _top_k, "Trilu": _trilu, "Unique": _unique,
}  # fmt: skip
