"""Normal forms, bounds and simplification of expressions.

They call each other: the form of an expression depends on bounds of its parts, and opaque parts are
simplified first.
"""

from __future__ import annotations

from math import gcd

from ..ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    DType,
    Expr,
    Load,
    Select,
    Var,
    bottom_up,
    const,
    dtype_of,
    rebuild,
    value_range,
    walk,
)
from ..ir.build import MIRRORED, compare
from ..ir.nodes import FALSE, TRUE
from ..ir.rewrite import DEEP
from ..ir.structural import content
from .linear import (
    UNBOUNDED,
    ZERO,
    Atom,
    Bounds,
    Known,
    Linear,
    Opaque,
    Product,
    Quotient,
    Ranges,
    Remainder,
    to_expr,
)


def linear(e: Expr, ranges: Ranges) -> Linear:
    """The normal form of a scalar integer expression."""
    if type(e) is Const:
        if dtype_of(e.dtype).kind == "float":  # met on the way through a deep expression
            return Linear(0, {Opaque(content(e), e): 1})
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
                dividend = linear(e.a, ranges)
                known = divisor.is_constant and divisor.constant > 0
                if known and not may_wrap(dividend, e.dtype, ranges):
                    divide = quotient if e.op == "//" else remainder
                    return divide(dividend, divisor.constant, ranges)
            case "min" | "max":
                x, y = linear(e.a, ranges), linear(e.b, ranges)
                low, high = bounds(x.plus(y, -1), ranges)
                if may_wrap(x, e.dtype, ranges) or may_wrap(y, e.dtype, ranges):
                    low = high = None
                if high is not None and high <= 0:
                    return x if e.op == "min" else y
                if low is not None and low >= 0:
                    return y if e.op == "min" else x
    elif isinstance(e, Cast):
        to, of = dtype_of(e.dtype), dtype_of(e.a.dtype)
        if to.bits >= of.bits >= 32 and of.is_integer and to.is_integer:
            given = linear(e.a, ranges)
            same = to.bits == of.bits or not may_wrap(given, e.a.dtype, ranges)
            if same and (_keeps(of, to) or not _reads_any(given)):
                return given
    inside = rebuild(e, lambda child: simplify_expr(child, ranges))
    if inside is not e and type(inside) is not type(e):
        return linear(inside, ranges)
    return Linear(0, {Opaque(content(inside), inside): 1})


def may_wrap(form: Linear, dtype: str, ranges: Ranges) -> bool:
    """Whether a sum or product of loaded numbers may be beyond the range of its dtype: it wraps
    then, so that it neither compares nor divides as the form does. Indices, which are made of loop
    variables and dimensions, do not wrap."""
    alone = len(form.terms) == 1 and form.constant == 0 and 1 in form.terms.values()
    if not form.terms or (alone and not isinstance(next(iter(form.terms)), Product)):
        return False
    if not _reads_any(form):
        return False
    low, high = bounds(form, ranges)
    least, most = value_range(dtype)
    return low is None or high is None or low < least or high > most


def _reads_any(form: Linear) -> bool:
    return any(map(_reads, form.terms))


def _reads(atom: Atom) -> bool:
    """Whether an atom is made of loaded numbers."""
    match atom:
        case Opaque(expr=e):
            return any(type(n) is Load for n in walk(e))
        case Quotient(form, _) | Remainder(form, _):
            return _reads_any(form)
        case Product(factors):
            return any(map(_reads, factors))
    return False


def _keeps(of: DType, to: DType) -> bool:
    """Whether a cast between integers keeps every value."""
    return of.kind == to.kind or (of.kind == "uint" and of.bits < to.bits)


# Limits of products that are expanded; indices stay below. Powers of data have any number of
# factors, and powers of sums any number of terms.
MOST_TERMS = 64
MOST_FACTORS = 8  # of the longest terms of both sides


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
    """The number of factors of its longest term."""
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
    # (x // a + k) // d = (x + k*a) // (a*d)
    if len(rest.terms) == 1:
        ((atom, coefficient),) = rest.terms.items()
        if isinstance(atom, Quotient) and coefficient == 1:
            inner = atom.form.plus(Linear(rest.constant * atom.divisor, {}))
            return whole.plus(quotient(inner, atom.divisor * divisor, ranges))
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
    if reduced is not None:  # only the big part wraps
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
        case Binary("//", a, b):
            (al, ah), (bl, bh) = expr_bounds(a, ranges), expr_bounds(b, ranges)
            if al is None or al < 0 or bl is None or bl < 1:
                return UNBOUNDED
            return 0 if bh is None else al // bh, None if ah is None else ah // bl
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


# ------------------------------------------------------------------------------- simplification


def simplify_expr(e: Expr, ranges: Ranges) -> Expr:
    """e, simpler or as it is. Float arithmetic is left alone."""
    if type(e) is Const:
        return e
    if type(e) is Var:
        return _pinned(e, ranges)
    known = ranges if type(ranges) is Known else Known(ranges)
    found = known.simplified.get(e)
    if found is None:
        if known.depth == DEEP:
            for m in bottom_up(e, known.simplified):
                known.simplified[m] = _simplified(m, known)
            return known.simplified[e]
        known.depth += 1
        found = known.simplified[e] = _simplified(e, known)
        known.depth -= 1
    return found


def _simplified(e: Expr, ranges: Known) -> Expr:
    if type(e) is Const or type(e) is Var:
        return simplify_expr(e, ranges)
    if type(e) is Compare:
        return _comparison(e, ranges)
    kind = dtype_of(e.dtype)
    if kind.is_integer and kind.lanes == 1 and kind.bits >= 32:
        return to_expr(linear(e, ranges), e.dtype)
    return rebuild(e, lambda child: simplify_expr(child, ranges))


def _pinned(e: Var, ranges: Ranges) -> Expr:
    low, high = ranges.get(e, UNBOUNDED)
    return const(low, e.dtype) if low is not None and low == high else e


def _comparison(e: Compare, ranges: Ranges) -> Expr:
    kind = dtype_of(e.a.dtype)
    if not (kind.is_integer and kind.lanes == 1 and kind.bits >= 32):
        return rebuild(e, lambda child: simplify_expr(child, ranges))
    a, b = linear(e.a, ranges), linear(e.b, ranges)
    if may_wrap(a, e.a.dtype, ranges) or may_wrap(b, e.a.dtype, ranges):
        return rebuild(e, lambda child: simplify_expr(child, ranges))
    difference = a.plus(b, -1)
    decided = decide(e.op, bounds(difference, ranges))
    if decided is None and isinstance(ranges, Known):
        decided = _decide_by_tops(e.op, difference, ranges)
    if decided is not None:
        return TRUE if decided else FALSE
    return _balanced(e.op, difference, e.a.dtype)


def decide(op: str, of: Bounds) -> bool | None:
    """Whether `x op 0` holds for every (True) or no (False) x within bounds."""
    low, high = of
    match op:
        case "<":
            return True if high is not None and high < 0 else _no(low is not None and low >= 0)
        case "<=":
            return True if high is not None and high <= 0 else _no(low is not None and low > 0)
        case ">" | ">=":
            return decide(
                MIRRORED[op], (None if high is None else -high, None if low is None else -low)
            )
        case "==":
            return True if low == high == 0 else _no(_excludes_zero(of))
        case "!=":
            return False if low == high == 0 else True if _excludes_zero(of) else None
    raise ValueError(op)


def _decide_by_tops(op: str, difference: Linear, known: Known) -> bool | None:
    """True where `difference op 0` always holds since no variable exceeds its top."""
    if op in (">", ">="):
        op, difference = MIRRORED[op], difference.times(-1)
    if op not in ("<", "<="):
        return None
    most = Linear(difference.constant, {})
    for atom, coefficient in difference.terms.items():
        top = known.tops.get(atom) if isinstance(atom, Var) and coefficient > 0 else None
        most = most.plus(Linear(0, {atom: 1}) if top is None else top, coefficient)
    return True if decide(op, bounds(most, known)) else None


def _no(holds: bool) -> bool | None:
    return False if holds else None


def _excludes_zero(of: Bounds) -> bool:
    low, high = of
    return (low is not None and low > 0) or (high is not None and high < 0)


def _balanced(op: str, difference: Linear, dtype: str) -> Expr:
    """positive terms `op` negative terms, so that guards read as they were written."""
    left = Linear(0, {a: c for a, c in difference.terms.items() if c > 0})
    right = Linear(0, {a: -c for a, c in difference.terms.items() if c < 0})
    if not left.terms:
        return compare(MIRRORED[op], to_expr(right, dtype), const(difference.constant, dtype))
    if difference.constant > 0 and right.terms:
        left = Linear(difference.constant, left.terms)
    else:
        right = Linear(-difference.constant, right.terms)
    return compare(op, to_expr(left, dtype), to_expr(right, dtype))
