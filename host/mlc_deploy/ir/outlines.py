"""Functions that differ only in sizes and operands become one function with parameters.

A size is an integer above 1: the extent of a loop, a dimension of a buffer, or a part of an index.
Integers that decide how a loop nest is lowered are not sizes: the extents of unrolled or vectorized
loops, divisors, and what is compared. An operand is a number on one side of + - * / in a value that
is stored, such as a scale or a zero point.

    for i in range(48): B[i] = A[i] * 2.0        for i in range(n0): B[i] = A[i] * c0, with
    for i in range(96): B[i] = A[i] * 3.0   =>   n0 = 48, c0 = 2.0 and n0 = 96, c0 = 3.0
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from .build import DIVISIONS, binary, cast, const
from .nodes import (
    IN_PLACE,
    MOST,
    SCALARS,
    Binary,
    Block,
    Buffer,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    IterVar,
    Load,
    Node,
    PrimFunc,
    Region,
    Store,
    Var,
)
from .rewrite import fields_of, with_fields
from .structural import same_expr, same_shape

MOST_NODES = 1 << 15  # larger functions are left out: they share little
OPERATORS = ("+", "-", "*", "/")
OPERANDS = ("float32", "int32")
# Whole operands of at most this are parameters of int16. It is the largest zero point, too: these
# are added in int16, with saturation, and a sum beyond int8 must stay beyond it.
MOST_WHOLE = 1 << 14

N = TypeVar("N", bound=Node)
Number = int | float
Numbers = tuple[Number, ...]
Take = Callable[[int], Dim]  # what stands in the place of a size
Give = Callable[[Const], Expr]  # what stands in the place of an operand


@dataclass(frozen=True, slots=True)
class Outline:
    """A digest of a function without its sizes and operands, and these in order of the text."""

    digest: bytes
    sizes: tuple[int, ...]
    operands: Numbers


def outline_of(func: PrimFunc) -> Outline | None:
    """None for a function that is too large, or has integer parameters already."""
    if not all(isinstance(p, Buffer) for p in func.params):
        return None
    sizes: list[int] = []
    operands: list[Number] = []

    def take(size: int) -> Dim:
        sizes.append(size)
        return size

    def give(operand: Const) -> Expr:
        operands.append(operand.value)
        return operand

    told = _Retelling(take, give)
    try:
        told.function(func)
    except _TooLarge:
        return None
    text = "\n".join(told.structure).encode()
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return Outline(digest, tuple(sizes), tuple(operands))


def differing(outlines: Iterable[Outline]) -> int:
    """How many operands of these outlines, which are alike, differ from one to another."""
    columns = zip(*(o.operands for o in outlines), strict=True)
    return len({values for values in columns if len(set(values)) > 1})


def in_common(funcs: Sequence[PrimFunc], outlines: Sequence[Outline]) -> PrimFunc:
    """One function for all of these, which have one outline: the first of them, with parameters for
    the sizes and operands that differ. SCALARS holds the parameters' values for each function."""
    assert len({o.digest for o in outlines}) == 1, "functions that differ in numbers alone"
    first = funcs[0]
    columns = list(zip(*(o.sizes for o in outlines), strict=True))
    found = _expressions({c for c in columns if len(set(c)) > 1})
    column = iter(columns)
    given = zip(*(o.operands for o in outlines), strict=True)
    operands: dict[Numbers, Var] = {}

    def take(size: int) -> Dim:
        return found.get(next(column), size)

    def give(operand: Const) -> Expr:
        values = next(given)
        if len(set(values)) == 1:
            return operand
        return cast(operand.dtype, _parameter(values, operand.dtype, operands))

    made = _Retelling(take, give).function(first)
    known = {v: values for values, v in found.items() if isinstance(v, Var)}
    most = {v.name: max(values) for v, values in known.items()}
    every = [*known.items(), *((v, values) for values, v in operands.items())]
    scalars = tuple({v.name: of[n] for v, of in every} for n in range(len(funcs)))
    attrs = {**made.attrs, MOST: most, SCALARS: scalars}
    return with_fields(made, params=(*(v for v, _ in every), *made.params), attrs=attrs)


def whole_parameters(func: PrimFunc) -> frozenset[Var]:
    """The parameters of a common function that are integers of at most MOST_WHOLE by size."""
    if SCALARS not in func.attrs:
        return frozenset()
    return frozenset(p for p in func.params if isinstance(p, Var) and p.dtype == "int16")


def _parameter(values: Numbers, dtype: str, found: dict[Numbers, Var]) -> Expr:
    """The parameter of these values, or the negative of one that has them with other signs, so that
    passes see that both add up to 0. A parameter that is not `found` is added there."""
    name = f"c{len(found)}"
    if not all(map(_is_whole, values)):
        return found.setdefault(values, Var(name, dtype))
    values = tuple(map(int, values))
    negative = found.get(tuple(-v for v in values))
    if negative is not None:
        return binary("-", const(0), cast("int32", negative))
    return found.setdefault(values, Var(name, "int16"))


def _is_whole(operand: Number) -> bool:
    return float(operand).is_integer() and abs(operand) <= MOST_WHOLE


def _expressions(differing: set[tuple[int, ...]]) -> dict[tuple[int, ...], Expr]:
    """An expression for each tuple of values: a variable, or a product of others, so that passes
    can compare sizes."""
    found: dict[tuple[int, ...], Expr] = {}
    names = (f"n{number}" for number in itertools.count())
    for values in sorted(differing, key=lambda c: (sum(c), c)):
        bases = [(b, v) for b, v in found.items() if isinstance(v, Var)]
        made = (form(values, bases) for form in (_multiple, _product))
        known = next((e for e in made if e is not None), None)
        found[values] = Var(next(names)) if known is None else known
    return found


Bases = Sequence[tuple[tuple[int, ...], Var]]


def _multiple(values: tuple[int, ...], bases: Bases) -> Expr | None:
    for base, v in bases:
        quotient, rest = divmod(values[0], base[0])
        if not rest and all(x == b * quotient for x, b in zip(values, base, strict=True)):
            return binary("*", v, quotient)
    return None


def _product(values: tuple[int, ...], bases: Bases) -> Expr | None:
    for (one, v), (other, w) in itertools.combinations_with_replacement(bases, 2):
        quotient, rest = divmod(values[0], one[0] * other[0])
        if not rest and all(
            x == a * b * quotient for x, a, b in zip(values, one, other, strict=True)
        ):
            return binary("*", binary("*", v, w), quotient)
    return None


class _TooLarge(Exception):
    pass


class _Retelling:
    """Rebuilds a function node by node, with take(size) in the place of each size, and
    give(operand) in that of each operand; `structure` collects the rest. Variables and buffers are
    numbered in the order met."""

    def __init__(self, take: Take, give: Give) -> None:
        self.take = take
        self.give = give
        self.stores = False  # whether the node is part of a value that is stored
        self.structure: list[str] = []
        self.numbers: dict[Node, int] = {}
        self.buffers: dict[Buffer, Buffer] = {}

    def function(self, func: PrimFunc) -> PrimFunc:
        params = tuple(self.buffer(p) for p in func.buffers)
        names = {b.name: n for n, b in enumerate(func.buffers)}
        attrs = {**func.attrs, IN_PLACE: [names[n] for n in func.attrs.get(IN_PLACE, ())]}
        self.say(sorted(attrs.items()))
        return with_fields(func, params=params, body=self.node(func.body))

    def say(self, *what: object) -> None:
        if len(self.structure) > MOST_NODES:
            raise _TooLarge
        self.structure.append(repr(what))

    def size(self, e: Expr) -> Expr:
        """An expression whose integers are sizes."""
        match e:
            case Const(int(value), dtype) if value > 1:
                self.say("size", dtype)
                to = self.take(value)
                return cast(dtype, to) if isinstance(to, Expr) else e
            case Binary(op, a, b) if op in DIVISIONS:
                self.say(op)
                dividend = self.size(a)
                return self.made(e, a=dividend, b=self.node(b))
            case Binary(op, a, b):
                self.say(op, e.dtype)
                return self.made(e, a=self.size(a), b=self.size(b))
            case Cast(dtype, a):
                self.say("cast", dtype)
                return self.made(e, a=self.size(a))
        told: Expr = self.node(e)
        return told

    def sizes(self, es: tuple[Expr, ...]) -> tuple[Expr, ...]:
        self.say(len(es))
        return tuple(self.size(e) for e in es)

    def dims(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        self.say(len(dims))
        return tuple(self.dim(d) for d in dims)

    def dim(self, d: Dim) -> Dim:
        if isinstance(d, Expr):
            return self.size(d)
        self.say("dim", d if d <= 1 else "")
        return self.take(d) if d > 1 else d

    def buffer(self, b: Buffer) -> Buffer:
        if b in self.buffers:
            self.say(self.numbers[b])
            return self.buffers[b]
        self.number(b)
        self.say(b.dtype, b.scope, b.alignment, b.strides is None)
        shape = self.dims(b.shape)
        strides = None if b.strides is None else self.dims(b.strides)
        same = same_shape(shape, b.shape) and (
            strides is None or same_shape(strides, b.strides or ())
        )
        self.buffers[b] = b if same else b.replace(shape=shape, strides=strides)
        return self.buffers[b]

    def number(self, n: Node) -> None:
        self.numbers[n] = len(self.numbers)

    def node(self, n: Any) -> Any:
        """A node whose integers are not sizes, except in loads and blocks within."""
        match n:
            case Var():
                if n not in self.numbers:
                    self.number(n)
                self.say("var", n.dtype, self.numbers[n])
                return n
            case Const(value, dtype):
                self.say(value, dtype)
                return n
            case Buffer():
                return self.buffer(n)
            case Load(buffer, indices):
                self.say("load")
                with self.storing(False):
                    return self.made(n, buffer=self.buffer(buffer), indices=self.sizes(indices))
            case Store(buffer, indices, value):
                self.say("store")
                buffer, indices = self.buffer(buffer), self.sizes(indices)
                with self.storing(True):
                    return self.made(n, buffer=buffer, indices=indices, value=self.node(value))
            case Binary("-", a, Const(value), dtype) if self.stores and dtype in OPERANDS:
                return self.less(n, -value)
            case Binary(op, a, b, dtype) if self.stores and op in OPERATORS and dtype in OPERANDS:
                self.say("binary", op, dtype)
                return self.made(n, a=self.operand(a), b=self.operand(b))
            case Compare(_, a, b) if not same_expr(a, b):  # else it asks for NaN (lanes.number_or)
                with self.storing(False):
                    return self.plain(n)
            case For(var, extent, kind, body, annotations):
                self.number(var)
                self.say("for", var.dtype, kind, sorted(annotations.items()))
                plain = kind in ("serial", "parallel")
                extent = self.size(extent) if plain else self.node(extent)
                return self.made(n, extent=extent, body=self.node(body))
            case IterVar(var, extent, kind, binding):
                self.number(var)
                self.say("iter", var.dtype, kind)
                return self.made(n, extent=self.size(extent), binding=self.size(binding))
            case Region(buffer, minimum, extent):
                buffer = self.buffer(buffer)
                least, most = self.sizes(minimum), self.sizes(extent)
                return self.made(n, buffer=buffer, minimum=least, extent=most)
        return self.plain(n)

    @contextmanager
    def storing(self, stores: bool) -> Iterator[None]:
        """While nodes are part of a value that is stored, or are not."""
        outside, self.stores = self.stores, stores
        yield
        self.stores = outside

    def less(self, n: Binary, operand: Number) -> Expr:
        """`a - b` as `a + operand`: machines add narrow numbers to wide ones in one instruction."""
        self.say("binary", "+", n.dtype)
        a, added = self.node(n.a), const(operand, n.dtype)
        to = self.operand(added)
        return self.made(n, a=a) if to is added else binary("+", a, to)

    def operand(self, e: Expr) -> Expr:
        match e:
            case Const(value, dtype) if value or math.copysign(1, value) > 0:  # -0.0 equals 0.0
                self.say("operand", dtype)
                return self.give(e)
        told: Expr = self.node(e)
        return told

    def plain(self, n: Any) -> Any:
        if not isinstance(n, Node):
            self.say(sorted(n.items()) if isinstance(n, Mapping) else n)
            return n
        self.say(type(n).__name__)
        changes: dict[str, Any] = {}
        for name, part in fields_of(n).items():
            if name == "name" and isinstance(n, Block):
                continue
            if isinstance(part, tuple):
                self.say(len(part))
                changes[name] = tuple(self.node(p) for p in part)
            else:
                changes[name] = self.node(part)
        return self.made(n, **changes)

    @staticmethod
    def made(n: N, **changes: Any) -> N:
        """n with these fields, and n itself where they are the same."""
        for name, part in changes.items():
            old = getattr(n, name)
            same = old is part or (
                isinstance(part, tuple)
                and len(part) == len(old)
                and all(a is b for a, b in zip(old, part, strict=True))
            )
            if not same:
                return with_fields(n, **changes)
        return n
