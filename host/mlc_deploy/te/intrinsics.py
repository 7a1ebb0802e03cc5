"""Scalar functions on expressions. Lowering decides which of them become vector code."""

from __future__ import annotations

from ..ir import Expr, ExprLike, binary, call, const, dtype_of, expr
from ..ir.functions import absolute as abs
from ..ir.functions import nearbyint, scalar
from ..ir.functions import power as pow
from ..ir.functions import rounded as round

__all__ = ["abs", "nearbyint", "pow", "round"]  # besides the functions below

FLOAT_CALLS = (
    *"exp expm1 log log1p sin cos tan tanh erf gelu sigmoid silu".split(),
    *"sqrt rsqrt floor ceil nearbyint trunc".split(),
)


def exp(x: ExprLike) -> Expr:
    return scalar("exp", x)


def expm1(x: ExprLike) -> Expr:
    """e^x - 1, exact to the last bits also where it is small."""
    return scalar("expm1", x)


def log(x: ExprLike) -> Expr:
    return scalar("log", x)


def log1p(x: ExprLike) -> Expr:
    """log(1 + x), exact to the last bits also where it is small."""
    return scalar("log1p", x)


def sin(x: ExprLike) -> Expr:
    return scalar("sin", x)


def cos(x: ExprLike) -> Expr:
    return scalar("cos", x)


def tan(x: ExprLike) -> Expr:
    return scalar("tan", x)


def tanh(x: ExprLike) -> Expr:
    return scalar("tanh", x)


def erf(x: ExprLike) -> Expr:
    return scalar("erf", x)


def gelu(x: ExprLike) -> Expr:
    """x * (erf(x / sqrt(2)) + 1) / 2"""
    return scalar("gelu", x)


def sigmoid(x: ExprLike) -> Expr:
    """1 / (1 + exp(-x)), without overflow for any x."""
    return scalar("sigmoid", x)


def silu(x: ExprLike) -> Expr:
    """x / (1 + exp(-x)), without overflow for any x."""
    return scalar("silu", x)


def sqrt(x: ExprLike) -> Expr:
    return scalar("sqrt", x)


def rsqrt(x: ExprLike) -> Expr:
    """1 / sqrt(x), divided exactly."""
    return 1 / sqrt(x)


def floor(x: ExprLike) -> Expr:
    return scalar("floor", x)


def ceil(x: ExprLike) -> Expr:
    return scalar("ceil", x)


def trunc(x: ExprLike) -> Expr:
    return scalar("trunc", x)


def _binary_float(name: str, x: ExprLike, y: ExprLike) -> Expr:
    total = expr(x) + y if not isinstance(x, (int, float)) else x + expr(y)
    if dtype_of(total.dtype).kind != "float":
        raise TypeError(f"{name} needs floats, got {total.dtype}")
    return call(name, total.dtype, expr(x, total.dtype), expr(y, total.dtype))


def fmod(x: ExprLike, y: ExprLike) -> Expr:
    """The remainder of x / y rounded towards zero, with x's sign."""
    return _binary_float("fmod", x, y)


def fma(x: ExprLike, y: ExprLike, z: ExprLike) -> Expr:
    """x * y + z, rounded once where the CPU has such an instruction, else twice."""
    value = expr(x)
    return call("fma", value.dtype, value, expr(y, value.dtype), expr(z, value.dtype))


def bounded(x: Expr, low: int, high: int) -> Expr:
    """x, an integer that is never less than low nor more than high: nothing checks that."""
    ends = const(low, x.dtype), const(high, x.dtype)
    return call("bounded", x.dtype, x, *ends)


def truncdiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division towards zero, as C's `/`."""
    return binary("tdiv", a, b)


def truncmod(a: ExprLike, b: ExprLike) -> Expr:
    """The remainder of truncdiv, as C's `%`."""
    return binary("tmod", a, b)
