"""Integer expressions in one normal form: constant + sum of coefficient * atom.

An atom is a variable, a product of atoms, a quotient or remainder of a normal form by a positive
constant, or an expression that the form cannot look into. Two expressions that are equal as linear
combinations have the same form; bounds and divisibility follow from it. The rules for `//` and `%`
are those of Euclid's division with non-negative remainders (`//` rounds down).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from types import MappingProxyType
from typing import TypeGuard

from ..ir import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Select,
    Var,
    binary,
    bottom_up,
    const,
    dtype_of,
    rebuild,
)
from ..ir.rewrite import DEEP
from ..ir.structural import content

Bounds = tuple[int | None, int | None]  # inclusive; None is unbounded
Ranges = Mapping[Var, Bounds]
UNBOUNDED: Bounds = (None, None)


class Known(dict[Var, Bounds]):
    """Ranges that change on the way through a program, what loops of symbolic extent say besides
    (variable <= tops[variable]), and what followed from them: kept until they change. An expression
    that stands in many places is looked at once."""

    def __init__(self, ranges: Ranges = MappingProxyType({})) -> None:
        super().__init__(ranges)
        self.tops: dict[Var, Linear] = {}
        self.forms: dict[Expr, Linear] = {}
        self.simplified: dict[Expr, Expr] = {}
        self.limits: dict[Expr, Bounds] = {}
        self.depth = 0  # of calls below each other that simplify

    def bind(self, var: Var, of: Bounds, top: Linear | None = None) -> None:
        """The variable's range from here on."""
        if self.get(var) == of and top is None and var not in self.tops:
            return
        self[var] = of
        self.tops.pop(var, None)
        if top is not None:
            self.tops[var] = top
        self.forms.clear()
        self.simplified.clear()
        self.limits.clear()


@dataclass(frozen=True, slots=True)
class Quotient:
    """form // divisor, divisor > 1."""

    form: Linear
    divisor: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """form % divisor, divisor > 1."""

    form: Linear
    divisor: int


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product of two or more atoms, in the order met; equal in whatever order."""

    factors: tuple[Atom, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Product) and Counter(self.factors) == Counter(other.factors)

    def __hash__(self) -> int:
        return hash(frozenset(self.factors))


@dataclass(frozen=True, slots=True)
class Opaque:
    """Any other expression; equal when its content is."""

    key: bytes
    expr: Expr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Atom = Var | Quotient | Remainder | Product | Opaque


class Linear:
    """constant + sum(terms[atom] * atom); coefficients are never 0. Immutable."""

    __slots__ = ("constant", "terms", "_hash")

    def __init__(self, constant: int, terms: dict[Atom, int]) -> None:
        self.constant = constant
        self.terms = terms
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Linear)
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.constant, frozenset(self.terms.items())))
        return self._hash

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        if factor == 0:
            return self
        constant = self.constant + factor * other.constant
        if not other.terms:
            return Linear(constant, self.terms)
        if not self.terms and factor == 1:
            return Linear(constant, other.terms)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return _recombined(Linear(constant, terms))

    def times(self, factor: int) -> Linear:
        if factor == 1:
            return self
        if factor == 0:
            return Linear(0, {})
        return Linear(self.constant * factor, {a: c * factor for a, c in self.terms.items()})


def _recombined(form: Linear) -> Linear:
    """k*d*(x // d) + k*(x % d)   =>   k*x
    k*d*(x // d % e) + k*(x % d)   =>   k*(x % (d*e))"""
    for atom, coefficient in form.terms.items():
        if not isinstance(atom, Remainder):
            continue
        for quotient, c in form.terms.items():
            if c == coefficient * atom.divisor and _is_quotient_of(quotient, atom):
                rest = {a: c for a, c in form.terms.items() if a not in (atom, quotient)}
                return Linear(form.constant, rest).plus(quotient.form, coefficient)
        for other, c in form.terms.items():
            if not isinstance(other, Remainder) or c != coefficient * atom.divisor:
                continue
            x = _dividend(other.form, atom)
            if x is not None:
                rest = {a: c for a, c in form.terms.items() if a not in (atom, other)}
                most = atom.divisor * other.divisor
                within = {a: c % most for a, c in x.terms.items() if c % most}
                both = Remainder(Linear(x.constant % most, within), most)
                return Linear(form.constant, rest).plus(Linear(0, {both: coefficient}))
    return form


def _dividend(form: Linear, remainder: Remainder) -> Linear | None:
    """x, where form is x // d and the remainder is x % d: d*w + y, form being w + y // d."""
    for atom, c in form.terms.items():
        if c == 1 and _is_quotient_of(atom, remainder):
            whole = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not atom})
            return whole.times(atom.divisor).plus(atom.form)
    return None


def _is_quotient_of(atom: Atom, remainder: Remainder) -> TypeGuard[Quotient]:
    """Whether atom divides what the remainder is of, up to multiples of the divisor, which a
    remainder does not show."""
    if not isinstance(atom, Quotient) or atom.divisor != remainder.divisor:
        return False
    difference = atom.form.plus(remainder.form, -1)
    return not any(c % atom.divisor for c in (difference.constant, *difference.terms.values()))


ZERO = Linear(0, {})


def linear(e: Expr, ranges: Ranges) -> Linear:
    """The normal form of a scalar integer expression."""
    if type(e) is Const:
        return Linear(int(e.value), {})
    if type(e) is Var:
        low, high = ranges.get(e, UNBOUNDED)
        return Linear(low, {}) if low is not None and low == high else Linear(0, {e: 1})
    known = ranges if type(ranges) is Known else Known(ranges)
    form = known.forms.get(e)
    if form is None:
        if known.depth == DEEP:
            for m in bottom_up(e, known.forms):
                leaf = type(m) is Const or type(m) is Var
                known.forms[m] = linear(m, known) if leaf else _linear(m, known)
            return known.forms[e]
        known.depth += 1
        form = known.forms[e] = _linear(e, known)
        known.depth -= 1
    return form


def _linear(e: Expr, ranges: Known) -> Linear:
    if isinstance(e, Binary):
        match e.op:
            case "+":
                return linear(e.a, ranges).plus(linear(e.b, ranges))
            case "*":
                product = _product(linear(e.a, ranges), linear(e.b, ranges))
                if product is not None:
                    return product
            case "-":
                return linear(e.a, ranges).plus(linear(e.b, ranges), -1)
            case "//" | "%":
                divisor = linear(e.b, ranges)
                if divisor.is_constant and divisor.constant > 0:
                    divide = quotient if e.op == "//" else remainder
                    return divide(linear(e.a, ranges), divisor.constant, ranges)
            case "min" | "max":
                x, y = linear(e.a, ranges), linear(e.b, ranges)
                low, high = bounds(x.plus(y, -1), ranges)
                if high is not None and high <= 0:
                    return x if e.op == "min" else y
                if low is not None and low >= 0:
                    return y if e.op == "min" else x
    elif isinstance(e, Cast):
        to, of = dtype_of(e.dtype), dtype_of(e.a.dtype)
        if to.bits >= of.bits >= 32 and of.is_integer and to.is_integer:
            return linear(e.a, ranges)
    inside = rebuild(e, lambda child: simplify_expr(child, ranges))
    if inside is not e and type(inside) is not type(e):
        return linear(inside, ranges)
    return Linear(0, {Opaque(content(inside), inside): 1})


# Terms of a product, and factors of a term, that the form looks into: those of indices are fewer.
# Powers of data have any number of factors, and those of sums any number of terms.
MOST_TERMS = 64
MOST_FACTORS = 8


def _product(a: Linear, b: Linear) -> Linear | None:
    """a * b; None where that is too large for the form."""
    if a.is_constant:
        return b.times(a.constant)
    if b.is_constant:
        return a.times(b.constant)
    if len(a.terms) * len(b.terms) > MOST_TERMS or _factors(a) + _factors(b) > MOST_FACTORS:
        return None
    total = Linear(a.constant * b.constant, {})
    for x, c in a.terms.items():
        total = total.plus(Linear(0, {x: c * b.constant} if b.constant else {}))
        for y, d in b.terms.items():
            total = total.plus(Linear(0, {_multiplied(x, y): c * d}))
    for y, d in b.terms.items():
        total = total.plus(Linear(0, {y: d * a.constant} if a.constant else {}))
    return total


def _factors(form: Linear) -> int:
    """Of its longest term."""
    return max(len(atom.factors) if isinstance(atom, Product) else 1 for atom in form.terms)


def _multiplied(x: Atom, y: Atom) -> Atom:
    factors: list[Atom] = []
    for atom in (x, y):
        factors.extend(atom.factors if isinstance(atom, Product) else (atom,))
    return Product(tuple(factors))


def _split(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """form = divisor * whole + rest, the rest's coefficients and constant in [0, divisor)
    where possible: terms whose coefficient divides go to `whole`."""
    whole = {a: c // divisor for a, c in form.terms.items() if c % divisor == 0}
    rest = {a: c for a, c in form.terms.items() if c % divisor != 0}
    return (
        Linear(form.constant // divisor, whole),
        Linear(form.constant % divisor, rest),
    )


def quotient(form: Linear, divisor: int, ranges: Ranges) -> Linear:
    """form // divisor."""
    if divisor == 1:
        return form
    whole, rest = _split(form, divisor)
    low, high = bounds(rest, ranges)
    if low is not None and high is not None and low // divisor == high // divisor:
        return whole.plus(Linear(low // divisor, {}))
    # (g*x + r) // (g*d) = x // d for 0 <= r < g
    common = gcd(divisor, *rest.terms.values())
    if common > 1:
        inner = Linear(rest.constant // common, {a: c // common for a, c in rest.terms.items()})
        return whole.plus(quotient(inner, divisor // common, ranges))
    # (x // a) // d = x // (a*d)
    if rest.constant == 0 and len(rest.terms) == 1:
        ((atom, coefficient),) = rest.terms.items()
        if isinstance(atom, Quotient) and coefficient == 1:
            return whole.plus(quotient(atom.form, atom.divisor * divisor, ranges))
    reduced = _without_small_terms(rest, divisor, ranges)
    if reduced is not None:
        return whole.plus(quotient(reduced, divisor, ranges))
    return whole.plus(Linear(0, {Quotient(rest, divisor): 1}))


def _without_small_terms(rest: Linear, divisor: int, ranges: Ranges) -> Linear | None:
    """(g*x + y) // d with g | d, 0 <= y < g   =>   (g*x) // d: y never carries."""
    for step in sorted({c for c in rest.terms.values() if 1 < c < divisor and divisor % c == 0}):
        big = Linear(0, {a: c for a, c in rest.terms.items() if c % step == 0})
        small = rest.plus(big, -1)
        if small.is_constant and small.constant == 0:
            continue
        low, high = bounds(small, ranges)
        if low is not None and high is not None and low >= 0 and high < step:
            return big
    return None


def remainder(form: Linear, divisor: int, ranges: Ranges) -> Linear:
    """form % divisor."""
    if divisor == 1:
        return ZERO
    terms = {a: c % divisor for a, c in form.terms.items() if c % divisor}
    rest = Linear(form.constant % divisor, terms)
    for candidate in (rest, _split(form, divisor)[1]):
        low, high = bounds(candidate, ranges)
        if low is not None and high is not None and low // divisor == high // divisor:
            return candidate.plus(Linear(-(low // divisor) * divisor, {}))
    common = gcd(divisor, *rest.terms.values())
    if common > 1:
        inner = Linear(rest.constant // common, {a: c // common for a, c in rest.terms.items()})
        small = Linear(rest.constant % common, {})
        return remainder(inner, divisor // common, ranges).times(common).plus(small)
    if rest.constant == 0 and len(rest.terms) == 1:
        ((atom, coefficient),) = rest.terms.items()
        if isinstance(atom, Remainder) and coefficient == 1 and atom.divisor % divisor == 0:
            return remainder(atom.form, divisor, ranges)
    reduced = _without_small_terms(rest, divisor, ranges)
    if reduced is not None:  # the small part is what it is; only the big part wraps
        return remainder(reduced, divisor, ranges).plus(rest.plus(reduced, -1))
    return Linear(0, {Remainder(rest, divisor): 1})


# --------------------------------------------------------------------------------------- bounds


def bounds(form: Linear, ranges: Ranges) -> Bounds:
    """Smallest and largest value, inclusive; each None where it is not known."""
    low: int | None = form.constant
    high: int | None = form.constant
    for atom, coefficient in form.terms.items():
        a, b = atom_bounds(atom, ranges)
        if coefficient < 0:
            a, b = b, a
        low = None if low is None or a is None else low + coefficient * a
        high = None if high is None or b is None else high + coefficient * b
    return low, high


def atom_bounds(atom: Atom, ranges: Ranges) -> Bounds:
    match atom:
        case Var():
            return ranges.get(atom, UNBOUNDED)
        case Quotient(form, divisor):
            low, high = bounds(form, ranges)
            return (
                None if low is None else low // divisor,
                None if high is None else high // divisor,
            )
        case Remainder(form, divisor):
            low, high = bounds(form, ranges)
            if low is not None and low >= 0:
                return 0, divisor - 1 if high is None else min(divisor - 1, high)
            return 0, divisor - 1
        case Product(factors):
            low, high = 1, 1
            for factor in factors:
                a, b = atom_bounds(factor, ranges)
                if a is None or a < 0 or low is None:
                    return UNBOUNDED
                low, high = low * a, None if high is None or b is None else high * b
            return low, high
        case Opaque():
            known = ranges if type(ranges) is Known else Known(ranges)
            found = known.limits.get(atom.expr)
            if found is None:
                left = (atom.expr,) if known.depth < DEEP else bottom_up(atom.expr, known.limits)
                known.depth += 1
                for e in left:
                    found = known.limits[e] = _expr_bounds(e, known)
                known.depth -= 1
            return known.limits[atom.expr]


def _expr_bounds(e: Expr, ranges: Ranges) -> Bounds:
    match e:
        case Binary("min", a, b):
            (al, ah), (bl, bh) = expr_bounds(a, ranges), expr_bounds(b, ranges)
            low = None if al is None or bl is None else min(al, bl)
            highs = [h for h in (ah, bh) if h is not None]
            return low, min(highs, default=None)
        case Binary("max", a, b):
            (al, ah), (bl, bh) = expr_bounds(a, ranges), expr_bounds(b, ranges)
            lows = [v for v in (al, bl) if v is not None]
            return max(lows, default=None), None if ah is None or bh is None else max(ah, bh)
        case Select(_, a, b) | Call("if_then_else", (_, a, b)):
            (al, ah), (bl, bh) = expr_bounds(a, ranges), expr_bounds(b, ranges)
            return (
                None if al is None or bl is None else min(al, bl),
                None if ah is None or bh is None else max(ah, bh),
            )
        case Cast(_, a) if dtype_of(a.dtype).kind in ("uint", "bool"):
            return 0, (1 << dtype_of(a.dtype).bits) - 1
    return UNBOUNDED


def expr_bounds(e: Expr, ranges: Ranges) -> Bounds:
    """Bounds of a scalar integer expression."""
    return bounds(linear(e, ranges), ranges)


# ---------------------------------------------------------------------------- back to expressions


def to_expr(form: Linear, dtype: str) -> Expr:
    """The form as an expression, positive terms first, in the order the terms were met."""
    result: Expr | None = None
    terms = list(form.terms.items())
    if terms and min(form.terms.values()) < 0:
        terms.sort(key=lambda item: item[1] < 0)
    for atom, coefficient in terms:
        term = atom_expr(atom, dtype)
        if coefficient not in (1, -1):
            term = binary("*", term, const(abs(coefficient), dtype))
        if coefficient > 0:
            result = term if result is None else binary("+", result, term)
        else:
            result = binary("-", const(0, dtype) if result is None else result, term)
    if result is None:
        return const(form.constant, dtype)
    if form.constant == 0:
        return result
    if form.constant < 0:
        return binary("-", result, const(-form.constant, dtype))
    return binary("+", result, const(form.constant, dtype))


def atom_expr(atom: Atom, dtype: str) -> Expr:
    match atom:
        case Var():
            e: Expr = atom
        case Quotient(form, divisor):
            return binary("//", to_expr(form, dtype), const(divisor, dtype))
        case Remainder(form, divisor):
            return binary("%", to_expr(form, dtype), const(divisor, dtype))
        case Product(factors):
            e = atom_expr(factors[0], dtype)
            for factor in factors[1:]:
                e = binary("*", e, atom_expr(factor, dtype))
            return e
        case Opaque():
            e = atom.expr
    return e if e.dtype == dtype else Cast(dtype, e)


def simplify_expr(e: Expr, ranges: Ranges) -> Expr:
    """e in its simplest known form: integers through the normal form, comparisons decided where
    bounds allow, everything else rebuilt from simplified children."""
    from .simplify import simplify_expr as simplify

    return simplify(e, ranges)
