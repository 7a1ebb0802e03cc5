"""Operators whose output sizes depend on the data: the places of nonzero elements, the distinct
rows, the boxes that overlap no better one.

A result of unknown size is as large as it can be, and a further output is the number of its rows;
`first` (shape.py) cuts it to that size. These kernels are serial loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from .. import te
from ..ir import Dim, Expr, For, Let, Stmt, Var, const, expr, is_const, not_, seq
from ..te import Tensor
from .heap import Heap, first_by
from .loops import each, levels_of, nest, number, put, where
from .radix import RadixSort, digit_bits, key
from .registry import Array, Attrs, Operator, register, require

# ---------------------------------------------------------------------------------------- nonzero


def _compute_nonzero(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Index tuples int64[most, rank] of the nonzero elements, in order; and their number,
    int64[]."""
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
            return where(not_(ins[0][index].equal(zero)), *found, put(count, (), at + 1))

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


# ----------------------------------------------------------------------------------------- unique


def _compute_unique(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The distinct rows of x [n, m]: where each first occurs, which one each row of x is, how often
    each occurs, all int64[n], and their number, int64[]. NaNs equal each other, and come last.

    attrs: sorted (rows in sorted order, else in the order of first occurrence). Rows are sorted by
    one column after the other, the last column first, so that equal rows are neighbours.
    """
    (x,) = inputs
    require(x.ndim == 2, f"unique: of {x.ndim} dimensions")
    n, m = x.shape
    bits = digit_bits(n)

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        # Distinct rows are numbered in sorted order: `met` and `often` have this order, and `rank`
        # is the place of each in the output. differs: whether a row differs from the one before it
        # in `order`.
        places, inverse, counts, count, met, often, order, other, rank, differs, *own = outs
        values, state = own
        sort, total = RadixSort(order, other, values, state, expr(n), bits), number(count)

        def counted(p: Var) -> Stmt:
            i, before = order[p], order[te.maximum(p - 1, 0)]

            def element(k: Var) -> Stmt:
                a, b = (key(ins[0][row, k]) for row in (i, before))
                return where(not_(a.equal(b)), put(differs, (0,), 1))

            added = (put(met, (total,), i), put(often, (total,), 0), put(count, (), total + 1))
            return seq(
                (
                    put(differs, (0,), te.select(p.equal(0), const(1), const(0))),
                    each("k", m, element),
                    where(differs[0] > 0, *added),
                    put(often, (total - 1,), often[total - 1] + 1),
                    put(inverse, (i,), total - 1),
                )
            )

        def placed(to: Expr, which: Expr) -> tuple[Stmt, ...]:
            there = put(places, (to,), met[which]), put(counts, (to,), often[which])
            return (put(rank, (which,), to), *there)

        def first(i: Var) -> Stmt:
            """The first of equal rows gets the next place."""
            which = number(inverse, i)
            place = (*placed(differs[0], which), put(differs, (0,), differs[0] + 1))
            return where(met[which].equal(i), *place)

        def in_order(p: Var) -> Stmt:
            return where(p < total, *placed(p, p))

        nothing = each("z", n, lambda p: seq((put(places, (p,), 0), put(counts, (p,), 0))))
        return seq(
            (
                put(count, (), 0),
                each("i", n, lambda i: put(order, (i,), i)),
                each("c", m, lambda c: sort.by(lambda i: ins[0][i, m - 1 - c])),
                each("p", n, counted),
                nothing,
                put(differs, (0,), 0),
                each("f", n, in_order if attrs["sorted"] else first),
                each("j", n, lambda j: put(inverse, (j,), rank[number(inverse, j)])),
            )
        )

    made: list[Tensor] = te.extern(
        [(n,), (n,), (n,), (), *[(n,)] * 5, (1,), (1 << bits,), (3,)], [x], body,
        name="unique", dtype=[*["int64"] * 4, *["int32"] * 8],
    )  # fmt: skip
    return made[:4]


def _ordered(x: Array) -> Array:
    """Integers in the order of x, for floats: zeros are equal, as are NaNs, which come last."""
    if x.dtype.kind != "f":
        return x
    whole = np.dtype(f"i{x.itemsize}")
    bits, most = (x + x.dtype.type(0)).view(whole), np.iinfo(whole).max  # -0 + 0 is 0
    signed = bits ^ ((bits >> (8 * x.itemsize - 1)) & most)
    return np.where(np.isnan(x), most, signed)


def _evaluate_unique(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x = _ordered(inputs[0])
    found, first, inverse, often = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    order = np.arange(len(found)) if attrs["sorted"] else np.argsort(first)
    rank = np.argsort(order)
    places, counts = np.zeros((2, len(x)), np.int64)
    places[: len(found)], counts[: len(found)] = first[order], often[order]
    return [places, rank[inverse.reshape(-1)], counts, np.array(len(found), np.int64)]


# -------------------------------------------------------------------------- non-maximum suppression


LANES = 8  # kept boxes that are compared at once
EDGES = 5  # of a kept box: top, left, bottom, right; and its size


def _compute_suppress(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Boxes [batch, n, 4] that overlap no kept box of a higher score by more than a threshold:
    their (batch, class, box), int64[most, 3], and their number, int64[].

    Inputs: boxes, scores [batch, classes, n], the most boxes of a class, int64[], and the
    thresholds of overlap (IoU) and of scores, float32[]. attrs: centered (boxes are x, y, width,
    height; else two corners, y first, in any order), most. A heap gives the boxes of a class in the
    order of their scores: often the best few are enough.
    """
    boxes, scores, *_ = inputs
    fits = boxes.ndim == 3 and scores.ndim == 3 and is_const(boxes.shape[2], 4)
    require(fits, f"suppress: boxes {list(boxes.shape)}, scores {list(scores.shape)}")
    extent = scores.shape[2]

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        boxes, scores, limit, overlap, least = ins
        # at: where the class begins, whether a box is covered, how many boxes are left. kept: edges
        # and sizes of the kept boxes of the class. hits: whether one of them covers the box.
        chosen, count, at, keys, places, state, kept, hits = outs
        heap = Heap(keys, places, state, expr(extent), levels_of(extent), first_by(largest=True))

        def corners(n: Expr, i: Expr) -> tuple[Expr, Expr, Expr, Expr]:
            a, b, c, d = (boxes[n, i, k] for k in range(4))
            if attrs["centered"]:
                return a - c / 2, b - d / 2, a + c / 2, b + d / 2
            return te.minimum(a, c), te.minimum(b, d), te.maximum(a, c), te.maximum(b, d)

        def covered(best: Sequence[Expr], k: Var) -> Stmt:
            """Compares LANES kept boxes with the best one that is left."""
            lane = Var("lane")
            j = k * LANES + lane
            a, b, c, d, size = best
            e, f, g, h, other = (kept[edge, j] for edge in range(EDGES))
            across = te.maximum(te.minimum(c, g) - te.maximum(a, e), 0.0)
            down = te.maximum(te.minimum(d, h) - te.maximum(b, f), 0.0)
            both = across * down
            more = te.all_of(j < number(count) - at[0], both > overlap[()] * (size + other - both))
            hit = put(hits, (lane,), te.select(more, const(1), hits[lane]))
            return For(lane, const(LANES), "vectorized", hit)

        def of_class(index: tuple[Var, ...]) -> Stmt:
            n, of = index

            def candidate(i: Var) -> Stmt:
                score = scores[n, of, i]
                left = put(at, (2,), at[2] + 1)
                return where(score > least[()], *heap.hold(at[2], (score, i)), left)

            def best(_: Var) -> Stmt:
                i, total = places[0], number(count)
                wanted = te.all_of(
                    at[2] > 0,
                    (total - at[0]).astype("int64") < limit[()],
                    total < attrs["most"],
                )

                a, b, c, d = corners(n, i)
                edges = [
                    Var(name, boxes.dtype) for name in ("top", "left", "bottom", "right", "size")
                ]
                own = (a, b, c, d, (c - a) * (d - b))
                found = [put(chosen, (total, d), v) for d, v in enumerate((n, of, i))]
                keep = [put(kept, (edge, total - at[0]), v) for edge, v in enumerate(edges)]
                tried = seq(
                    (
                        each("clear", LANES, lambda lane: put(hits, (lane,), 0)),
                        each("k", (total - at[0] + LANES - 1) // LANES, partial(covered, edges)),
                        put(at, (1,), reduce(te.maximum, (hits[lane] for lane in range(LANES)))),
                        where(at[1].equal(0), *found, *keep, put(count, (), total + 1)),
                    )
                )
                for edge, value in zip(edges, own, strict=True):
                    tried = Let(edge, value, tried)
                return where(
                    wanted, tried, heap.without_first(at[2], "next"), put(at, (2,), at[2] - 1)
                )

            return seq(
                (
                    put(at, (0,), number(count)),
                    put(at, (2,), 0),
                    each("i", extent, candidate),
                    heap.made(at[2], "h"),
                    each("t", extent, best),
                )
            )

        return seq((put(count, (), 0), nest(scores.shape[:2], of_class)))

    made: list[Tensor] = te.extern(
        [
            (attrs["most"], 3), (), (3,), (extent + 1,), (extent + 1,), (3,),
            (EDGES, extent + LANES), (LANES,),
        ],
        list(inputs), body, name="suppress",
        dtype=["int64", "int64", "int32", scores.dtype, "int32", "int32", boxes.dtype, "int32"],
    )  # fmt: skip
    return made[:2]


def _evaluate_suppress(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    boxes, scores, limit, overlap, least = inputs
    order = np.argsort(-scores, -1, kind="stable")
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (
        (a - b / 2, a + b / 2) if attrs["centered"] else (np.minimum(a, b), np.maximum(a, b))
    )
    found: list[tuple[int, int, int]] = []
    for n, c in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for i in order[n, c]:
            if len(kept) >= limit or len(found) + len(kept) == attrs["most"]:
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


for _op in (
    Operator("nonzero", _compute_nonzero, _evaluate_nonzero, "opaque"),
    Operator("suppress", _compute_suppress, _evaluate_suppress, "opaque"),
    Operator("unique", _compute_unique, _evaluate_unique, "opaque"),
):
    register(_op)
