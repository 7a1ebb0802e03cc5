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
EXPONENT = 24.0  # instructions for a vector of scores: masks, the largest one, exponents, sums
ROW = 40.0  # of a row of scores of a tile


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
    tile = _tile(n, lanes, target.vector_registers or 16)
    return AttentionByTiles(**fields(NAME, types, attrs, target), cost=_cost(n, tile), tile=tile)


def _tile(n: Sizes, lanes: int, registers: int) -> AttentionTile:
    """As many rows as there are registers for their products with four keys."""
    most = 4 if registers >= 32 else 2
    rows = min(most, n.rows) if isinstance(n.rows, int) else most
    if isinstance(n.rows, int):  # rows are left over in no block, if one can help it
        rows = min(range(rows, 0, -1), key=lambda r: (-(-n.rows // r) * r, -r))
        rows = rows if rows > 1 or n.rows == 1 else min(most, n.rows)
    keys = 2 * QUAD if rows == 1 else QUAD
    whole = n.values // lanes
    some = (16 if registers >= 32 else 8) // rows
    vectors = next(c for c in range(min(some, whole), 0, -1) if whole % c == 0)
    steps = divisor(n.width // lanes, 4)
    return AttentionTile(rows, keys, steps, LONG, lanes, vectors, parallel=True)


def _cost(n: Sizes, tile: AttentionTile) -> float:
    """Instructions: of multiplications and loads, of exponents, and of a tile's begin."""
    batch, count, length = map(counted, (n.batch, n.count, n.length))
    blocks = batch * n.kept * -(-n.group * count // tile.rows)
    rows = tile.rows
    of_key = (n.width / tile.lanes) * (rows + 0.6 + rows / tile.keys)
    of_key += (n.values / tile.lanes) * (rows + 0.5) + rows / QUAD
    of_key += rows * EXPONENT / tile.lanes + rows * 3 / QUAD
    of_tile = rows * (ROW + 3 * n.values / tile.lanes)
    return float(blocks * (length * of_key + -(-length // tile.long) * of_tile))
