"""exp, tanh and erf with fewer instructions and some error; graph.approximate puts them in.

Their largest relative errors, in float32, over all finite arguments:

    fast_exp    1.5e-5     for -87.3 <= x <= 88; beyond, the result at the bound
    fast_tanh   2e-5       beyond 6, the result at 6
    fast_erf    8e-6       beyond 3.2, the result at 3.2

exp is 2^n times a polynomial of degree 4 on [-1/2, 1/2]; the others are x P(x^2) / Q(x^2). The
coefficients minimize the largest relative error (Lawson's iteration in float64). float16 is
computed in float32, float64 exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import te
from ..ir import Expr, call, dtype_of

Array = NDArray[Any]

LEAST, MOST = -87.3, 88.0  # of exp: results are neither denormal nor infinite
LOG2_E = 1.4426950408889634
MAGIC = 12582912.0  # 1.5 * 2^23: added to a float, it leaves the nearest integer in the last bits
MAGIC_BITS = 0x4B400000
POWER = (
    0.009570101946770958,
    0.05591786158553891,
    0.24024744837985518,
    0.693121814582967,
    0.9999992614392342,
)
TANH_BOUND = 6.0
TANH = (
    (0.0015145785652249124, 0.11483075482308444, 0.9999926791900969),
    (5.6271960795354745e-05, 0.017611164398848966, 0.4481139870025473, 1.0),
)
ERF_BOUND = 3.2
ERF = (
    (0.000754053237996799, 0.04328130601721966, 0.15397418791761744, 1.1283809751078537),
    (0.009328858190304965, 0.09481703718689387, 0.46982772037847625, 1.0),
)
FALLING = (  # 2^x on [-1/2, 1/2]
    (0.001327647218992245, 0.00967554161617007),
    (0.05550713275336975, 0.2402211971865357),
    (0.6931469670621024, 1.0000000716557242),
)
Ratio = tuple[Sequence[float], Sequence[float]]


def fast_exp(x: Expr) -> Expr:
    """e^x; for float16 by way of float32, for float64 exactly."""
    return _in_float32(x, _exp, te.exp)


def fast_tanh(x: Expr) -> Expr:
    """tanh x; for float16 by way of float32, for float64 exactly."""
    return _in_float32(x, lambda v: _ratio(v, TANH, TANH_BOUND), te.tanh)


def fast_erf(x: Expr) -> Expr:
    """erf x; for float16 by way of float32, for float64 exactly."""
    return _in_float32(x, lambda v: _ratio(v, ERF, ERF_BOUND), te.erf)


def _in_float32(x: Expr, fast: Callable[[Expr], Expr], exact: Callable[[Expr], Expr]) -> Expr:
    if dtype_of(x.dtype).scalar == "float64":
        return exact(x)
    return fast(x.astype("float32")).astype(dtype_of(x.dtype).scalar)


def falling_exp(x: Expr) -> Expr:
    """e^x of a float32 of at most 0. The relative error is at most 1e-6 where x >= -10, and 6e-6
    below; x is at least LEAST. Exponents are added as integers."""
    bounded = te.maximum(x, LEAST)
    shifted = te.fma(bounded, LOG2_E, MAGIC)
    rest = te.fma(bounded, LOG2_E, MAGIC - shifted)
    square, (first, *others) = rest * rest, (te.fma(rest, a, b) for a, b in FALLING)
    power = first
    for pair in others:
        power = te.fma(power, square, pair)
    bits = call("reinterpret", "int32", power) + (call("reinterpret", "int32", shifted) << 23)
    return call("reinterpret", "float32", bits)


def _exp(x: Expr) -> Expr:
    scaled = te.minimum(te.maximum(x, LEAST), MOST) * LOG2_E
    shifted = scaled + MAGIC
    rest = scaled - (shifted - MAGIC)
    exponent = call("reinterpret", "int32", shifted) - (MAGIC_BITS - 127)
    return call("reinterpret", "float32", exponent << 23) * _polynomial(rest, POWER)


def _ratio(x: Expr, ratio: Ratio, bound: float) -> Expr:
    near = te.minimum(te.maximum(x, -bound), bound)
    square = near * near
    over, under = (_polynomial(square, part) for part in ratio)
    return near * over / under


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total


# ------------------------------------------------------------------------------ the same, of arrays


def fast_exp_array(x: Array) -> Array:
    scaled = np.clip(_wide(x), LEAST, MOST) * LOG2_E
    whole = np.rint(scaled)
    return np.asarray(np.polyval(np.array(POWER), scaled - whole) * np.exp2(whole))


def fast_tanh_array(x: Array) -> Array:
    return _ratio_array(x, TANH, TANH_BOUND)


def fast_erf_array(x: Array) -> Array:
    return _ratio_array(x, ERF, ERF_BOUND)


def _ratio_array(x: Array, ratio: Ratio, bound: float) -> Array:
    near = np.clip(_wide(x), -bound, bound)
    over, under = (np.polyval(np.array(part), near * near) for part in ratio)
    return np.asarray(near * over / under)


def _wide(x: Array) -> Array:
    return x.astype(np.float64)
