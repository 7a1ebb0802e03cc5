"""Elementary functions as vector code: polynomials over one basic block, no calls into libm.

Each takes and returns a float32 value, scalar or vector, as an llvmlite value: range reduction,
then a polynomial. The polynomials of log, sin and cos are from Cephes (S. Moshier, single
precision); the others minimize the largest relative error (Lawson's iteration in float64). Errors
are at most 4 ulp over the whole range, of which sin, cos and tan have one (TURNS):
`scripts/float_errors.py` measures them. Where a machine's vectors take denormal numbers for 0, as
32-bit NEON's do, so do these functions. silu is off by at most 5e-7 of its argument, gelu by at
most 1.4e-6.

HALVES are the functions of float16, for machines that compute with it. sigmoid is off by at most
2e-3 of the result plus 4e-5, silu by 2e-3 of the result plus 3e-4, gelu by 3e-3 plus 5e-4. erf is
not among them: 1 + erf of large negative numbers would keep too few digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir as ll

Value = Any


class Emitter:
    """Arithmetic on one vector shape, in short notation. magic: added to a small float, it leaves
    the nearest integer in the last bits. fraction: the number of bits below the exponent."""

    def __init__(self, builder: ll.IRBuilder, like: Value) -> None:
        self.b = builder
        self.type = like.type
        self.lanes = like.type.count if isinstance(like.type, ll.VectorType) else 1
        half = isinstance(getattr(like.type, "element", like.type), ll.HalfType)
        self.bits_of_one, self.fraction = (16, 10) if half else (32, 23)
        self.magic = 1.5 * 2.0**self.fraction
        integer = ll.IntType(self.bits_of_one)
        self.int_type = ll.VectorType(integer, self.lanes) if self.lanes > 1 else integer

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
        """a*b + c, fused where the machine fuses."""
        return self.b.fadd(self.b.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's scheme, the highest power's coefficient first."""
        total = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fused(total, x, self.constant(coefficient))
        return total

    def at_most(self, x: Value, bound: float) -> Value:
        """The smaller; a NaN stays."""
        return self._extremum("minimum", ">", x, self.constant(bound))

    def at_least(self, x: Value, bound: float) -> Value:
        """The larger; a NaN stays."""
        return self._extremum("maximum", "<", x, self.constant(bound))

    def _extremum(self, name: str, beyond: str, x: Value, bound: Value) -> Value:
        if self.b.module.triple.startswith("x86"):  # its minimum gives the second of two with a NaN
            return self.select(self.b.fcmp_ordered(beyond, x, bound), bound, x)
        return self.call(f"llvm.{name}", x, bound)

    def call(self, name: str, *args: Value) -> Value:
        kind = ll.FunctionType(self.type, [a.type for a in args])
        one = f"f{self.bits_of_one}"
        suffix = f"v{self.lanes}{one}" if self.lanes > 1 else one
        return self.b.call(self.b.module.declare_intrinsic(f"{name}.{suffix}", (), kind), args)

    def keep_nan(self, x: Value, result: Value) -> Value:
        return self.select(self.b.fcmp_unordered("uno", x, x), x, result)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.b.select(condition, a, b)

    def bits(self, x: Value) -> Value:
        return self.b.bitcast(x, self.int_type)

    def from_bits(self, x: Value) -> Value:
        return self.b.bitcast(x, self.type)

    def abs(self, x: Value) -> Value:
        return self.call("llvm.fabs", x)

    def negative(self, x: Value) -> Value:
        return self.b.fsub(self.constant(-0.0), x)

    def with_sign_of(self, x: Value, sign: Value) -> Value:
        return self.call("llvm.copysign", x, sign)


LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP = (  # of (e^r - 1 - r) / r^2 on [-ln(2) / 2, ln(2) / 2]
    1.3814320554956794e-3,
    8.36885068565607e-3,
    4.1668400168418884e-2,
    1.666651964187622e-1,
    4.999999403953552e-1,
)
ROOT = tuple(c / 2 ** (5 - n) for n, c in enumerate(EXP))  # of 2 * (e^(r / 2) - 1 - r / 2) / r^2
FALLING_ROOT = tuple(c * (-1) ** (n + 1) for n, c in enumerate(ROOT))  # of its negative, by -r


def exp(b: ll.IRBuilder, x: Value) -> Value:
    """The square of e^(x / 2), whose power of two is a normal number for every x."""
    e = Emitter(b, x)
    shifted, tail = _reduced(e, e.at_least(e.at_most(x, 89.0), -104.0), 2, ROOT)
    root = e.mul(e.add(tail, e.constant(2.0)), _power_of_two(e, shifted, -1))
    return e.mul(root, root)


def expm1(b: ll.IRBuilder, x: Value) -> Value:
    """e^x - 1, as twice 2^(n-1) * (e^r - 1) + (2^(n-1) - 1/2)."""
    e = Emitter(b, x)
    shifted, tail = _reduced(e, e.at_least(e.at_most(x, 89.0), -80.0))
    power = _power_of_two(e, shifted, -1)
    half = e.fused(tail, power, e.sub(power, e.constant(0.5)))
    return e.add(half, half)


def _exp_minus_one(e: Emitter, x: Value) -> Value:
    """e^x - 1 = 2^n * (e^r - 1) + (2^n - 1) for -80 < x < 80, exact to the last bits near 0."""
    shifted, tail = _reduced(e, x)
    power = _power_of_two(e, shifted, 0)
    return e.fused(tail, power, e.sub(power, e.constant(1.0)))


def _reduced(
    e: Emitter, x: Value, parts: int = 1, coefficients: Sequence[float] = EXP
) -> tuple[Value, Value]:
    """(n + 1.5 * 2^23, r + r^2 * P(r)) with x = n * parts * ln 2 + r, P the polynomial. The sum has
    n in its last bits, rounded half to even without a rounding instruction, which armv7 lacks."""
    magic = e.constant(12582912.0)
    shifted = e.fused(x, e.constant(1.44269504088896341 / parts), magic)
    n = e.sub(shifted, magic)
    r = e.fused(n, e.constant(-LN2_HIGH * parts), x)
    r = e.fused(n, e.constant(-LN2_LOW * parts), r)
    square = e.mul(r, r)
    # Estrin's scheme copies fewer constants than Horner's, as targets of additions.
    low, middle = e.polynomial(r, coefficients[3:]), e.polynomial(r, coefficients[1:3])
    high = e.fused(square, e.constant(coefficients[0]), middle)
    return shifted, e.fused(e.fused(high, square, low), square, r)


def _power_of_two(e: Emitter, shifted: Value, more: int) -> Value:
    """2^(n + more), from _reduced's first result: n's bits move to the exponent."""
    exponent = e.b.shl(e.bits(shifted), e.integer(23))
    return e.from_bits(e.b.add(exponent, e.integer((127 + more) << 23)))


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
    below = e.select(tiny, e.integer(126 + 23), e.integer(126))
    f, n, y = _log(e, e.bits(normal), below)
    return _log_or_special(e, x, e.fused(n, e.constant(LN2_HIGH), e.add(f, y)))


def log1p(b: ll.IRBuilder, x: Value) -> Value:
    """ln(1 + x) = ln u + (x - (u - 1)) / u, u = 1 + x rounded. Below 4 the division changes at most
    the last bit, beyond so does the difference."""
    e = Emitter(b, x)
    one = e.constant(1.0)
    u = e.add(x, one)
    f, n, y = _log(e, e.bits(u), e.integer(126))
    near = b.fcmp_ordered("<", u, e.constant(4.0))
    y = e.add(y, e.select(near, e.sub(x, e.sub(u, one)), e.constant(0.0)))
    return _log_or_special(e, u, e.fused(n, e.constant(LN2_HIGH), e.add(f, y)))


def _log(e: Emitter, bits: Value, below: Value) -> tuple[Value, Value, Value]:
    """(f, n, y) with ln x = n * LN2_HIGH + (f + y), y small: of a positive number by its bits;
    `below` is the exponent of 1/2."""
    b = e.b
    exponent = b.sub(b.lshr(bits, e.integer(23)), below)
    mantissa = e.from_bits(b.or_(b.and_(bits, e.integer(0x007FFFFF)), e.integer(0x3F000000)))
    small = b.fcmp_ordered("<", mantissa, e.constant(0.70710678118654752440))
    n = b.sitofp(b.sub(exponent, e.select(small, e.integer(1), e.integer(0))), e.type)
    f = e.sub(e.select(small, e.add(mantissa, mantissa), mantissa), e.constant(1.0))
    square = e.mul(f, f)
    y = e.mul(e.mul(e.polynomial(f, LOG), f), square)
    y = e.fused(n, e.constant(LN2_LOW), y)
    return f, n, e.sub(y, e.mul(square, e.constant(0.5)))


def _log_or_special(e: Emitter, x: Value, y: Value) -> Value:
    """y = ln x, or what it is of numbers that are not positive and finite."""
    infinity = e.constant(float("inf"))
    y = e.select(e.b.fcmp_ordered("==", x, infinity), infinity, y)
    y = e.select(e.b.fcmp_ordered("==", x, e.constant(0.0)), e.constant(float("-inf")), y)
    return e.select(e.b.fcmp_unordered("<", x, e.constant(0.0)), e.constant(float("nan")), y)


def tanh(b: ll.IRBuilder, x: Value) -> Value:
    """-t / (2 + t) with t = e^(-2|x|) - 1; beyond 9.1 it rounds to 1."""
    e = Emitter(b, x)
    size = e.at_most(e.abs(x), 9.1)
    t = _exp_minus_one(e, e.mul(size, e.constant(-2.0)))
    return e.with_sign_of(b.fdiv(t, e.add(t, e.constant(2.0))), x)


# A part of the sum below: with it, neither the sum nor a product overflows, down to x = -104. NEON
# moves it into a register by one instruction.
PART = 2.0**-31


def sigmoid(b: ll.IRBuilder, x: Value) -> Value:
    """1 / (1 + e^-x), both sides times PART."""
    e = Emitter(b, x)
    shifted, tail = _reduced(e, e.at_least(e.at_most(x, 104.0), -104.0), -2, FALLING_ROOT)
    root = e.mul(e.sub(e.constant(2.0), tail), _power_of_two(e, shifted, -1))
    part = e.constant(PART)
    return b.fdiv(part, e.fused(e.mul(root, part), root, part))


# 2^-x on [-1/2, 1/2].
POWER = (
    -0.001327647218992245,
    0.00967554161617007,
    -0.05550713275336975,
    0.2402211971865357,
    -0.6931469670621024,
    1.0000000716557242,
)
HALF_POWER = (-0.0551716707, 0.24261114022, -0.69326098671, 0.9999280724712654)
LOG2_E = 1.44269504088896341


def silu(b: ll.IRBuilder, x: Value) -> Value:
    """x / (1 + e^-x). Below -87 it is the value at -87; above 87, e^-x makes no difference."""
    e = Emitter(b, x)
    bounded = e.at_least(x, -87.0)
    return b.fdiv(bounded, _one_and_power(e, e.at_most(bounded, 87.0), POWER))


def half_silu(b: ll.IRBuilder, x: Value) -> Value:
    """As silu, between the bounds where float16 can represent e^-x."""
    e = Emitter(b, x)
    bounded = e.at_least(x, -10.5)
    return b.fdiv(bounded, _one_and_power(e, e.at_most(bounded, 9.5), HALF_POWER))


def half_sigmoid(b: ll.IRBuilder, x: Value) -> Value:
    e = Emitter(b, x)
    part, exponent = _negative_power(e, e.at_most(e.at_least(x, -10.5), 9.5), HALF_POWER)
    exponent = e.b.add(exponent, e.integer(15 << e.fraction))
    power = e.mul(part, e.from_bits(exponent))  # a product, so that NaN stays NaN
    return b.fdiv(e.constant(1.0), e.add(power, e.constant(1.0)))


def _one_and_power(e: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """1 + e^-x; an arbitrary number for NaN. Exponents are added as integers."""
    part, exponent = _negative_power(e, x, coefficients)
    return e.add(e.from_bits(e.b.add(e.bits(part), exponent)), e.constant(1.0))


def _negative_power(e: Emitter, x: Value, coefficients: Sequence[float]) -> tuple[Value, Value]:
    """(2^-r, n in the bits of an exponent) with e^-x = 2^n * 2^-r, |r| <= 1/2, for x whose 2^n is a
    normal number."""
    magic = e.constant(e.magic)
    shifted = e.fused(x, e.constant(-LOG2_E), magic)
    r = e.fused(x, e.constant(LOG2_E), e.sub(shifted, magic))
    return _pairwise(e, r, coefficients), e.b.shl(e.bits(shifted), e.integer(e.fraction))


def _pairwise(e: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial of an even number of coefficients, by Estrin's scheme: each addition to a
    constant needs a copy of it, and here only every other term has one."""
    pairs = [e.polynomial(x, coefficients[n : n + 2]) for n in range(0, len(coefficients), 2)]
    square, total = e.mul(x, x), pairs[0]
    for pair in pairs[1:]:
        total = e.fused(total, square, pair)
    return total


# Of -log(erfc(x)) / x on [0, 4].
ERF = (
    4.0711678653562204e-5,
    -3.8102891110528925e-4,
    1.2518290136335857e-3,
    2.055980828257922e-4,
    -1.9321628997880466e-2,
    1.0281437908070078e-1,
    6.366165015799133e-1,
    1.1283792068475185,
)


def erf(b: ll.IRBuilder, x: Value) -> Value:
    """1 - e^-y with y = |x| * P(|x|); beyond 4 it rounds to 1."""
    e = Emitter(b, x)
    size = e.at_most(e.abs(x), 4.0)
    t = _exp_minus_one(e, e.negative(e.mul(size, e.polynomial(size, ERF))))
    return e.with_sign_of(t, x)


# Of (Phi(x) - 1/2) / x by x^2 on [0, GELU_BOUND], where Phi is the normal distribution: (numerator,
# denominator) with the smallest largest error. The denominator's first coefficient is 1, and left
# out. At GELU_BOUND, Phi - 1/2 is computed as exactly 1/2, with and without fused products.
GELU_BOUND = 4.714182
GELU = (
    (0.028347001920842718, 3.3069474842876025, 23.91106487557546, 346.83460086209453),
    (20.68382570428843, 204.82285836145425, 869.3945570060712),
)


def gelu(b: ll.IRBuilder, x: Value) -> Value:
    """x * Phi(x). Below -GELU_BOUND it is -0; above GELU_BOUND it is x."""
    e = Emitter(b, x)
    bounded = e.at_least(x, -GELU_BOUND)
    near = e.at_most(bounded, GELU_BOUND)
    square = e.mul(near, near)
    over, (first, *others) = e.polynomial(square, GELU[0]), GELU[1]
    under = e.add(square, e.constant(first))
    for coefficient in others:
        under = e.fused(under, square, e.constant(coefficient))
    part = b.fdiv(e.mul(near, over), under)
    return e.mul(bounded, e.add(part, e.constant(0.5)))


# Phi(x) is nearly 1 / (1 + 2^-(x * R(x^2))), whose error counts least where the result is smallest.
HALF_GELU_BOUND = 3.7
HALF_GELU = (0.101775, 2.304885)


def half_gelu(b: ll.IRBuilder, x: Value) -> Value:
    """x / (1 + 2^-z), z = x * R(x^2), between the bounds where float16 can represent 2^-z."""
    e = Emitter(b, x)
    bounded = e.at_least(x, -HALF_GELU_BOUND)
    near = e.at_most(bounded, HALF_GELU_BOUND)
    factor = e.polynomial(e.mul(near, near), HALF_GELU)
    shifted = e.fused(e.negative(near), factor, e.constant(e.magic))
    rest = e.fused(near, factor, e.sub(shifted, e.constant(e.magic)))
    exponent = b.shl(e.bits(shifted), e.integer(e.fraction))
    power = e.from_bits(b.add(e.bits(_pairwise(e, rest, HALF_POWER)), exponent))
    return b.fdiv(bounded, e.add(power, e.constant(1.0)))


# pi/2 in parts (Cody and Waite). The products of the first three and an integer below 2^13 are
# exact, so nothing is lost where x is close to a multiple of pi/2. TURNS: the largest x that needs
# no larger integer.
QUARTER_TURN = (1.5703125, 4.837512969970703125e-4, 7.549533620476723e-8, 2.5633440682570896e-12)
TURNS = 12800.0
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0)


def sin(b: ll.IRBuilder, x: Value) -> Value:
    """sin(n * pi/2 + r) = sin r, cos r, -sin r, -cos r for n = 0, 1, 2, 3 mod 4; |x| <= TURNS."""
    e = Emitter(b, x)
    n, sine, cosine = _turned(e, x)
    return _on_circle(e, n, e.select(_is_odd(e, n), cosine, sine))


def cos(b: ll.IRBuilder, x: Value) -> Value:
    """sin(x + pi/2), |x| <= TURNS."""
    e = Emitter(b, x)
    n, sine, cosine = _turned(e, x)
    return _on_circle(e, b.add(n, e.integer(1)), e.select(_is_odd(e, n), sine, cosine))


def tan(b: ll.IRBuilder, x: Value) -> Value:
    """tan(n * pi/2 + r) = sin r / cos r for even n, -cos r / sin r for odd n; |x| <= TURNS."""
    e = Emitter(b, x)
    n, sine, cosine = _turned(e, x)
    odd = _is_odd(e, n)
    return b.fdiv(e.select(odd, e.negative(cosine), sine), e.select(odd, sine, cosine))


def _turned(e: Emitter, x: Value) -> tuple[Value, Value, Value]:
    """(n in the last bits, sin r, cos r) with x = n * pi/2 + r, |r| <= pi/4."""
    magic = e.constant(e.magic)
    shifted = e.fused(x, e.constant(0.63661977236758134308), magic)
    n, r = e.sub(shifted, magic), x
    for part in QUARTER_TURN:
        r = e.fused(n, e.constant(-part), r)
    square = e.mul(r, r)
    sine = e.fused(e.mul(r, square), e.polynomial(square, SIN), r)
    return e.bits(shifted), e.with_sign_of(sine, r), e.polynomial(square, COS)


def _is_odd(e: Emitter, n: Value) -> Value:
    return e.b.icmp_signed("!=", e.b.and_(n, e.integer(1)), e.integer(0))


def _on_circle(e: Emitter, n: Value, size: Value) -> Value:
    """-size where the second last bit of n is set: the lower half of the circle."""
    sign = e.b.shl(e.b.and_(n, e.integer(2)), e.integer(30))
    return e.from_bits(e.b.xor(e.bits(size), sign))


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
    """`whole` with x's sign; x itself where it is too large to have a fraction, infinite or NaN."""
    small = e.b.fcmp_ordered("<", e.abs(x), e.constant(8388608.0))
    return e.select(small, e.with_sign_of(e.abs(whole), x), x)


# For machines without instructions for these.
ROUNDINGS: dict[str, Callable[[ll.IRBuilder, Value], Value]] = {
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "nearbyint": round,
}

FUNCTIONS: dict[str, Callable[[ll.IRBuilder, Value], Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "tan": tan,
}

# Largest absolute arguments of functions that are not for all; the C library has these.
BOUNDS = {"sin": TURNS, "cos": TURNS, "tan": TURNS}

HALVES: dict[str, Callable[[ll.IRBuilder, Value], Value]] = {
    "sigmoid": half_sigmoid,
    "silu": half_silu,
    "gelu": half_gelu,
}
