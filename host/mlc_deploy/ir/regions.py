"""The elements that a statement reads and writes."""

from __future__ import annotations

from .build import const, expr
from .nodes import Buffer, Expr, Load, Region, Stmt, Store
from .rewrite import walk
from .structural import region_content


def point_regions(s: Stmt) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """(reads, writes) of the loads and stores in s, each distinct access once, in order met.

    The regions are single elements in terms of s's free variables; s must hold no loops.
    """
    reads: dict[tuple[object, ...], Region] = {}
    writes: dict[tuple[object, ...], Region] = {}

    def add(found: dict[tuple[object, ...], Region], b: Buffer, indices: tuple[Expr, ...]) -> None:
        region = Region(b, indices, (const(1),) * len(indices))
        found.setdefault(region_content(region), region)

    for n in walk(s):
        match n:
            case Load(buffer, indices):
                add(reads, buffer, indices)
            case Store(buffer, indices):
                add(writes, buffer, indices)
    return tuple(reads.values()), tuple(writes.values())


def with_guards(reads: tuple[Region, ...], predicate: Expr) -> tuple[Region, ...]:
    """A block's reads with those of its predicate: the whole of each buffer, since a predicate is
    in terms of the loops outside, and regions are in terms of the block's iterations."""
    found = {region_content(r): r for r in reads}
    for n in walk(predicate):
        if isinstance(n, Load):
            b = n.buffer
            whole = Region(b, (const(0),) * b.ndim, tuple(expr(size) for size in b.shape))
            found.setdefault(region_content(whole), whole)
    return tuple(found.values())
