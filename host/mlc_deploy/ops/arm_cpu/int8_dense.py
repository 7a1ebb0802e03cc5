"""Matrix products of int8 with packed weights: rows of the data are what pixels are to conv2d.

Where the level takes two rows at once, or wider numbers, each task copies its rows into blocks of
eight along k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..quantize import product
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue
from .int8 import (
    BLOCK,
    NARROW,
    Level,
    Place,
    best_tile,
    chosen,
    compute_sums,
    level_of,
    schedule_sums,
    tune,
)
from .int8_bias import begin_with_bias

COPY = "int8_rows"


def _level(rows: int, depth: int, attrs: Attrs, target: Target) -> Level | None:
    return level_of(target, rows, depth, bool(attrs.get(NARROW)))


def _tiles(level: Level) -> str:
    """A tile of the weights in the letters of a matrix."""
    return level.weights.replace("o", "n").replace("i", "k")


def dense_layout(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a dense of int8 whose weights are packed; None where the target has no
    instructions for it, or blocks of eight do not divide k and the channels."""
    x, w = types[:2]
    static = all(isinstance(n, int) for t in (x, w) for n in t.shape)
    if not static or {x.dtype, w.dtype} != {"int8"} or "kernel_layout" in attrs:
        return None
    rows, depth = (int(n) for n in x.shape)  # type: ignore[arg-type]
    channels = int(w.shape[0 if attrs["transpose_b"] else 1])  # type: ignore[arg-type]
    level = _level(rows, depth, attrs, target)
    if level is None or depth % BLOCK or channels % BLOCK:
        return None
    source = "NK" if attrs["transpose_b"] else "KN"
    packed = {"kernel_layout": f"NK{_tiles(level)}", "source_layout": source, "channels": channels}
    return {**packed, NARROW: bool(attrs.get(NARROW))}


def takes_packed(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the attributes are those that dense_layout gives."""
    x, w = inputs[:2]
    if {x.dtype, w.dtype} != {"int8"} or "kernel_layout" not in attrs:
        return False
    level = _level(int(x.shape[0]), int(x.shape[1]), attrs, target)  # type: ignore[arg-type]
    return level is not None and attrs["kernel_layout"] == f"NK{_tiles(level)}"


def _copied(level: Level) -> bool:
    return level.rows > 1 or level.data != "int8"


def compute_dense(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """[M, N] of int32."""
    x, w = inputs
    rows, depth = (int(n) for n in x.shape)  # type: ignore[arg-type]
    level = _level(rows, depth, attrs, target)
    assert level is not None
    c = te.reduce_axis((0, depth // level.depth), "c")
    tiles = BLOCK // level.channels
    data = x
    if _copied(level):
        whole = -(-rows // level.rows) * level.rows

        def copied(c: Expr, i: Expr, k: Expr) -> Expr:
            value = te.if_then_else(i < rows, x[i, c * BLOCK + k], 0)
            return value.astype(level.data)

        data = te.compute((depth // BLOCK, whole, BLOCK), copied, name=COPY)

    def one(lead: Sequence[Expr], at: Place) -> Expr:
        in_row = (at.pixel, c * level.depth + at.channel)
        value = data[c, at.pixel, at.channel] if _copied(level) else data[in_row]
        return product(value, w[(lead[0] * tiles + at.tile, c, *at.weight)], "int32")

    sums = compute_sums(level, (attrs["channels"] // BLOCK,), rows, one, (c,))
    shape = (rows, attrs["channels"])
    return [te.compute(shape, lambda i, j: sums(j // BLOCK, i, j % BLOCK), name="dense")]


def schedule_dense(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    rows, depth = (int(n) for n in func.buffers[0].shape)  # type: ignore[arg-type]
    level = _level(rows, depth, attrs, target)
    assert level is not None
    blocks = attrs["channels"] // BLOCK
    tile = chosen(sch, level, best_tile(level, rows, blocks, 1, target), rows, blocks)
    result = inline_epilogue(sch, "dense")
    begin_with_bias(sch, result, level, {1: "channel"})
    i, j = sch.get_loops(result)
    i, row = sch.split(i, [None, tile.pixels])
    j, vectors, lane = sch.split(j, [None, tile.blocks, BLOCK])
    task, outer = (i, j) if _copied(level) and rows > 1 else (j, i)
    sch.reorder(task, outer, vectors, row, lane)
    schedule_sums(sch, level, outer, [vectors, row, lane], 1, target)
    if _copied(level):
        sch.compute_at(COPY, task)
        sch.vectorize(sch.get_loops(COPY)[-1])
    sch.parallel(task)
    tune(sch, level, target)
    return sch.func
