"""Heaps within the loops of an operator: they give elements in an order, one by one (Williams,
Algorithm 232: Heapsort, 1964)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import te
from ..ir import Buffer, Expr, ExprLike, If, Stmt, Var, const, seq
from .loops import each, put

Entry = tuple[Expr, Expr]  # a key and a place
HOLE, CHILD, SINKS = range(3)  # of a heap's state: a free place, its better child, whether to go on


@dataclass(frozen=True, slots=True)
class Heap:
    """Keys and places. The first entry is at 0; entry n comes before entries 2n + 1 and 2n + 2.

    state: int32[3]. room: the most entries; after them is the entry that sinks. levels: at least
    as many as the heap has. before(a, b): the order.
    """

    keys: Buffer
    places: Buffer
    state: Buffer
    room: Expr
    levels: int
    before: Callable[[Entry, Entry], Expr]

    def at(self, n: Expr) -> Entry:
        return self.keys[n], self.places[n]

    def hold(self, n: ExprLike, entry: Entry) -> tuple[Stmt, Stmt]:
        return put(self.keys, (n,), entry[0]), put(self.places, (n,), entry[1])

    def made(self, size: Expr, name: str) -> Stmt:
        """Makes a heap of the first `size` entries."""

        def from_end(t: Var) -> Stmt:
            top = size // 2 - 1 - t
            return self.sunk(top, size, self.at(top), f"{name}_level")

        return each(name, size // 2, from_end)

    def sunk(self, top: ExprLike, size: Expr, entry: Entry, name: str) -> Stmt:
        """Sinks an entry from `top`; entries that come before it move up."""
        hole, better, sinks = (self.state[k] for k in (HOLE, CHILD, SINKS))
        child = hole * 2 + 1
        other = te.minimum(child + 1, size - 1)
        found = te.select(self.before(self.at(other), self.at(child)), other, child)
        up = seq((*self.hold(hole, self.at(better)), put(self.state, (HOLE,), better)))
        moves = self.before(self.at(better), self.at(self.room))
        down = seq((put(self.state, (CHILD,), found), If(moves, up, put(self.state, (SINKS,), 0))))
        return seq((
            *self.hold(self.room, entry),
            put(self.state, (HOLE,), top), put(self.state, (SINKS,), 1),
            each(name, self.levels, lambda _: If(te.all_of(sinks > 0, child < size), down)),
            *self.hold(hole, self.at(self.room)),
        ))  # fmt: skip

    def without_first(self, size: Expr, name: str) -> Stmt:
        """Removes the first of `size` entries: the last one sinks from the top."""
        last = size - 1
        return self.sunk(const(0), last, self.at(last), name)


def first_by(largest: bool) -> Callable[[Entry, Entry], Expr]:
    """The order by keys, the largest (smallest) first, and of equal keys by places."""

    def before(a: Entry, b: Entry) -> Expr:
        more = a[0] > b[0] if largest else a[0] < b[0]
        return te.any_of(more, te.all_of(a[0].equal(b[0]), a[1] < b[1]))

    return before


def last_by(largest: bool) -> Callable[[Entry, Entry], Expr]:
    """The other way round."""
    before = first_by(largest)
    return lambda a, b: before(b, a)
