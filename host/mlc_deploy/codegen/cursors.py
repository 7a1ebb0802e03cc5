"""Cursors: pointers of their own that move through a loop's data, turn by turn.

32-bit NEON has no loads at an offset, but loads that move their pointer on by what they have
loaded, for nothing: there a cursor follows the loads. AArch64 loads two registers at once, but not
far from the pointer: there each stretch of data gets a cursor. Left to itself LLVM keeps a base and
an index, and adds, or loads one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arith import Bounds, Linear, linear, to_expr
from ..arith.linear import Atom
from ..ir import (
    Buffer,
    Call,
    For,
    If,
    Let,
    Load,
    Ramp,
    Seq,
    Stmt,
    Store,
    Var,
    dtype_of,
    is_const,
    statements,
    walk,
)

REACH = 1008  # bytes from its pointer that AArch64 loads a pair of vectors at
WORTH = 4  # loads, of which pairs save more than a cursor costs

Place = tuple[Buffer, Linear]  # a buffer, and the part of an index that is no constant


@dataclass(slots=True)
class Cursor:
    """A pointer to `offset` elements from the beginning of a place; `first` where each turn begins,
    `step` how many elements on the next one does. moves: whether it follows the loads."""

    buffer: Buffer
    moving: Linear
    step: int
    first: int
    moves: bool
    offset: int
    pointer: Any = None


def find_cursors(loop: For, ranges: Mapping[Var, Bounds], arch: str) -> list[Cursor]:
    """The cursors of a loop; none unless it is straight code that loads vectors and sums up."""
    if arch not in ("arm", "aarch64"):
        return []
    found = []
    for (buffer, moving), offsets in _places(loop, ranges).items():
        step = moving.terms[loop.var]
        if arch == "arm":
            found.append(Cursor(buffer, moving, step, offsets[0], True, offsets[0]))
            continue
        stretches = _stretches(sorted(offsets), REACH // dtype_of(buffer.dtype).bytes)
        if len(stretches) > 1 and all(len(s) >= WORTH for s in stretches):
            found += [Cursor(buffer, moving, step, s[0], False, s[0]) for s in stretches]
    return found


def cursor_at(cursors: Sequence[Cursor], buffer: Buffer, form: Linear) -> Cursor | None:
    """The cursor for an access to the buffer at an index."""
    place = Linear(0, form.terms)
    here = [
        c
        for c in cursors
        if c.buffer is buffer and c.moving == place and (c.moves or c.first <= form.constant)
    ]
    return max(here, key=lambda c: c.first) if here else None


def _places(loop: For, ranges: Mapping[Var, Bounds]) -> dict[Place, list[int]]:
    """The constant parts of the indices at which vectors are loaded, in order, by the place that
    the loop moves."""
    places: dict[Place, list[int]] = {}
    for n in walk(loop.body):
        match n:
            case For() | If() | Let() | Call("if_then_else"):
                return {}
            case Store(buffer) if buffer.scope != "local":
                return {}
            case Load(buffer, (index,)) if buffer.scope != "local":
                if not isinstance(index, Ramp) or not is_const(index.stride, 1):
                    return {}
                form = linear(index.base, dict(ranges))
                if loop.var in form.terms and not any(_hides(a, loop.var) for a in form.terms):
                    places.setdefault((buffer, Linear(0, form.terms)), []).append(form.constant)
    return places


def sums_around(loop: For) -> list[Buffer]:
    """The buffers in memory that a loop adds to where a loop within it has sums of its own, in
    registers: those are what the registers are for."""
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


def _hides(atom: Atom, var: Var) -> bool:
    """Whether an atom that is not the variable itself changes with it."""
    return atom is not var and any(n is var for n in walk(to_expr(Linear(0, {atom: 1}), var.dtype)))


def _stretches(offsets: Sequence[int], reach: int) -> list[list[int]]:
    """Offsets, ascending, in groups that no more than `reach` lies between."""
    found: list[list[int]] = []
    for offset in dict.fromkeys(offsets):
        if found and offset - found[-1][0] <= reach:
            found[-1].append(offset)
        else:
            found.append([offset])
    return found
