"""conv2d of floats in blocks of channels, with strides.

Neighbouring pixels read elements that are a stride apart, each by a load of its own. So a task
copies the data of a strip of rows (strips.py) such that they are neighbours. A few vectors are then
one load, and no tile has a guard for a row's ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ...ir import PrimFunc, dtype_of
from ...lower.annotations import WHOLE
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, Phases, conv_shape
from ..plan import Packing
from ..registry import Attrs, TensorType
from ..tile import computed_loops, divisor, inline_epilogue, schedule_tile
from .contraction import Tile, Work, best_tile, cost
from .conv2d import BLOCKED, ConvBlocks, Tap, block, in_layouts, plan_blocks, work_of
from .intrinsics.microkernels import Microkernel, of_floats
from .strips import PER_BYTE, Strips, best, bytes_moved, groups_of

MOST_TOGETHER = 8  # elements of a row that a turn copies, where no phase is beside another
COPIED = 3  # instructions to copy a vector of data


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStrided(ConvBlocks):
    name = "conv2d_strided"

    strips: Strips

    def read(self, x: Tensor) -> tuple[Tensor, Tap, tuple[Any, ...]]:
        phases = Phases(self.conv)
        return phases.of(x), phases.tap, self.conv.out_size

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        depth = int(func.buffers[1].shape[2])  # type: ignore[arg-type]
        result = inline_epilogue(sch, "conv2d")
        sch.fuse_reduction_epilogue("conv2d_tile", result)
        b, f, y, q, lane = sch.get_loops(result)
        strip, row = sch.split(y, [None, self.strips.rows])
        group, part = sch.split(f, [self.strips.groups, None])
        sch.reorder(b, strip, group, part, row, q, lane)
        sch.fuse(b, strip, group)
        sch.annotate(row, WHOLE, True)
        task = schedule_tile(
            sch,
            "conv2d_tile",
            result,
            {1: self.tile.blocks, 3: self.tile.rows, 4: self.kernel.lanes},
            lanes=self.kernel.lanes,
            steps=self.steps(depth),
            vector_result=True,
        )
        sch.compute_at("phases", task)
        phase, element, vector = computed_loops(sch, "phases", task, (3, 4, 5))
        if self.conv.kernel[1] > 1:
            sch.reorder(element, phase)
            sch.unroll(phase)
        else:
            some = divisor(self.conv.out_size[1], MOST_TOGETHER)
            sch.unroll(sch.split(element, [None, some])[1])
        sch.vectorize(vector)
        sch.annotate(task, WHOLE, True)
        if model := scheduling_model("conv2d", self.target):
            sch.tune_for(model)
        return sch.func


def plan_strided(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvStrided | None:
    """None where reading data in their place costs less."""
    plan, direct = planned(types, attrs, target), plan_blocks(types, attrs, target)
    return plan if plan is not None and direct is not None and plan.cost < direct.cost else None


def planned(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvStrided | None:
    """The plan, whatever it costs. None but for CPUs that load several vectors at once; and for
    sums of several parts (half.py): the guard of a row of taps stands within a part, and would end
    the loop that loads vectors together."""
    conv = conv_shape(types, attrs)
    if conv is None or conv.strides[1] == 1 or conv.groups > 1 or conv.border:
        return None
    lanes = block(conv.dtype, target)
    whole = conv.channels % lanes == conv.out_channels % lanes == 0
    if conv.dtype not in BLOCKED or types[1].dtype != conv.dtype or lanes == 1 or not whole:
        return None
    kernel = of_floats(target, lanes, lanes)
    if not kernel.registers_loaded:
        return None
    work = replace(work_of(conv.usual, kernel, False, target), apart=False)
    tile = best_tile(kernel, work, target)
    strips = best(_strips(conv, kernel, tile, work, target))
    layout, packing = f"NCHW{lanes}c", Packing("OIHW", f"OHIW{lanes}i{tile.blocks * lanes}o")
    plan = ConvStrided(
        **in_layouts(types, attrs, target, packing, layout, layout),
        cost=strips.cost,
        conv=conv,
        kernel=kernel,
        tile=tile,
        planes=False,
        work=work,
        strips=strips,
    )
    depth = conv.channels // lanes
    return plan if plan.part(depth) == depth else None


def _strips(
    conv: ConvShape, kernel: Microkernel, tile: Tile, work: Work, target: Target
) -> Iterator[Strips]:
    (height, _), (kh, kw), images = conv.out_size, conv.kernel, conv.usual.batch
    _, phases, elements = Phases(conv).shape
    depth, size = conv.channels // kernel.lanes, dtype_of(conv.dtype).bytes
    products = depth * kh * kw * cost(kernel, tile, work)
    weights = conv.out_channels * conv.channels * kh * kw * size
    for rows in (n for n in range(1, height + 1) if height % n == 0):
        strips = images * (height // rows)
        read = rows if kh == 1 else (rows - 1) * conv.strides[0] + (kh - 1) * conv.dilations[0] + 1
        vectors = depth * read * phases * elements
        parts = work.blocks // tile.blocks
        groups = groups_of(strips, parts)
        moved = bytes_moved(weights, strips, vectors * kernel.lanes * size, parts)
        of_strip = rows * products + groups * vectors * COPIED
        whole = strips * of_strip + PER_BYTE[target.arch] * (moved - weights)
        yield Strips(rows=rows, groups=groups, tasks=strips * groups, cost=whole)
