"""Radix sort within the loops of an operator: digit by digit, the last one first, so that the time
grows with the number of elements alone (Knuth, The Art of Computer Programming 3, 5.2.5).

Elements sort by integers of their bits: integers by themselves, floats by magnitude and sign. Both
zeros are equal, and all NaNs, which come last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import te
from ..ir import Buffer, DType, Expr, Stmt, Var, call, const, dtype_of, not_, seq
from .loops import each, put, where

FEW = 1 << 10  # elements, below which counting the values of larger digits takes longer
RUNNING, NEXT, ALIKE = range(3)  # of the state: places given so far, of a value, one digit for all


def digit_bits(extent: Any) -> int:
    """The bits of a digit for so many elements."""
    return 4 if isinstance(extent, int) and extent < FEW else 8


def key(x: Expr) -> Expr:
    """An integer that sorts like an element."""
    kind = dtype_of(x.dtype)
    if kind.kind != "float":
        return x.astype("int32") if kind.bits < 32 else x
    width = _width(kind)
    x, whole = x.astype(f"float{width}"), f"int{width}"
    bits, most = call("reinterpret", whole, x), const((1 << (width - 1)) - 1, whole)
    signed = bits ^ ((bits >> const(width - 1, whole)) & most)
    ordered = te.select(x.equal(0.0), const(0, whole), signed)
    return te.select(not_(x.equal(x)), most, ordered)


def _width(kind: DType) -> int:
    """The bits of an element's key that differ."""
    return max(kind.bits, 32) if kind.kind == "float" else kind.bits


@dataclass(frozen=True, slots=True)
class RadixSort:
    """order: element numbers, int32[extent], which are sorted. other: as many. counts: int32, one
    for each value of a digit. state: int32[3]. bits: of a digit."""

    order: Buffer
    other: Buffer
    counts: Buffer
    state: Buffer
    extent: Expr
    bits: int

    def by(self, element: Callable[[Expr], Expr]) -> Stmt:
        """Sorts by an element of each number. Equal ones keep their order."""
        kind = dtype_of(element(const(0)).dtype)
        digits = -(-_width(kind) // self.bits)
        signs = 1 << (self.bits - 1) if kind.kind in ("int", "float") else 0
        least, values = (1 << self.bits) - 1, 1 << self.bits
        running, following, alike = (self.state[k] for k in (RUNNING, NEXT, ALIKE))

        def sorted_by(d: Var) -> Stmt:
            def digit(number: Expr) -> Expr:
                whole = key(element(number))
                part = (whole >> (d * self.bits).astype(whole.dtype)) & const(least, whole.dtype)
                return part.astype("int32") ^ te.select(d.equal(digits - 1), signs, 0)

            def counted(i: Var) -> Stmt:
                own = digit(i)
                return put(self.counts, (own,), self.counts[own] + 1)

            def begin(v: Var) -> Stmt:
                """The count of a value becomes the place of its first element."""
                return seq(
                    (
                        put(self.state, (NEXT,), self.counts[v]),
                        where(following.equal(self.extent), put(self.state, (ALIKE,), 1)),
                        put(self.counts, (v,), running),
                        put(self.state, (RUNNING,), running + following),
                    )
                )

            def moved(i: Var) -> Stmt:
                own = digit(self.order[i])
                there = put(self.other, (self.counts[own],), self.order[i])
                return seq((there, put(self.counts, (own,), self.counts[own] + 1)))

            return seq(
                (
                    put(self.state, (RUNNING,), 0),
                    put(self.state, (ALIKE,), 0),
                    each("zero", values, lambda v: put(self.counts, (v,), 0)),
                    each("count", self.extent, counted),
                    each("begin", values, begin),
                    where(
                        alike.equal(0),
                        each("move", self.extent, moved),
                        each("back", self.extent, lambda i: put(self.order, (i,), self.other[i])),
                    ),
                )
            )

        return each("digit", digits, sorted_by)
