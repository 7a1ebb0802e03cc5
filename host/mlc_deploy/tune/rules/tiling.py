"""Multi-level tiling of reductions that use their data again and again.

Loops over results on three levels, S, with the loops that reduce, R, inside the second:

    for S0 (parallel)  for S1  for R (serial, then unrolled)  for S2 (a tile of sums in registers)

S1 decides what stays in which cache, S2 what is loaded per multiply-accumulate. The results leave
the registers by the block that consumes them, or by a copy (cache_write) where none does.
The structure is that of Ansor's "SSRS" (Zheng et al., OSDI 2020); sums that are taken out of the
registers and put back, as its further levels do, cost more on CPUs than they bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

from mlc_targets import Target

from ...arith import simplify_expr
from ...errors import ScheduleError
from ...ir import Block, Region, Var, const, is_const, substitute, walk
from ...ir.build import strides_of
from ...ops.tile import schedule_result, schedule_sum, vector_loop
from ...schedule import Schedule
from ...schedule.tree import is_complete
from .shared import extent_of, is_untouched

MOST = 16  # elements, or vectors, of a tile along one dimension
DIVIDES = 3.0  # how much rather a size is drawn that leaves no rest
UNROLLED = 128  # multiply-accumulates in a turn of the reduction, about; twice that at most


def multi_level_tiling(sch: Schedule, block: str, target: Target) -> Schedule:
    """A sum in tiles: sizes of the tile in registers, of the blocks of tiles, and how many of the
    loops over those are one parallel loop."""
    if not _reuses(sch.block(block)) or not is_untouched(sch, block):
        return sch
    if any(extent_of(sch, loop) is None for loop in sch.get_loops(block)):
        return sch
    lanes = target.lanes(sch.block(block).writes[0].buffer.dtype)
    vectors = _neighbours(sch, block, lanes)
    result = _consumer(sch, block) or sch.cache_write(block, 0, "local")
    _fuse_as_summed(sch, block, result)
    loops = sch.get_loops(result)
    vector = vector_loop(sch, block, result) if vectors else None
    tile = _register_tile(sch, loops, vector, lanes, target)
    outer: list[str] = []
    inner: list[str] = []
    for loop in loops:
        if loop in tile:
            a, b = sch.split(loop, [None, tile[loop]])
            outer.append(a)
            inner.append(b)
        else:
            outer.append(loop)
    outside, inside = _levels(sch, outer)
    sch.reorder(*outside, *inside, *inner)
    outside = _tasks(sch, outside)
    place = (*outside, *inside)[-1]
    sch.compute_at(block, place)
    sch.set_scope(block, 0, "local")
    lanes = 1 if vector is None else lanes
    sums = prod(tile.values()) // lanes
    schedule_sum(sch, block, place, lanes, max(1, UNROLLED // sums))
    schedule_result(sch, inner, lanes, vector is not None and vector == loops[-1])
    with suppress(ScheduleError):  # not every fused loop is known to write its own elements
        sch.parallel(outside[0])
    return sch


def _reuses(block: Block) -> bool:
    """Whether elements that are read serve several results."""
    spatial = {i.var for i in block.iters if i.kind == "spatial" and not is_const(i.extent, 1)}
    return block.init is not None and any(
        not spatial <= {n for low in r.minimum for n in walk(low)} for r in block.reads
    )


def _neighbours(sch: Schedule, block: str, lanes: int) -> bool:
    """Whether neighbours along the last dimension of what is written need neighbours, or one
    element, of everything that is read: then they are the lanes of vectors."""
    found = sch.block(block)
    last = found.writes[0].minimum[-1]
    lane = next((i for i in found.iters if i.var is last), None)
    if lanes == 1 or lane is None or int(lane.extent) < lanes:  # type: ignore[call-overload]
        return False

    def place(region: Region, at: int) -> int:
        total = 0
        for low, stride in zip(region.minimum, strides_of(region.buffer), strict=True):
            values = {n: const(at if n is last else 0) for n in walk(low) if isinstance(n, Var)}
            total += int(simplify_expr(substitute(low, values), {})) * int(stride)  # type: ignore[call-overload, arg-type]
        return total

    return all(
        place(r, lanes - 1) - place(r, 0) in (0, lanes - 1) and place(r, 1) - place(r, 0) in (0, 1)
        for r in (*found.reads, *found.writes)
    )


def _consumer(sch: Schedule, block: str) -> str | None:
    """The block that takes each sum once, if there is one that takes them all."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_untouched(sch, consumers[0]):
        return None
    taker = sch.block(consumers[0])
    (made,) = {w.buffer for w in sch.block(block).writes}
    reads = [r for r in taker.reads if r.buffer is made]
    turns = [extent_of(sch, loop) for loop in sch.get_loops(consumers[0])]
    if len(reads) != 1 or not is_complete(sch.func, taker) or None in turns:
        return None
    results = [extent_of(sch, loop) or 1 for loop in sch.get_loops(block)]
    once = prod(t or 1 for t in turns) <= prod(results)
    return consumers[0] if once else None


def _fuse_as_summed(sch: Schedule, block: str, result: str) -> None:
    """Makes one loop of neighbouring loops of the result that are one dimension of the sums."""
    taker = sch.block(result)
    (made,) = {w.buffer for w in sch.block(block).writes}
    (read,) = (r for r in taker.reads if r.buffer is made)
    names = {i.var: i.binding.name for i in taker.iters if isinstance(i.binding, Var)}
    loops = [str(n) for n in sch.get_loops(result)]
    for low in read.minimum:
        used = {names[n] for n in walk(low) if isinstance(n, Var) and n in names}
        together = [n for n in loops if n in used]
        first = loops.index(together[0]) if together else 0
        if len(together) > 1 and loops[first : first + len(together)] == together:
            sch.fuse(*together)


def _register_tile(
    sch: Schedule, loops: Sequence[str], vector: str | None, lanes: int, target: Target
) -> dict[str, int]:
    """How much of each loop is in a tile, of as many vectors as there are registers for. Loops of
    which it is one element are left out. One loop at most leaves a rest, whose tiles are code of
    their own: with several there would be much of it. Vectors leave none if they can."""
    room = max(1, (target.vector_registers or 16) - 2)
    tile: dict[str, int] = {}
    rest = False
    inside_first = list(reversed(loops))
    for loop in sorted(inside_first, key=lambda n: n != vector):
        extent = extent_of(sch, loop) or 1
        step = lanes if loop == vector else 1
        sizes = [step * n for n in range(1, min(room, MOST, max(1, extent // step)) + 1)]
        if rest or (step > 1 and extent % step == 0):
            sizes = [size for size in sizes if extent % size == 0] or [step]
        if len(sizes) > 1:
            likely = [DIVIDES if extent % size == 0 else 1.0 for size in sizes]
            tile[loop] = sch.sample_categorical(sizes, likely)
            rest |= extent % tile[loop] != 0
        elif step > 1:
            tile[loop] = step
        room //= tile.get(loop, 1) // step or 1
    return tile


def _levels(sch: Schedule, loops: Sequence[str]) -> tuple[list[str], list[str]]:
    """The loops over tiles, cut in two: (those outside, those inside)."""
    outside: list[str] = []
    inside: list[str] = []
    for loop in loops:
        extent = extent_of(sch, loop) or 1
        if extent == 1:
            outside.append(loop)
            continue
        a, b = sch.split(loop, sch.sample_perfect_tile(loop, 2, extent))
        outside.append(a)
        inside.append(b)
    return outside, inside


def _tasks(sch: Schedule, loops: Sequence[str]) -> list[str]:
    """The loops with the first ones made one."""
    counts = [n + 1 for n, loop in enumerate(loops) if extent_of(sch, loop) != 1] or [1]
    count = counts[0]
    if len(counts) > 1:
        count = sch.sample_categorical(counts, [1.0] * len(counts))
    return [sch.fuse(*loops[:count]), *loops[count:]] if count > 1 else list(loops)
