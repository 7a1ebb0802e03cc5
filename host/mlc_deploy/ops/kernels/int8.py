"""Sums of products of int8: how each level of CPU multiplies them, stated and scheduled.

Data come in blocks of eight channels, the eight of a pixel side by side, on every level: two
pixels are an operand of `smmla`, and of four `sdot` by lane; one is an operand of `smull`, and of
four `pmaddwd`, two channels at a time, widened to int16. Weights are packed in the order in which a
tile reads them, eight input channels at a time as well.

Stages are the sums in the form that the level's instruction keeps them in (squares of two pixels
by two channels, vectors of channels, or four parts of each sum), vectors of channels where
that is another form, and the result, which takes the pixels that are wanted. All but the last live
in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, const
from ...schedule import Schedule
from ...schedule.tensor_intrin import get_intrin
from ...te import IterVar
from ..quantize import BLOCK
from ..tile import schedule_intrin_sum, unroll

UNROLLED = 6  # turns of a reduction, that few registers are no reason against unrolling
TURN = 4  # instructions of a turn of the reduction beside loads and multiplications
BLOCKS_OF_TILE = {"squares": (1,), "quads": (1, 2, 4), "pairs": tuple(range(1, 9)), "parts": (1,)}
TILE, VECTORS = "int8_tile", "int8_vectors"  # the names of the stages


@dataclass(frozen=True, slots=True)
class Level:
    """How a CPU sums up products of int8.

    intrin adds the products of `depth` input channels; vectors makes vectors of output channels of
    what sums are kept in. rows: how many neighbouring pixels an intrinsic takes. channels: how many
    output channels a tile of packed weights has; weights: such a tile, as tiles of a layout, `o`
    being output and `i` input channels. rate: multiply-accumulates per executed instruction of a
    convolution, copies aside, as scripts/bench/kernels.py counts them on a Cortex-A72, A76 and i8mm
    with LLVM 22; x86-64's follow from times beside those of float32. lanes: how many output
    channels make a vector of sums. data: the dtype of data as intrin takes them; others than int8
    are copied in any case.
    """

    form: Literal["squares", "quads", "pairs", "parts", "windows"]
    intrin: str
    rows: int
    channels: int
    weights: str
    rate: float
    vectors: str = ""
    depth: int = BLOCK
    lanes: int = 4
    data: str = "int8"


SQUARES = Level("squares", "aarch64.smmla", 2, 8, "8o8i", 20.0, "aarch64.zip.squares")
QUADS = Level("quads", "aarch64.sdot.rows2", 2, 8, "2i8o4i", 12.0)
QUADS_OF_ONE = replace(QUADS, intrin="aarch64.sdot.rows1", rows=1)
PAIRS, PAIRS_OF_SSE2 = (
    Level("pairs", f"x86.pmaddwd.{n}", 1, 8, "4i8o2i", rate, lanes=n, data="int16")
    for n, rate in ((8, 20.0), (4, 6.0))
)
PARTS = {  # by machine, and whether the sum of two products is an int16
    (machine, is_narrow): Level("parts", intrin, 1, 4, f"4o{depth}i", rate, vectors, depth)
    for machine, vectors, one, two in (
        ("aarch64", "aarch64.addp.fours", "aarch64.smull.sadalp", "aarch64.smlal.sadalp"),
        ("arm", "arm.vpadd.fours", "arm.vmull.vpadal", "arm.vmlal.vpadal"),
    )
    for is_narrow, intrin, depth, rate in ((False, one, BLOCK, 2.6), (True, two, 2 * BLOCK, 3.6))
}


def level_of(target: Target, pixels: int, channels: int, narrow: bool) -> Level | None:
    """The best level that the target has for so many pixels in a row and input channels;
    None where it has none. narrow: whether weights are within ±127, so that the sum of two products
    is an int16."""
    if target.kind == "c" or not target.vector_registers:
        return None
    if target.arch == "x86_64":
        return PAIRS if target.has("avx2") else PAIRS_OF_SSE2
    if "arm_cpu" not in target.keys:
        return None
    if target.arch == "aarch64" and target.has("i8mm") and pixels > 1:
        return SQUARES
    if target.arch == "aarch64" and target.has("dotprod"):
        return QUADS if pixels > 1 else QUADS_OF_ONE
    return PARTS[target.arch, narrow and channels % 16 == 0]


# ------------------------------------------------------------------------------------------ tiles


@dataclass(frozen=True, slots=True)
class Tile:
    """What stays in registers: pixels against blocks of output channels (half of one where the
    level's tiles are)."""

    pixels: int
    blocks: int


def best_tile(level: Level, pixels: int, blocks: int, taps: int, target: Target) -> Tile:
    """The tile that takes fewest instructions for a row of pixels, of so many blocks of output
    channels. taps: neighbours in the row that a turn of the reduction reads."""
    most = target.vector_registers
    tiles = [
        Tile(n, m)
        for n in range(level.rows, pixels + level.rows, level.rows)
        for m in BLOCKS_OF_TILE[level.form]
        if blocks % m == 0 and _registers(level, n, m, taps, most) <= most
    ]
    return min(tiles, key=lambda t: (row_cost(level, t, pixels, taps), t.pixels))


def chosen(sch: Schedule, level: Level, tile: Tile, pixels: int, blocks: int) -> Tile:
    """The tile; a tuner tries others, of up to twice as many sums."""
    most = 2 * tile.pixels * tile.blocks
    fit = (n for n in BLOCKS_OF_TILE[level.form] if blocks % n == 0 and n * level.rows <= most)
    across = sch.choice(tile.blocks, sorted({tile.blocks, *fit}))
    ends = min(pixels + level.rows - 1, most // across) + 1
    down = range(level.rows, ends, level.rows)
    return Tile(sch.choice(min(tile.pixels, down[-1]), down), across)


def _registers(level: Level, pixels: int, blocks: int, taps: int, most: int) -> int:
    if level.form == "parts":
        return (pixels + 1) * level.channels + pixels + (2 if most > 16 else 4)
    if level.form == "pairs":
        return (pixels + 1) * blocks * BLOCK // level.lanes + 2
    shared = pixels // level.rows if taps > 2 else 0  # what two taps read is kept from the first
    return 2 * pixels * blocks + (4 if level.rows > 1 else 2) * blocks + max(2, shared)


def row_cost(level: Level, tile: Tile, pixels: int, taps: int) -> float:
    """Of a row of pixels, to compare tiles of a level by."""
    whole, rest = divmod(pixels, tile.pixels)
    cost = whole * _turn_cost(level, tile.pixels, tile.blocks, taps)
    cost += _turn_cost(level, rest, tile.blocks, taps) if rest else 0
    return cost / tile.blocks


def _turn_cost(level: Level, pixels: int, blocks: int, taps: int) -> float:
    """Of all taps of a block of input channels."""
    pixels = -(-pixels // level.rows) * level.rows
    if level.form == "parts":
        multiplies = pixels * level.channels * (1 + 16 / level.depth) * taps
        loads = (pixels + level.channels) * taps * 8 / level.depth
        return (multiplies + loads + TURN) / level.channels
    if level.form == "pairs":
        vectors = blocks * BLOCK // level.lanes
        return 4 * taps * (2 * pixels * vectors + pixels + vectors) + TURN
    multiplies = pixels * blocks * (2 if level.form == "squares" else 4) * taps
    return multiplies + (pixels / level.rows + 4 * blocks) * taps * 0.6 + TURN


# ----------------------------------------------------------------------------------------- stages


@dataclass(frozen=True, slots=True)
class Place:
    """Of one product: the pixel; which of the level's `depth` input channels; which of the tiles of
    weights for a block of output channels, and where in it the weight is."""

    pixel: Expr
    channel: Expr
    tile: Expr
    weight: tuple[Expr, ...]


def compute_sums(
    level: Level,
    lead: Sequence[int],
    pixels: int,
    product: Callable[[Sequence[Expr], Place], Expr],
    over: Sequence[IterVar],
) -> Callable[..., Any]:
    """The sums, int32 [*lead, pixels, BLOCK], as a function of an index.

    product(index in lead, place): one product. over: what is summed up over beside the channels of
    `level.depth` channels.
    """
    n = len(lead)
    groups = -(-pixels // level.rows)
    k, half = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 2), "half")
    if level.form == "quads":

        def quad(*i: Expr) -> Expr:
            group, row, column = i[n:]
            pixel = group * level.rows + row
            at = Place(pixel, half * 4 + k, const(0), (half.var, column, k.var))
            return te.sum(product(i[:n], at), (*over, half, k))

        tile = te.compute((*lead, groups, level.rows, BLOCK), quad, name=TILE)
        return lambda *i: tile[(*i[:n], i[n] // level.rows, i[n] % level.rows, i[-1])]
    if level.form == "pairs":
        pair, of_pair = te.reduce_axis((0, BLOCK // 2), "pair"), te.reduce_axis((0, 2), "k")

        def vector_of_pairs(*i: Expr) -> Expr:
            pixel, column = i[n:]
            at = Place(pixel, pair * 2 + of_pair, const(0), (pair.var, column, of_pair.var))
            return te.sum(product(i[:n], at), (*over, pair, of_pair))

        tile = te.compute((*lead, pixels, BLOCK), vector_of_pairs, name=TILE)
        return lambda *i: tile[i]
    if level.form == "squares":
        eight = te.reduce_axis((0, BLOCK), "k")

        def square(*i: Expr) -> Expr:
            group, pair, row, column = i[n:]
            weight = (pair * 2 + column, eight.var)
            at = Place(group * 2 + row, eight.var, const(0), weight)
            return te.sum(product(i[:n], at), (*over, eight))

        tile = te.compute((*lead, groups, BLOCK // 2, 2, 2), square, name=TILE)

        def vector(*i: Expr) -> Any:
            group, row, pair, column = i[n:]
            return tile[(*i[:n], group, pair, row, column)]

        rows = te.compute((*lead, groups, 2, BLOCK // 2, 2), vector, name=VECTORS)
        return lambda *i: rows[(*i[:n], i[n] // 2, i[n] % 2, i[-1] // 2, i[-1] % 2)]

    eights = te.reduce_axis((0, level.depth // 8), "eights")

    def part(*i: Expr) -> Expr:
        pixel, four, column, p = i[n:]
        channel = eights * 8 + p * 2 + half
        at = Place(pixel, channel, four, (column, channel))
        return te.sum(product(i[:n], at), (*over, eights, half))

    tile = te.compute((*lead, pixels, BLOCK // 4, 4, 4), part, name=TILE)
    p = te.reduce_axis((0, 4), "p")
    fours = te.compute(
        (*lead, pixels, BLOCK // 4, 4), lambda *i: te.sum(tile[(*i, p)], p), name=VECTORS
    )
    return lambda *i: fours[(*i[:-1], i[-1] // 4, i[-1] % 4)]


# --------------------------------------------------------------------------------------- schedule


def schedule_sums(
    sch: Schedule, level: Level, outer: str, inner: Sequence[str], taps: int, target: Target
) -> None:
    """Schedules the stages of compute_sums inside loop `outer` of the result, the last around its
    tile, whose loops are `inner`; the last of them is over output channels. taps: the extent of the
    innermost reduction, which is unrolled."""
    if level.vectors:
        sch.compute_at(VECTORS, outer)
        sch.set_scope(VECTORS, 0, "local")
    around, at = outer, ""
    if level.form == "parts":
        spatial, over = _own_loops(sch, VECTORS, outer)
        *pixels, around, at = spatial
        sch.reorder(around, *pixels, at, *over)
        sch.unroll(around)
    sch.compute_at(TILE, around)
    sch.set_scope(TILE, 0, "local")
    steps = partial(_steps, level, taps, target)
    schedule_intrin_sum(sch, TILE, around, get_intrin(level.intrin), steps)
    match level.form:
        case "parts":
            _tensorize(sch, pixels, at, level.vectors)
        case "squares":
            (*spatial, row, pair, column), _ = _own_loops(sch, VECTORS, outer)
            four, pair = sch.split(pair, [None, 2])
            sch.reorder(four, row, pair, column)
            _tensorize(sch, [*spatial, four], row, level.vectors)
    unroll(sch, inner[:-1])
    sch.vectorize(inner[-1])


def _steps(level: Level, taps: int, target: Target, turns: int) -> int:
    """How many turns of the reduction are unrolled: more of them hide the loop's own instructions,
    and are more for LLVM to keep in registers."""
    if level.form == "pairs":
        return 4
    if level.form != "parts":
        return 2 * taps if taps > 1 else 4
    if target.vector_registers < 32:
        return turns if turns <= UNROLLED else taps
    return 4 if taps == 1 else taps if taps <= 3 else 1


def tune(sch: Schedule, level: Level, target: Target) -> None:
    """Takes a scheduling model that keeps the products of `parts` in few registers: that
    of AArch64's generic CPU, which is in-order, begins many before it adds one up, and spills."""
    if level.form == "parts" and (model := scheduling_model("parts", target)):
        sch.tune_for(model)


def _own_loops(sch: Schedule, block: str, around: str) -> tuple[list[str], list[str]]:
    """A block's loops inside loop `around`: (spatial, reductions)."""
    reduced = {i.binding for i in sch.block(block).iters if i.kind == "reduce"}
    loops: list[str] = list(sch.get_loops(block))
    loops = loops[loops.index(around) + 1 :]
    over = [n for n in loops if sch.loop(n).var in reduced]
    return [n for n in loops if n not in over], over


def _tensorize(sch: Schedule, unrolled: Sequence[str], at: str, intrin: str) -> None:
    sch.tensorize(at, intrin)
    unroll(sch, unrolled)
