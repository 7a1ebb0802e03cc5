"""Patterns: expressions over operators, found in a graph in any arithmetic form.

    x = Wild("x")
    silu = x * op("sigmoid", x)

Products are compared in one form: a number times powers of values. So `x / sqrt(v)`, `x * (1 / s)`
of a root s, and `x * v ^ -0.5` are equal, as are `(x * 0.5) * y` and `x * (y / 2)`. Sums are
compared as a number plus numbers times values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .constants import uniform
from .nodes import Call, Value
from .rewrite import Rewriting

TOLERANCE = 1e-3  # relative, for numbers in models, which float16 may have rounded


@dataclass(frozen=True)
class Match:
    """`found`: values and numbers by the pattern's names. `inside`: the values between these and
    the root."""

    found: Mapping[str, Any] = field(default_factory=dict)
    inside: tuple[Value, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def bound(self, name: str, what: Any) -> Match | None:
        """The match with the name bound, too; None if it is bound to something else."""
        if name in self.found:
            known = self.found[name]
            return self if known is what or known == what else None
        return replace(self, found={**self.found, name: what})


class Pattern:
    """A pattern of an expression. Arithmetic on patterns makes larger ones."""

    def __add__(self, other: Pattern | Number) -> Sum:
        a, b = _sum(self), _sum(other)
        return Sum(_plus(a.number, b.number), (*a.terms, *b.terms))

    def __sub__(self, other: Pattern) -> Sum:
        return self + other * -1.0

    def __mul__(self, other: Pattern | float) -> Product:
        a, b = _product(self), _product(other)
        return Product(a.number * b.number, (*a.factors, *b.factors))

    def __truediv__(self, other: Pattern) -> Product:
        return self * other**-1.0

    def __pow__(self, power: float) -> Product:
        own = _product(self)
        return Product(own.number**power, tuple((p, e * power) for p, e in own.factors))


@dataclass(frozen=True, eq=False)
class Wild(Pattern):
    """Any value, but the same one wherever the name occurs."""

    name: str


@dataclass(frozen=True)
class Name:
    """Any number or attribute, but the same one wherever the name occurs."""

    name: str


Number = float | Name


@dataclass(frozen=True, eq=False)
class Op(Pattern):
    """A call of an operator with these attributes. Other attributes may be anything."""

    name: str
    args: tuple[Pattern, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Product(Pattern):
    """number * pattern ^ exponent * ..."""

    number: float
    factors: tuple[tuple[Pattern, float], ...]


@dataclass(frozen=True, eq=False)
class Sum(Pattern):
    """number + pattern * coefficient + ..."""

    number: Number
    terms: tuple[tuple[Pattern, float], ...]


def op(name: str, *args: Pattern, **attrs: Any) -> Op:
    return Op(name, args, attrs)


def _product(p: Pattern | float) -> Product:
    if isinstance(p, Product):
        return p
    return Product(1.0, ((p, 1.0),)) if isinstance(p, Pattern) else Product(float(p), ())


def _sum(p: Pattern | Number) -> Sum:
    match p:
        case Sum():
            return p
        case Product(number, factors):
            one = Product(1.0, factors)
            alone = len(factors) == 1 and factors[0][1] == 1.0
            return Sum(0.0, ((factors[0][0] if alone else one, number),))
        case Pattern():
            return Sum(0.0, ((p, 1.0),))
    return Sum(p if isinstance(p, Name) else float(p), ())


def _plus(a: Number, b: Number) -> Number:
    if isinstance(a, Name) or isinstance(b, Name):
        return b if isinstance(a, float) else a
    return a + b


# ------------------------------------------------------------------------------------- matching

PRODUCTS = ("multiply", "divide", "reciprocal", "sqrt", "negative", "power")
SUMS = ("add", "subtract", "negative", "multiply", "divide")


def roots(pattern: Pattern) -> tuple[str, ...]:
    """The operators of calls that the pattern may match."""
    match pattern:
        case Op(name):
            return (name,)
        case Product():
            return PRODUCTS
        case Sum():
            return SUMS
    return ()


def match(pattern: Pattern, graph: Rewriting, call: Call, out: Value) -> Match | None:
    """The match of the pattern with the call that computes out. None if it does not match, or if
    other calls read the values inside."""
    for found in _root(pattern, graph, call):
        if all(graph.reads_within(v, (*found.inside, out)) for v in found.inside):
            return found
    return None


def _root(pattern: Pattern, graph: Rewriting, call: Call) -> Iterator[Match]:
    match pattern:
        case Op():
            yield from _op(pattern, graph, call, Match())
        case Product() | Sum():
            for number, parts, inside in _splits(pattern, graph, call):
                yield from _parts(pattern, graph, number, parts, Match(inside=inside))


def _match(pattern: Pattern, graph: Rewriting, value: Value, so_far: Match) -> Iterator[Match]:
    if isinstance(pattern, Wild):
        if (bound := so_far.bound(pattern.name, value)) is not None:
            yield bound
        return
    made = graph.binding(value)
    if made is None or not isinstance(made.call, Call):
        return
    inside = replace(so_far, inside=(*so_far.inside, value))
    match pattern:
        case Op():
            yield from _op(pattern, graph, made.call, inside)
        case Product() | Sum():
            for number, parts, between in _splits(pattern, graph, made.call):
                more = replace(inside, inside=(*inside.inside, *between))
                yield from _parts(pattern, graph, number, parts, more)


def _op(pattern: Op, graph: Rewriting, call: Call, so_far: Match) -> Iterator[Match]:
    if call.op != pattern.name or len(call.args) != len(pattern.args):
        return
    bound: Match | None = so_far
    for key, wanted in pattern.attrs.items():
        value = call.attrs.get(key)
        if isinstance(wanted, Name):
            bound = bound.bound(wanted.name, value) if bound else None
        elif value is None or not _near(value, wanted):
            return
    if bound is not None:
        yield from _all(list(zip(pattern.args, call.args, strict=True)), graph, bound)


def _all(
    pairs: Sequence[tuple[Pattern, Value]], graph: Rewriting, so_far: Match
) -> Iterator[Match]:
    if not pairs:
        yield so_far
        return
    (pattern, value), *rest = pairs
    for found in _match(pattern, graph, value, so_far):
        yield from _all(rest, graph, found)


Parts = dict[Value, float]  # values with their exponents or coefficients


def _parts(
    pattern: Product | Sum, graph: Rewriting, number: float, parts: Parts, so_far: Match
) -> Iterator[Match]:
    """All matches of the parts with the pattern."""
    wanted = pattern.factors if isinstance(pattern, Product) else pattern.terms
    if len(wanted) != len(parts):
        return
    if isinstance(pattern.number, Name):
        bound = so_far.bound(pattern.number.name, number)
    else:
        bound = so_far if _near(number, pattern.number) else None
    if bound is not None:
        yield from _assigned(wanted, graph, parts, bound, isinstance(pattern, Sum))


def _assigned(
    wanted: Sequence[tuple[Pattern, float]],
    graph: Rewriting,
    parts: Parts,
    so_far: Match,
    of_sum: bool,
) -> Iterator[Match]:
    """All matches that assign each of the parts to one of `wanted`."""
    if not wanted:
        yield so_far
        return
    (pattern, weight), *rest = wanted
    for value, own in parts.items():
        if of_sum and isinstance(pattern, Product):
            # The number of a term may be anywhere inside it, so the match of the product finds it.
            one: Pattern = replace(pattern, number=pattern.number * weight / own)
        elif _near(own, weight):
            one = pattern
        else:
            continue
        left = {v: w for v, w in parts.items() if v is not value}
        for found in _match(one, graph, value, so_far):
            yield from _assigned(rest, graph, left, found, of_sum)


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=TOLERANCE)
    return bool(a == b)


# --------------------------------------------------------------------------- sums and products


def _splits(
    pattern: Product | Sum, graph: Rewriting, call: Call
) -> Iterator[tuple[float, Parts, tuple[Value, ...]]]:
    """The call split into a number and parts, to different depths, with the values in between."""
    most = len(pattern.factors if isinstance(pattern, Product) else pattern.terms)
    apart = _factors if isinstance(pattern, Product) else _terms
    first = apart(call)
    if first is None:
        return
    begin = (first[0], _merged(first[1]), ())
    left: list[tuple[float, Parts, tuple[Value, ...]]] = [begin]
    seen: set[frozenset[tuple[Value, float]]] = set()
    while left:
        number, parts, inside = left.pop()
        key = frozenset(parts.items())
        if key in seen or len(parts) > most + 1:
            continue
        seen.add(key)
        yield number, parts, inside
        for value, weight in parts.items():
            made = graph.binding(value)
            inner = apart(made.call) if made and isinstance(made.call, Call) else None
            if inner is None or (weight % 1 and inner[0] < 0):
                continue
            own, more = inner
            rest = [(v, w) for v, w in parts.items() if v is not value]
            joined = _merged([*rest, *((v, w * weight) for v, w in more)])
            if apart is _factors:
                total = number * own**weight
            else:
                total = number + own * weight
            left.append((total, joined, (*inside, value)))


def _merged(parts: Sequence[tuple[Value, float]]) -> Parts:
    merged: Parts = {}
    for value, weight in parts:
        merged[value] = merged.get(value, 0.0) + weight
    return {v: w for v, w in merged.items() if w}


Taken = tuple[float, list[tuple[Value, float]]]


def _factors(call: Call) -> Taken | None:
    """A call as a number times powers of values; None for other calls."""
    match call:
        case Call("multiply", (a, b)):
            return _numbered([(a, 1.0), (b, 1.0)])
        case Call("divide", (a, b)):
            return _numbered([(a, 1.0), (b, -1.0)])
        case Call("reciprocal", (a,)):
            return 1.0, [(a, -1.0)]
        case Call("sqrt", (a,)):
            return 1.0, [(a, 0.5)]
        case Call("negative", (a,)):
            return -1.0, [(a, 1.0)]
        case Call("power", (a, b)):
            exponent = uniform(b)
            return None if exponent is None else (1.0, [(a, float(exponent))])
    return None


def _numbered(factors: Sequence[tuple[Value, float]]) -> Taken | None:
    number, left = 1.0, []
    for value, exponent in factors:
        known = uniform(value)
        if known is None:
            left.append((value, exponent))
        elif known == 0 or isinstance(known, bool):
            return None
        else:
            number *= float(known) ** exponent
    return number, left


def _terms(call: Call) -> Taken | None:
    """A call as a number plus values times numbers; None for other calls."""
    match call:
        case Call("add" | "subtract" as name, (a, b)):
            number, left = 0.0, []
            for value, sign in ((a, 1.0), (b, 1.0 if name == "add" else -1.0)):
                known = uniform(value)
                if known is None:
                    left.append((value, sign))
                else:
                    number += sign * float(known)
            return number, left
        case Call("negative", (a,)):
            return 0.0, [(a, -1.0)]
        case Call("multiply" | "divide"):
            taken = _factors(call)
            if taken is not None and len(taken[1]) == 1 and taken[1][0][1] == 1.0:
                return 0.0, [(taken[1][0][0], taken[0])]
    return None
