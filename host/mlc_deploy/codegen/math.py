"""Elementary functions as vector code: polynomials over one basic block, no calls into libm.

Each takes and returns a float32 value, scalar or vector, as an llvmlite value. The approximations
follow Cephes (S. Moshier, single precision): range reduction, then a minimax polynomial. Errors
stay within 2 ulp for exp and log, 3 for tanh and sigmoid, 4 for erf over the whole range; where a
machine's vectors take denormal numbers for 0, as 32-bit NEON's do, so do these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir as ll

Value = Any
F32 = ll.FloatType()
I32 = ll.IntType(32)


class Emitter:
    """Arithmetic on one vector shape, as short as it would be written on paper."""

    def __init__(self, builder: ll.IRBuilder, like: Value) -> None:
        self.b = builder
        self.type = like.type
        self.lanes = like.type.count if isinstance(like.type, ll.VectorType) else 1
        self.int_type = ll.VectorType(I32, self.lanes) if self.lanes > 1 else I32

    def constant(self, x: float) -> Value:
        return ll.Constant(self.type, [x] * self.lanes if self.lanes > 1 else x)

    def integer(self, n: int) -> Value:
        return ll.Constant(self.int_type, [n] * self.lanes if self.lanes > 1 else n)

    def add(self, a: Value, b: Value) -> Value:
        return self.b.fadd(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.b.fsub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.b.fmul(a, b)

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a*b + c, fused where that is free."""
        return self.b.fadd(self.b.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's scheme, the highest power's coefficient first."""
        total = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fused(total, x, self.constant(coefficient))
        return total

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """Within [low, high]; a NaN becomes `low` here and is put back by `keep_nan`."""
        above = self.select(self.b.fcmp_ordered(">", x, self.constant(low)), x, self.constant(low))
        return self.select(
            self.b.fcmp_ordered("<", above, self.constant(high)), above, self.constant(high)
        )

    def keep_nan(self, x: Value, result: Value) -> Value:
        return self.select(self.b.fcmp_unordered("uno", x, x), x, result)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.b.select(condition, a, b)

    def bits(self, x: Value) -> Value:
        return self.b.bitcast(x, self.int_type)

    def from_bits(self, x: Value) -> Value:
        return self.b.bitcast(x, self.type)

    def nearest(self, x: Value) -> Value:
        """x, |x| < 2^22, rounded to the nearest integer, half to even, as a float: adding and
        subtracting 1.5 * 2^23 needs no rounding instruction, which armv7 lacks."""
        magic = self.constant(12582912.0)
        return self.b.fsub(self.b.fadd(x, magic), magic)

    def abs(self, x: Value) -> Value:
        return self.from_bits(self.b.and_(self.bits(x), self.integer(0x7FFFFFFF)))

    def with_sign_of(self, x: Value, sign: Value) -> Value:
        top = self.b.and_(self.bits(sign), self.integer(-0x80000000))
        return self.from_bits(self.b.or_(self.bits(x), top))


LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)


def exp(b: ll.IRBuilder, x: Value) -> Value:
    """2^n * e^r with x = n*ln 2 + r, |r| <= ln(2)/2; 2^n in two factors, so that results down to
    the smallest normal and up to the largest are reached."""
    e = Emitter(b, x)
    bounded = e.clamp(x, -104.0, 89.0)
    n = e.nearest(e.mul(bounded, e.constant(1.44269504088896341)))
    r = e.fused(n, e.constant(-LN2_HIGH), bounded)
    r = e.fused(n, e.constant(-LN2_LOW), r)
    tail = e.fused(e.polynomial(r, EXP), e.mul(r, r), r)
    near_one = e.add(tail, e.constant(1.0))
    whole = b.fptosi(n, e.int_type)
    half = b.ashr(whole, e.integer(1))
    scaled = e.mul(e.mul(near_one, _power_of_two(e, half)), _power_of_two(e, b.sub(whole, half)))
    return e.keep_nan(x, scaled)


def _power_of_two(e: Emitter, n: Value) -> Value:
    return e.from_bits(e.b.shl(e.b.add(n, e.integer(127)), e.integer(23)))


LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


def log(b: ll.IRBuilder, x: Value) -> Value:
    """ln(m * 2^n) = ln m + n*ln 2 with m in [sqrt(1/2), sqrt(2))."""
    e = Emitter(b, x)
    tiny = b.fcmp_ordered("<", x, e.constant(1.17549435e-38))
    normal = e.select(tiny, e.mul(x, e.constant(8388608.0)), x)
    bits = e.bits(normal)
    exponent = b.sub(b.lshr(bits, e.integer(23)), e.integer(126))
    exponent = b.sub(exponent, e.select(tiny, e.integer(23), e.integer(0)))
    mantissa = e.from_bits(b.or_(b.and_(bits, e.integer(0x007FFFFF)), e.integer(0x3F000000)))
    small = b.fcmp_ordered("<", mantissa, e.constant(0.70710678118654752440))
    n = b.sitofp(b.sub(exponent, e.select(small, e.integer(1), e.integer(0))), e.type)
    f = e.sub(e.select(small, e.add(mantissa, mantissa), mantissa), e.constant(1.0))
    square = e.mul(f, f)
    y = e.mul(e.mul(e.polynomial(f, LOG), f), square)
    y = e.fused(n, e.constant(LN2_LOW), y)
    y = e.sub(y, e.mul(square, e.constant(0.5)))
    y = e.fused(n, e.constant(LN2_HIGH), e.add(f, y))
    infinity = e.constant(float("inf"))
    y = e.select(b.fcmp_ordered("==", x, infinity), infinity, y)
    y = e.select(b.fcmp_ordered("==", x, e.constant(0.0)), e.constant(float("-inf")), y)
    y = e.select(b.fcmp_ordered("<", x, e.constant(0.0)), e.constant(float("nan")), y)
    return e.keep_nan(x, y)


TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def tanh(b: ll.IRBuilder, x: Value) -> Value:
    """A polynomial below 0.625, 1 - 2 / (e^(2|x|) + 1) above."""
    e = Emitter(b, x)
    size = e.abs(x)
    square = e.mul(x, x)
    near = e.fused(e.mul(e.polynomial(square, TANH), square), x, x)
    doubled = exp(b, e.add(size, size))
    far = e.sub(e.constant(1.0), b.fdiv(e.constant(2.0), e.add(doubled, e.constant(1.0))))
    result = e.select(b.fcmp_ordered("<", size, e.constant(0.625)), near, e.with_sign_of(far, x))
    return e.keep_nan(x, result)


def sigmoid(b: ll.IRBuilder, x: Value) -> Value:
    """1 / (1 + t) above 0 and t / (1 + t) below, with t = e^-|x|, which never overflows."""
    e = Emitter(b, x)
    one = e.constant(1.0)
    power = exp(b, e.sub(e.constant(-0.0), e.abs(x)))
    above = e.select(b.fcmp_ordered("<", x, e.constant(0.0)), power, one)
    return b.fdiv(above, e.add(one, power))


ERF_NEAR = (
    7.853861353153693e-5,
    -8.010193625184903e-4,
    5.188327685732524e-3,
    -2.685381193529856e-2,
    1.128358514861418e-1,
    -3.761262582423300e-1,
    1.128379165726710e0,
)
# Abramowitz & Stegun's 7.1.26 is too coarse; this is Cephes' erfc on [1, 2) and [2, inf).
ERFC_LOW = (
    2.326819970068386e-2,
    -1.387039388740657e-1,
    3.687424674597105e-1,
    -5.824733027278666e-1,
    6.210004621745983e-1,
    -4.944515323274145e-1,
    3.404879937665872e-1,
    -2.741127028184656e-1,
    5.638259427386472e-1,
)
ERFC_HIGH = (
    -1.047766399936249e1,
    1.297719955372516e1,
    -7.495518717768503e0,
    2.921019019210786e0,
    -1.015265279202700e0,
    4.218463358204948e-1,
    -2.820767439740514e-1,
    5.641895067754075e-1,
)


def erf(b: ll.IRBuilder, x: Value) -> Value:
    """x * P(x^2) below 1; 1 - e^(-x^2) / |x| * Q(1 / x^2) above."""
    e = Emitter(b, x)
    size = e.abs(x)
    square = e.mul(x, x)
    near = e.mul(e.polynomial(square, ERF_NEAR), x)
    beyond = e.select(b.fcmp_ordered(">", size, e.constant(1.0)), size, e.constant(1.0))
    inverse = b.fdiv(e.constant(1.0), beyond)
    y = e.mul(inverse, inverse)
    q = e.select(
        b.fcmp_ordered("<", size, e.constant(2.0)),
        e.polynomial(y, ERFC_LOW),
        e.polynomial(y, ERFC_HIGH),
    )
    scaled = exp(b, e.sub(e.constant(-0.0), e.mul(beyond, beyond)))
    far = e.sub(e.constant(1.0), e.mul(e.mul(scaled, inverse), q))
    result = e.select(b.fcmp_ordered("<", size, e.constant(1.0)), near, e.with_sign_of(far, x))
    return e.keep_nan(x, result)


def floor(b: ll.IRBuilder, x: Value) -> Value:
    e = Emitter(b, x)
    whole = _truncated(e, x)
    above = b.fcmp_ordered(">", whole, x)
    return _or_large(e, x, e.sub(whole, e.select(above, e.constant(1.0), e.constant(0.0))))


def ceil(b: ll.IRBuilder, x: Value) -> Value:
    e = Emitter(b, x)
    whole = _truncated(e, x)
    below = b.fcmp_ordered("<", whole, x)
    return _or_large(e, x, e.add(whole, e.select(below, e.constant(1.0), e.constant(0.0))))


def trunc(b: ll.IRBuilder, x: Value) -> Value:
    e = Emitter(b, x)
    return _or_large(e, x, _truncated(e, x))


def round(b: ll.IRBuilder, x: Value) -> Value:
    """Half to even."""
    e = Emitter(b, x)
    size = e.abs(x)
    magic = e.constant(8388608.0)
    return _or_large(e, x, e.sub(e.add(size, magic), magic))


def _truncated(e: Emitter, x: Value) -> Value:
    """x, |x| < 2^23, without its fraction; 0 for others."""
    small = e.b.fcmp_ordered("<", e.abs(x), e.constant(8388608.0))
    return e.b.sitofp(e.b.fptosi(e.select(small, x, e.constant(0.0)), e.int_type), e.type)


def _or_large(e: Emitter, x: Value, whole: Value) -> Value:
    """`whole` with x's sign; x itself where it is whole by its size, infinite or no number."""
    small = e.b.fcmp_ordered("<", e.abs(x), e.constant(8388608.0))
    return e.select(small, e.with_sign_of(e.abs(whole), x), x)


# For machines that have no instructions for them.
ROUNDINGS: dict[str, Callable[[ll.IRBuilder, Value], Value]] = {
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "round": round,
}

FUNCTIONS: dict[str, Callable[[ll.IRBuilder, Value], Value]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
}
