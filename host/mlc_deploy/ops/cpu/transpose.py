"""Schedules for blocks that read neighbours along one loop and write neighbours along another:
squares of vectors are transposed in registers. They may read other data along the same loop, or the
same for all of it."""

from __future__ import annotations

from contextlib import suppress
from math import prod

from mlc_targets import Target

from ...arith import Linear, linear, loop_ranges, to_expr
from ...arith.linear import Atom
from ...errors import ScheduleError
from ...ir import Call, Const, Region, Var, substitute, walk
from ...ir.build import strides_of
from ...schedule import Schedule
from ..convolution import OPEN
from ..tile import FEW_TASKS
from .tasks import PARALLEL_ELEMENTS, in_parallel

TOGETHER = 2  # squares of an iteration
FAR = 1 << 31  # more elements than a tensor has
SIDES = (8, 4)  # of squares; larger ones than 8 x 8 do not stay in registers


def in_squares(sch: Schedule, name: str, target: Target) -> Schedule | None:
    """The schedule with a block cut into squares, their rows unrolled and their columns vectors;
    None unless reads run along one loop and its writes along another."""
    block = sch.block(name)
    plain = all(i.kind == "spatial" for i in block.iters)
    if not plain or any(isinstance(n, Call) for n in walk(block.body)):
        return None
    trial = sch.copy()
    loops: list[str] = list(trial.get_loops(name))
    if len(loops) < 2:
        return None
    loops = _fused(trial, name, loops)
    if not _apart(trial, name, loops[-1]):
        return None
    for side in (n for n in SIDES if n <= target.lanes(block.writes[0].buffer.dtype)):
        for row in loops[-2::-1]:
            if min(_extent(trial, row), _extent(trial, loops[-1])) >= side:
                found = _cut(trial.copy(), name, loops, row, side)
                if found is not None:
                    return found
    return None


def _cut(sch: Schedule, name: str, loops: list[str], row: str, side: int) -> Schedule | None:
    """Squares of the last loop and `row`; None if the reads do not run along `row`."""
    at = loops.index(row)
    outer, group, inner = sch.split(row, [None, TOGETHER, side])
    if any(_step(sch, name, r, inner) != 1 for r in _far(sch, name, loops[-1])):
        return None
    turns, lane = sch.split(loops[-1], [None, side])
    between = loops[at + 1 : -1]
    sch.reorder(*between, turns, group, inner, lane)
    sch.unroll(group)
    sch.unroll(inner)
    sch.vectorize(lane)
    around = [*loops[:at], outer, *between, turns]
    if prod(_extent(sch, loop) for loop in around) * side * side >= PARALLEL_ELEMENTS:
        with suppress(ScheduleError):  # where a row is several dimensions
            if prod(_extent(sch, loop) for loop in loops[:at]) < FEW_TASKS:
                in_parallel(sch, around[: at + 1])
            else:
                sch.parallel(sch.fuse(*loops[:at]) if at > 1 else around[0])
    return sch


def _fused(sch: Schedule, name: str, loops: list[str]) -> list[str]:
    """The loops; neighbouring loops that every access goes through in one even stride are fused."""
    done = [loops[-1]]
    for loop in reversed(loops[:-1]):
        inner = done[0]
        regions = (*sch.block(name).reads, *sch.block(name).writes)
        steps = [(_step(sch, name, r, loop), _step(sch, name, r, inner)) for r in regions]
        extent = _extent(sch, inner)
        if all(a is not None and b is not None and a == extent * b for a, b in steps):
            done[0] = sch.fuse(loop, inner)
        else:
            done.insert(0, loop)
    return done


def _apart(sch: Schedule, name: str, lane: str) -> bool:
    """Whether a loop writes neighbours, and reads elements that are further apart."""
    block = sch.block(name)
    written = all(_step(sch, name, w, lane) == 1 for w in block.writes)
    known = all(_step(sch, name, r, lane) is not None for r in block.reads)
    return written and known and bool(_far(sch, name, lane))


def _far(sch: Schedule, name: str, lane: str) -> list[Region]:
    """The block's reads of elements that are further apart than neighbours along a loop."""
    return [r for r in sch.block(name).reads if (_step(sch, name, r, lane) or 0) > 1]


def _step(sch: Schedule, name: str, region: Region, loop: str) -> int | None:
    """By how many elements an access moves per step of a loop; FAR if only the run time knows, None
    if this varies."""
    var = sch.loop(loop).var
    bindings = {i.var: i.binding for i in sch.block(name).iters}
    ranges = loop_ranges([sch.loop(n) for n in sch.get_loops(name)])
    total = Linear(0, {})
    for low, stride in zip(region.minimum, strides_of(region.buffer), strict=True):
        form = linear(substitute(low, bindings), ranges)
        if isinstance(stride, int):
            total = total.plus(form, stride)
        elif form.terms.get(var, 0):
            return FAR
        elif any(_uses(a, var) for a in form.terms):
            return None
    hidden = any(a is not var and _uses(a, var) for a in total.terms)
    return None if hidden else total.terms.get(var, 0)


def _extent(sch: Schedule, loop: str) -> int:
    extent = sch.loop(loop).extent
    return int(extent) if isinstance(extent, Const) else OPEN


def _uses(atom: Atom, var: Var) -> bool:
    return any(n is var for n in walk(to_expr(Linear(0, {atom: 1}), var.dtype)))
