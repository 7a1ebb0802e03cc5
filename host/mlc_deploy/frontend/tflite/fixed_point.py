"""LiteRT's fixed-point arithmetic on numbers that are known before a model runs.

A real factor is an int32 multiplier, at least 2^30 (or 0), times 2^(shift - 31). The operator
`rescale` multiplies tensors by it.
"""

from __future__ import annotations

import math

import numpy as np

from ...ops import evaluate
from .file import Array


def round_away(x: float) -> int:
    """The nearest whole number; halves away from 0."""
    whole = math.floor(abs(x))
    return int(math.copysign(whole + (abs(x) - whole >= 0.5), x))


def multiplier_of(real: float) -> tuple[int, int]:
    """Multiplier and shift of a factor, which is not negative. Raises ValueError if it is too
    large."""
    if not (math.isfinite(real) and real >= 0):
        raise ValueError(f"a scale of {real}")
    fraction, shift = math.frexp(real)
    multiplier = round_away(fraction * (1 << 31))
    if multiplier == 1 << 31:
        multiplier, shift = multiplier // 2, shift + 1
    if multiplier == 0 or shift < -31:
        return 0, 0
    if shift > 30:
        raise ValueError(f"a scale of {real} is too large")
    return multiplier, shift


def multipliers_of(real: Array) -> tuple[Array, Array]:
    """As multiplier_of, of an array."""
    pairs = [multiplier_of(float(r)) for r in real.reshape(-1)]
    both = np.asarray(pairs, np.int32).reshape(-1, 2)
    return both[:, 0].reshape(real.shape), both[:, 1].reshape(real.shape)


def times(x: Array, real: float) -> Array:
    """Whole numbers times a factor, rounded as the operator `rescale` does."""
    multiplier, shift = (np.asarray(v, np.int32) for v in multiplier_of(real))
    args = (x.astype(np.int32), multiplier, shift, np.zeros((), np.int32))
    (result,) = evaluate("rescale", args, {})
    return result


def rounding_high_product(a: Array, b: int, bits: int) -> Array:
    """The upper half of 2 * a * b, for numbers of `bits` bits: rounded and saturated."""
    high: Array = (a.astype(np.int64) * b + (1 << (bits - 2))) >> (bits - 1)
    return np.asarray(np.minimum(high, (1 << (bits - 1)) - 1))


def rounding_shift(x: Array, by: int) -> Array:
    """x / 2^by, rounded; halves away from 0."""
    half = (1 << by) >> 1
    return (x + half - ((x < 0) & (by > 0))) >> by
