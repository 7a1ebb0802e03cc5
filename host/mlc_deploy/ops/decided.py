"""Operators whose results the data decide: the places of elements that are not zero, the order of
elements, which rows are different, boxes that others do not cover.

A result of unknown size is as large as it can be, with the number of its rows as a second output;
`first` makes a tensor of that size of both (shape.py). These kernels are loops that run in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .. import te
from ..ir import Buffer, Dim, Expr, ExprLike, For, If, Stmt, Store, Var, const, expr, not_, seq
from ..te import Tensor
from .registry import Array, Attrs, Operator, register, require


def each(name: str, extent: ExprLike, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name)
    return For(var, expr(extent), "serial", body(var))


def put(buffer: Buffer, index: Sequence[ExprLike], value: ExprLike) -> Stmt:
    return Store(buffer, tuple(map(expr, index)), expr(value).astype(buffer.dtype))


def _where(condition: Expr, *then: Stmt) -> Stmt:
    return If(condition, seq(then))


def number(buffer: Buffer, *index: ExprLike) -> Expr:
    """An element of integers, as indices are."""
    return buffer[index].astype("int32")


# ---------------------------------------------------------------------------------------- nonzero


def _compute_nonzero(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Index tuples int64[most, rank] of elements that are not zero, in their order; and how many
    there are, int64[]."""
    (x,) = inputs
    require(x.ndim > 0, "nonzero: of a number without dimensions")
    most: Dim = 1
    for extent in x.shape:
        most = most * extent

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        places, count = outs

        def element(index: tuple[Var, ...]) -> Stmt:
            at = number(count)
            found = [put(places, (at, axis), i) for axis, i in enumerate(index)]
            zero = const(False) if x.dtype == "bool" else const(0, x.dtype)
            return _where(not_(ins[0][index].equal(zero)), *found, put(count, (), at + 1))

        return seq((put(count, (), 0), nest(x.shape, element)))

    made: list[Tensor] = te.extern(
        [(most, x.ndim), ()], [x], body, name="nonzero", dtype=["int64", "int64"]
    )
    return made


def _evaluate_nonzero(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    places = np.zeros((x.size, x.ndim), np.int64)
    found = np.argwhere(x)
    places[: len(found)] = found
    return [places, np.array(len(found), np.int64)]


# ------------------------------------------------------------------------------------------- sort


LEVELS = 30  # of runs whose lengths are doubled: indices are int32


def _compute_sort(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Places along the last axis, int64, in the order of their elements; equal ones keep theirs.
    attrs: largest (first). Merges ever longer runs (Knuth, The Art of Computer Programming, 5.2.4).
    """
    (x,) = inputs
    require(x.ndim > 0, "sort: of a number without dimensions")
    *lead, extent = x.shape
    levels = max(extent - 1, 0).bit_length() if isinstance(extent, int) else LEVELS

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        order, runs, at = outs  # at: in both runs, and which of the two rows of `runs` is read

        def row(index: tuple[Var, ...]) -> Stmt:
            def step(width: Expr, t: Var) -> Stmt:
                """Element t of the merged runs of `width` elements."""
                begin = t // (width * 2) * (width * 2)
                middle, end = (te.minimum(begin + width * n, extent) for n in (1, 2))
                a, b, source = at[0], at[1], at[2]
                first, second = (runs[source, te.minimum(n, extent - 1)] for n in (a, b))
                one, other = ins[0][(*index, first)], ins[0][(*index, second)]
                before = other > one if attrs["largest"] else other < one
                later = te.all_of(b < end, te.any_of(a >= middle, before))
                return seq(
                    (
                        _where(t.equal(begin), put(at, (0,), begin), put(at, (1,), middle)),
                        If(
                            later,
                            seq((put(runs, (1 - source, t), second), put(at, (1,), b + 1))),
                            seq((put(runs, (1 - source, t), first), put(at, (0,), a + 1))),
                        ),
                    )
                )

            def merge(level: Var) -> Stmt:
                width = const(1) << level
                turns = each("t", extent, lambda t: step(width, t))
                return _where(width < extent, turns, put(at, (2,), 1 - at[2]))

            return seq(
                (
                    put(at, (2,), 0),
                    each("i", extent, lambda i: put(runs, (0, i), i)),
                    each("level", levels, merge),
                    each("o", extent, lambda i: put(order, (*index, i), runs[at[2], i])),
                )
            )

        return nest(lead, row)

    scratch = ((2, extent), (3,))
    made = te.extern([x.shape, *scratch], [x], body, name="sort", dtype=["int64", "int32", "int32"])
    return [made[0]]


def _evaluate_sort(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    if not attrs["largest"]:
        return [np.argsort(x, -1, kind="stable")]
    return [x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), -1, kind="stable"), -1)]


# ----------------------------------------------------------------------------------------- unique


def _compute_unique(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The different rows of x [n, m], each once: the places where they first stand, for every row
    of x which of them it is, how often each is there, all int64[n], and how many they are, int64[].
    Numbers that are none (NaN) equal each other, and come last.

    attrs: sorted (the rows come in their order, and else as they first stand). Binary insertion
    (Knuth, The Art of Computer Programming, 5.2.1): about n log n comparisons of rows.
    """
    (x,) = inputs
    require(x.ndim == 2, f"unique: of {x.ndim} dimensions")
    n, m = x.shape
    levels = max(n, 1).bit_length() if isinstance(n, int) else LEVELS
    low, high, sign, same = range(4)  # of `at`: a range of `order`, a comparison, the row found

    def less(a: Expr, b: Expr) -> Expr:
        nan = not_(b.equal(b)) if x.dtype.startswith(("float", "bfloat")) else const(False)
        return te.any_of(a < b, te.all_of(nan, a.equal(a)))

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        # Different rows have numbers as they are met: their places in `met`, numbers by the order
        # of their elements in `order`, and where each goes in `rank`.
        places, inverse, counts, count, met, often, order, rank, at = outs

        def compared(i: Var) -> Stmt:
            middle = (at[low] + at[high]) // 2
            other = met[order[middle]]

            def element(k: Var) -> Stmt:
                a, b = ins[0][i, k], ins[0][other, k]
                lower = _where(less(a, b), put(at, (sign,), -1))
                return _where(at[sign].equal(0), lower, _where(less(b, a), put(at, (sign,), 1)))

            return _where(
                at[low] < at[high],
                put(at, (sign,), 0),
                each("k", m, element),
                If(
                    at[sign].equal(0),
                    seq((put(at, (same,), order[middle]), put(at, (low,), at[high]))),
                    If(
                        at[sign] < 0,
                        put(at, (high,), middle),
                        put(at, (low,), middle + 1),
                    ),
                ),
            )

        def row(index: tuple[Var, ...]) -> Stmt:
            (i,) = index
            total = number(count)
            moved = each(
                "s", total - at[low], lambda s: put(order, (total - s,), order[total - s - 1])
            )
            added = (
                moved, put(order, (at[low],), total), put(met, (total,), i),
                put(often, (total,), 1), put(inverse, (i,), total), put(count, (), total + 1),
            )  # fmt: skip
            known = (
                put(inverse, (i,), at[same]), put(often, (at[same],), often[at[same]] + 1)
            )  # fmt: skip
            return seq(
                (
                    put(at, (low,), 0),
                    put(at, (high,), total),
                    put(at, (same,), -1),
                    each("level", levels, lambda _: compared(i)),
                    If(at[same] >= 0, seq(known), seq(added)),
                )
            )

        def placed(p: Var) -> Stmt:
            which = order[p] if attrs["sorted"] else p
            there = (
                put(rank, (which,), p), put(places, (p,), met[which]),
                put(counts, (p,), often[which]),
            )  # fmt: skip
            nothing = seq((put(places, (p,), 0), put(counts, (p,), 0)))
            return If(p < number(count), seq(there), nothing)

        numbered = each("j", n, lambda j: put(inverse, (j,), rank[number(inverse, j)]))
        return seq((put(count, (), 0), nest((n,), row), each("p", n, placed), numbered))

    made: list[Tensor] = te.extern(
        [(n,), (n,), (n,), (), *[(n,)] * 4, (4,)], [x], body, name="unique",
        dtype=[*["int64"] * 4, *["int32"] * 5],
    )  # fmt: skip
    return made[:4]


def _evaluate_unique(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    found, first, inverse, often = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    order = np.arange(len(found)) if attrs["sorted"] else np.argsort(first)
    rank = np.argsort(order)
    places, counts = np.zeros((2, len(x)), np.int64)
    places[: len(found)], counts[: len(found)] = first[order], often[order]
    return [places, rank[inverse.reshape(-1)], counts, np.array(len(found), np.int64)]


# -------------------------------------------------------------------------- non-maximum suppression


def _compute_suppress(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Boxes [batch, n, 4] that no box of a higher score covers by more than a threshold: their
    (batch, class, box), int64[most, 3], and how many there are, int64[].

    Inputs: boxes, scores [batch, classes, n], their places in order, the most of a class, int64[],
    and the thresholds of covering and of scores, float32[]. attrs: centered (boxes are x, y, width,
    height, and else two corners, y first, in any order), most.
    """
    boxes, scores, *_ = inputs
    fits = boxes.ndim == 3 and scores.ndim == 3 and boxes.shape[2] == 4
    require(fits, f"suppress: boxes {list(boxes.shape)}, scores {list(scores.shape)}")

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        boxes, scores, order, limit, overlap, least = ins
        chosen, count, at = outs  # at: where the class begins, whether a box is kept

        def corners(n: Expr, i: Expr) -> tuple[Expr, Expr, Expr, Expr]:
            a, b, c, d = (boxes[n, i, k] for k in range(4))
            if attrs["centered"]:
                return a - c / 2, b - d / 2, a + c / 2, b + d / 2
            return te.minimum(a, c), te.minimum(b, d), te.maximum(a, c), te.maximum(b, d)

        def covers(n: Expr, i: Expr, j: Expr) -> Expr:
            (a, b, c, d), (e, f, g, h) = corners(n, i), corners(n, j)
            across = te.maximum(te.minimum(c, g) - te.maximum(a, e), 0.0)
            down = te.maximum(te.minimum(d, h) - te.maximum(b, f), 0.0)
            both = across * down
            union = (c - a) * (d - b) + (g - e) * (h - f) - both
            return both > overlap[()] * union

        def of_class(index: tuple[Var, ...]) -> Stmt:
            n, c = index

            def candidate(t: Var) -> Stmt:
                i = number(order, n, c, t)
                total = number(count)
                free = te.all_of(
                    scores[n, c, i] > least[()],
                    (total - at[0]).astype("int64") < limit[()],
                    total < attrs["most"],
                )

                def against(k: Var) -> Stmt:
                    kept = number(chosen, at[0] + k, 2)
                    return _where(te.all_of(at[1] > 0, covers(n, i, kept)), put(at, (1,), 0))

                found = [put(chosen, (total, d), v) for d, v in enumerate((n, c, i))]
                return _where(
                    free,
                    put(at, (1,), 1),
                    each("k", total - at[0], against),
                    _where(at[1] > 0, *found, put(count, (), total + 1)),
                )

            return seq((put(at, (0,), number(count)), each("t", order.shape[2], candidate)))

        return seq((put(count, (), 0), nest(scores.shape[:2], of_class)))

    made: list[Tensor] = te.extern(
        [(attrs["most"], 3), (), (2,)], list(inputs), body, name="suppress",
        dtype=["int64", "int64", "int32"],
    )  # fmt: skip
    return made[:2]


def _evaluate_suppress(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    boxes, scores, order, limit, overlap, least = inputs
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (
        (a - b / 2, a + b / 2) if attrs["centered"] else (np.minimum(a, b), np.maximum(a, b))
    )
    found: list[tuple[int, int, int]] = []
    for n, c in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for i in order[n, c]:
            if len(kept) == limit or len(found) + len(kept) == attrs["most"]:
                break
            if scores[n, c, i] > least and not _covered(low[n], high[n], i, kept, overlap):
                kept.append(int(i))
        found += [(n, c, i) for i in kept]
    chosen = np.zeros((attrs["most"], 3), np.int64)
    chosen[: len(found)] = np.array(found, np.int64).reshape(-1, 3)
    return [chosen, np.array(len(found), np.int64)]


def _covered(low: Array, high: Array, i: int, kept: Sequence[int], overlap: Array) -> bool:
    sides = np.minimum(high[i], high[kept]) - np.maximum(low[i], low[kept])
    both = np.prod(np.maximum(sides, 0), -1)
    sizes = np.prod(high - low, -1)
    return bool((both > overlap * (sizes[i] + sizes[kept] - both)).any())


def nest(
    extents: Sequence[ExprLike], body: Callable[[tuple[Var, ...]], Stmt], name: str = "n"
) -> Stmt:
    """Loops around a body, which gets their variables, called by `name` and numbers."""

    def level(index: tuple[Var, ...]) -> Stmt:
        if len(index) == len(extents):
            return body(index)
        return each(f"{name}{len(index)}", extents[len(index)], lambda i: level((*index, i)))

    return level(())


for _op in (
    Operator("nonzero", _compute_nonzero, _evaluate_nonzero, "opaque"),
    Operator("sort", _compute_sort, _evaluate_sort, "opaque"),
    Operator("suppress", _compute_suppress, _evaluate_suppress, "opaque"),
    Operator("unique", _compute_unique, _evaluate_unique, "opaque"),
):
    register(_op)
