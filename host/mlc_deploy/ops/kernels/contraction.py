"""Contractions: rows times columns, summed up over k. Dense layers, matrix products and
convolutions are instances. A *window* says which element of the data a row reads: its own for a
matrix, an index map's for a convolution. A *source* says whether data are read where they are,
copied, or packed at run time.

A *tile* of sums stays in registers: some neighbouring rows against some blocks of columns. LLVM
finds instructions for sums of floats, which are vectors of columns (ops/tile.py). Sums of int8 have
the form of an instruction (intrinsics/forms.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mlc_targets import Target

from ...ir import PrimFunc
from ...ir.pragmas import PREFETCH_NEXT
from ...schedule import Schedule
from ..plan import WEIGHTS, Plan
from .intrinsics.microkernels import Microkernel

# Bytes of weights that stay in a core's caches beside the data: ResNet-50's layers with more in
# four vectors of columns took less time with two, on an Emerald Rapids (scripts/bench/seconds.py
# resnet50).
NEAR = 256 << 10
FAR = 4  # loads of the data that take as long as a load of weights beyond NEAR, as seen there
ENOUGH = (
    320  # multiply-accumulates in an iteration of the reduction: more save less than 0.5 % of it
)
# Of the least cost; kernels that share a function may cost as much more, for less to compile
# (scripts/bench/shared_kernels.py).
NEARLY = 1.005
AT_ONCE = 4  # vectors that one instruction loads at most (lower/machine/pointers.py)


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of the data against blocks of columns."""

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Work:
    """What is cut into tiles: neighbouring rows, and blocks of columns. taps: neighbours of a row
    that an iteration of the reduction reads. spare: registers to leave free. weights: bytes of
    weights of a block of columns. unrolled: most iterations of the reduction that are unrolled into
    one. apart: whether neighbouring rows are not neighbours in memory, and each is a load of its
    own."""

    rows: int
    blocks: int
    taps: int = 1
    spare: int = 0
    weights: int = 0
    unrolled: int = 1
    apart: bool = False


@lru_cache(1024)  # a network has many layers of a shape, and several passes ask for each
def best_tile(kernel: Microkernel, work: Work, target: Target) -> Tile:
    """The tile of least cost, in instructions and waits for weights. Of those that cost up to
    NEARLY as much it is one that leaves no rest, whose code would be compiled, too; of equal ones
    the one with fewest rows."""
    most = target.vector_registers
    rows = range(kernel.rows, min(work.rows, most) + kernel.rows, kernel.rows)
    tiles = (Tile(n, m) for n in rows for m in _divisors(kernel, work))
    fit = (t for t in tiles if _registers(kernel, t, work) <= most)
    time = {t: cost(kernel, t, work) + _waits(kernel, t, work) for t in fit}
    allowed = NEARLY * min(time.values(), default=0)
    key = {
        t: (each > allowed or work.rows % t.rows > 0, round(each, 6), t.rows, t.blocks)
        for t, each in time.items()
    }
    return min(key, key=lambda t: key[t], default=Tile(kernel.rows, 1))


def chosen(sch: Schedule, kernel: Microkernel, tile: Tile, work: Work) -> Tile:
    """The tile; a tuner tries others, of up to twice as many sums."""
    most = 2 * tile.rows * tile.blocks
    fit = {n for n in _divisors(kernel, work) if n * kernel.rows <= most}
    blocks = sch.choice(tile.blocks, sorted({tile.blocks, *fit}))
    rows = range(kernel.rows, min(work.rows + kernel.rows - 1, most // blocks) + 1, kernel.rows)
    return Tile(sch.choice(min(tile.rows, rows[-1]), rows), blocks)


def _divisors(kernel: Microkernel, work: Work) -> list[int]:
    """Numbers of blocks that tiles may have."""
    return [n for n in range(1, kernel.most_blocks + 1) if work.blocks % n == 0]


def cost(kernel: Microkernel, tile: Tile, work: Work) -> float:
    """Instructions of an iteration of the reduction, for all rows and blocks of columns."""
    whole, rest = divmod(work.rows, tile.rows)
    turns = whole * _turn(kernel, tile, work)
    turns += _turn(kernel, Tile(rest, tile.blocks), work) if rest else 0
    return turns / tile.blocks * work.blocks


def _waits(kernel: Microkernel, tile: Tile, work: Work) -> float:
    """The wait, in instructions, for an iteration's weights that do not stay near the core."""
    if not kernel.by_number or tile.blocks * work.weights <= NEAR:
        return 0
    return (
        (FAR - 1) * kernel.instructions.block * work.taps * work.blocks * -(-work.rows // tile.rows)
    )


def _turn(kernel: Microkernel, tile: Tile, work: Work) -> float:
    """Instructions of an iteration of the reduction, for one tile."""
    rows, count = -(-tile.rows // kernel.rows) * kernel.rows, kernel.instructions
    blocks, taps = tile.blocks, work.taps
    if taps == 1 and kernel.registers_loaded:
        sums = count.each * rows * blocks
        together = turns_together(sums, work.unrolled)
        return sums + _loads(kernel, rows, blocks, work.apart) + count.once / together
    shares = kernel.form == "lanes" and not kernel.by_number
    loaded = rows + taps - 1 if shares else rows * taps
    return taps * (count.each * rows + count.block) * blocks + count.row * loaded + count.once


def turns_together(sums: float, most: int) -> int:
    """How many iterations of so many multiply-accumulates are unrolled into one."""
    return min(most, -(-ENOUGH // int(sums)))


def _loads(kernel: Microkernel, rows: int, blocks: int, apart: bool) -> int:
    """Instructions that load the operands of an iteration. One instruction loads up to AT_ONCE
    vectors of the data, which are in registers together, or as many vectors of weights as there are
    registers for."""
    data, weights = int(2 * kernel.instructions.row), int(2 * kernel.instructions.block * blocks)
    free = kernel.registers_loaded - int(kernel.registers.of(rows, blocks)) + 2
    fit = (n for n in range(AT_ONCE, 2, -1) if _held(n, blocks) <= free)
    return data * (rows if apart else -(-rows // AT_ONCE)) - (-weights // next(fit, 2))


def _held(together: int, blocks: int) -> int:
    """Vectors of weights in registers at once, where an instruction loads `together` of them and
    the sums of `blocks` take them in turn."""
    whole = together % blocks == 0 or blocks % together == 0
    return max(together, blocks) if whole else blocks + together - 1


def _registers(kernel: Microkernel, tile: Tile, work: Work) -> float:
    held = kernel.sharing if kernel.sharing and work.taps > 2 else kernel.registers
    return held.of(tile.rows, tile.blocks) + work.spare


def prefetch_weights(sch: Schedule, loop: str, func: PrimFunc, kernel: Microkernel) -> None:
    """Each iteration of a loop over tiles of columns prefetches the next iteration's weights.
    Weights of a large model come from memory, and x86-64 fetches them too late by itself: with
    prefetching, 1x1 layers of 7x7 pixels in ResNet-50 take about three quarters of the time, on an
    Emerald Rapids (scripts/bench/seconds.py resnet50). ARM's kernels have no instruction to spare
    for it."""
    if kernel.by_number:
        sch.annotate(loop, PREFETCH_NEXT, [func.buffers[WEIGHTS].name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction(Plan):
    """kernel: computes the sums. tile: the sums that stay in registers."""

    kernel: Microkernel
    tile: Tile
