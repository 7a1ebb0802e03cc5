"""Contractions: rows times columns, summed up over k. Dense layers, matrix products and
convolutions are instances. A *window* says which element of the data a row reads: its own for a
matrix, that of an index map for a convolution. A *source* says whether data are read where they
are, copied, or packed at run time.

A *tile* of sums stays in registers: some neighbouring rows against some blocks of columns. Floats
are summed up in vectors of columns, which LLVM finds instructions for (ops/tile.py). Sums of int8
are stated in the form of an instruction (intrinsics/forms.py), and scheduled here: all stages but
the result, which takes the rows that are wanted, live in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ...schedule import Schedule
from ...schedule.tensor_intrin import get_intrin
from ..plan import Plan
from ..quantize import BLOCK
from ..tile import schedule_intrin_sum, unroll
from .intrinsics.forms import SPATIAL, TILE, VECTORS
from .intrinsics.microkernels import Microkernel

UNROLLED = 6  # turns of a reduction up to which 16 registers are enough to unroll it as a whole

# ------------------------------------------------------------------------------------------ tiles


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of the data against blocks of columns."""

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Work:
    """What tiles are cut from: neighbouring rows, and blocks of columns. taps: neighbours of a row
    that a turn of the reduction reads. spare: registers that are to be left free."""

    rows: int
    blocks: int
    taps: int = 1
    spare: int = 0


def best_tile(kernel: Microkernel, work: Work, target: Target) -> Tile:
    """The tile that takes fewest instructions; of equal ones the one of fewest rows."""
    most = target.vector_registers
    rows = range(kernel.rows, min(work.rows, most) + kernel.rows, kernel.rows)
    tiles = [
        tile
        for tile in (Tile(n, m) for n in rows for m in range(1, kernel.most_blocks + 1))
        if work.blocks % tile.blocks == 0 and _registers(kernel, tile, work) <= most
    ]
    fallback = Tile(kernel.rows, 1)
    return min(
        tiles, key=lambda t: (round(cost(kernel, t, work), 6), t.rows, t.blocks), default=fallback
    )


def chosen(sch: Schedule, kernel: Microkernel, tile: Tile, work: Work) -> Tile:
    """The tile; a tuner tries others, of up to twice as many sums."""
    most = 2 * tile.rows * tile.blocks
    fit = (
        n
        for n in range(1, kernel.most_blocks + 1)
        if work.blocks % n == 0 and n * kernel.rows <= most
    )
    blocks = sch.choice(tile.blocks, sorted({tile.blocks, *fit}))
    rows = range(kernel.rows, min(work.rows + kernel.rows - 1, most // blocks) + 1, kernel.rows)
    return Tile(sch.choice(min(tile.rows, rows[-1]), rows), blocks)


def cost(kernel: Microkernel, tile: Tile, work: Work) -> float:
    """Instructions of a turn of the reduction, for all rows and blocks of columns."""
    whole, rest = divmod(work.rows, tile.rows)
    turns = whole * _turn(kernel, tile.rows, tile.blocks, work.taps)
    turns += _turn(kernel, rest, tile.blocks, work.taps) if rest else 0
    return turns / tile.blocks * work.blocks


def _turn(kernel: Microkernel, rows: int, blocks: int, taps: int) -> float:
    """Instructions of a turn of the reduction, for one tile."""
    rows, count = -(-rows // kernel.rows) * kernel.rows, kernel.instructions
    loaded = rows + taps - 1 if kernel.shares else rows * taps
    return taps * (count.each * rows + count.block) * blocks + count.row * loaded + count.once


def _registers(kernel: Microkernel, tile: Tile, work: Work) -> float:
    held = kernel.sharing if kernel.sharing and work.taps > 2 else kernel.registers
    return held.of(tile.rows, tile.blocks) + work.spare


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction(Plan):
    """kernel: what sums are computed with. tile: what stays in registers."""

    kernel: Microkernel
    tile: Tile


# ------------------------------------------------------------------------------------ sums of int8


def begin_with_bias(
    sch: Schedule, result: str, kernel: Microkernel, columns: Mapping[int, str]
) -> None:
    """Schedule.fuse_reduction_epilogue for a bias that depends on the column alone.

    columns: by number, the iterations of block `result` that are "block", "lane" (the block of
    columns, and which of it) or "column" (both in one). int32 wraps, so the order of additions does
    not matter. Sums that are kept in parts begin with zeros: a bias in one of the parts costs as
    much as adding it.
    """
    if kernel.form == "parts":
        return
    spatial = [n for n, i in enumerate(sch.block(TILE).iters) if i.kind == "spatial"]
    block = spatial[1] if len(spatial) - SPATIAL[kernel.form] > 1 else spatial[0]
    lane = [spatial[-3], 2, spatial[-1], 1] if kernel.form == "squares" else [spatial[-1], 1]
    is_what = {"block": [block, 1], "lane": lane, "column": [block, BLOCK, *lane]}
    read = VECTORS if kernel.vectors else None
    at = [[n, *is_what[what]] for n, what in columns.items()]
    sch.fuse_reduction_epilogue(TILE, result, read, at)


def schedule_sums(
    sch: Schedule, kernel: Microkernel, outer: str, inner: Sequence[str], taps: int, target: Target
) -> None:
    """Schedules the stages of compute_sums inside loop `outer` of the result, the last around its
    tile, whose loops are `inner`; the last of them is over columns. taps: the extent of the
    innermost reduction, which is unrolled."""
    if kernel.vectors:
        sch.compute_at(VECTORS, outer)
        sch.set_scope(VECTORS, 0, "local")
    around, at = outer, ""
    if kernel.form == "parts":
        spatial, over = _own_loops(sch, VECTORS, outer)
        *rows, around, at = spatial
        sch.reorder(around, *rows, at, *over)
        sch.unroll(around)
    sch.compute_at(TILE, around)
    sch.set_scope(TILE, 0, "local")
    steps = partial(_steps, kernel, taps, target)
    schedule_intrin_sum(sch, TILE, around, get_intrin(kernel.intrin), steps)
    match kernel.form:
        case "parts":
            sch.tensorize(at, kernel.vectors)
            unroll(sch, rows)
        case "squares":
            (*spatial, row, pair, column), _ = _own_loops(sch, VECTORS, outer)
            four, pair = sch.split(pair, [None, 2])
            sch.reorder(four, row, pair, column)
            sch.tensorize(row, kernel.vectors)
            unroll(sch, [*spatial, four])
    unroll(sch, inner[:-1])
    sch.vectorize(inner[-1])
    if kernel.form == "parts" and (model := scheduling_model("parts", target)):
        sch.tune_for(model)


def _steps(kernel: Microkernel, taps: int, target: Target, turns: int) -> int:
    """How many turns of the reduction are unrolled: more of them hide the loop's own instructions,
    and are more for LLVM to keep in registers."""
    if kernel.form == "pairs":
        return 4
    if kernel.form != "parts":
        return 2 * taps if taps > 1 else 4
    if target.vector_registers < 32:
        return turns if turns <= UNROLLED else taps
    return 4 if taps == 1 else taps if taps <= 3 else 1


def _own_loops(sch: Schedule, block: str, around: str) -> tuple[list[str], list[str]]:
    """A block's loops inside loop `around`: (spatial, reductions)."""
    reduced = {i.binding for i in sch.block(block).iters if i.kind == "reduce"}
    loops: list[str] = list(sch.get_loops(block))
    loops = loops[loops.index(around) + 1 :]
    over = [n for n in loops if sch.loop(n).var in reduced]
    return [n for n in loops if n not in over], over
