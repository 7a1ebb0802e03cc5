"""Matrix products of int8 where both matrices are data: attention, and layers without constants.

The second matrix comes with its rows along k (transpose_b). It is packed in every run as weights
are at compile time, and the rows of the first are copied into blocks where the level takes several
at once, or wider numbers. Both are filled up with zeros to whole blocks, so that any size will do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, const
from ...schedule import Schedule
from ...te import Tensor
from ..elementwise import broadcast_shape
from ..quantize import product
from ..registry import Attrs
from ..tile import inline_epilogue
from .int8 import BLOCK, Level, Place, best_tile, compute_sums, level_of, schedule_sums, tune

COPY, PACKED = "int8_rows", "int8_columns"
WIDE = 16  # bytes that are loaded together
LEAST = 1 << 9  # products, below which packing is not worth while


def takes_matmul(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether both are int8, of known sizes, the second with its rows along k."""
    a, b = inputs
    static = all(isinstance(n, int) for t in (a, b) for n in t.shape)
    if not static or {a.dtype, b.dtype} != {"int8"} or not attrs.get("transpose_b"):
        return False
    rows, depth = _rows(a)
    columns, _ = _rows(b)
    return rows * depth * columns >= LEAST and _level(rows, target) is not None


def _rows(t: Tensor) -> tuple[int, int]:
    return int(t.shape[-2]), int(t.shape[-1])  # type: ignore[arg-type]


def _level(rows: int, target: Target) -> Level | None:
    """The level; where it takes few channels, one that takes as many as are loaded together."""
    level = level_of(target, rows, BLOCK, narrow=False)
    if level is None or level.form != "parts":
        return level
    return replace(level, intrin=f"{level.intrin}.{WIDE}", weights=f"4o{WIDE}i", depth=WIDE)


def _copied(level: Level, depth: int) -> bool:
    return level.rows > 1 or level.data != "int8" or depth % level.depth != 0


def _in_tile(layout: str, index: Sequence[Expr]) -> tuple[Expr, Expr]:
    """(output, input) channel in a tile of weights at an index, by the tile's layout: "2i8o4i"."""
    place: dict[str, Expr] = {"o": const(0), "i": const(0)}
    for (size, letter), at in zip(re.findall(r"(\d+)([oi])", layout), index, strict=True):
        place[letter] = place[letter] * int(size) + at
    return place["o"], place["i"]


def compute_matmul(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """int32 [..., M, N] of [..., M, K] and [..., N, K]; the leading dimensions broadcast."""
    a, b = inputs
    (rows, depth), (columns, _) = _rows(a), _rows(b)
    level = _level(rows, target)
    assert level is not None
    blocks, tiles = -(-depth // level.depth), BLOCK // level.channels
    sizes = [int(size) for size, _ in re.findall(r"(\d+)([oi])", level.weights)]

    def column(*i: Expr) -> Expr:
        tile, block = i[b.ndim - 2], i[b.ndim - 1]
        o, k = _in_tile(level.weights, i[b.ndim :])
        o, k = tile * level.channels + o, block * level.depth + k
        limits = (o, columns, BLOCK), (k, depth, level.depth)
        inside = [at < n for at, n, by in limits if n % by]
        value = b[(*i[: b.ndim - 2], o, k)]
        return te.if_then_else(te.all_of(*inside), value, 0) if inside else value

    many = -(-columns // BLOCK) * tiles
    packed = te.compute((*b.shape[:-2], many, blocks, *sizes), column, name=PACKED)
    data = a
    if _copied(level, depth):
        whole = -(-rows // level.rows) * level.rows

        def copied(*i: Expr) -> Expr:
            *lead, block, row, k = i
            k = block * level.depth + k
            limits = (row, rows, level.rows), (k, depth, level.depth)
            inside = [at < n for at, n, by in limits if n % by]
            value = a[(*lead, row, k)]
            value = te.if_then_else(te.all_of(*inside), value, 0) if inside else value
            return value.astype(level.data)

        data = te.compute((*a.shape[:-2], blocks, whole, level.depth), copied, name=COPY)
    c = te.reduce_axis((0, blocks), "c")
    batch = broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]])

    def one(lead: Sequence[Expr], at: Place) -> Expr:
        *outer, block = lead
        weight = (block * tiles + at.tile, c.var, *at.weight)
        own = (at.pixel, c * level.depth + at.channel)
        place = (c.var, at.pixel, at.channel) if data is not a else own
        value = data[(*_leading(a, outer), *place)]
        return product(value, packed[(*_leading(b, outer), *weight)], "int32")

    lead = (*(int(n) for n in batch), -(-columns // BLOCK))  # type: ignore[arg-type]
    sums = compute_sums(level, lead, rows, one, (c,))

    def element(*i: Expr) -> Expr:
        *outer, row, column = i
        found: Expr = sums(*outer, column // BLOCK, row, column % BLOCK)
        return found

    return [te.compute((*batch, rows, columns), element, name="matmul")]


def _leading(t: Tensor, index: Sequence[Expr]) -> list[Expr]:
    """The index of the matrix, where leading dimensions broadcast."""
    own = index[len(index) - (t.ndim - 2) :]
    return [const(0) if n == 1 else i for n, i in zip(t.shape[:-2], own, strict=True)]


def schedule_matmul(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    result = inline_epilogue(sch, "matmul")
    *_, rows, columns = (int(i.extent) for i in sch.block(result).iters)  # type: ignore[call-overload]
    level = _level(rows, target)
    assert level is not None
    tile = best_tile(level, rows, -(-columns // BLOCK), 1, target)
    *batch, i, j = sch.get_loops(result)
    i, row = sch.split(i, [None, tile.pixels])
    j, vectors, lane = sch.split(j, [None, tile.blocks, BLOCK])
    sch.reorder(*batch, j, i, vectors, row, lane)
    task = sch.fuse(*batch, j) if batch else j
    schedule_sums(sch, level, i, [vectors, row, lane], 1, target)
    for copy in (PACKED, COPY):
        if copy in sch.get_blocks():
            first, second, *_, lane = sch.get_loops(copy)
            sch.vectorize(lane)
            sch.parallel(sch.fuse(first, second))
    sch.parallel(task)
    tune(sch, level, target)
    return sch.func
