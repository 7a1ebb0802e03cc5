"""The reads and writes of a block, from its statements."""

from __future__ import annotations

from ..arith import Bounds, expr_bounds
from ..arith.regions import Interval, region_under, union_all, whole
from ..ir import (
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Let,
    Load,
    Node,
    Region,
    Stmt,
    Store,
    Var,
    children,
    const,
    seq,
    substitute,
    walk,
)
from ..ir.regions import point_regions

Boxes = dict[Buffer, list[list[Interval]]]


def block_regions(
    body: Stmt, init: Stmt | None, allocs: tuple[Buffer, ...]
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """The reads and the writes of a block with this body.

    A body without loops has a region per access. A body with loops or blocks has a box per buffer,
    around all accesses. The reads of a reduction leave out the buffers that it writes. Reads and
    writes leave out the block's own scratch.
    """
    all_of_it = body if init is None else seq([init, body])
    nested = any(isinstance(n, (For, Block, Let)) for n in walk(all_of_it))
    reads, writes = _boxes(all_of_it) if nested else point_regions(all_of_it)
    inner = {b for n in walk(all_of_it) if isinstance(n, Block) for b in n.allocs}
    hidden = {*allocs, *inner}
    writes = tuple(w for w in writes if w.buffer not in hidden)
    own = {w.buffer for w in writes} if init is not None else set()
    return tuple(r for r in reads if r.buffer not in hidden | own), writes


def _boxes(s: Stmt) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    reads: Boxes = {}
    writes: Boxes = {}

    def add(to: Boxes, r: Region, values: dict[Var, Expr], ranges: dict[Var, Bounds]) -> None:
        points = Region(r.buffer, r.minimum, tuple(_constant(n) for n in r.extent))
        found = region_under(points, values, ranges, {})
        box = [
            interval if isinstance(n, Const) else whole(size)
            for interval, n, size in zip(found, r.extent, r.buffer.shape, strict=True)
        ]
        to.setdefault(r.buffer, []).append(box)

    def visit(n: Node, values: dict[Var, Expr], ranges: dict[Var, Bounds]) -> None:
        match n:
            case Expr():
                for m in walk(n):
                    if isinstance(m, Load):
                        points = (const(1),) * len(m.indices)
                        add(reads, Region(m.buffer, m.indices, points), values, ranges)
                return
            case Store(buffer, indices):
                add(writes, Region(buffer, indices, (const(1),) * len(indices)), values, ranges)
            case For():
                high = expr_bounds(substitute(n.extent, values), ranges)[1]
                ranges = {**ranges, n.var: (0, None if high is None else high - 1)}
            case Let():
                visit(n.value, values, ranges)
                visit(n.body, {**values, n.var: substitute(n.value, values)}, ranges)
                return
            case Block():
                bindings = {i.var: substitute(i.binding, values) for i in n.iters}
                for r in n.reads:
                    add(reads, r, {**values, **bindings}, ranges)
                for r in n.writes:
                    add(writes, r, {**values, **bindings}, ranges)
                return
        for child in children(n):
            visit(child, values, ranges)

    visit(s, {}, {})
    return _regions(reads), _regions(writes)


def _constant(extent: Expr) -> Expr:
    return extent if isinstance(extent, Const) else const(1)


def _regions(found: Boxes) -> tuple[Region, ...]:
    regions: list[Region] = []
    for buffer, boxes in found.items():
        box = union_all(boxes, buffer.shape, {})
        assert box is not None
        regions.append(Region(buffer, tuple(low for low, _ in box), tuple(n for _, n in box)))
    return tuple(regions)
