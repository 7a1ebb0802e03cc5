"""The regions that a block's body touches, whatever it holds: loops, blocks, vectors."""

from __future__ import annotations

from typing import Any

from ..arith import Bounds, turn_range
from ..arith.regions import region_under
from ..ir import (
    Block,
    Buffer,
    Expr,
    For,
    IterVar,
    Load,
    Region,
    Stmt,
    Store,
    Var,
    children,
    const,
    walk,
)
from ..ir.lanes import lane_by_lane
from ..ir.structural import region_content

Regions = tuple[Region, ...]


def touched(body: Stmt, iters: tuple[IterVar, ...]) -> tuple[Regions, Regions]:
    """(reads, writes) in terms of a block's iterations: each distinct region once, in order met.

    A block inside counts with its declared reads and writes, a loop with all its iterations.
    """
    ranges: dict[Var, Bounds] = {}
    for i in iters:
        ranges[i.var] = turn_range(i.extent, ranges)
    found: tuple[dict[Any, Region], dict[Any, Region]] = ({}, {})

    def add(side: int, region: Region, bindings: dict[Var, Expr], inner: dict[Var, Bounds]) -> None:
        box = region_under(region, bindings, inner, {**ranges, **inner})
        whole = Region(region.buffer, tuple(low for low, _ in box), tuple(n for _, n in box))
        found[side].setdefault(region_content(whole), whole)

    def access(side: int, b: Buffer, indices: tuple[Expr, ...], inner: dict[Var, Bounds]) -> None:
        scalar, lanes = lane_by_lane(indices)
        if lanes is not None:
            inner = {**inner, lanes.var: turn_range(lanes.extent, {})}
        add(side, Region(b, scalar, (const(1),) * b.ndim), {}, inner)

    def visit(n: Any, inner: dict[Var, Bounds]) -> None:
        match n:
            case For():
                inner = {**inner, n.var: turn_range(n.extent, {**ranges, **inner})}
            case Block():
                bindings = {i.var: i.binding for i in n.iters}
                for side, regions in enumerate((n.reads, n.writes)):
                    for region in regions:
                        add(side, region, bindings, inner)
                return
            case Store(buffer, indices):
                access(1, buffer, indices, inner)
            case Expr():
                for m in walk(n):
                    if isinstance(m, Load):
                        access(0, m.buffer, m.indices, inner)
                return
        for child in children(n):
            visit(child, inner)

    visit(body, {})
    reads, writes = found
    # a region that is read and written is one object, so that an update is recognized
    return tuple(writes.get(k, r) for k, r in reads.items()), tuple(writes.values())
