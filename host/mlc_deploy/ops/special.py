"""More elementwise operators: inverse and hyperbolic functions, tests of floats, bits, shifts.

Functions that neither the code generator nor the runtime's libm knows are composed of known ones.
For float64 these have the accuracy of float32's formulas, some 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import te
from ..ir import Expr, binary, call, compare, const, dtype_of
from ..te import Tensor
from .elementwise import FLOAT, INTEGER, NUMBER, Elementwise, elementwise_operator
from .registry import Array, Attrs, Operator, register, require


def _log1p(x: Expr) -> Expr:
    """log(1 + x): the rounding error of 1 + x is divided out (Kahan)."""
    u = x + 1
    return te.select(u.equal(1), x, te.log(u) * x / (u - 1))


def _sinh(x: Expr) -> Expr:
    """By powers of e; near 0, where their difference would cancel, by its series."""
    square = x * x
    series = x + x * square * (square * (square * (1 / 5040) + 1 / 120) + 1 / 6)
    return te.select(te.abs(x) < 1, series, (te.exp(x) - te.exp(-x)) * 0.5)


def _cosh(x: Expr) -> Expr:
    return (te.exp(x) + te.exp(-x)) * 0.5


def _with_sign(x: Expr, size: Expr) -> Expr:
    return te.select(x < 0, -size, size)


def _asinh(x: Expr) -> Expr:
    """log(a + sqrt(a^2 + 1)), written so that nothing cancels for small a = |x|."""
    a = te.abs(x)
    square = a * a
    return _with_sign(x, _log1p(a + square / (te.sqrt(square + 1) + 1)))


def _acosh(x: Expr) -> Expr:
    return _log1p(x - 1 + te.sqrt((x - 1) * (x + 1)))


def _atanh(x: Expr) -> Expr:
    return _log1p(x * 2 / (1 - x)) * 0.5


def _atan(x: Expr) -> Expr:
    """Reduced to |x| < tan(pi / 8), then Cephes' polynomial."""
    a = te.abs(x)
    far, middle = a > 2.414213562373095, a > 0.4142135623730950
    reduced = te.select(far, -1 / a, te.select(middle, (a - 1) / (a + 1), a))
    base = te.select(
        far, const(math.pi / 2, x.dtype), te.select(middle, const(math.pi / 4, x.dtype), x * 0)
    )
    z = reduced * reduced
    series = (
        (z * 8.05374449538e-2 - 1.38776856032e-1) * z + 1.99777106478e-1
    ) * z - 3.33329491539e-1
    return _with_sign(x, base + series * z * reduced + reduced)


def _asin(x: Expr) -> Expr:
    return _atan(x / te.sqrt((1 - x) * (x + 1)))


def _acos(x: Expr) -> Expr:
    return _atan(te.sqrt((1 - x) / (x + 1))) * 2


def _is_inf(x: Expr, positive: bool, negative: bool) -> Expr:
    above = x.equal(const(math.inf, x.dtype)) if positive else const(False, "bool")
    below = x.equal(const(-math.inf, x.dtype)) if negative else const(False, "bool")
    return te.any_of(above, below)


def _is_inf_array(x: Array, positive: bool, negative: bool) -> Array:
    return (np.isposinf(x) & positive) | (np.isneginf(x) & negative)


def _shift(a: Expr, b: Expr, left: bool) -> Expr:
    """A shift by at least the width, or by a negative number, leaves no bit of a; to the right, it
    leaves copies of a negative number's sign."""
    bits = dtype_of(a.dtype).bits
    inside = b < bits
    if dtype_of(a.dtype).kind == "int":
        inside = te.all_of(inside, b >= 0)
    by = te.select(inside, b, const(0, b.dtype))
    if left:
        return te.select(inside, binary("<<", a, by), const(0, a.dtype))
    gone = te.select(a < 0, const(-1, a.dtype), const(0, a.dtype))
    return te.select(inside, binary(">>", a, by), gone)


def _shift_array(a: Array, b: Array, left: bool) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    by = np.where(inside, b, 0)
    gone = np.where((a < 0) & (not left), -1, 0).astype(a.dtype)
    with np.errstate(all="ignore"):
        return np.where(inside, np.left_shift(a, by) if left else np.right_shift(a, by), gone)


POWER_BITS = 6  # beyond, all but powers of -1, 0 and 1 overflow


def _integer_power(a: Expr, b: Expr) -> Expr:
    """By squaring; a negative power is 1 / a^-b, truncated. Overflow wraps."""
    signed = dtype_of(b.dtype).kind == "int"
    size = te.abs(b) if signed else b
    most = (1 << POWER_BITS) - 2
    size = te.select(size > most, const(most, b.dtype) + size % 2, size)
    result: Expr = const(1, a.dtype)
    factor = a
    for bit in range(POWER_BITS):
        odd = binary("&", size, const(1 << bit, b.dtype)) > 0
        result = te.select(odd, result * factor, result)
        factor = factor * factor
    if not signed:
        return result
    unit = te.any_of(a.equal(1), a.equal(-1)) if dtype_of(a.dtype).kind == "int" else a.equal(1)
    return te.select(te.any_of(b >= 0, unit), result, const(0, a.dtype))


def _integer_power_array(a: Array, b: Array) -> Array:
    most = (1 << POWER_BITS) - 2
    size = np.where(np.abs(b) > most, most + np.abs(b) % 2, np.abs(b))
    result = np.power(a, size.astype(a.dtype))
    return np.where((b >= 0) | (a == 1) | (a == np.array(-1).astype(a.dtype)), result, 0)


def _shrink(x: Expr, lambd: float, bias: float) -> Expr:
    zero, moved = const(0, x.dtype), const(bias, x.dtype)
    return te.select(x < -lambd, x + moved, te.select(x > lambd, x - moved, zero))


SPECIAL = (
    Elementwise("sinh", FLOAT, _sinh, np.sinh),
    Elementwise("cosh", FLOAT, _cosh, np.cosh),
    Elementwise("asinh", FLOAT, _asinh, np.arcsinh),
    Elementwise("acosh", FLOAT, _acosh, np.arccosh),
    Elementwise("atanh", FLOAT, _atanh, np.arctanh),
    Elementwise("asin", FLOAT, _asin, np.arcsin),
    Elementwise("acos", FLOAT, _acos, np.arccos),
    Elementwise("atan", FLOAT, _atan, np.arctan),
    Elementwise("isnan", FLOAT, lambda x: compare("!=", x, x), np.isnan, gives_bool=True),
    Elementwise("isinf", FLOAT, _is_inf, _is_inf_array, gives_bool=True),
    Elementwise(
        "shrink",
        NUMBER,
        _shrink,
        lambda x, lambd, bias: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
    ),
    Elementwise("bitwise_not", INTEGER, lambda x: binary("^", x, const(-1, x.dtype)), np.invert),
    Elementwise("bitwise_and", INTEGER, lambda a, b: binary("&", a, b), np.bitwise_and, 2),
    Elementwise("bitwise_or", INTEGER, lambda a, b: binary("|", a, b), np.bitwise_or, 2),
    Elementwise("bitwise_xor", INTEGER, lambda a, b: binary("^", a, b), np.bitwise_xor, 2),
    Elementwise("integer_power", INTEGER, _integer_power, _integer_power_array, 2),
    Elementwise("shift", INTEGER, _shift, _shift_array, 2),
)
for _entry in SPECIAL:
    register(elementwise_operator(_entry))


def _compute_bitcast(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: dtype, as wide as the input's."""
    (x,) = inputs
    to = attrs["dtype"]
    same = dtype_of(to).bits == dtype_of(x.dtype).bits
    require(same, f"bitcast: {x.dtype} and {to} are not of one size")
    if "bool" in (x.dtype, to):
        return [te.compute(x.shape, lambda *i: x[i].astype(to), name="bitcast")]
    return [te.compute(x.shape, lambda *i: call("reinterpret", to, x[i]), name="bitcast")]


def _evaluate_bitcast(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    return [np.ascontiguousarray(inputs[0]).view(attrs["dtype"]).reshape(inputs[0].shape)]


register(Operator("bitcast", _compute_bitcast, _evaluate_bitcast, "elementwise"))
