"""Attention in tiles of keys (ops/attention.py); the target's registers decide the tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_targets import Target

from ...ir import PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..attention_loops import QUAD, AttentionTile, attend
from ..attention_sizes import NAME, Sizes, counted, sizes_of
from ..cpu.default import schedule_block
from ..half import arithmetic
from ..plan import Plan, fields
from ..registry import Attrs, TensorType
from ..tile import divisor

LONG = 64  # keys of a tile; so many float16 products are summed up without parts
STEPS = 16  # most unrolled steps of the loop over a head
SUMS = 16  # vectors of values that registers hold
HALF = "float16"
REGISTERS = (3, 5, 9)  # outputs of the stage kept in registers: sums, a vector of scores
# Costs in instructions: of a load in pairs or as an operand of a multiplication; of a load alone;
# of an iteration of the loop over a head; of a vector of scores, from masks to sums of
# exponentials; of a row of scores of a tile.
LOAD, LOAD_ALONE, TURN, EXPONENT, ROW = 0.5, 1.0, 4.0, 30.0, 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionByTiles(Plan):
    name = "attention_tile"

    tile: AttentionTile

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [attend(inputs, self.attrs, self.tile)]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        for number in REGISTERS:
            sch.set_scope(NAME, number, "local")
        for block in sch.get_blocks():
            if block != NAME:
                schedule_block(sch, block, self.target)
        return sch.func


def plan_attention(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> AttentionByTiles | None:
    n = sizes_of(types, attrs)
    dtype = _arithmetic(types, n, target)
    lanes = target.lanes(dtype)
    if target.kind == "c" or lanes < QUAD or n.width % lanes or n.values % lanes:
        return None
    tile = _short_tile(n, lanes, target) if dtype == HALF else _tile(n, lanes, target)
    return AttentionByTiles(
        **fields(NAME, types, attrs, target), cost=_cost(n, tile, target), tile=tile
    )


def _arithmetic(types: Sequence[TensorType], n: Sizes, target: Target) -> str:
    """The dtype of products: float16 where all operands have it, and vectors of it fit."""
    lanes = target.lanes(HALF)
    short = all(t.dtype == HALF for t in types[:3]) and target.arch == "aarch64"
    fits = n.width % lanes == 0 and n.values % lanes == 0
    return arithmetic(HALF, target) if short and fits else "float32"


def _short_tile(n: Sizes, lanes: int, target: Target) -> AttentionTile:
    """For float16: the cheapest tile whose rows and keys fill whole vectors with scores."""
    tiles = []
    for rows, keys in ((4, QUAD), (2, QUAD), (1, 2 * QUAD)):
        vectors = divisor(n.values // lanes, SUMS // rows)
        steps = divisor(n.width // lanes, STEPS)
        tiles.append(
            AttentionTile(rows, keys, steps, LONG, lanes, vectors, parallel=True, dtype=HALF)
        )
    return min(tiles, key=lambda tile: _cost(n, tile, target))


def _tile(n: Sizes, lanes: int, target: Target) -> AttentionTile:
    """As many rows as there are registers for their products with four keys."""
    many = (target.vector_registers or 16) >= 32
    rows = most = 4 if many else 2
    if isinstance(n.rows, int):  # leave no rows over, if possible
        rows = min(range(min(most, n.rows), 0, -1), key=lambda r: (-(-n.rows // r) * r, -r))
        rows = rows if rows > 1 or n.rows == 1 else most
    keys = 2 * QUAD if rows == 1 else QUAD
    whole = n.values // lanes
    vectors = divisor(whole, (16 if many else 8) // rows)
    steps = 1 if target.arch == "arm" else divisor(n.width // lanes, STEPS)
    return AttentionTile(rows, keys, steps, LONG, lanes, vectors, parallel=True)


def _cost(n: Sizes, tile: AttentionTile, target: Target) -> float:
    batch, count, length = map(counted, (n.batch, n.count, n.length))
    rows, load = tile.rows, LOAD_ALONE if target.arch == "arm" else LOAD
    blocks = batch * n.kept * -(-n.group * count // rows)
    of_key = (
        n.width
        / tile.lanes
        * (rows + load + load * rows / tile.keys + TURN / (tile.keys * tile.steps))
    )
    of_key += n.values / tile.lanes * (rows + load)
    of_key += rows * (EXPONENT / tile.wide + 1)
    of_tile = rows * (ROW + 3 * n.values / tile.lanes)
    return float(blocks * (length * of_key + -(-length // tile.long) * of_tile))
