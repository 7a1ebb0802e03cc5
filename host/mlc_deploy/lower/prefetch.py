"""Prefetches: a loop asks for the data of later iterations before they need it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from ..arith import Bounds, linear, loop_ranges
from ..arith.linear import Quotient
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
    Node,
    PrimFunc,
    Region,
    Stmt,
    Var,
    children,
    const,
    dtype_of,
    load,
    loads,
    rebuild,
    seq,
    statements,
    substitute,
    with_fields,
)
from ..ir.build import loop_nest
from ..ir.lanes import lane_by_lane
from ..ir.pragmas import PREFETCH, PREFETCH_NEXT
from ..ir.printer import loop_header
from ..passes.context import required
from .bodies import with_body

Found = tuple[Load, tuple[For, ...]]  # a load, and the loops around it

LINE = 64  # bytes of a cache line
MOST_LINES = 1 << 10  # cache lines that one iteration may ask for


@required
def insert_prefetches(func: PrimFunc) -> PrimFunc:
    """for i (prefetch A, 2): S(A[f(i)])   =>   for i: prefetch(A[f(i + 2)] …); S(A[f(i)])
    for i (prefetch_next A): for j: S(A[i])   =>   for i: for j: prefetch(A[i + 1], part j); S(A[i])

    One prefetch per cache line of each row that an iteration reads. An address outside of the
    tensor is harmless: nothing is loaded into a register. Raises LowerError where the loop does not
    read the buffer, or an iteration reads a part of symbolic size. With prefetch_next, the
    innermost loops that read the buffer several times ask for the next iteration's data in equal
    parts: memory then delivers while they compute."""
    asked = (PREFETCH, PREFETCH_NEXT)
    if not any(isinstance(s, For) and s.annotations.keys() & asked for s in statements(func.body)):
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
        for name in m.annotations.get(PREFETCH_NEXT, ()):
            body = _with_parts(with_fields(m, body=body), around, name)
        return with_body(m, body)

    return with_body(func, visit(func.body, ()))


def _ahead(loop: For, around: tuple[For, ...], name: str, turns: int) -> Stmt:
    """Prefetches of what the loop reads of a buffer `turns` later."""
    if any(o.kind == "vectorized" for o in (*around, loop)):
        _refuse(loop, name, "the loop runs within vectors", "a loop outside of the vectors")
    found = _reads(loop, name)
    buffer = found[0][0].buffer
    if buffer.scope == "local":
        _refuse(loop, name, "it is in registers", "a buffer in memory")
    box = _box_of_all(found, loop_ranges([*around, loop]))
    each = _line_of(buffer)
    counts: list[int] = []
    for axis, ((_, extent), step) in enumerate(zip(box, each, strict=True)):
        if not isinstance(extent, Const):
            _refuse(
                loop,
                name,
                f"an iteration reads {extent} elements of dimension {axis}",
                "a split loop",
            )
        counts.append(-(-int(extent) // step))
    if prod(counts) > MOST_LINES:
        why = f"an iteration reads {prod(counts)} cache lines of it"
        _refuse(loop, name, why, "a loop further inside")
    axes = [Var(f"{loop.name}_line{n}", loop.var.dtype) for n in range(buffer.ndim)]
    at: list[Expr] = []
    for (low, _), v, count, step in zip(box, axes, counts, each, strict=True):
        begin = substitute(low, {loop.var: loop.var + turns})
        at.append(begin if count == 1 else begin + v * step)
    nest = [(v, const(n, v.dtype)) for v, n in zip(axes, counts, strict=True) if n > 1]
    return loop_nest(nest, Evaluate(Call("prefetch", (load(buffer, tuple(at)),), "int32")))


def _with_parts(loop: For, around: tuple[For, ...], name: str) -> Stmt:
    """The loop's body, in which inner iterations prefetch parts of the buffer for the loop's next
    iteration. Nothing changes where extents are symbolic, or nothing is read twice."""
    found = _reads(loop, name)
    places: dict[int, list[Found]] = {}  # by the innermost loop around loads
    for n, inner in found:
        if serial := [o for o in inner if o.kind == "serial"]:
            places.setdefault(id(serial[-1]), []).append((n, inner))
    asks = {at: _part(loop, around, found, own, at) for at, own in places.items()}

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        ask, m = asks.get(id(m)), rebuild(m, visit)
        return m if ask is None else with_fields(m, body=seq([ask, m.body]))

    body: Stmt = visit(loop.body)
    return body


def _part(
    loop: For, around: tuple[For, ...], found: Sequence[Found], own: Sequence[Found], at: int
) -> Stmt | None:
    """The prefetch of one iteration of an inner loop, whose id is `at`. found: the buffer's loads
    in the whole loop. own: its loads in the inner loop."""
    buffer, inner = own[0][0].buffer, own[0][1]
    depth = next(n for n, o in enumerate(inner) if id(o) == at) + 1
    loops, inside = inner[:depth], [(n, path[depth:]) for n, path in own]
    ranges = loop_ranges([*around, loop])
    box = _box_of_all(found, ranges)
    once = _box_of_all(inside, loop_ranges([*around, loop, *loops]))
    lines, read, period = _lines(box, buffer), _lines(once, buffer), _period(box, loop.var, ranges)
    extents = [o.extent.value for o in loops if isinstance(o.extent, Const)]
    if lines is None or read is None or period is None or len(extents) < depth:
        return None
    share = -(-lines // (period * prod(extents)))
    if share >= read:
        return None
    turn: Expr = loop.var % period
    for o in loops:
        turn = turn * o.extent + o.var
    *first, last = (substitute(low, {loop.var: loop.var + period}) for low, _ in box)
    line = Var(f"{loops[-1].name}_line", loop.var.dtype)
    last = last + (turn * share + line) * _line_of(buffer)[-1]
    ask = Evaluate(Call("prefetch", (load(buffer, (*first, last)),), "int32"))
    return loop_nest([(line, const(share, line.dtype))], ask)


def _period(box: Sequence[Interval], var: Var, ranges: dict[Var, Bounds]) -> int | None:
    """After how many iterations of a loop the box moves; None where it is not seen to move."""
    for low, _ in box:
        for atom in linear(low, ranges).terms:
            match atom:
                case Var() if atom is var:
                    return 1
                case Quotient(form, divisor) if form.terms.get(var) == 1:
                    return divisor
    return None


def _box_of_all(found: Sequence[Found], ranges: dict[Var, Bounds]) -> list[Interval]:
    """The box that loads of a buffer read while the loops around them run."""
    buffer = found[0][0].buffer
    boxes = [_box(buffer, n, inner, ranges) for n, inner in found]
    box = union_all(boxes, buffer.shape, ranges)
    assert box is not None
    return box


def _line_of(buffer: Buffer) -> list[int]:
    """Elements of a cache line, by dimension."""
    return [1] * (buffer.ndim - 1) + [LINE // dtype_of(buffer.dtype).bytes]


def _lines(box: Sequence[Interval], buffer: Buffer) -> int | None:
    """Cache lines of a box; None where its size is symbolic."""
    extents = [int(e) for _, e in box if isinstance(e, Const)]
    steps = _line_of(buffer)
    if len(extents) < len(steps):
        return None
    return prod(-(-n // step) for n, step in zip(extents, steps, strict=True))


def _refuse(loop: For, name: str, why: str, mend: str) -> NoReturn:
    raise LowerError(f"prefetch of '{name}': {why}", where=loop_header(loop), mend=mend)


def _reads(loop: For, name: str) -> list[Found]:
    """The loads of a buffer in a loop, with the loops inside it that are around them."""
    found: list[Found] = []

    def visit(n: Node, inner: tuple[For, ...]) -> None:
        if isinstance(n, Expr):
            found.extend((m, inner) for m in loads(n) if m.buffer.name == name)
            return
        for child in children(n):
            visit(child, (*inner, n) if isinstance(n, For) else inner)

    visit(loop.body, ())
    if not found:
        _refuse(loop, name, "the loop reads nothing of it", "a loop around what reads it")
    return found


def _box(
    buffer: Buffer, n: Load, inner: tuple[For, ...], ranges: dict[Var, Bounds]
) -> list[Interval]:
    indices, lanes = lane_by_lane(n.indices)
    loops = [*inner, *([] if lanes is None else [lanes])]
    region = Region(buffer, indices, (const(1),) * buffer.ndim)
    return region_under(region, {}, loop_ranges(loops), ranges)
