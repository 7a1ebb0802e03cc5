"""Attention in tiles of keys (ops/attention.py), whose sizes a target's registers decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_targets import Target

from ...ir import PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..attention import NAME, QUAD, AttentionTile, Sizes, attend, counted, sizes_of
from ..cpu.default import schedule_block
from ..plan import Plan, fields
from ..registry import Attrs, TensorType
from ..tile import divisor

LONG = 64  # keys of a tile
REGISTERS = (3, 5, 9)  # the stage's outputs that are kept in them: sums, and a vector of scores
# Instructions: of a load, where pairs are loaded at once or an operand of a multiplication; of a
# turn of the loop over a head; of a vector of scores, from masks to sums of exponents; of a row of
# scores of a tile.
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
    lanes = target.lanes("float32")
    if target.kind == "c" or lanes < QUAD or n.width % lanes or n.values % lanes:
        return None
    tile = _tile(n, lanes, target)
    return AttentionByTiles(
        **fields(NAME, types, attrs, target), cost=_cost(n, tile, target), tile=tile
    )


def _tile(n: Sizes, lanes: int, target: Target) -> AttentionTile:
    """As many rows as there are registers for their products with four keys."""
    many = (target.vector_registers or 16) >= 32
    rows = most = 4 if many else 2
    if isinstance(n.rows, int):  # rows are left over in no block, if one can help it
        rows = min(range(min(most, n.rows), 0, -1), key=lambda r: (-(-n.rows // r) * r, -r))
        rows = rows if rows > 1 or n.rows == 1 else most
    keys = 2 * QUAD if rows == 1 else QUAD
    whole = n.values // lanes
    vectors = divisor(whole, (16 if many else 8) // rows)
    steps = 1 if target.arch == "arm" else divisor(n.width // lanes, 4)
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
    of_key += rows * (EXPONENT / tile.lanes + 1)
    of_tile = rows * (ROW + 3 * n.values / tile.lanes)
    return float(blocks * (length * of_key + -(-length // tile.long) * of_tile))
