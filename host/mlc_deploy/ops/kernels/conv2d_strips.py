"""conv2d of floats in blocks of channels, where each task first copies the data of a strip of rows
(strips.py).

With strides, neighbouring pixels read elements that are a stride apart, each by a load of its own.
In the copy they are neighbours. A few vectors are then one load, and no tile has a guard for a
row's ends. Data whose size is known only at run time are copied within a border, as far as whole
tiles read, so that no tap and no tile has a guard.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ...ir import PrimFunc, dtype_of
from ...lower.annotations import WHOLE
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import Phases, conv_shape, in_border, is_open, whole_tiles
from ..registry import Attrs, TensorType
from ..tile import computed_loops, divisor, inline_epilogue, loops_inside, schedule_tile
from .contraction import best_tile, prefetch_weights
from .conv2d import Blocks, ConvBlocks, Tap, blocks_of, in_blocks, plan_blocks
from .strips import PER_BYTE, Strips, best, bytes_moved, groups_of, keep

MOST_TOGETHER = 8  # elements of a row that an iteration copies, where no phase is beside another
# Instructions to copy a vector: its load and store, and a part of an iteration. `mlc-deploy --emit
# asm` shows 6 for two phases (Cortex-A72, LLVM 22).
COPIED = 3
# Most rows of a strip whose size is known only at run time; and of the first layer, which has few
# channels. All threads keep a strip of the widest data.
OPEN_ROWS, FIRST_ROWS = 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStrips(ConvBlocks):
    """In strips of rows, whose data each task copies."""

    strips: Strips
    copy: ClassVar[str]  # the stage that copies

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "conv2d")
        if not is_open(self.conv.size):  # else the sums are of whole tiles
            sch.fuse_reduction_epilogue("conv2d_tile", result)
        b, f, y, q, lane = sch.get_loops(result)
        strip, row = sch.split(y, [None, self.strips.rows])
        group, part = sch.split(f, [self.strips.groups, None])
        tasks, images = [b, strip, group], []
        if is_open(
            self.conv.out_size[:1]
        ):  # dynamic extents come first: others divide their iterations
            images = [b] if is_open([self.conv.batch]) else []
            tasks = [strip, *(n for n in [b] if n not in images), group]
        sch.reorder(*tasks, *images, part, row, q, lane)
        sch.fuse(*tasks)
        sch.annotate(row, WHOLE, True)
        first = 1 + len(images)
        task = schedule_tile(
            sch,
            "conv2d_tile",
            result,
            {first: self.tile.blocks, first + 2: self.tile.rows, first + 3: self.kernel.lanes},
            lanes=self.kernel.lanes,
            steps=self.steps(self.depth),
            vector_result=True,
            row_by_row=self.kernel.by_number,
        )
        prefetch_weights(sch, sch.get_loops(result)[first], func, self.kernel)
        place = images[0] if images else task
        sch.compute_at(self.copy, place)
        self.schedule_copy(sch, place)
        if place == task:
            groups = self.strips.groups // self.conv.groups  # each of those has data of its own
            keep(sch, loops_inside(sch, self.copy, task)[0], groups)
        sch.annotate(task, WHOLE, True)
        if model := scheduling_model("conv2d", self.target):
            sch.tune_for(model)
        return sch.func

    @abstractmethod
    def schedule_copy(self, sch: Schedule, at: str) -> None:
        """Schedules the copy that loop `at` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStrided(ConvStrips):
    name = "conv2d_strided"
    copy = "phases"

    def read(self, x: Tensor) -> tuple[Tensor, Tap, tuple[Any, ...]]:
        phases = Phases(self.conv)
        return phases.of(x), phases.tap, self.conv.out_size

    def schedule_copy(self, sch: Schedule, at: str) -> None:
        phase, element, vector = computed_loops(sch, self.copy, at, (3, 4, 5))
        if self.conv.kernel[1] > 1:
            sch.reorder(element, phase)
            sch.unroll(phase)
        else:
            some = divisor(self.conv.out_size[1], MOST_TOGETHER)
            sch.unroll(sch.split(element, [None, some])[1])
        sch.vectorize(vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvOpen(ConvStrips):
    name = "conv2d_open"
    copy = "pad"

    def read(self, x: Tensor) -> tuple[Tensor, Tap, tuple[Any, ...]]:
        conv, (height, width) = self.conv, self.conv.out_size
        rows = height, whole_tiles(width, self.tile.rows)
        copy = in_border(x, conv.window, conv.kernel, rows, 0)
        return copy, lambda at, kernel: conv.inner.tap(at, kernel, conv.size), rows

    def schedule_copy(self, sch: Schedule, at: str) -> None:
        if not self.planes:
            sch.vectorize(computed_loops(sch, self.copy, at, (4,))[0])


def plan_strided(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvStrided | None:
    """None where reading data in their place costs less."""
    plan, direct = planned(types, attrs, target), plan_blocks(types, attrs, target)
    return plan if plan is not None and direct is not None and plan.cost < direct.cost else None


def planned(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvStrided | None:
    """The plan, whatever it costs. None but for CPUs that load several vectors at once; and for
    sums of several parts (half.py): the guard of a row of taps stands within a part, and would end
    the loop that loads vectors together."""
    conv, blocks = conv_shape(types, attrs), blocks_of(types, attrs, target)
    if conv is None or blocks is None or conv.strides[1] == 1 or conv.groups > 1:
        return None
    if blocks.planes or not blocks.kernel.registers_loaded:
        return None
    work = replace(blocks.work, apart=False)
    blocks = replace(blocks, work=work, tile=best_tile(blocks.kernel, work, target))
    strips = best(_strips(blocks, prod(Phases(conv).shape[1:]), target))
    plan = ConvStrided(**in_blocks(types, attrs, target, blocks, strips.cost), strips=strips)
    return plan if plan.part(plan.depth) == plan.depth else None


def plan_open(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvOpen | None:
    """For data whose size is known only at run time."""
    blocks = blocks_of(types, attrs, target)
    if blocks is None or not is_open(blocks.conv.size):
        return None
    conv = blocks.conv
    width = whole_tiles(conv.usual.out_size[1], blocks.tile.rows)
    copied = (width - 1) * conv.strides[1] + (conv.kernel[1] - 1) * conv.dilations[1] + 1
    most = FIRST_ROWS if blocks.planes else OPEN_ROWS
    strips = best(s for s in _strips(blocks, copied, target) if s.rows <= most)
    return ConvOpen(**in_blocks(types, attrs, target, blocks, strips.cost), strips=strips)


def _strips(blocks: Blocks, copied: int, target: Target) -> Iterator[Strips]:
    """Strips of all numbers of rows that divide the result's. copied: elements of a row of the data
    that are copied, each of all lanes."""
    conv, lanes = blocks.conv.usual, 1 if blocks.planes else blocks.kernel.lanes
    height, (kh, kw), size = conv.out_size[0], conv.kernel, dtype_of(conv.dtype).bytes
    weights = conv.out_channels * conv.per_group * kh * kw * size
    parts = blocks.work.blocks // blocks.tile.blocks
    for rows in (n for n in range(1, height + 1) if height % n == 0):
        strips = conv.batch * (height // rows)
        read = rows if kh == 1 else (rows - 1) * conv.strides[0] + (kh - 1) * conv.dilations[0] + 1
        vectors = conv.channels // lanes * read * copied
        groups = groups_of(strips, parts)
        moved = bytes_moved(weights, strips, vectors * lanes * size, parts)
        whole = blocks.products + strips * groups * vectors * COPIED
        whole += PER_BYTE[target.arch] * (moved - weights)
        yield Strips(rows=rows, groups=groups, tasks=strips * groups, cost=whole)
