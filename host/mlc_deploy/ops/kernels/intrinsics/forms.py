"""Operand forms: which element along k, and which weight, each lane of a microkernel takes.

On every machine data come in blocks of eight along k, with the eight of a row side by side. Two
rows are an operand of one `smmla`, of four `sdot` by lane, or of two `vpdpbusd`. One row is an
operand of one `smull`, or of four `pmaddwd`, which take two elements each, widened to int16.
Weights are packed in the order in which a tile reads them.

One stage states the sums in the kernel's form. A second makes vectors of columns of these sums,
where the form has none. Both live in registers. The result takes the rows that are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from .... import te
from ....ir import Expr, const
from ....schedule import Schedule
from ....schedule.tensor_intrin import get_intrin
from ....te import IterVar
from ...quantize import BLOCK
from ...tile import compute_in_registers, own_loops, schedule_intrin_sum, unroll
from .microkernels import Microkernel

TILE, VECTORS = "int8_tile", "int8_vectors"  # the names of the stages
UNROLLED = 6  # iterations, at most, of a reduction that is unrolled as a whole with 16 registers
SPATIAL = {"squares": 4, "quads": 3, "pairs": 2, "windows": 3}  # dimensions of a tile in TILE


@dataclass(frozen=True, slots=True)
class Place:
    """Where one product takes its operands: the row; the element along k, of the kernel's `depth`;
    the tile of weights within a block of columns; and the weight's place in that tile."""

    row: Expr
    k: Expr
    tile: Expr
    weight: tuple[Expr, ...]


def compute_sums(
    kernel: Microkernel,
    lead: Sequence[int],
    rows: int,
    product: Callable[[Sequence[Expr], Place], Expr],
    over: Sequence[IterVar],
) -> Callable[..., Any]:
    """The sums, int32 [*lead, rows, BLOCK], as a function of an index.

    product(index in lead, place): one product. over: the reductions beside the `depth` elements
    that the kernel takes.
    """
    n = len(lead)
    groups = (rows + kernel.rows - 1) // kernel.rows

    def tile(shape: Sequence[int], at: Callable[..., Place], *inner: IterVar) -> te.Tensor:
        """A stage of sums, also over `inner`. at(index after lead): the place of a product."""

        def element(*i: Expr) -> Expr:
            return te.sum(product(i[:n], at(*i[n:])), (*over, *inner))

        found: te.Tensor = te.compute((*lead, *shape), element, name=TILE)
        return found

    match kernel.form:
        case "quads":
            k, half = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 2), "half")

            def quad(group: Expr, row: Expr, column: Expr) -> Place:
                weight = (half.var, column, k.var)
                return Place(group * kernel.rows + row, half * 4 + k, const(0), weight)

            quads = tile((groups, kernel.rows, BLOCK), quad, half, k)
            return lambda *i: quads[(*i[:n], i[n] // kernel.rows, i[n] % kernel.rows, i[-1])]
        case "pairs":
            pair, k = te.reduce_axis((0, BLOCK // 2), "pair"), te.reduce_axis((0, 2), "k")

            def of_pairs(row: Expr, column: Expr) -> Place:
                return Place(row, pair * 2 + k, const(0), (pair.var, column, k.var))

            pairs = tile((rows, BLOCK), of_pairs, pair, k)
            return lambda *i: pairs[i]
        case "squares":
            k = te.reduce_axis((0, BLOCK), "k")

            def square(group: Expr, pair: Expr, row: Expr, column: Expr) -> Place:
                return Place(group * 2 + row, k.var, const(0), (pair * 2 + column, k.var))

            squares = tile((groups, BLOCK // 2, 2, 2), square, k)

            def vector(*i: Expr) -> Any:
                group, row, pair, column = i[n:]
                return squares[(*i[:n], group, pair, row, column)]

            vectors = te.compute((*lead, groups, 2, BLOCK // 2, 2), vector, name=VECTORS)
            return lambda *i: vectors[(*i[:n], i[n] // 2, i[n] % 2, i[-1] // 2, i[-1] % 2)]
    eights, half = te.reduce_axis((0, kernel.depth // 8), "eights"), te.reduce_axis((0, 2), "half")

    def part(row: Expr, four: Expr, column: Expr, p: Expr) -> Place:
        k = eights * 8 + p * 2 + half
        return Place(row, k, four, (column, k))

    parts = tile((rows, BLOCK // 4, 4, 4), part, eights, half)
    p = te.reduce_axis((0, 4), "p")
    fours = te.compute(
        (*lead, rows, BLOCK // 4, 4), lambda *i: te.sum(parts[(*i, p)], p), name=VECTORS
    )
    return lambda *i: fours[(*i[:-1], i[-1] // 4, i[-1] % 4)]


# --------------------------------------------------------------------------------------- schedule


def begin_with_bias(
    sch: Schedule, result: str, kernel: Microkernel, columns: Mapping[int, str]
) -> None:
    """Schedule.fuse_reduction_epilogue for a bias that depends on the column alone.

    columns: which iterations of block `result`, by number, are the "block" of columns, its "lane",
    or the "column", both in one. int32 wraps, so the order of additions does not matter. Sums in
    parts begin with zeros: a bias in one of the parts costs as much as adding it.
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


def in_registers(sch: Schedule, kernel: Microkernel, row: str, lane: str) -> list[str]:
    """The loops over a tile's rows and a block's columns, cut into registers and lanes where a
    register holds whole rows."""
    if kernel.lanes <= BLOCK:
        return [row, lane]
    rows, row = sch.split(row, [None, kernel.lanes // BLOCK])
    return [rows, sch.fuse(row, lane)]


def schedule_sums(
    sch: Schedule, kernel: Microkernel, outer: str, inner: Sequence[str], taps: int, target: Target
) -> None:
    """Schedules the stages of compute_sums inside loop `outer` of the result, the last loop around
    a tile. inner: the tile's loops, the last over columns. taps: the extent of the innermost
    reduction, which is unrolled."""
    if kernel.vectors:
        compute_in_registers(sch, VECTORS, outer)
    around, at = outer, ""
    if kernel.form == "parts":
        spatial, over = own_loops(sch, VECTORS, outer)
        *rows, around, at = spatial
        sch.reorder(around, *rows, at, *over)
        sch.unroll(around)
    compute_in_registers(sch, TILE, around)
    steps = partial(_steps, kernel, taps, target)
    schedule_intrin_sum(sch, TILE, around, get_intrin(kernel.intrin), steps, together=True)
    match kernel.form:
        case "parts":
            sch.tensorize(at, kernel.vectors)
            unroll(sch, rows)
        case "squares":
            (*spatial, row, pair, column), _ = own_loops(sch, VECTORS, outer)
            four, pair = sch.split(pair, [None, 2])
            sch.reorder(four, row, pair, column)
            sch.tensorize(row, kernel.vectors)
            unroll(sch, [*spatial, four])
    unroll(sch, inner[:-1])
    sch.vectorize(inner[-1])
    if kernel.form == "parts" and (model := scheduling_model("parts", target)):
        sch.tune_for(model)


def _steps(kernel: Microkernel, taps: int, target: Target, turns: int) -> int:
    """How many iterations of the reduction are unrolled. More iterations hide the loop's own
    instructions, but LLVM has to keep more in registers."""
    if kernel.form == "pairs":
        return 4
    if kernel.data == "uint8":
        return 1  # an iteration is work enough: scripts/bench/seconds.py, with 1 to 3 iterations
    if kernel.form != "parts":
        # If three or four iterations were all unrolled, weights would fill the registers.
        few = kernel.form == "quads" and 2 < turns <= 4
        return 2 * taps if taps > 1 else max(1, turns // 2) if few else 4
    if target.vector_registers < 32:
        return turns if turns <= UNROLLED else taps
    return 4 if taps == 1 else taps if taps <= 3 else 1
