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


def _is_inf(x: Expr, positive: bool, negative: bool) -> Expr:
    above = x.equal(const(math.inf, x.dtype)) if positive else const(False, "bool")
    below = x.equal(const(-math.inf, x.dtype)) if negative else const(False, "bool")
    return te.any_of(above, below)


def _is_inf_array(x: Array, positive: bool, negative: bool) -> Array:
    return (np.isposinf(x) & positive) | (np.isneginf(x) & negative)


def _shift(a: Expr, b: Expr, left: bool) -> Expr:
    """A shift by at least the width, or by a negative number, leaves no bit of a; to the right, it
    leaves copies of a negative number's sign."""
    return binary("<<" if left else ">>", a, b)


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
    Elementwise("sinh", FLOAT, te.sinh, np.sinh),
    Elementwise("cosh", FLOAT, te.cosh, np.cosh),
    Elementwise("asinh", FLOAT, te.asinh, np.arcsinh),
    Elementwise("acosh", FLOAT, te.acosh, np.arccosh),
    Elementwise("atanh", FLOAT, te.atanh, np.arctanh),
    Elementwise("asin", FLOAT, te.asin, np.arcsin),
    Elementwise("acos", FLOAT, te.acos, np.arccos),
    Elementwise("atan", FLOAT, te.atan, np.arctan),
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
