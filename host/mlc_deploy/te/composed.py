"""Functions of expressions that are composed of others, which every machine has.

Functions that neither the code generator nor the runtime's libm knows are composed of known ones.
For float64 these have the accuracy of float32's formulas, some 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..ir import Expr, ExprLike, binary, compare, const, dtype_of, expr, select
from ..ir.functions import absolute
from .intrinsics import exp, log, log1p, sqrt, truncdiv

# cosh and sinh of |x| are h + 1 / (4 h) and h - 1 / (4 h) with h = e^|x| / 2, which is finite where
# they are: |x| - HALVED is at most |x| - log 2, and a multiple of 2^-17, as |x| is beyond 64.
HALVED = math.ceil(math.log(2) * 2**17) / 2**17
LARGE = 2.0**40  # from here on, x^2 + 1 is x^2 and asinh x is log(2 x), in float64 as well


def _half_of_exp(size: Expr) -> Expr:
    return exp(size - HALVED) * (math.exp(HALVED) / 2)


def sinh(x: Expr) -> Expr:
    """By powers of e; near 0, where their difference would cancel, by its series."""
    size, square = absolute(x), x * x
    series = square * (1 / math.factorial(11)) + 1 / math.factorial(9)
    for n in (7, 5, 3):
        series = series * square + 1 / math.factorial(n)
    half = _half_of_exp(size)
    return select(size < 1.5, series * square * x + x, _with_sign(x, half - 0.25 / half))


def cosh(x: Expr) -> Expr:
    half = _half_of_exp(absolute(x))
    return half + 0.25 / half


def _with_sign(x: Expr, size: Expr) -> Expr:
    return select(x < 0, -size, size)


def asinh(x: Expr) -> Expr:
    """log(a + sqrt(a^2 + 1)), written so that nothing cancels for small a = |x|."""
    a = absolute(x)
    square = a * a
    return _with_sign(x, _log1p_or_double(a, a + square / (sqrt(square + 1) + 1)))


def acosh(x: Expr) -> Expr:
    rest = x - 1 + sqrt((x - 1) * (x + 1))
    return _log1p_or_double(x, select(x < 1, const(math.nan, x.dtype), rest))


def _log1p_or_double(x: Expr, rest: Expr) -> Expr:
    """log(1 + rest); log(2 x) where x is large, since rest may overflow."""
    large = x > (LARGE if dtype_of(x.dtype).bits > 16 else 2.0**10)
    nothing, doubled = const(0, x.dtype), const(math.log(2), x.dtype)
    return log1p(select(large, x, rest)) + select(large, doubled, nothing)


def atanh(x: Expr) -> Expr:
    a = absolute(x)
    return _with_sign(x, log1p(a * 2 / (1 - a)) * 0.5)


def atan(x: Expr) -> Expr:
    """Reduced to |x| < tan(pi / 8), then Cephes' polynomial."""
    a = absolute(x)
    far, middle = a > 2.414213562373095, a > 0.4142135623730950
    reduced = select(far, -1 / a, select(middle, (a - 1) / (a + 1), a))
    base = select(
        far, const(math.pi / 2, x.dtype), select(middle, const(math.pi / 4, x.dtype), x * 0)
    )
    z = reduced * reduced
    series = (
        (z * 8.05374449538e-2 - 1.38776856032e-1) * z + 1.99777106478e-1
    ) * z - 3.33329491539e-1
    return _with_sign(x, base + (series * z * reduced + reduced))


def asin(x: Expr) -> Expr:
    return atan(x / sqrt((1 - x) * (x + 1)))


def acos(x: Expr) -> Expr:
    return atan(sqrt((1 - x) / (x + 1))) * 2


def log2(x: Expr) -> Expr:
    """The logarithm to base 2."""
    return log(x) / math.log(2)


def log10(x: Expr) -> Expr:
    """The logarithm to base 10."""
    return log(x) / math.log(10)


# ------------------------------------------------------------------------------ tests of numbers


def isnan(x: Expr) -> Expr:
    """Whether x is not a number; of integers, never."""
    return _float_only(x, lambda: compare("!=", x, x), False)


def isinf(x: Expr) -> Expr:
    """Whether x is an infinity of either sign."""
    return _float_only(x, lambda: absolute(x).equal(const(math.inf, x.dtype)), False)


def isfinite(x: Expr) -> Expr:
    """Whether x is neither an infinity nor NaN."""
    return _float_only(x, lambda: absolute(x) < const(math.inf, x.dtype), True)


def _float_only(x: Expr, test: Callable[[], Expr], otherwise: bool) -> Expr:
    return test() if dtype_of(x.dtype).kind == "float" else const(otherwise, "bool")


def popcount(x: Expr) -> Expr:
    """The number of bits that are 1."""
    kind = dtype_of(x.dtype)
    if not kind.is_integer:
        raise TypeError(f"popcount of '{x}', which is {x.dtype}\n  try: an integer")
    wide = f"uint{kind.bits}"

    def every(byte: int) -> Expr:
        """The number whose bytes are all `byte`."""
        return const(int.from_bytes(bytes([byte]) * kind.bytes), wide)

    def right(e: Expr, by: int) -> Expr:
        return binary(">>", e, const(by, wide))

    ones = x.astype(wide)
    pairs = ones - (right(ones, 1) & every(0x55))
    fours = (pairs & every(0x33)) + (right(pairs, 2) & every(0x33))
    eights = (fours + right(fours, 4)) & every(0x0F)
    return right(eights * every(0x01), kind.bits - 8).astype(kind.scalar)


# -------------------------------------------------------------------------- operators by name


def add(a: ExprLike, b: ExprLike) -> Expr:
    return binary("+", a, b)


def subtract(a: ExprLike, b: ExprLike) -> Expr:
    return binary("-", a, b)


def multiply(a: ExprLike, b: ExprLike) -> Expr:
    return binary("*", a, b)


def div(a: ExprLike, b: ExprLike) -> Expr:
    """a / b; of integers rounded towards zero, as in C."""
    floats = any(dtype_of(expr(e).dtype).kind == "float" for e in (a, b))
    return binary("/", a, b) if floats else truncdiv(a, b)


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division towards minus infinity, as Python's `//`."""
    return binary("//", a, b)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    """The remainder of floordiv, as Python's `%`."""
    return binary("%", a, b)


indexdiv, indexmod = floordiv, floormod
