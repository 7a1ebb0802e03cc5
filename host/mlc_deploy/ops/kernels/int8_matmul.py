"""Matrix products of int8 where both matrices are data: attention, and layers without constants.

The second matrix comes with its rows along k (transpose_b). It is packed in every run as weights
are at compile time, and the rows of the first are copied into blocks where the level takes several
at once, or wider numbers. Both are filled up with zeros to whole blocks, so that any size will do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, const
from ...schedule import Schedule
from ...te import Tensor
from ..elementwise import broadcast_shape
from ..plan import Plan, stated
from ..quantize import BLOCK, product
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue
from .int8 import Level, Place, Tile, best_tile, compute_sums, level_of, schedule_sums, tune
from .shapes import static

COPY, PACKED = "int8_rows", "int8_columns"
WIDE = 16  # bytes that are loaded together
LEAST = 1 << 9  # products, below which packing is not worth while


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulInt8(Plan):
    name = "matmul_int8"

    batch: tuple[int, ...]
    level: Level
    tile: Tile

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """int32 [..., M, N] of [..., M, K] and [..., N, K]; the leading dimensions broadcast."""
        a, b = inputs
        level = self.level
        (rows, depth), columns = self.types[0].sizes[-2:], self.types[1].sizes[-2]
        blocks, tiles = -(-depth // level.depth), BLOCK // level.channels
        sizes = [int(size) for size, _ in re.findall(r"(\d+)([oi])", level.weights)]

        def column(*i: Expr) -> Expr:
            tile, block = i[b.ndim - 2], i[b.ndim - 1]
            o, k = _in_tile(level.weights, i[b.ndim :])
            o, k = tile * level.channels + o, block * level.depth + k
            value = b[(*i[: b.ndim - 2], o, k)]
            return _or_zero(value, (o, columns, BLOCK), (k, depth, level.depth))

        many = -(-columns // BLOCK) * tiles
        packed = te.compute((*b.shape[:-2], many, blocks, *sizes), column, name=PACKED)
        data = a
        if level.rows > 1 or level.data != "int8" or depth % level.depth != 0:
            whole = -(-rows // level.rows) * level.rows

            def copied(*i: Expr) -> Expr:
                *lead, block, row, k = i
                k = block * level.depth + k
                value = _or_zero(
                    a[(*lead, row, k)], (row, rows, level.rows), (k, depth, level.depth)
                )
                return value.astype(level.data)

            data = te.compute((*a.shape[:-2], blocks, whole, level.depth), copied, name=COPY)
        c = te.reduce_axis((0, blocks), "c")

        def one(lead: Sequence[Expr], at: Place) -> Expr:
            *outer, block = lead
            weight = (block * tiles + at.tile, c.var, *at.weight)
            own = (at.pixel, c * level.depth + at.channel)
            place = (c.var, at.pixel, at.channel) if data is not a else own
            value = data[(*_leading(a, outer), *place)]
            return product(value, packed[(*_leading(b, outer), *weight)], "int32")

        sums = compute_sums(level, (*self.batch, -(-columns // BLOCK)), rows, one, (c,))

        def element(*i: Expr) -> Expr:
            *outer, row, column = i
            found: Expr = sums(*outer, column // BLOCK, row, column % BLOCK)
            return found

        return [te.compute((*self.batch, rows, columns), element, name="matmul")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        *batch, i, j = sch.get_loops(inline_epilogue(sch, "matmul"))
        i, row = sch.split(i, [None, self.tile.pixels])
        j, vectors, lane = sch.split(j, [None, self.tile.blocks, BLOCK])
        sch.reorder(*batch, j, i, vectors, row, lane)
        task = sch.fuse(*batch, j) if batch else j
        schedule_sums(sch, self.level, i, [vectors, row, lane], 1, self.target)
        for copy in (PACKED, COPY):
            if copy in sch.get_blocks():
                first, second, *_, lane = sch.get_loops(copy)
                sch.vectorize(lane)
                sch.parallel(sch.fuse(first, second))
        sch.parallel(task)
        tune(sch, self.level, self.target)
        return sch.func


def plan_matmul(types: Sequence[TensorType], attrs: Attrs, target: Target) -> MatmulInt8 | None:
    """Of two matrices of data, the second with its rows along k."""
    a, b = types
    if not static(a, b) or {a.dtype, b.dtype} != {"int8"} or not attrs.get("transpose_b"):
        return None
    (rows, depth), columns = a.sizes[-2:], b.sizes[-2]
    level = level_of(target, rows, BLOCK, narrow=False)
    if level is None or rows * depth * columns < LEAST:
        return None
    if level.form == "parts":  # as many channels as are loaded together
        level = replace(level, intrin=f"{level.intrin}.{WIDE}", weights=f"4o{WIDE}i", depth=WIDE)
    batch = broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]])
    return MatmulInt8(
        op="matmul",
        types=tuple(types),
        stated=stated(attrs),
        target=target,
        batch=tuple(int(n) for n in batch),  # type: ignore[arg-type]
        level=level,
        tile=best_tile(level, rows, -(-columns // BLOCK), 1, target),
    )


def _or_zero(value: Expr, *limits: tuple[Expr, int, int]) -> Expr:
    """value where each (index, size, block) lies inside; zeros fill up the last block."""
    inside = [at < size for at, size, block in limits if size % block]
    return te.if_then_else(te.all_of(*inside), value, 0) if inside else value


def _in_tile(layout: str, index: Sequence[Expr]) -> tuple[Expr, Expr]:
    """(output, input) channel in a tile of weights at an index, by the tile's layout: "2i8o4i"."""
    place: dict[str, Expr] = {"o": const(0), "i": const(0)}
    for (size, letter), at in zip(re.findall(r"(\d+)([oi])", layout), index, strict=True):
        place[letter] = place[letter] * int(size) + at
    return place["o"], place["i"]


def _leading(t: Tensor, index: Sequence[Expr]) -> list[Expr]:
    """The index of the matrix, where leading dimensions broadcast."""
    own = index[len(index) - (t.ndim - 2) :]
    return [const(0) if n == 1 else i for n, i in zip(t.shape[:-2], own, strict=True)]
