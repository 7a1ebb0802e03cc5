"""Storage rewrite: scratch buffers that are never alive together share the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets.object_format import ALIGNMENT

from ..arith import Bounds, Linear, bounds, linear, loop_ranges
from ..arith.regions import relax
from ..ir import (
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    Node,
    PrimFunc,
    Stmt,
    Store,
    Var,
    bottom_up,
    children,
    dtype_of,
    with_fields,
)
from ..ir.build import span_of
from ..passes.context import optional
from .annotations import KEPT

WORKSPACE = "lower.workspace"  # the attribute that says where each scratch buffer lies, in bytes


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store, where in the program it stands, and the loops and guards around it."""

    node: Load | Store
    position: int
    around: tuple[For | If, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of the program within a loop, both ends inclusive."""

    first: int
    last: int


@optional(level=1)
def share_storage(func: PrimFunc) -> PrimFunc:
    """alloc A, B; A = …; … = A; B = …; … = B   =>   A and B at one offset of the workspace

    A buffer is alive from its first use to its last. A loop whose iterations pass data on through
    the buffer keeps it alive in all iterations. Local buffers are left to LLVM. The attribute
    WORKSPACE holds the offsets, by buffer name."""
    root = func.body
    assert isinstance(root, Block)
    shared = [b for b in root.allocs if b.scope == "global"]
    if len(shared) < 2 or any(not isinstance(n, int) for b in shared for n in b.shape):
        return func
    uses, spans = _accesses(root.body, set(shared))
    whole = Span(0, max((span.last for span in spans.values()), default=0))
    lives = [(b, whole if _is_kept(uses[b]) else _life(uses[b], spans)) for b in shared if uses[b]]
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, Span]] = []
    for buffer, life in sorted(lives, key=lambda item: -_bytes(item[0])):
        taken = sorted((a, b) for a, b, other in placed if _meet(life, other))
        size, at = _bytes(buffer), 0
        for begin, end in taken:
            if at + size <= begin:
                break
            at = max(at, end)
        offsets[buffer.name] = at
        placed.append((at, at + size, life))
    return with_fields(func, attrs={**func.attrs, WORKSPACE: offsets})


def _bytes(buffer: Buffer) -> int:
    count = span_of(buffer)
    assert isinstance(count, int)
    return -(-count * dtype_of(buffer.dtype).bytes // ALIGNMENT) * ALIGNMENT


def _meet(a: Span, b: Span) -> bool:
    return a.first <= b.last and b.first <= a.last


def _accesses(
    body: Stmt, wanted: set[Buffer]
) -> tuple[dict[Buffer, list[Access]], dict[For, Span]]:
    """The accesses of each buffer in order of evaluation (a store's reads before its write), and
    the positions that each loop spans. A statement has one position, since all that it accesses is
    alive at once."""
    uses: dict[Buffer, list[Access]] = {b: [] for b in wanted}
    spans: dict[For, Span] = {}
    position = 0

    def visit(n: Stmt, around: tuple[For | If, ...]) -> None:
        nonlocal position
        first = position
        inside = (*around, n) if isinstance(n, (For, If)) else around
        seen: set[Node] = set()
        for child in children(n):
            if isinstance(child, Stmt):
                visit(child, inside)
                continue
            for m in bottom_up(child, seen):
                seen.add(m)
                if isinstance(m, Load) and m.buffer in uses:
                    uses[m.buffer].append(Access(m, position, around))
        if isinstance(n, Store) and n.buffer in uses:
            uses[n.buffer].append(Access(n, position, around))
        position += 1
        if isinstance(n, For):
            spans[n] = Span(first, position - 1)

    visit(body, ())
    return uses, spans


def _is_kept(found: Sequence[Access]) -> bool:
    """Whether later tasks read what a loop KEPT wrote."""
    kept = [{n for n in a.around if isinstance(n, For) and KEPT in n.annotations} for a in found]
    return any(loops - other for loops in kept for other in kept)


def _life(found: Sequence[Access], spans: dict[For, Span]) -> Span:
    """From the first to the last access. A loop counts as a whole if only some accesses are in it,
    or if its iterations pass data on through the buffer."""
    first, last = found[0].position, found[-1].position
    common = _common_loops(found)
    for access in found:
        for loop in access.around:
            if isinstance(loop, For) and loop not in common:
                first, last = min(first, spans[loop].first), max(last, spans[loop].last)
    for loop in reversed(common):
        if _written_before_read(found, loop):
            break
        first, last = spans[loop].first, spans[loop].last
    return Span(first, last)


def _common_loops(found: Sequence[Access]) -> list[For]:
    shared = [n for n in found[0].around if isinstance(n, For)]
    for access in found[1:]:
        around = set(access.around)
        shared = [n for n in shared if n in around]
    return shared


def _written_before_read(found: Sequence[Access], loop: For) -> bool:
    """Whether in each iteration of `loop` the first access writes every element that the iteration
    reads."""
    begin = found[0]
    if not isinstance(begin.node, Store) or loop.kind == "vectorized":
        return False
    place = begin.around.index(loop)
    nest = [n for n in begin.around[place + 1 :] if isinstance(n, For)]
    if len(nest) != len(begin.around) - place - 1:
        return False  # guarded
    outside = loop_ranges([n for n in begin.around[: place + 1] if isinstance(n, For)])
    written = _dense_box(begin.node.indices, nest, outside)
    return written is not None and all(
        _lies_in(access, written, outside) for access in found if isinstance(access.node, Load)
    )


Box = list[tuple[Linear, int]]  # per dimension: the first index, and the extent


def _dense_box(
    indices: Sequence[Expr], nest: Sequence[For], outside: dict[Var, Bounds]
) -> Box | None:
    """The box that a nest of loops fills without gaps, or None."""
    turns = {n.var: n.extent.value for n in nest if isinstance(n.extent, Const)}
    if len(turns) != len(nest):
        return None
    box: Box = []
    used: set[Any] = set()
    for index in indices:
        form = linear(index, {**outside, **{v: (0, int(n) - 1) for v, n in turns.items()}})
        base = Linear(form.constant, {})
        moving = []
        for atom, step in form.terms.items():
            if atom in turns and atom not in used and step > 0:
                used.add(atom)
                moving.append((step, int(turns[atom])))  # type: ignore[index]
            elif isinstance(atom, Var) and atom not in turns:
                base = base.plus(Linear(0, {atom: step}))
            else:
                return None
        filled = 1
        for step, count in sorted(moving):
            if step > filled:
                return None
            filled += step * (count - 1)
        box.append((base, filled))
    return box


def _lies_in(access: Access, box: Box, outside: dict[Var, Bounds]) -> bool:
    inner = loop_ranges([n for n in access.around if isinstance(n, For)])
    relaxed = {v: r for v, r in inner.items() if v not in outside}
    for index, (base, count) in zip(access.node.indices, box, strict=True):
        found = relax(index, 1, relaxed, outside)
        if found is None:
            return False
        low, extent = found
        gap = bounds(linear(low, outside).plus(base, -1), outside)
        if gap[0] is None or gap[1] is None or gap[0] < 0 or gap[1] + extent > count:
            return False
    return True
