"""Matrix products of int8 with packed weights: rows of the data are what pixels are to conv2d.

Where the level takes two rows at once, or wider numbers, each task copies its rows into blocks of
eight along k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..plan import NARROW, Packing, Plan
from ..quantize import BLOCK, product
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue
from .gemm import dense_fields
from .int8 import Level, Place, Tile, best_tile, chosen, compute_sums, level_of, schedule_sums, tune
from .int8_bias import begin_with_bias
from .shapes import static

COPY = "int8_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseInt8(Plan):
    name = "dense_int8"

    channels: int
    level: Level
    tile: Tile

    @property
    def copied(self) -> bool:
        return self.level.rows > 1 or self.level.data != "int8"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[M, N] of int32."""
        x, w = inputs
        (rows, depth), level = self.types[0].sizes, self.level
        c = te.reduce_axis((0, depth // level.depth), "c")
        tiles = BLOCK // level.channels
        data = x
        if self.copied:
            whole = -(-rows // level.rows) * level.rows

            def copied(c: Expr, i: Expr, k: Expr) -> Expr:
                value = te.if_then_else(i < rows, x[i, c * BLOCK + k], 0)
                return value.astype(level.data)

            data = te.compute((depth // BLOCK, whole, BLOCK), copied, name=COPY)

        def one(lead: Sequence[Expr], at: Place) -> Expr:
            in_row = (at.pixel, c * level.depth + at.channel)
            value = data[c, at.pixel, at.channel] if self.copied else data[in_row]
            return product(value, w[(lead[0] * tiles + at.tile, c, *at.weight)], "int32")

        sums = compute_sums(level, (self.channels // BLOCK,), rows, one, (c,))
        shape = (rows, self.channels)
        return [te.compute(shape, lambda i, j: sums(j // BLOCK, i, j % BLOCK), name="dense")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        rows, level = self.types[0].sizes[0], self.level
        tile = chosen(sch, level, self.tile, rows, self.channels // BLOCK)
        result = inline_epilogue(sch, "dense")
        begin_with_bias(sch, result, level, {1: "channel"})
        i, j = sch.get_loops(result)
        i, row = sch.split(i, [None, tile.pixels])
        j, vectors, lane = sch.split(j, [None, tile.blocks, BLOCK])
        task, outer = (i, j) if self.copied and rows > 1 else (j, i)
        sch.reorder(task, outer, vectors, row, lane)
        schedule_sums(sch, level, outer, [vectors, row, lane], 1, self.target)
        if self.copied:
            sch.compute_at(COPY, task)
            sch.vectorize(sch.get_loops(COPY)[-1])
        sch.parallel(task)
        tune(sch, level, self.target)
        return sch.func


def plan_dense(types: Sequence[TensorType], attrs: Attrs, target: Target) -> DenseInt8 | None:
    """Where the target has instructions for it, and blocks of eight divide k and the channels."""
    x, w = types[:2]
    if "kernel_layout" in attrs or not static(x, w) or {x.dtype, w.dtype} != {"int8"}:
        return None
    (rows, depth), source = x.sizes, "NK" if attrs["transpose_b"] else "KN"
    channels = w.sizes[0 if attrs["transpose_b"] else 1]
    level = level_of(target, rows, depth, bool(attrs.get(NARROW)))
    if level is None or depth % BLOCK or channels % BLOCK:
        return None
    weights = level.weights.replace("o", "n").replace("i", "k")  # in the letters of a matrix
    return DenseInt8(
        **dense_fields(types, attrs, target, Packing(source, f"NK{weights}"), channels),
        channels=channels,
        level=level,
        tile=best_tile(level, rows, channels // BLOCK, 1, target),
    )
