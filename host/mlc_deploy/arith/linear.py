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
from types import MappingProxyType
from typing import TypeGuard

from ..ir import (
    Cast,
    Expr,
    Var,
    binary,
    const,
)

Bounds = tuple[int | None, int | None]  # inclusive; None is unbounded
Ranges = Mapping[Var, Bounds]
UNBOUNDED: Bounds = (None, None)


class Known(dict[Var, Bounds]):
    """Ranges that change on the way through a program, with caches of what follows from them. A
    loop of symbolic extent also says variable <= tops[variable]. Each change clears the caches. An
    expression in many places is computed once."""

    def __init__(self, ranges: Ranges = MappingProxyType({})) -> None:
        super().__init__(ranges)
        self.tops: dict[Var, Linear] = {}
        self.forms: dict[Expr, Linear] = {}
        self.simplified: dict[Expr, Expr] = {}
        self.limits: dict[Expr, Bounds] = {}
        self.depth = 0  # of nested calls that simplify

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
    """A product of two or more atoms, in the order met; equality ignores the order."""

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

    def without(self, *atoms: Atom) -> Linear:
        """self without the terms of these atoms."""
        left = dict(self.terms)
        for atom in atoms:
            left.pop(atom, None)
        return Linear(self.constant, left)


def _recombined(form: Linear) -> Linear:
    """k*d*(x // d) + k*(x % d)   =>   k*x
    k*d*(x % n // d) + k*(x % d)   =>   k*(x % n), where d divides n
    k*d*(x // d % e) + k*(x % d)   =>   k*(x % (d*e))"""
    for atom, coefficient in form.terms.items():
        if not isinstance(atom, Remainder):
            continue
        for quotient, c in form.terms.items():
            if c == coefficient * atom.divisor and _is_quotient_of(quotient, atom):
                return form.without(atom, quotient).plus(quotient.form, coefficient)
        for other, c in form.terms.items():
            if not isinstance(other, Remainder) or c != coefficient * atom.divisor:
                continue
            x = _dividend(other.form, atom)
            if x is not None:
                most = atom.divisor * other.divisor
                within = {a: c % most for a, c in x.terms.items() if c % most}
                both = Remainder(Linear(x.constant % most, within), most)
                return form.without(atom, other).plus(Linear(0, {both: coefficient}))
    return form


def _dividend(form: Linear, remainder: Remainder) -> Linear | None:
    """x, if form is x // d and the remainder is x % d. Where form is w + y // d, x is d*w + y."""
    for atom, c in form.terms.items():
        if c == 1 and _is_quotient_of(atom, remainder):
            return form.without(atom).times(atom.divisor).plus(atom.form)
    return None


def _is_quotient_of(atom: Atom, remainder: Remainder) -> TypeGuard[Quotient]:
    """Whether atom and remainder are x // d and x % d. Multiples of d in x may differ, since a
    remainder does not show them."""
    if not isinstance(atom, Quotient) or atom.divisor != remainder.divisor:
        return False
    difference = _unwrapped(atom.form, atom.divisor).plus(remainder.form, -1)
    return not any(c % atom.divisor for c in (difference.constant, *difference.terms.values()))


def _unwrapped(form: Linear, divisor: int) -> Linear:
    """form up to multiples of the divisor: x for x % n, where the divisor divides n."""
    for atom, c in form.terms.items():
        if isinstance(atom, Remainder) and atom.divisor % divisor == 0:
            return _unwrapped(form.without(atom).plus(atom.form, c), divisor)
    return form


ZERO = Linear(0, {})


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
