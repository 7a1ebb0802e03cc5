"""Cursors: pointers that move through a loop's data, iteration by iteration.

32-bit NEON has no loads at an offset, but its loads advance their pointer for nothing: there a
cursor follows the loads. AArch64 loads up to four vectors at once, again with a cursor that
follows. It does so for vectors that are in registers together anyway, since all sums of a tile
multiply by their lanes, and in loops annotated TOGETHER while registers are free. AArch64 loads
other vectors in pairs, which must be near the pointer: each stretch of data gets a cursor. Left to
itself LLVM keeps a base and an index and adds them, or loads one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...arith import Bounds, Known, Linear, linear, to_expr, turn_range
from ...arith.linear import Atom
from ...ir import (
    Buffer,
    Call,
    Cast,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    dtype_of,
    given_vars,
    is_const,
    rebuild,
    statements,
    walk,
    with_fields,
)
from ...ir.structural import content
from ...passes.context import optional
from ..annotations import TOGETHER
from ..bodies import with_body
from ..lanes import uses
from .target import target_of

CURSORS = "codegen.cursors"  # an annotation of loops: the Cursors that they have
HIDDEN = "codegen.hidden"  # an annotation of loops: the Buffers whose pointers are hidden from LLVM

REACH = 1008  # bytes: the largest offset of a load of a pair of vectors on AArch64
WORTH = 4  # loads of a stretch, from which on pairs save more than a cursor costs
REGISTER = 128  # bits
AT_ONCE = 4  # registers that one instruction of AArch64 loads
REGISTERS = 32  # vector registers of AArch64

Place = tuple[Buffer, Linear]  # a buffer, and the part of an index that is not constant
Group = tuple[int, tuple[int, ...]]  # where neighbours begin, how many each instruction loads


@dataclass(frozen=True, slots=True)
class Cursor:
    """A pointer to a place. Each iteration begins at `start` elements from the place's beginning,
    and the next iteration `step` further.

    first: the smallest offset that it loads. moves: whether it follows the loads within an
    iteration. groups: by a vector's offset, the group that loads it."""

    buffer: Buffer
    moving: Linear
    step: int
    first: int
    start: int
    moves: bool
    groups: Mapping[int, Group] = field(default_factory=dict)

    def __repr__(self) -> str:
        place = to_expr(self.moving.plus(Linear(self.start, {})), "int32")
        how = "follows" if self.moves else "stays"
        sizes = dict(self.groups.values())
        by = "".join(f", {list(parts)} at {start}" for start, parts in sizes.items())
        return f"{self.buffer.name}[{place}] += {self.step} {how}{by}"


@optional(level=1)
def follow_pointers(func: PrimFunc) -> PrimFunc:
    """for k in range(n): …   =>   for k in range(n, annotations={CURSORS: …}): …"""
    target = target_of(func)
    if target is None or target.arch not in ("arm", "aarch64"):
        return func
    known = Known()
    for v in given_vars(func):  # none is negative
        known.bind(v, (0, None))

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For):
            cursors = tuple(find_cursors(m, known, target.arch))
            known.bind(m.var, turn_range(m.extent, {}))
            if cursors:
                m = with_fields(m, annotations={**m.annotations, CURSORS: cursors})
        return rebuild(m, visit)

    return with_body(func, visit(func.body))


@optional(level=1)
def hide_pointers(func: PrimFunc) -> PrimFunc:
    """for k: C[k] = C[k] + …; for j: sums[j] = …   =>   for k in range(n, annotations={HIDDEN: C})

    LLVM then cannot see where these pointers come from. Else it would keep a pointer for each
    iteration of the loop around in registers, which the sums need."""
    if target_of(func) is None:
        return func

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and (hidden := sums_around(m)):
            m = with_fields(m, annotations={**m.annotations, HIDDEN: tuple(hidden)})
        return rebuild(m, visit)

    return with_body(func, visit(func.body))


def find_cursors(loop: For, ranges: Mapping[Var, Bounds], arch: str) -> list[Cursor]:
    """The cursors of a loop; none unless it is straight code that loads vectors and sums up."""
    found = []
    places = _places(loop, ranges)
    held = {place: max(_live(loads)) for place, loads in places.items()}
    free = REGISTERS - _sums(loop) - sum(held.values()) if TOGETHER in loop.annotations else -1
    for (buffer, moving), loads in places.items():
        step = moving.terms[loop.var]
        offsets = [offset for offset, *_ in loads]
        groups = _groups(loads, free) if arch == "aarch64" else {}
        if arch == "arm" or groups:
            found.append(Cursor(buffer, moving, step, min(offsets), offsets[0], True, groups))
            continue
        stretches = _stretches(sorted(offsets), REACH // dtype_of(buffer.dtype).bytes)
        if len(stretches) > 1 and all(len(s) >= WORTH for s in stretches):
            found += [Cursor(buffer, moving, step, s[0], s[0], False) for s in stretches]
    if TOGETHER in loop.annotations and arch == "aarch64":
        found += _of_stores(loop, ranges)
    return found


def _of_stores(loop: For, ranges: Mapping[Var, Bounds]) -> Iterator[Cursor]:
    """Cursors for vectors that are stored AT_ONCE, neighbours after each other."""
    if any(isinstance(s, (For, If, Let)) for s in statements(loop.body)):
        return
    read = {n.buffer for n in walk(loop.body) if isinstance(n, Load)}
    places: dict[Place, list[Store]] = {}
    for s in statements(loop.body):
        if isinstance(s, Store) and s.buffer.scope != "local":
            form = _neighbours(s, ranges)
            if form is None or s.buffer in read or loop.var not in form.terms:
                return
            places.setdefault((s.buffer, Linear(0, form.terms)), []).append(s)
    for (buffer, moving), stores in places.items():
        offsets = [form.constant for s in stores if (form := _neighbours(s, ranges))]
        starts, lanes = offsets[::AT_ONCE], dtype_of(stores[0].value.dtype).lanes
        if offsets == [start + n * lanes for start in starts for n in range(AT_ONCE)]:
            every = enumerate(offsets)
            groups = {offset: (starts[n // AT_ONCE], (AT_ONCE,)) for n, offset in every}
            step = moving.terms[loop.var]
            yield Cursor(buffer, moving, step, min(offsets), offsets[0], True, groups)


def _neighbours(s: Store, ranges: Mapping[Var, Bounds]) -> Linear | None:
    """Where a store of a register of neighbours begins."""
    kind, (index,) = dtype_of(s.value.dtype), s.indices
    if kind.lanes * kind.bits != REGISTER or not isinstance(index, Ramp):
        return None
    return linear(index.base, ranges) if is_const(index.stride, 1) else None


def prefetched(s: Stmt) -> Iterator[Load]:
    """The elements that prefetches name: only their addresses are used."""
    for n in statements(s):
        match n:
            case Evaluate(Call("prefetch", (Load() as element,))):
                yield element


def _places(loop: For, ranges: Mapping[Var, Bounds]) -> dict[Place, list[tuple[int, Load, bool]]]:
    """The vector loads by the place that the loop moves, in order: (the constant part of the index,
    the load, whether only single lanes are used)."""
    if any(isinstance(s, (For, If, Let)) for s in statements(loop.body)):
        return {}
    stores = [s for s in statements(loop.body) if isinstance(s, Store)]
    sums = any(s.buffer.scope == "local" for s in stores)
    written = {s.buffer for s in stores} if TOGETHER in loop.annotations else None
    places: dict[Place, list[tuple[int, Load, bool]]] = {}
    of_lanes: set[int] = set()
    ahead = set(prefetched(loop.body))
    for n in walk(loop.body):
        if type(n) not in (Load, Store, Shuffle, Call):
            continue
        match n:
            case Load() if n in ahead:
                continue
            case Call("if_then_else"):
                return {}
            case Store(buffer) if buffer.scope != "local" and not (
                written is not None or (sums and _stays(n, loop.var))
            ):
                return {}
            case Shuffle((Load() as vector,), lanes) | Shuffle((Cast(_, Load() as vector),), lanes):
                if len(set(lanes)) == 1:
                    of_lanes.add(id(vector))
            case Load(buffer, (index,)) if buffer.scope != "local":
                if not isinstance(index, Ramp) or not is_const(index.stride, 1):
                    return {}
                form = linear(index.base, ranges)
                if loop.var in form.terms and not any(_hides(a, loop.var) for a in form.terms):
                    load = (form.constant, n, id(n) in of_lanes)
                    places.setdefault((buffer, Linear(0, form.terms)), []).append(load)
    return {place: loads for place, loads in places.items() if place[0] not in (written or ())}


def _groups(loads: Sequence[tuple[int, Load, bool]], free: int) -> dict[int, Group]:
    """The neighbours to load at once, by offset. They may take no more registers than loading each
    vector at its first use; vectors that are used whole may take `free` more. Empty unless it saves
    a third of the instructions: LLVM may move pairs freely.
    """
    kind = dtype_of(loads[0][1].dtype)
    if kind.lanes * kind.bits != REGISTER:
        return {}
    if any(load.dtype != loads[0][1].dtype for _, load, _ in loads):
        return {}
    of_lanes = all(lane for *_, lane in loads)
    if not of_lanes and free < 0:
        return {}
    first = {offset: n for n, (offset, *_) in reversed(list(enumerate(loads)))}
    live = _live(loads)
    most = max(live) + (0 if of_lanes else free)
    runs: list[list[int]] = []
    for offset in sorted(first, key=lambda offset: first[offset]):
        full = not of_lanes and runs and len(runs[-1]) == AT_ONCE
        if runs and offset == runs[-1][-1] + kind.lanes and not full:
            earlier = range(first[runs[-1][0]], first[offset])
            if all(live[n] < most for n in earlier):
                for n in earlier:
                    live[n] += 1
                runs[-1].append(offset)
                continue
        runs.append([offset])
    groups = {run[0]: (run[0], _even_parts(len(run), AT_ONCE)) for run in runs}
    stretches = _stretches(sorted(first), REACH // dtype_of(kind.scalar).bytes)
    apart = sum(1 + -(-len(stretch) // 2) for stretch in stretches)
    if 3 * sum(len(parts) for _, parts in groups.values()) > 2 * apart:
        return {}
    return {offset: groups[run[0]] for run in runs for offset in run}


def _live(loads: Sequence[tuple[int, Load, bool]]) -> list[int]:
    """At each load, how many vectors are in registers, each from its first use to its last."""
    last = {offset: n for n, (offset, *_) in enumerate(loads)}
    first = {offset: n for n, (offset, *_) in reversed(list(enumerate(loads)))}
    live = [0] * len(loads)
    for offset in first:
        for n in range(first[offset], last[offset] + 1):
            live[n] += 1
    return live


def _sums(loop: For) -> int:
    """How many registers the loop stores to."""
    places = {
        (s.buffer, *map(content, s.indices)): dtype_of(s.value.dtype)
        for s in statements(loop.body)
        if isinstance(s, Store) and s.buffer.scope == "local"
    }
    return sum(-(-kind.lanes * kind.bits // REGISTER) for kind in places.values())


def _even_parts(whole: int, most: int) -> tuple[int, ...]:
    """The sizes of the parts, at most `most` each, that cut `whole` as evenly as possible."""
    count = -(-whole // most)
    return tuple((n + 1) * whole // count - n * whole // count for n in range(count))


def sums_around(loop: For) -> list[Buffer]:
    """The buffers in memory that a loop adds to, if a loop inside it keeps sums in registers: the
    registers should serve those."""
    own = [s for s in _straight(loop.body) if isinstance(s, Store) and s.buffer.scope != "local"]
    within = [s for s in statements(loop.body) if isinstance(s, For)]
    if not any(
        s.buffer.scope == "local"
        for f in within
        for s in statements(f.body)
        if isinstance(s, Store)
    ):
        return []
    return list({s.buffer: None for s in own if _adds(s)})


def _straight(body: Stmt) -> list[Stmt]:
    """The statements that are not in a loop of their own."""
    return [s for part in body.stmts for s in _straight(part)] if isinstance(body, Seq) else [body]


def _adds(s: Store) -> bool:
    return any(isinstance(n, Load) and n.buffer is s.buffer for n in walk(s.value))


def _stays(s: Store, var: Var) -> bool:
    """Whether a store adds to the same place in memory in every iteration of the loop."""
    return _adds(s) and not any(uses(index, var) for index in s.indices)


def _hides(atom: Atom, var: Var) -> bool:
    """Whether an atom that is not the variable itself changes with it."""
    return atom is not var and uses(to_expr(Linear(0, {atom: 1}), var.dtype), var)


def _stretches(offsets: Sequence[int], reach: int) -> list[list[int]]:
    """Ascending offsets in groups that span at most `reach`."""
    found: list[list[int]] = []
    for offset in dict.fromkeys(offsets):
        if found and offset - found[-1][0] <= reach:
            found[-1].append(offset)
        else:
            found.append([offset])
    return found
