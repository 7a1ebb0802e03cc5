"""The register tile: how every matrix-like operator is scheduled.

The operator is stated as two stages. The *tile* sums up in a domain padded to whole tiles, its
vector dimension last; the *result* takes the part that is wanted, with whatever elementwise work
follows. The schedule cuts the result into tiles, computes each tile in registers just before, and
so has no guard in the loop that multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ..errors import ScheduleError
from ..ir import Const, For, Stmt, Var, children, walk
from ..lower.annotations import TOGETHER
from ..passes.context import option
from ..schedule import Schedule
from ..schedule.tensor_intrin import TensorIntrin
from ..schedule.tree import find_loop, loops_of
from .half import part_of

STEPS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 48, 64)  # steps of a reduction that a tuner tries
MOST_TRIED = 32  # most elements, or vectors, of a tile along one dimension
FEW_TASKS = 8  # too few for threads to share evenly
# Products that keep a Cortex-A72 busy for about 10 microseconds: for fewer, waking threads costs
# more than it saves (SPIN_NANOSECONDS in device_runtime/src/pool.c).
MANY_PRODUCTS = 1 << 16
MOST_SUMS = 32  # vectors of a tile: no target has more registers


def schedule_tile(
    sch: Schedule,
    tile: str,
    result: str,
    cuts: Mapping[int, int],
    *,
    lanes: int,
    steps: int = 1,
    vector_result: bool,
    tasks: int = 1,
    outermost: int = 0,
    row_by_row: bool = False,
) -> str:
    """Schedules block `tile` inside block `result`.

    cuts: loop number of the result -> tile size; the last dimension of the tile's block is cut into
    vectors of `lanes`. steps: about how many steps of the reduction are unrolled. vector_result:
    whether the result's innermost loop is the vector dimension. outermost: the number of the loop
    whose tiles come first. row_by_row: whether a tile's last loop before the vectors is its
    outermost. tasks: how many of the loops over tiles, outermost first, are one parallel loop.
    Returns that loop.
    """
    loops = list(sch.get_loops(result))
    cuts = _chosen(sch, cuts, loops, vector_loop(sch, tile, result), lanes)
    outer: list[str] = []
    inner: list[str] = []
    for number, loop in enumerate(loops):
        if number in cuts:
            a, b = sch.split(loop, [None, cuts[number]])
            outer.append(a)
            inner.append(b)
        else:
            outer.append(loop)
    outer.insert(0, outer.pop(outermost))
    sch.reorder(*outer, *inner)
    products = prod(_turns(sch.loop(n)) for n in sch.get_loops(tile))
    tasks = _task_loops(sch, outer, tasks, products)
    if tasks > 1:
        outer[:tasks] = [sch.fuse(*outer[:tasks])]
    sch.compute_at(tile, outer[-1])
    schedule_sums(sch, tile, outer[-1], lanes, steps, row_by_row)
    schedule_result(sch, inner, lanes, vector_result)
    sch.parallel(outer[0])
    return outer[0]


def schedule_sums(
    sch: Schedule, tile: str, at: str, lanes: int, steps: int, row_by_row: bool = False
) -> None:
    """Schedules the sums that are computed at loop `at`, in registers; with their parts, if any
    (half.py)."""
    if part_of(tile) not in sch.get_blocks():
        schedule_sum(sch, tile, at, lanes, steps, row_by_row)
        sch.set_scope(tile, 0, "local")
        return
    schedule_sum(sch, tile, at, lanes, 1)
    around: list[str] = list(sch.get_loops(tile))
    piece = [n for n in around if _reduces(sch, tile, n)][-1]
    sch.compute_at(part_of(tile), piece)
    schedule_sum(sch, part_of(tile), piece, lanes, steps)
    sch.set_scope(part_of(tile), 0, "local")  # the tile stays in memory: registers cannot hold both


def inline_epilogue(sch: Schedule, result: str) -> str:
    """Inlines block `result` and the elementwise blocks after it into the last one. Returns its
    name."""
    blocks = sch.get_blocks()
    chain = [str(name) for name in blocks[[str(b) for b in blocks].index(result) :]]
    for name in chain[:-1]:
        sch.compute_inline(name)
    return chain[-1]


def vectorize_rows(sch: Schedule, block: str, lanes: int) -> None:
    """Cuts a block's innermost loop into vectors; lanes that a guard separates run one by one."""
    row = sch.get_loops(block)[-1]
    loop, extent = sch.loop(row), sch.loop(row).extent
    if lanes == 1 or not isinstance(extent, Const) or int(extent) < lanes:
        return
    if loop.kind != "serial":  # a loop around the block, which has none of its own
        return
    if int(extent) >= 8 * lanes:
        _, group, lane = sch.split(row, [None, 4, lanes])
        sch.unroll(group)
    else:
        _, lane = sch.split(row, [None, lanes])
    sch.vectorize(lane)


def vector_loop(sch: Schedule, tile: str, result: str) -> str | None:
    """The loop of block `result` that runs along the last dimension of block `tile`'s output."""
    block = sch.block(result)
    (made,) = (w.buffer for w in sch.block(tile).writes)
    (read,) = (r for r in block.reads if r.buffer is made)
    bindings = {i.var: i.binding for i in block.iters}
    index = read.minimum[-1]
    loop = bindings.get(index) if isinstance(index, Var) else None
    return loop.name if isinstance(loop, Var) else None


def _chosen(
    sch: Schedule, cuts: Mapping[int, int], loops: Sequence[str], vector: str | None, lanes: int
) -> dict[int, int]:
    """The cuts; a tuner tries others, of up to twice as many vectors if registers may hold them."""
    chosen: dict[int, int] = {}
    steps = {n: lanes if loops[n] == vector and cut % lanes == 0 else 1 for n, cut in cuts.items()}
    vectors = prod(cut // steps[n] for n, cut in cuts.items())
    room = max(vectors, min(2 * vectors, MOST_SUMS))
    for number, cut in cuts.items():
        extent, step = sch.loop(loops[number]).extent, steps[number]
        turns = int(extent) // step if isinstance(extent, Const) else cut // step
        sizes = {step * n for n in range(1, min(room, MOST_TRIED, turns) + 1)}
        if cut // step <= room:  # always, unless a tuner has taken more before
            sizes.add(cut)
        chosen[number] = sch.choice(cut if cut in sizes else max(sizes), sorted(sizes))
        room = max(room // (chosen[number] // step), 1)
    return chosen


def _task_loops(sch: Schedule, outer: list[str], tasks: int, products: int) -> int:
    """How many of the loops over tiles, outermost first, are tasks: `tasks`, unless the last of
    these has a single iteration. Then, if all have a single iteration, the next longer loop joins
    them. If they have few iterations, it moves outside and is the tasks alone: fused with others,
    it could not be cut where a guard begins to hold. The innermost loop joins for many products
    only.

    Only the outermost of them may have a dynamic extent: the iteration of a fused loop is divided
    by the extents inside it, which should be numbers. So tasks end before such a loop; if these are
    few, it moves outside."""
    opened = next((n for n in range(1, tasks) if _is_open(sch, outer[n])), None)
    if opened is not None:
        before = outer[:opened]
        if _is_open(sch, outer[0]) or prod(_turns(sch.loop(n)) for n in before) >= FEW_TASKS:
            return opened
        outer.insert(0, outer.pop(opened))
        sch.reorder(*outer)
        return opened + 1
    last = len(outer) if products >= MANY_PRODUCTS else len(outer) - 1
    after = next((n for n in range(tasks - 1, last) if not _unit(sch, outer[n])), None)
    if after is None or after < tasks:
        return tasks
    turns = prod(getattr(sch.loop(n).extent, "value", FEW_TASKS) for n in outer[:tasks])
    if turns == 1:
        return after + 1
    if turns < FEW_TASKS:
        outer.insert(0, outer.pop(after))
        sch.reorder(*outer)
        return 1
    return tasks


def _is_open(sch: Schedule, loop: str) -> bool:
    return not isinstance(sch.loop(loop).extent, Const)


def _unit(sch: Schedule, loop: str) -> bool:
    extent = sch.loop(loop).extent
    return getattr(extent, "value", 0) == 1


def schedule_sum(
    sch: Schedule, tile: str, at: str, lanes: int, steps: int, row_by_row: bool = False
) -> None:
    """Schedules the loops of a sum that is computed at loop `at`: the reduction outside, unrolled
    by about `steps`, and the tile inside, in registers. row_by_row: the tile's loops are reversed,
    except the vectors'."""
    spatial, reduced = own_loops(sch, tile, at)
    in_vectors = bool(spatial) and lanes > 1 and _divides(sch, spatial[-1], lanes)
    copies = prod(_turns(sch.loop(n)) for n in spatial) // (lanes if in_vectors else 1)
    reduced, unrolled = unroll_steps(sch, reduced, steps, copies)
    vector: list[str] = []
    if in_vectors:
        spatial[-1], lane = sch.split(spatial[-1], [None, lanes])
        vector = [lane]
    if row_by_row:
        spatial.reverse()
    loops = [*reduced, *unrolled, *spatial, *vector]
    if not loops:  # one element, of one product
        return
    sch.reorder(*loops)
    if reduced:
        sch.annotate(reduced[-1], TOGETHER, True)
    init = sch.decompose_reduction(tile, loops[0])
    for block_name in (tile, init):
        nest = [
            n for n in sch.get_loops(block_name) if n.removesuffix("_init") in (*spatial, *vector)
        ]
        across = nest[: len(nest) - len(vector)]
        unroll(sch, across)
        for lane in nest[len(across) :]:
            sch.vectorize(lane)


def schedule_intrin_sum(
    sch: Schedule, tile: str, at: str, intrin: TensorIntrin, steps: int | Callable[[int], int],
    *, together: bool = False,
) -> None:  # fmt: skip
    """Schedules the loops of a sum inside loop `at` for an intrinsic that adds to sums. The
    intrinsic takes the innermost loops of each kind, in order. The reduction's other loops come
    outside, unrolled by about `steps` (or `steps` of the number of their turns). together: whether
    neighbouring vectors are loaded at once where registers are free for them. Raises ScheduleError
    where the sum is not what the intrinsic computes."""
    spatial, over = own_loops(sch, tile, at)
    inside = [*_taken(sch, spatial, intrin, "spatial"), *_taken(sch, over, intrin, "reduce")]
    turns = prod(int(sch.loop(n).extent) for n in over)  # type: ignore[call-overload]
    most = steps if isinstance(steps, int) else steps(turns)
    copies = prod(_turns(sch.loop(n)) for n in spatial)
    over, unrolled = unroll_steps(sch, over, most, copies)
    sch.reorder(*over, *unrolled, *spatial, *inside)
    if together and over:
        sch.annotate(over[-1], TOGETHER, True)
    block = sch.blockize(inside[0])
    first = next(iter((*over, *unrolled, *spatial)), None) or sch.add_unit_loop(block)
    zero = sch.decompose_reduction(block, first)
    sch.tensorize(block, intrin.name)
    (element,) = sch.get_child_blocks(zero)
    *across, lane = sch.get_loops(element)
    beside = [n for n in sch.get_loops(zero) if n.removesuffix("_init") in spatial]
    unroll(sch, spatial)
    unroll(sch, [*beside, *across])
    sch.vectorize(lane)


def _taken(sch: Schedule, loops: list[str], intrin: TensorIntrin, kind: str) -> list[str]:
    """Takes the loops for an intrinsic's iterations of a kind from the end of `loops`."""
    taken: list[str] = []
    left = [n for n in loops if not _unit(sch, n)]
    for turns in reversed([extent for of, extent in intrin.extents if of == kind and extent > 1]):
        if not left or not _divides(sch, left[-1], turns):
            raise ScheduleError(f"no loop for {turns} iterations of intrinsic '{intrin.name}'")
        loop = left.pop()
        if getattr(sch.loop(loop).extent, "value", 0) > turns:
            outer, inner = sch.split(loop, [None, turns])
            loops[loops.index(loop)] = outer
            taken.insert(0, inner)
        else:
            loops.remove(loop)
            taken.insert(0, loop)
    return taken


def unroll(sch: Schedule, loops: Sequence[str]) -> None:
    """Unrolls nested loops, innermost first, except those that would copy a statement more often
    than the option "lower.unroll_limit" allows."""
    chosen: list[str] = []
    for loop in reversed(loops):
        if _copies(sch, loop, chosen) <= option("lower.unroll_limit"):
            chosen.append(loop)
    for loop in loops:
        if loop in chosen:
            sch.unroll(loop)


def _copies(sch: Schedule, loop: str, inside: Sequence[str]) -> int:
    """How often a statement would be copied, if a loop and those `inside` it were unrolled; beyond
    any limit if an extent is not constant."""

    def most(s: Stmt) -> int:
        below = max((most(c) for c in children(s) if isinstance(c, Stmt)), default=1)
        if isinstance(s, For) and (s.kind == "unrolled" or s.name == loop or s.name in inside):
            return below * _turns(s)
        return below

    *around, itself = loops_of(find_loop(sch.func, loop, "unroll"))
    return most(itself) * prod(_turns(o) for o in around if o.kind == "unrolled")


def _turns(loop: For) -> int:
    return int(loop.extent) if isinstance(loop.extent, Const) else 1 << 30


def unroll_steps(
    sch: Schedule, reduced: list[str], steps: int, copies: int = 1
) -> tuple[list[str], list[str]]:
    """Unrolls the innermost reductions: whole loops while they make up to `steps` iterations
    together, then the part of the next that still fits. Returns (loops that stay, unrolled loops).

    copies: how often unrolled loops inside repeat one iteration's work."""
    unrolled: list[str] = []
    tried = sorted({steps, *(n for n in STEPS if n <= max(2 * steps, 8))})
    room = sch.choice(steps, tried) if reduced else 1
    room = min(room, option("lower.unroll_limit") // max(copies, 1))
    while reduced and room > 1:
        extent = sch.loop(reduced[-1]).extent
        turns = int(extent) if isinstance(extent, Const) else 0
        if 0 < turns <= room:
            unrolled.insert(0, reduced.pop())
            room //= turns
            continue
        part = next((n for n in range(room, 1, -1) if turns and turns % n == 0), 1)
        if part > 1:
            reduced[-1], step = sch.split(reduced[-1], [None, part])
            unrolled.insert(0, step)
        break
    for loop in unrolled:
        sch.unroll(loop)
    return reduced, unrolled


def loops_inside(sch: Schedule, block: str, around: str) -> list[str]:
    """A block's loops inside loop `around`."""
    loops: list[str] = list(sch.get_loops(block))
    return loops[loops.index(around) + 1 :]


def computed_loops(sch: Schedule, name: str, at: str, iters: Sequence[int]) -> list[str]:
    """The loops for iterations of a block that is computed at loop `at`; a loop of one iteration
    where there is none."""
    found: list[str] = []
    for number in iters:
        used = set(walk(sch.block(name).iters[number].binding))
        own = (n for n in loops_inside(sch, name, at) if sch.loop(n).var in used)
        found.append(next(own, None) or sch.add_unit_loop(name))
    return found


def own_loops(sch: Schedule, block: str, around: str) -> tuple[list[str], list[str]]:
    """A block's loops inside loop `around`: (spatial, reductions)."""
    loops = loops_inside(sch, block, around)
    reduced = [n for n in loops if _reduces(sch, block, n)]
    return [n for n in loops if n not in reduced], reduced


def compute_in_registers(sch: Schedule, block: str, at: str) -> None:
    """Computes a block at loop `at`; registers hold its output."""
    sch.compute_at(block, at)
    sch.set_scope(block, 0, "local")


def _reduces(sch: Schedule, block: str, loop: str) -> bool:
    var = sch.loop(loop).var
    return any(i.kind == "reduce" and i.binding is var for i in sch.block(block).iters)


def _divides(sch: Schedule, loop: str, by: int) -> bool:
    extent = getattr(sch.loop(loop).extent, "value", 0)
    return bool(extent) and extent % by == 0


def schedule_result(sch: Schedule, inner: Sequence[str], lanes: int, vector_result: bool) -> None:
    """Unrolls the loops in which a tile's results leave the registers; the innermost becomes
    vectors if results are neighbours in memory."""
    loops = list(inner)
    if vector_result and loops and lanes > 1 and _divides(sch, loops[-1], lanes):
        outer, vector = sch.split(loops[-1], [None, lanes])
        sch.vectorize(vector)
        loops[-1] = outer
    unroll(sch, loops)


def divisor(extent: int, most: int) -> int:
    """The largest divisor of extent that is no more than `most`."""
    return next(n for n in range(min(extent, most), 0, -1) if extent % n == 0)


def even_cut(extent: int, most: int) -> int:
    """The size of parts, at most `most`, that cut extent as evenly as possible."""
    return -(-extent // -(-extent // most))
