"""Lookups in tables of 256 bytes, a few at a time.

AArch64 keeps a table in sixteen registers and looks up a vector at a time. Elsewhere each byte
takes two loads and a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_targets import Target

from ... import te
from ...ir import PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import static
from ..lookup import ROWS, place
from ..plan import Plan, fields
from ..registry import Attrs, TensorType
from ..tile import compute_in_registers, divisor, inline_epilogue, loops_inside

TOGETHER = (4, 3, 2, 5, 7, 1)  # vectors that may be one iteration, the best first
TASK = 1 << 10  # vectors, about, that a task looks up
TILE = "lookup_tile"


def in_vectors(target: Target) -> bool:
    """Whether the target has an instruction for it."""
    return target.arch == "aarch64" and target.vector_registers > 0 and "arm_cpu" in target.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRows(Plan):
    """Data are rows of one vector each. together: rows that one iteration looks up."""

    name = "lookup_vectors"

    together: int

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        q, table = inputs
        tile = te.compute(q.shape, lambda i, j: table[place(q[i, j])], name=TILE)
        return [te.compute(q.shape, lambda i, j: tile[i, j], name="lookup")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        q, table = self.types
        rows, lanes = q.sizes
        sch = Schedule(func)
        i, lane = sch.get_loops(inline_epilogue(sch, "lookup"))
        turns = rows // self.together
        turn = divisor(max(turns, 1), TASK // self.together)
        task, i, row = sch.split(i, [None, turn, self.together])
        compute_in_registers(sch, TILE, i)
        *tile_rows, tile_lane = loops_inside(sch, TILE, i)
        if in_vectors(self.target):
            sch.tensorize(tile_lane, f"aarch64.tbl.{q.dtype}.{table.dtype}.{lanes}")
        else:
            sch.unroll(tile_lane)
        for loop in (*tile_rows, row):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.parallel(task)
        return sch.func


def plan_lookup(types: Sequence[TensorType], attrs: Attrs, target: Target) -> LookupRows | None:
    """None unless the data are rows of one vector each."""
    if not static(types[0]) or len(types[0].shape) != 2:
        return None
    rows, lanes = types[0].sizes
    if lanes not in ROWS or target.kind == "c":  # a C compiler finds its own way
        return None
    fits = [n for n in TOGETHER if rows % n == 0]
    return LookupRows(
        **fields("lookup", types, attrs, target),
        cost=rows * 8.0 if in_vectors(target) else 3.0 * rows * lanes,
        together=fits[0] if in_vectors(target) else 1,
    )
