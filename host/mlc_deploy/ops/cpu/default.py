"""Schedules for any program that carries none, on any CPU with or without vectors.

Elementwise producers are inlined into their consumers; elementwise blocks are fused, cut into
vectors of one register and made parallel; reductions keep a vector of neighbouring results, or of
parts of a result, in registers. Programs of several stages (softmax, normalization) go row by row.
Unscheduled code is never naive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import prod
from typing import cast

from mlc_targets import Target

from ...arith import Linear, linear
from ...arith.linear import Atom, Quotient, Remainder
from ...errors import ScheduleError
from ...ir import (
    BOUNDED,
    MOST,
    Block,
    Call,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    IterVar,
    Load,
    PrimFunc,
    Region,
    Store,
    Var,
    is_const,
    statements,
    substitute,
    symbols_of,
    walk,
)
from ...ir.build import strides_of
from ...ir.structural import content
from ...schedule import Schedule
from ..tile import unroll_steps
from .tasks import PARALLEL_ELEMENTS, in_parallel
from .transpose import in_squares

STEPS = 8  # about so many steps of a reduction are unrolled into one iteration
PARTS = (4, 3, 2, 7, 5, 1)  # how many turns may be unrolled into one, the best first
FEW_VECTORS = 8  # a row of at most so many is one iteration
MANY_VECTORS = 64  # for more, a tail for the vectors left over pays
MOST_TURNS = 4  # of a loop over parts of vectors that is unrolled
SHORT = 16  # steps below which a reduction has no vectors of its own
TASKS = 32  # enough for the threads of any board to share
# Of a task: dividing its number costs as much as they do (tests/frontend/test_onnx_work.py counts
# depth_to_space).
FEW_ELEMENTS = 1 << 7
CHUNK = 1 << 12  # elements of a task, where their number is known only at run time


def default_schedule(func: PrimFunc, target: Target, apart: Sequence[str] = ()) -> PrimFunc:
    """func with a reasonable schedule for every block. func must carry no schedule; without blocks
    it stays as it is. apart: blocks that are computed whole before the others begin."""
    sch = Schedule(func)
    if not sch.get_blocks():
        return func
    written = {name: _is_written(sch.block(name)) for name in sch.get_blocks()}
    if any(written.values()):
        for name, stays in written.items():
            if not stays:
                schedule_block(sch, name, target)
        return sch.func
    inline_elementwise(sch, apart)
    for name in sch.get_blocks():
        sch = part_reduction(sch, name, target)
    sch, row = (sch, None) if apart else by_rows(sch)
    for name in sch.get_blocks():
        if row is None:
            sch = schedule_apart(sch, name, target)
        else:
            schedule_block(sch, name, target, row)
    if row is not None:
        sch.parallel(row)
    return sch.func


def _is_written(block: Block) -> bool:
    """Whether a block contains loops, branches or calls for their effect: it stays as it is."""
    return any(isinstance(s, For | If | Evaluate) for s in statements(block.body))


def schedule_apart(sch: Schedule, name: str, target: Target) -> Schedule:
    """The schedule with one block scheduled in loops of its own."""
    squares = in_squares(sch, name, target)
    if squares is None:
        schedule_block(sch, name, target)
    return squares or sch


def by_rows(sch: Schedule) -> tuple[Schedule, str | None]:
    """The schedule with all stages in one loop over rows of the last stage, and this loop: the
    innermost in which no stage repeats work. The schedule as it was and None, if there is no such
    loop."""
    *stages, last = sch.get_blocks()
    spatial = {i.binding for i in sch.block(last).iters if i.kind == "spatial"}
    loops = [n for n in sch.get_loops(last) if sch.loop(n).var in spatial]
    for count in range(len(loops) - 1, 0, -1):
        trial = sch.copy()
        try:
            row = trial.fuse(*loops[:count]) if count > 1 else loops[0]
            if stages and _join(trial, stages, row):
                return trial, row
        except ScheduleError:
            continue
    return sch, None


def _join(sch: Schedule, stages: Sequence[str], row: str) -> bool:
    """Computes the stages in a loop. Returns whether no stage takes more iterations than before."""
    if not isinstance(sch.loop(row).extent, Const) or _extent(sch, row) == 1:
        return False
    for stage in reversed(stages):
        before = _turns(sch, stage)
        sch.compute_at(stage, row)
        if _turns(sch, stage) > before:
            return False
    return True


def _turns(sch: Schedule, block: str) -> int:
    return prod(_extent(sch, loop) for loop in sch.get_loops(block))


def inline_elementwise(sch: Schedule, apart: Sequence[str] = ()) -> None:
    """Inlines every block that computes each element by one expression of its inputs' elements,
    unless a reduction would recompute it in every step, or it is in `apart`."""
    for name in sch.get_blocks():
        if name not in apart:
            inline_block(sch, name)


def inline_block(sch: Schedule, name: str) -> None:
    """Inlines one block, as inline_elementwise does."""
    block, consumers = sch.block(name), [sch.block(c) for c in sch.get_consumers(name)]
    sums = [c for c in consumers if c.init is not None]
    if consumers and (not sums or _is_copy(block) or _is_read_once(block, consumers)):
        with suppress(ScheduleError):
            sch.compute_inline(name)


def _is_read_once(block: Block, consumers: Sequence[Block]) -> bool:
    """Whether a single reduction reads each element of a block in one step, and computing it there
    costs few instructions: short reductions have no vectors, and functions want all registers."""
    (reduction, *others) = consumers
    known, opened = _turns_of(i for i in reduction.iters if i.kind == "reduce")
    cheap = not any(
        isinstance(e, Call) and e.name not in ("abs", BOUNDED) for e in walk(block.body)
    )
    same = _turns_of(reduction.iters) == _turns_of(block.iters)
    return not others and cheap and (known >= SHORT or bool(opened)) and same


def _turns_of(iters: Iterable[IterVar]) -> tuple[int, list[bytes]]:
    """The iterations of loops over the iterators: those known together, and the extents, by
    content, known only at run time."""
    extents = [i.extent for i in iters]
    known = prod(int(e.value) for e in extents if isinstance(e, Const))
    return known, sorted(content(e) for e in extents if not isinstance(e, Const))


def _is_copy(block: Block) -> bool:
    """Whether a block's expression is one load, which costs nothing to repeat."""
    return isinstance(block.body, Store) and isinstance(block.body.value, Load)


def schedule_block(sch: Schedule, name: str, target: Target, row: str | None = None) -> None:
    """Schedules one block by its kind, in its own loops or in those within `row`."""
    block = sch.block(name)
    if block.init is not None:
        schedule_reduction(sch, name, target, row)
    elif all(i.kind == "spatial" for i in block.iters):
        schedule_injective(sch, name, target, row)


def _own_loops(sch: Schedule, name: str, row: str | None) -> list[str]:
    loops: list[str] = list(sch.get_loops(name))
    return loops[loops.index(row) + 1 :] if row in loops else loops


def schedule_injective(sch: Schedule, name: str, target: Target, row: str | None = None) -> None:
    """Fuses inner loops as far as every access stays contiguous. The innermost loop is a vector of
    one register of the output's dtype (of bytes, where there are any), the outermost parallel."""
    loops = _own_loops(sch, name, row)
    if not loops:
        return
    block, total = sch.block(name), prod(_extent(sch, n) for n in loops)
    inner = _contiguous_loops(block, [sch.loop(n).var for n in loops], sch)
    fused = sch.fuse(*loops[-inner:]) if inner > 1 else loops[-1]
    outer = loops[:-inner]
    elements = _extent(sch, fused)
    lanes = _lanes(block, elements, target)
    part = _vector_part(sch, name, fused, lanes, target)
    same = _loops_of_equal_calls(sch, name, loops, lanes) if inner == 1 else []
    if same:
        outer = [n for n in loops if n not in same]
        sch.reorder(*outer, *same)
        elements = prod(_extent(sch, n) for n in same)
    elif part > 1:
        group, vector = sch.split(fused, [None, part])
        sch.vectorize(vector)
        fused = group
        if outer and elements // part <= MOST_TURNS:
            outer[-1], inner_loop = sch.split(outer[-1], [None, _part(_extent(sch, outer[-1]))])
            sch.unroll(inner_loop)
            sch.unroll(group)
    elif lanes > 1 and elements >= lanes and _vectors_well(sch.block(name), sch.loop(fused).var):
        if isinstance(sch.loop(fused).extent, Const):
            fused, together = _in_vectors(sch, fused, lanes, simple=_is_simple(block))
            if outer and together == 1 and _extent(sch, fused) == 1 and _is_simple(block):
                part = _part(_extent(sch, outer[-1]))
                outer[-1], inner_loop = sch.split(outer[-1], [None, part])
                sch.unroll(inner_loop)
        else:
            chunk = [] if outer or row in sch.get_loops(name) else [CHUNK // lanes]
            *tasks, fused, vector = sch.split(fused, [None, *chunk, lanes])
            outer += tasks
            sch.vectorize(vector)
    if total >= PARALLEL_ELEMENTS and row not in sch.get_loops(name):
        single = prod(_extent(sch, n) for n in outer) == 1
        outer = [*outer, fused] if single else _in_chunks(sch, outer, elements)
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])


def _loops_of_equal_calls(sch: Schedule, name: str, loops: Sequence[str], lanes: int) -> list[str]:
    """The loops in whose iterations all function calls of a block give the same: these are computed
    once if the loops are the innermost ones. None if there are no calls, or no other loops, or
    where vectors along the last loop read neighbours, or save more."""
    block, last = sch.block(name), sch.loop(loops[-1]).var
    if None not in _steps(block, last):
        return []
    calls = [
        n
        for n in walk(block.body)
        if isinstance(n, Call) and n.name not in ("if_then_else", BOUNDED)
    ]
    used = {n for call in calls for n in walk(call)}
    bound = {n for i in block.iters if i.var in used for n in walk(i.binding)}
    same = [n for n in loops if sch.loop(n).var not in bound]
    least = lanes + 1 if _vectors_well(block, last) else 2
    saves = prod(_extent(sch, n) for n in same) >= least
    return same if calls and saves and len(same) < len(loops) else []


def _in_chunks(sch: Schedule, outer: list[str], elements: int) -> list[str]:
    """The loops to fuse into tasks, of which an iteration makes so many elements. The iterations of
    a dynamic loop inside others are many to a task: each task divides its number by the dynamic
    extent."""
    several = [n for n in outer if _extent(sch, n) > 1]
    inner = [n for n in several[1:] if not isinstance(sch.loop(n).extent, Const)]
    if not inner:
        return _few_tasks(sch, outer, elements)
    at = outer.index(inner[-1])
    turns = CHUNK // prod((elements, *(_extent(sch, n) for n in outer[at + 1 :])))
    if turns < 2:
        return outer
    chunk, _ = sch.split(inner[-1], [None, turns])
    return [*outer[:at], chunk]


def _few_tasks(sch: Schedule, outer: list[str], elements: int) -> list[str]:
    """The outermost of loops of known extents that make TASKS tasks, if all together would make
    tasks of few elements: each task divides its number by the extents."""
    tasks = prod(_extent(sch, n) for n in outer)
    if elements >= FEW_ELEMENTS or tasks < 2 * TASKS:
        return outer
    made = 1
    for at, loop in enumerate(outer, 1):
        made *= _extent(sch, loop)
        if made >= TASKS:
            return outer[:at]
    return outer


def _vector_part(sch: Schedule, name: str, loop: str, lanes: int, target: Target) -> int:
    """How many elements are neighbours where `lanes` elements are not: when blocks of channels
    become larger ones. 1 if there are none."""
    if not isinstance(sch.loop(loop).extent, Const):
        return 1
    if None not in _steps(sch.block(name), sch.loop(loop).var):
        return 1
    for part in (lanes, min(lanes // 2, target.lanes("float32"))):
        if part < 2 or _extent(sch, loop) % part:
            continue
        trial = sch.copy()
        _, vector = trial.split(loop, [None, part])
        block, lane = trial.block(name), trial.loop(vector).var
        if _vectors_well(block, lane) and set(_steps(block, lane, part)) <= {0, 1}:
            return part
    return 1


def _lanes(block: Block, elements: int, target: Target) -> int:
    """How many elements make a vector: a register of bytes, if any are read or written, else one of
    the output's dtype. If bytes are only 4, 8, 16 or 32 and fill no register, all of them."""
    dtypes = {block.writes[0].buffer.dtype, *(r.buffer.dtype for r in block.reads)}
    bytes_ = dtypes & {"int8", "uint8"}
    lanes = max(target.lanes(d) for d in bytes_ or {block.writes[0].buffer.dtype})
    few = elements < lanes and elements in (4, 8, 16, 32)
    return elements if few and bytes_ else lanes


def _in_vectors(sch: Schedule, loop: str, lanes: int, simple: bool) -> tuple[str, int]:
    """Cuts a loop into vectors, and unrolls several into one iteration. Returns (the loop over
    iterations, vectors in an iteration)."""
    vectors = _extent(sch, loop) // lanes
    # Long blocks have more constants than registers: two vectors share each load of one.
    whole = vectors <= FEW_VECTORS
    together = (vectors if whole else _part(vectors)) if simple else 2 if vectors % 2 == 0 else 1
    if simple and together == 1 and vectors > MANY_VECTORS:
        together = 4
    together = sch.choice(together, sorted({together, *(n for n in PARTS if n <= vectors)}))
    turn, group, vector = sch.split(loop, [None, together, lanes])
    sch.unroll(group)
    sch.vectorize(vector)
    return turn, together


def _part(turns: int) -> int:
    """How many iterations to unroll into one, so that none are left over."""
    return next(n for n in PARTS if turns % n == 0)


def _is_simple(block: Block) -> bool:
    """Whether the block is only a few instructions, so that the cost of an iteration counts."""
    calls = [n for n in walk(block.body) if isinstance(n, Call) and n.name != BOUNDED]
    return len(calls) <= 1 and all(n.name in ("if_then_else", "abs") for n in calls)


def _extent(sch: Schedule, loop: str) -> int:
    extent = sch.loop(loop).extent
    return int(extent) if isinstance(extent, Const) else PARALLEL_ELEMENTS


def _contiguous_loops(block: Block, loops: Sequence[Var], sch: Schedule) -> int:
    """How many of the innermost loops can be fused: every access steps through its buffer in order,
    or does not move with these loops."""
    iters = {i.binding: i.var for i in block.iters if isinstance(i.binding, Var)}
    most = 1
    for count in range(2, len(loops) + 1):
        inner = [iters.get(v) for v in loops[-count:]]
        extents = [sch.loop(v.name).extent for v in loops[-count:]]
        if None in inner or any(
            not _steps_through(r, cast("list[Var]", inner), extents)
            for r in (*block.reads, *block.writes)
        ):
            break
        if _guarded_by(block, set(cast("list[Var]", inner))):
            break
        most = count
    return most


def _steps_through(region: Region, inner: Sequence[Var], extents: Sequence[Expr]) -> bool:
    used = {n for low in region.minimum for n in walk(low) if isinstance(n, Var)}
    if not used & set(inner):
        return True
    if region.buffer.strides is not None or len(region.minimum) < len(inner):
        return False
    tail = region.minimum[-len(inner) :]
    shape = region.buffer.shape[-len(inner) :]
    same = all(a is b for a, b in zip(tail, inner, strict=True))
    head = {n for low in region.minimum[: -len(inner)] for n in walk(low) if isinstance(n, Var)}
    whole = all(
        isinstance(n, int) and is_const(e, n) for e, n in zip(extents[1:], shape[1:], strict=True)
    )
    return same and whole and not head & set(inner)


def _guarded_by(block: Block, inner: set[Var]) -> bool:
    """Whether a guarded load's condition depends on these variables."""
    return any(
        isinstance(n, Call)
        and n.name == "if_then_else"
        and any(v in inner for v in walk(n.args[0]))
        for n in walk(block.body)
    )


def _steps(block: Block, lane: Var, turns: int | None = None) -> list[int | None]:
    """The steps of all writes, then of all reads, along a loop (of so many turns)."""
    bindings = {i.var: i.binding for i in block.iters}
    return [_step(r, bindings, lane, turns) for r in (*block.writes, *block.reads)]


def _vectors_well(block: Block, lane: Var) -> bool:
    """Whether writes move with the loop by neighbours or not at all, and no guard depends on it."""
    bindings = {i.var: i.binding for i in block.iters}
    moves = {v for v, e in bindings.items() if any(n is lane for n in walk(e))}
    steps = _steps(block, lane)
    plain = all(step in (0, 1) for step in steps[: len(block.writes)])
    return plain and not _guarded_by(block, moves)


def _step(
    region: Region, bindings: dict[Var, Expr], lane: Var, turns: int | None = None
) -> int | None:
    """By how many elements an access moves per step of the loop; None if this varies."""
    ranges = {lane: (0, turns - 1)} if turns else {}
    total = Linear(0, {})
    for low, stride in zip(region.minimum, strides_of(region.buffer), strict=True):
        index = linear(substitute(low, bindings), ranges)
        if isinstance(stride, int):
            total = total.plus(index, stride)
        elif any(a is lane or _hides(a, lane) for a in index.terms):
            return None
    if any(_hides(atom, lane) for atom in total.terms):
        return None
    return total.terms.get(lane, 0)


def _hides(atom: Atom, lane: Var) -> bool:
    match atom:
        case Var():
            return False
        case Quotient(form, _) | Remainder(form, _):
            return any(a is lane or _hides(a, lane) for a in form.terms)
    return True


def part_reduction(sch: Schedule, name: str, target: Target) -> Schedule:
    """sum over k of a row => sum over the lanes of sums over every lanes-th k. Only where reads are
    contiguous along k, and results fill no vectors. Rounding differs, as between any two orders."""
    block = sch.block(name)
    lanes = target.lanes(block.writes[0].buffer.dtype)
    loops = sch.get_loops(name)
    if block.init is None or lanes == 1 or not loops or _extent(sch, loops[-1]) < 2 * lanes:
        return sch
    innermost = sch.loop(loops[-1]).var
    bindings = {i.var: i.binding for i in block.iters}
    reduces = any(i.kind == "reduce" and i.binding is innermost for i in block.iters)
    neighbours = {_step(r, bindings, innermost) for r in block.reads} in ({1}, {0, 1})
    if not reduces or not neighbours or _vector_loop(sch, name, lanes, apart=False):
        return sch
    # The parts of all results have a place in memory only if their number is bounded.
    if MOST not in sch.func.attrs and any(symbols_of(r.buffer) for r in block.writes):
        return sch
    trial = sch.copy()
    try:
        _, lane = trial.split(loops[-1], [None, lanes])
        trial.rfactor(lane, block.writes[0].buffer.ndim)
    except ScheduleError:
        return sch
    return trial


def _vector_loop(
    sch: Schedule, name: str, lanes: int, row: str | None = None, apart: bool = True
) -> str | None:
    """The innermost loop over results, if neighbouring iterations write neighbours. Unless `apart`,
    they must also read neighbours, or the same element."""
    block = sch.block(name)
    kinds = {i.binding: i.kind for i in block.iters if isinstance(i.binding, Var)}
    own = [n for n in _own_loops(sch, name, row) if kinds.get(sch.loop(n).var) == "spatial"]
    if not own or lanes == 1 or _extent(sch, own[-1]) < lanes:
        return None
    innermost = sch.loop(own[-1]).var
    bindings = {i.var: i.binding for i in block.iters}
    steps = [_step(r, bindings, innermost) for r in (*block.writes, *block.reads)]
    well = all(s is not None and (apart or s in (0, 1)) for s in steps)
    return own[-1] if steps[0] == 1 and well else None


def schedule_reduction(sch: Schedule, name: str, target: Target, row: str | None = None) -> None:
    """Puts neighbouring results into one vector. Reduction loops run inside the loops over results,
    so that the sums stay in registers."""
    block = sch.block(name)
    loops = _own_loops(sch, name, row)
    kinds = {i.binding: i.kind for i in block.iters if isinstance(i.binding, Var)}
    spatial = [n for n in loops if kinds.get(sch.loop(n).var) == "spatial"]
    reduced = [n for n in loops if kinds.get(sch.loop(n).var) == "reduce"]
    if not reduced:
        return
    lanes = target.lanes(block.writes[0].buffer.dtype)
    vector: str | None = None
    if _vector_loop(sch, name, lanes, row):
        outer, vector = sch.split(spatial[-1], [None, lanes])
        spatial[-1] = outer
    if _is_simple(block) and target.kind != "c":  # a C compiler unrolls by itself
        reduced, unrolled = unroll_steps(sch, reduced, STEPS)
        reduced += unrolled
    order = [*spatial, *reduced, *([vector] if vector else [])]
    sch.reorder(*order)
    init = sch.decompose_reduction(name, reduced[0])
    if vector:
        sch.vectorize(vector)
        sch.vectorize(sch.get_loops(init)[-1])
    work = 1
    for loop in (*spatial, *reduced):
        work *= _extent(sch, loop)
    if spatial and work * lanes >= PARALLEL_ELEMENTS and row not in sch.get_loops(name):
        in_parallel(sch, spatial)
