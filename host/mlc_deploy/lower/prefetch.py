"""Prefetches: a loop asks for the data of its turns to come, before they need it."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from ..arith import Bounds, loop_ranges
from ..arith.regions import Interval, region_under, union_all
from ..errors import LowerError
from ..ir import (
    Buffer,
    Call,
    Const,
    Evaluate,
    Expr,
    For,
    Load,
    PrimFunc,
    Region,
    Stmt,
    Var,
    children,
    const,
    dtype_of,
    load,
    rebuild,
    seq,
    statements,
    substitute,
    walk,
    with_fields,
)
from ..ir.build import loop_nest
from ..ir.lanes import lane_by_lane
from ..ir.pragmas import PREFETCH
from ..ir.printer import loop_header
from ..passes.context import required
from .bodies import with_body

LINE = 64  # bytes of a cache line
MOST_LINES = 1 << 10  # that one turn may ask for


@required
def insert_prefetches(func: PrimFunc) -> PrimFunc:
    """for i (prefetch A, 2): S(A[f(i)])   =>   for i: prefetch(A[f(i + 2)] …); S(A[f(i)])

    One prefetch per cache line of each row that a turn reads. An address outside of the tensor is
    harmless: nothing is loaded into a register. Raises LowerError where the loop does not read the
    buffer, or a turn reads a part of it that has no constant size.
    """
    if not any(isinstance(s, For) and PREFETCH in s.annotations for s in statements(func.body)):
        return func

    def visit(m: Any, around: tuple[For, ...]) -> Any:
        if isinstance(m, Expr):
            return m
        if not isinstance(m, For):
            return rebuild(m, lambda child: visit(child, around))
        body = visit(m.body, (*around, m))
        if PREFETCH in m.annotations:
            ahead = [_ahead(m, around, name, turns) for name, turns in m.annotations[PREFETCH]]
            body = seq([*ahead, body])
        return m if body is m.body else with_fields(m, body=body)

    return with_body(func, visit(func.body, ()))


def _ahead(loop: For, around: tuple[For, ...], name: str, turns: int) -> Stmt:
    """Prefetches of what the loop reads of a buffer, so many turns later."""
    if any(o.kind == "vectorized" for o in (*around, loop)):
        _refuse(loop, name, "the loop runs within vectors", "a loop outside of the vectors")
    found: list[tuple[Load, tuple[For, ...]]] = []
    _collect(loop.body, (), name, found)
    if not found:
        _refuse(loop, name, "the loop reads nothing of it", "a loop around what reads it")
    buffer = found[0][0].buffer
    if buffer.scope == "local":
        _refuse(loop, name, "it is in registers", "a buffer in memory")
    ranges = loop_ranges([*around, loop])
    boxes = [_box(buffer, n, inner, ranges) for n, inner in found]
    box = union_all(boxes, buffer.shape, ranges)
    assert box is not None
    each = [1] * (buffer.ndim - 1) + [LINE // dtype_of(buffer.dtype).bytes]
    counts: list[int] = []
    for axis, ((_, extent), step) in enumerate(zip(box, each, strict=True)):
        if not isinstance(extent, Const):
            _refuse(
                loop, name, f"a turn reads {extent} elements of dimension {axis}", "a split loop"
            )
        counts.append(-(-int(extent) // step))
    if prod(counts) > MOST_LINES:
        why = f"a turn reads {prod(counts)} cache lines of it"
        _refuse(loop, name, why, "a loop further inside")
    axes = [Var(f"{loop.name}_line{n}", loop.var.dtype) for n in range(buffer.ndim)]
    at: list[Expr] = []
    for (low, _), v, count, step in zip(box, axes, counts, each, strict=True):
        begin = substitute(low, {loop.var: loop.var + turns})
        at.append(begin if count == 1 else begin + v * step)
    nest = [(v, const(n, v.dtype)) for v, n in zip(axes, counts, strict=True) if n > 1]
    return loop_nest(nest, Evaluate(Call("prefetch", (load(buffer, tuple(at)),), "int32")))


def _refuse(loop: For, name: str, why: str, mend: str) -> NoReturn:
    raise LowerError(f"prefetch of '{name}': {why}", where=loop_header(loop), mend=mend)


def _collect(s: Any, inner: tuple[For, ...], name: str, found: list[Any]) -> None:
    """The loads of a buffer, with the loops around them."""
    if isinstance(s, Expr):
        found += [(n, inner) for n in walk(s) if isinstance(n, Load) and n.buffer.name == name]
        return
    for child in children(s):
        _collect(child, (*inner, s) if isinstance(s, For) else inner, name, found)


def _box(
    buffer: Buffer, n: Load, inner: tuple[For, ...], ranges: dict[Var, Bounds]
) -> list[Interval]:
    indices, lanes = lane_by_lane(n.indices)
    loops = [*inner, *([] if lanes is None else [lanes])]
    known = {**ranges, **loop_ranges(loops)}
    relaxed = {loop.var: known[loop.var] for loop in loops}
    return region_under(Region(buffer, indices, (const(1),) * buffer.ndim), {}, relaxed, ranges)
