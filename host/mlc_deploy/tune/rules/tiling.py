"""Multi-level tiling of reductions that use their data again and again.

Loops over results on three levels, S, with the loops that reduce, R, inside the second:

    for S0 (parallel)  for S1  for R (serial, then unrolled)  for S2 (a tile of sums in registers)

S1 decides which data stay in which cache, S2 the loads per multiply-accumulate. The consuming block
takes the results out of the registers, or a copy (cache_write) where there is none. The structure
is Ansor's "SSRS" (Zheng et al., OSDI 2020). Its further levels take sums out of the registers and
put them back, which costs more on CPUs than it gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import lcm, prod

from mlc_targets import Target

from ...arith import simplify_expr
from ...errors import ScheduleError
from ...ir import Binary, Block, Const, Region, Var, const, is_const, substitute, walk
from ...ir.build import strides_of
from ...ops.tile import schedule_intrin_sum, schedule_result, schedule_sum, vector_loop
from ...schedule import Schedule
from ...schedule.tensor_intrin import TensorIntrin
from ...schedule.tree import is_complete
from .intrinsics import sample_intrin
from .shared import extent_of, is_untouched

MOST = 16  # elements, or vectors, of a tile along one dimension
DIVIDES = 3.0  # the weight of a size that leaves no rest; others have 1
Loads = tuple[tuple[int, ...], ...]
UNROLLED = 128  # multiply-accumulates in an iteration of the reduction, about; twice that at most


def multi_level_tiling(sch: Schedule, block: str, target: Target) -> Schedule:
    """A sum in tiles. It samples one of the target's intrinsics or none, the sizes of the tile in
    registers and of the blocks of tiles, and how many loops over blocks become one parallel
    loop."""
    if not _reuses(sch.block(block)) or not is_untouched(sch, block):
        return sch
    if any(extent_of(sch, loop) is None for loop in sch.get_loops(block)):
        return sch
    lanes = target.lanes(sch.block(block).writes[0].buffer.dtype)
    intrin = sample_intrin(sch, block, target)
    vectors = intrin is None and _neighbours(sch, block, lanes)
    result = _consumer(sch, block) or sch.cache_write(block, 0, "local")
    _fuse_as_summed(sch, block, result)
    loops = sch.get_loops(result)
    vector = vector_loop(sch, block, result) if vectors else None
    steps = {vector: lanes} if vector is not None else {}
    if intrin is not None:
        steps = _whole_intrinsics(sch, block, result, intrin)
    loads = _loads(sch, block, result, loops)
    tile = _register_tile(sch, loops, steps, loads, lanes, target)
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
    if intrin is not None:
        uses = max(1, prod(tile.values()) // prod(n for of, n in intrin.extents if of == "spatial"))
        schedule_intrin_sum(sch, block, place, intrin, max(1, UNROLLED // (lanes * uses)))
        schedule_result(sch, inner, lanes, True)
    else:
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
    """Whether neighbouring results along the last dimension read neighbours, or one element, of
    every buffer: then they are the lanes of vectors."""
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
    """The only consumer of the sums, if it reads each sum once."""
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
            loops[first : first + len(together)] = [sch.fuse(*together)]


def _whole_intrinsics(
    sch: Schedule, block: str, result: str, intrin: TensorIntrin
) -> dict[str, int]:
    """By loop of the result: a tile's iterations must be a multiple of this number, so that it
    holds whole intrinsics."""
    found = sch.block(block)
    made = found.writes[0]
    taker = sch.block(result)
    (read,) = (r for r in taker.reads if r.buffer is made.buffer)
    names = {i.var: i.binding.name for i in taker.iters if isinstance(i.binding, Var)}
    across = [n for of, n in intrin.extents if of == "spatial"]
    steps: dict[str, int] = {}
    inside = [1] * (len(read.minimum) - len(across)) + across
    for low, turns in zip(read.minimum, inside, strict=True):
        for n in walk(low):
            match n:
                case Binary("//" | "%", Var() as v, Const(parts)) if v in names:
                    steps[names[v]] = lcm(steps.get(names[v], 1), int(parts))
        if isinstance(low, Var) and low in names:
            steps[names[low]] = lcm(steps.get(names[low], 1), turns)
    return steps


def _register_tile(
    sch: Schedule,
    loops: Sequence[str],
    steps: Mapping[str, int],
    loads: Loads,
    lanes: int,
    target: Target,
) -> dict[str, int]:
    """The iterations of each loop in a tile: a multiple of the loop's step, for as many vectors as
    there are registers. Loops with one iteration in the tile are left out. At most one loop leaves
    a rest, since a rest needs tiles of its own, which is much code. Loops with steps leave none if
    possible. A tile with more computation per load is more likely."""
    registers = (target.vector_registers or 16) - 2
    room = max(1, registers * (lanes if steps else 1) // prod(steps.values()))
    order = sorted(range(len(loops)), key=lambda n: (loops[n] not in steps, -n))
    loads = tuple(tuple(order.index(n) for n in load) for load in loads)
    extents = [extent_of(sch, loops[n]) or 1 for n in order]
    turns = tuple(max(1, e // steps.get(loops[n], 1)) for n, e in zip(order, extents, strict=True))
    tile: dict[str, int] = {}
    counts: tuple[int, ...] = ()
    rest = False
    for number, extent in zip(order, extents, strict=True):
        loop = loops[number]
        step = steps.get(loop, 1)
        options = _counts(counts, turns, room)
        if rest or (step > 1 and extent % step == 0):
            options = [n for n in options if extent % (step * n) == 0] or [1]
        count = 1
        if len(options) > 1:
            ratios = [_best_ratio((*counts, n), turns, loads, room) for n in options]
            likely = [
                round((DIVIDES if extent % (step * n) == 0 else 1.0) * ratio**2, 3)
                for n, ratio in zip(options, ratios, strict=True)
            ]
            tile[loop] = sch.sample_categorical([step * n for n in options], likely)
            rest |= extent % tile[loop] != 0
            count = tile[loop] // step
        elif step > 1:
            tile[loop] = step
        counts = (*counts, count)
    return tile


def _counts(counts: tuple[int, ...], turns: tuple[int, ...], room: int) -> list[int]:
    """How often a tile that has taken `counts` may take the next loop's step."""
    return list(range(1, min(max(1, room // prod(counts)), MOST, turns[len(counts)]) + 1))


@lru_cache(maxsize=1 << 14)
def _best_ratio(counts: tuple[int, ...], turns: tuple[int, ...], loads: Loads, room: int) -> float:
    """Multiply-accumulates per load of the best tile that begins with `counts`."""
    if len(counts) == len(turns):
        return prod(counts) / sum(prod(counts[n] for n in load) for load in loads)
    further = _counts(counts, turns, room)
    return max(_best_ratio((*counts, n), turns, loads, room) for n in further)


def _loads(sch: Schedule, block: str, result: str, loops: Sequence[str]) -> Loads:
    """For everything the sums read, the numbers of the result's loops that move it."""
    found, taker = sch.block(block), sch.block(result)
    (made,) = found.writes
    (read,) = (r for r in taker.reads if r.buffer is made.buffer)
    bound = {i.var: {n.name for n in walk(i.binding) if isinstance(n, Var)} for i in taker.iters}
    moves: dict[Var, set[str]] = {}  # by iteration of the sums
    for own, low in zip(made.minimum, read.minimum, strict=True):
        names = set().union(*(bound[n] for n in walk(low) if isinstance(n, Var) and n in bound))
        for n in walk(own):
            if isinstance(n, Var):
                moves.setdefault(n, set()).update(names)
    regions = [
        [n for low in r.minimum for n in walk(low) if isinstance(n, Var) and n in moves]
        for r in found.reads
    ]
    used = [set().union(*(moves[n] for n in region)) for region in regions]
    return tuple(tuple(n for n, loop in enumerate(loops) if loop in names) for names in used)


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
    """The loops, with the first ones fused into one."""
    counts = [n + 1 for n, loop in enumerate(loops) if extent_of(sch, loop) != 1] or [1]
    count = counts[0]
    if len(counts) > 1:
        count = sch.sample_categorical(counts, [1.0] * len(counts))
    return [sch.fuse(*loops[:count]), *loops[count:]] if count > 1 else list(loops)
