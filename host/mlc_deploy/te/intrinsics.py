"""Scalar functions on expressions. Lowering decides which of them become vector code."""

from __future__ import annotations

from ..ir import Expr, ExprLike, binary, call, const, dtype_of, expr, select

FLOAT_CALLS = (
    *"exp expm1 log log1p sin cos tan tanh erf gelu sigmoid silu".split(),
    *"sqrt rsqrt floor ceil round trunc".split(),
)


def _float(name: str, x: ExprLike) -> Expr:
    value = expr(x)
    if dtype_of(value.dtype).kind != "float":
        raise TypeError(f"{name} of '{value}', which is {value.dtype}\n  try: .astype(\"float32\")")
    return call(name, value.dtype, value)


def exp(x: ExprLike) -> Expr:
    return _float("exp", x)


def expm1(x: ExprLike) -> Expr:
    """e^x - 1, exact to the last bits also where it is small."""
    return _float("expm1", x)


def log(x: ExprLike) -> Expr:
    return _float("log", x)


def log1p(x: ExprLike) -> Expr:
    """log(1 + x), exact to the last bits also where it is small."""
    return _float("log1p", x)


def sin(x: ExprLike) -> Expr:
    return _float("sin", x)


def cos(x: ExprLike) -> Expr:
    return _float("cos", x)


def tan(x: ExprLike) -> Expr:
    return _float("tan", x)


def tanh(x: ExprLike) -> Expr:
    return _float("tanh", x)


def erf(x: ExprLike) -> Expr:
    return _float("erf", x)


def gelu(x: ExprLike) -> Expr:
    """x * (erf(x / sqrt(2)) + 1) / 2"""
    return _float("gelu", x)


def sigmoid(x: ExprLike) -> Expr:
    """1 / (1 + exp(-x)), without overflow for any x."""
    return _float("sigmoid", x)


def silu(x: ExprLike) -> Expr:
    """x / (1 + exp(-x)), without overflow for any x."""
    return _float("silu", x)


def sqrt(x: ExprLike) -> Expr:
    return _float("sqrt", x)


def rsqrt(x: ExprLike) -> Expr:
    """1 / sqrt(x), divided exactly."""
    return 1 / sqrt(x)


def floor(x: ExprLike) -> Expr:
    return _float("floor", x)


def ceil(x: ExprLike) -> Expr:
    return _float("ceil", x)


def round(x: ExprLike) -> Expr:
    """To the nearest integer, half to even."""
    return _float("round", x)


def trunc(x: ExprLike) -> Expr:
    return _float("trunc", x)


def _binary_float(name: str, x: ExprLike, y: ExprLike) -> Expr:
    total = expr(x) + y if not isinstance(x, (int, float)) else x + expr(y)
    if dtype_of(total.dtype).kind != "float":
        raise TypeError(f"{name} needs floats, got {total.dtype}")
    return call(name, total.dtype, expr(x, total.dtype), expr(y, total.dtype))


def pow(x: ExprLike, y: ExprLike) -> Expr:
    return _binary_float("pow", x, y)


def fmod(x: ExprLike, y: ExprLike) -> Expr:
    """The remainder of x / y rounded towards zero, with x's sign."""
    return _binary_float("fmod", x, y)


def fma(x: ExprLike, y: ExprLike, z: ExprLike) -> Expr:
    """x * y + z, rounded once where the CPU has such an instruction, else twice."""
    value = expr(x)
    return call("fma", value.dtype, value, expr(y, value.dtype), expr(z, value.dtype))


def abs(x: ExprLike) -> Expr:
    value = expr(x)
    kind = dtype_of(value.dtype)
    if kind.kind in ("uint", "bool"):
        return value
    if kind.kind == "int":
        return select(value < 0, -value, value)
    return call("abs", value.dtype, value)


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
