"""Buffer compaction: scratch buffers shrink to what is live between their writes and reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from ..arith import Bounds, Known, expr_bounds, loop_ranges, simplify_expr
from ..arith.regions import Interval, region_under, union_all
from ..ir import (
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Load,
    Node,
    PrimFunc,
    Ramp,
    Region,
    Stmt,
    Store,
    Var,
    addressed,
    bottom_up,
    children,
    const,
    expr,
    load,
    once,
    rebuild,
    walk,
    with_fields,
)
from ..ir.lanes import lane_by_lane
from ..passes.context import optional


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store and the loops around it, outermost first; a vector's lanes are a loop."""

    indices: tuple[Expr, ...]
    loops: tuple[For, ...]
    loads: bool


@optional(level=0)
def compact_buffers(func: PrimFunc) -> PrimFunc:
    """alloc B[n, m]; for i: B[i, j] …   =>   alloc B[1, m]; for i: B[0, j] …

    If all uses of a buffer are inside some loops, it needs only the region that one iteration
    touches, unless an iteration reads what an earlier iteration wrote. Indices become relative to
    the region's minimum. The lanes of a vectorized loop run each statement together, so the live
    region spans all lanes."""
    root = func.body
    assert isinstance(root, Block)
    uses: dict[Buffer, list[Access]] = {b: [] for b in root.allocs}
    _collect(root.body, (), uses)
    shrunk: dict[Buffer, tuple[Buffer, list[Interval]]] = {}
    given = addressed(root.body)  # the user's functions rely on their whole shapes
    for buffer, found in uses.items():
        if buffer in given:
            whole: list[Interval] = [(const(0), expr(n)) for n in buffer.shape]
            shrunk[buffer] = (buffer, whole)
        elif found:
            box = _live_box(buffer, found)
            shape = tuple(int(n) if isinstance(n, Const) else n for _, n in box)
            shrunk[buffer] = (buffer.replace(shape=shape), box)

    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(buffer, indices) if buffer in shrunk:
                small, box = shrunk[buffer]
                moved = tuple(map(_less, map(visit, indices), (low for low, _ in box)))
                return load(small, moved)
            case Store(buffer, indices, value) if buffer in shrunk:
                small, box = shrunk[buffer]
                moved = tuple(map(_less, map(visit, indices), (low for low, _ in box)))
                return Store(small, moved, visit(value))
            case Region(buffer, minimum, extent) if buffer in shrunk:  # what a block says of it
                small, box = shrunk[buffer]
                moved = tuple(map(_less, map(visit, minimum), (low for low, _ in box)))
                return Region(small, moved, tuple(map(visit, extent)))
        return rebuild(m, visit)

    allocs = tuple(shrunk[b][0] for b in root.allocs if b in shrunk)
    return with_fields(func, body=with_fields(root, body=visit(root.body), allocs=allocs))


def _less(index: Expr, low: Expr) -> Expr:
    """index - low; a ramp stays a ramp."""
    if isinstance(index, Ramp):
        return with_fields(index, base=index.base - low)
    return index - low


def _collect(s: Any, loops: tuple[For, ...], uses: dict[Buffer, list[Access]]) -> None:
    """Adds the accesses in s, in order of evaluation: a store comes after the loads of its
    value."""
    if isinstance(s, For):
        _collect(s.extent, loops, uses)
        _collect(s.body, (*loops, s), uses)
        return
    seen: set[Node] = set()
    for child in (*children(s), s):
        if isinstance(child, Stmt) and child is not s:
            _collect(child, loops, uses)
            continue
        for n in (s,) if child is s else bottom_up(child, seen):
            seen.add(n)
            if isinstance(n, (Load, Store)) and n.buffer in uses:
                scalar, lanes = lane_by_lane(n.indices)
                around = loops if lanes is None else (*loops, lanes)
                uses[n.buffer].append(Access(scalar, around, isinstance(n, Load)))


def _live_box(buffer: Buffer, found: list[Access]) -> list[Interval]:
    shared = _around_all(found)
    lanes = [n for n, loop in enumerate(shared) if loop.kind == "vectorized"]
    shared = shared[: min(lanes, default=len(shared))]
    while True:
        ranges = Known(loop_ranges(shared))
        boxes = [_box(buffer, access, ranges) for access in found]
        box = union_all(boxes, buffer.shape, ranges)
        assert box is not None
        if not _moves(box, ranges) or _made_in_turn(buffer, found, boxes, ranges):
            break
        shared = shared[:-1]
    return [
        (simplify_expr(low, ranges), n) if isinstance(n, Const) else (const(0), n) for low, n in box
    ]


def _around_all(found: list[Access]) -> tuple[For, ...]:
    """The loops around all accesses, outermost first."""
    shared = found[0].loops
    for access in found[1:]:
        pairs = zip(shared, access.loops, strict=False)
        shared = tuple(a for a, _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
    return shared


def shared_loops(body: Stmt, buffer: Buffer) -> tuple[tuple[For, ...], bool]:
    """(the loops around all accesses of a buffer, whether each iteration of the innermost reads
    only what it wrote itself)."""
    uses: dict[Buffer, list[Access]] = {buffer: []}
    _collect(body, (), uses)
    found = uses[buffer]
    around = _around_all(found) if found else ()
    ranges = loop_ranges(around)
    boxes = [_box(buffer, access, ranges) for access in found]
    return around, bool(around) and _made_in_turn(buffer, found, boxes, ranges)


def _box(buffer: Buffer, access: Access, ranges: dict[Var, Bounds]) -> list[Interval]:
    """The box that an access touches in one iteration of the loops in `ranges`."""
    relaxed = {v: r for v, r in _ranges(access.loops).items() if v not in ranges}
    region = Region(buffer, access.indices, (const(1),) * buffer.ndim)
    return region_under(region, {}, relaxed, ranges)


@lru_cache(16)  # keys: neighbouring accesses stand in the same loops
def _ranges(loops: tuple[For, ...]) -> Mapping[Var, Bounds]:
    return loop_ranges(loops)


def _moves(box: list[Interval], ranges: dict[Var, Bounds]) -> bool:
    """Whether iterations of the loops touch different parts of the buffer."""
    return any(n in ranges for low, _ in box for n in walk(low) if isinstance(n, Var))


def _made_in_turn(
    buffer: Buffer, found: list[Access], boxes: list[list[Interval]], ranges: dict[Var, Bounds]
) -> bool:
    """Whether an iteration reads only what it wrote before. Indices relative to the iteration would
    not find an element of an earlier iteration."""
    loads = [n for n, access in enumerate(found) if access.loads]
    if not loads:
        return True
    written = union_all(boxes[: loads[0]], buffer.shape, ranges)
    read = union_all([boxes[n] for n in loads], buffer.shape, ranges)
    assert read is not None
    return written is not None and all(
        _contains(a, b, ranges) for a, b in zip(written, read, strict=True)
    )


def _contains(outer: Interval, inner: Interval, ranges: dict[Var, Bounds]) -> bool:
    before = expr_bounds(inner[0] - outer[0], ranges)[0]
    after = expr_bounds(outer[0] + outer[1] - inner[0] - inner[1], ranges)[0]
    return before is not None and before >= 0 and after is not None and after >= 0
