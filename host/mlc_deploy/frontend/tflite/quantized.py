"""Operators on quantized 8-bit tensors, as LiteRT's reference kernels compute them.

A function of one tensor is a table of 256 values. Others compute with integers: tensors minus their
zero points, brought to one scale in fixed point (`rescale`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.nodes import Constant, Value
from ...ir import is_const
from ...ops.lookup import VALUES, all_values
from ...ops.quantize import SUMS
from ..layers.shapes import joined, rows
from ..node import Node, shape_of
from .file import Array
from .fixed_point import (
    multiplier_of,
    multipliers_of,
    round_away,
    rounding_high_product,
    rounding_shift,
    times,
)
from .node import EIGHT_BITS, Affine, Converter, TfliteNode

BOUNDS: dict[int, tuple[float | None, float | None]] = {
    0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6),
}  # fmt: skip
RAISED = 20  # additional bits of precision of sums


# --------------------------------------------------------------------------- scales and bounds


def activation_range(n: TfliteNode) -> tuple[int, int]:
    """The range of stored numbers after the fused activation."""
    kind = n.option("FusedActivationFunction", 0)
    if kind not in BOUNDS:
        raise ValueError(f"the fused activation {kind} is not supported, quantized")
    return bounded(n.affine_out(), *BOUNDS[kind])


def bounded(out: Affine, low: float | None, high: float | None) -> tuple[int, int]:
    """The stored numbers of two real bounds."""
    least, most = out.limits

    def stored(real: float) -> int:
        return out.zero + round_away(float(np.float32(real) / out.scale))

    return (
        least if low is None else max(least, stored(low)),
        most if high is None else min(most, stored(high)),
    )


def rescaled(n: Node, x: Value, real: Any, zero: int = 0, dtype: str = SUMS) -> Value:
    """int32 numbers times a factor (one, or an array that broadcasts), plus a zero point."""
    multiplier, shift = multipliers_of(np.asarray(real, np.float64))
    tables = Constant(multiplier), Constant(shift), n.constant(zero, dtype)
    return n.emit("rescale", x, *tables)


def requantized(n: TfliteNode, sums: Value, real: Any) -> Value:
    """The operator's first output from int32 sums: scaled, shifted by the zero point, bounded."""
    out = n.affine_out()
    return active(n, rescaled(n, sums, real, out.zero, out.dtype))


def requantized_once(n: TfliteNode, sums: Value, real: Any) -> Value:
    """As requantized, for operators where LiteRT multiplies by a float64 and rounds halves away
    from 0."""
    exact = n.emit("multiply", n.cast(sums, "float64"), n.constant(real, "float64"))
    out = n.affine_out()
    return active(n, n.cast(stored_numbers(n, exact, out), out.dtype))


def active(n: TfliteNode, y: Value) -> Value:
    """The first output after the operator's activation."""
    low, high = activation_range(n)
    bounds = n.affine_out().limits
    return y if (low, high) == bounds else n.emit("clip", y, min=low, max=high)


def whole(n: Node, x: Value, zero: int) -> Value:
    """x - zero, as int32."""
    own = n.cast(x, SUMS)
    return n.emit("add", own, n.constant(-zero, SUMS)) if zero else own


# ------------------------------------------------------------------------------------- tables


def tabled(n: Node, x: Value, function: Callable[[Array], Array], dtype: str) -> Value:
    """function(x), bounded to dtype. function takes and gives whole numbers."""
    stored = all_values(x.type.dtype).astype(np.int64)
    limits = np.iinfo(dtype)
    table = np.clip(function(stored), limits.min, limits.max).astype(dtype)
    return n.emit("lookup", x, Constant(table))


def of_reals(function: Callable[[Array], Array]) -> Converter:
    """A converter of a function of real numbers, by a table that LiteRT computes in float32."""

    def convert(n: TfliteNode) -> Any:
        x, out = n.affine(0), n.affine_out()

        def stored(q: Array) -> Array:
            real = x.scale * (q - x.zero).astype(np.float32)
            with np.errstate(all="ignore"):
                # as the C library's float32 functions: nearly always correctly rounded
                y = function(real.astype(np.float64)).astype(np.float32)
            y = np.nan_to_num(y * (np.float32(1) / out.scale))
            rounded = [round_away(v) for v in np.clip(y, -(2.0**20), 2.0**20).tolist()]
            return np.array(rounded, np.int64) + out.zero

        return tabled(n, n.input(0), stored, out.dtype)

    return convert


def _relu(n: TfliteNode) -> Any:
    bounds = {"RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
    x, out = n.affine(0), n.affine_out()
    low, high = bounded(out, *bounds[n.op])
    real = float(x.scale / out.scale)
    return tabled(
        n,
        n.input(0),
        lambda q: np.clip(times(q - x.zero, real) + np.int64(out.zero), low, high),
        out.dtype,
    )


def _leaky_relu(n: TfliteNode) -> Any:
    x, out = n.affine(0), n.affine_out()
    alpha = np.float32(n.option("Alpha"))
    if not alpha >= 0:
        raise ValueError(f"alpha is {alpha}")

    def stored(q: Array) -> Array:
        own = q - x.zero
        above, below = times(own, float(x.scale / out.scale)), times(own, slope)
        return np.where(own >= 0, above, below) + np.int64(out.zero)

    slope = float(x.scale * alpha / out.scale)
    return tabled(n, n.input(0), stored, out.dtype)


def _hard_swish(n: TfliteNode) -> Any:
    """x * relu6(x + 3) / 6, in 16 bits."""
    x, out = n.affine(0), n.affine_out()
    fine = np.float32(1 / 128) * x.scale
    factor, by = _sixteen_bits(float(fine / out.scale))
    slope, up = _sixteen_bits(float(fine / np.float32(3 / 32768)))
    if by > 0:
        raise ValueError("the output's scale is too small")

    def stored(q: Array) -> Array:
        high = (q - x.zero) << 7
        scaled = rounding_high_product(high, factor, 16)
        gate = np.clip(high << max(up - 1, 0), -32768, 32767)
        gate = rounding_high_product(gate, slope, 16)
        if up > 0:
            gate = np.clip(gate << 1, -32768, 32767)
        gate = rounding_shift(gate, max(-up, 0))
        gate = (gate + 32768) >> 1
        product = gate * scaled
        product = np.where(product < 0, -(-product >> 15), product >> 15)
        return rounding_shift(product, -by) + out.zero

    return tabled(n, n.input(0), stored, out.dtype)


def _sixteen_bits(real: float) -> tuple[int, int]:
    multiplier, shift = multiplier_of(real)
    return min((multiplier + (1 << 15)) >> 16, 32767), shift


def quantized(n: TfliteNode) -> Any:
    """QUANTIZE: real numbers, or numbers of another scale."""
    x, out = n.input(0), n.affine_out()
    if out.dtype not in EIGHT_BITS:
        raise ValueError(f"{out.dtype} is not supported, quantized")
    if x.type.dtype in EIGHT_BITS:
        own = n.affine(0)
        real = float(np.float64(own.scale) / np.float64(out.scale))
        return tabled(n, x, lambda q: times(q - own.zero, real) + np.int64(out.zero), out.dtype)
    if x.type.dtype != "float32":
        raise ValueError(f"{x.type.dtype} is not supported")
    return n.cast(
        stored_numbers(n, n.emit("divide", x, n.constant(out.scale, "float32")), out), out.dtype
    )


def rounded_away(n: Node, x: Value) -> Value:
    """Real numbers below 2^31 as the nearest int32; halves away from 0."""
    kind = x.type.dtype
    down = n.cast(x, SUMS)  # towards 0, and so is the rest less than 1
    rest = n.emit("subtract", x, n.cast(down, kind))
    up = n.cast(n.emit("greater_equal", rest, n.constant(0.5, kind)), SUMS)
    below = n.cast(n.emit("less_equal", rest, n.constant(-0.5, kind)), SUMS)
    return n.emit("subtract", n.emit("add", down, up), below)


def stored_numbers(n: Node, x: Value, out: Affine) -> Value:
    """Real numbers in units of the scale, as int32 within the range of the dtype."""
    low, high = out.limits
    near = n.emit("clip", x, min=-1024.0, max=1024.0)  # beyond this, all are saturated
    stored = n.emit("add", rounded_away(n, near), n.constant(out.zero, SUMS))
    return n.emit("clip", stored, min=low, max=high)


def dequantized(n: TfliteNode) -> Any:
    """DEQUANTIZE: float16 as float32, or (q - zero) * scale."""
    return dequantized_input(n, 0)


def dequantized_input(n: TfliteNode, number: int) -> Value:
    """An input as float32."""
    x = n.input(number)
    if x.type.dtype in ("float16", "float32"):
        return n.cast(x, "float32")
    tensor = n.given[number]
    found = None if tensor is None else tensor.quantization
    if found is None or x.type.dtype not in (*EIGHT_BITS, "int16"):
        raise ValueError(f"{x.type.dtype} without a scale is not supported")
    rank = len(shape_of(x))
    count = found.scales.size
    axis = found.axis if count > 1 else 0
    if count > 1 and (axis >= rank or not is_const(shape_of(x)[axis], count)):
        raise ValueError(f"{count} scales along axis {axis} of {list(shape_of(x))}")
    own = [count if d == axis else 1 for d in range(rank)] if rank else []
    zeros = np.broadcast_to(found.zeros, found.scales.shape).reshape(own)
    return n.emit(
        "dequantize", x, Constant(found.scales.reshape(own)), n.constant(zeros, x.type.dtype)
    )


# -------------------------------------------------------------------------------- two tensors


def _sum(n: TfliteNode) -> Any:
    """ADD and SUB: both terms in a common scale, twice the larger one, with RAISED further bits."""
    a, b, out = n.affine(0), n.affine(1), n.affine_out()
    twice = 2 * max(float(a.scale), float(b.scale))

    def term(number: int, own: Affine) -> Value:
        raised = n.emit(
            "multiply", whole(n, n.input(number), own.zero), n.constant(1 << RAISED, SUMS)
        )
        return rescaled(n, raised, float(own.scale) / twice)

    total = n.emit("add" if n.op == "ADD" else "subtract", term(0, a), term(1, b))
    return requantized(n, total, twice / float(np.float32(1 << RAISED) * out.scale))


def _product(n: TfliteNode) -> Any:
    a, b, out = n.affine(0), n.affine(1), n.affine_out()
    product = n.emit("multiply", whole(n, n.input(0), a.zero), whole(n, n.input(1), b.zero))
    return requantized(n, product, float(a.scale * b.scale / out.scale))


def _extremum(n: TfliteNode) -> Any:
    same_scales(n)
    return n.emit("maximum" if n.op == "MAXIMUM" else "minimum", n.input(0), n.input(1))


def same_scales(n: TfliteNode) -> None:
    """Raises ValueError unless all quantized tensors of the operator have one scale and zero."""
    given = [n.affine(k) for k, t in enumerate(n.given) if t is not None and t.quantization]
    if any(own != n.affine_out() for own in given):
        raise ValueError("inputs and outputs are quantized differently")


def _prelu(n: TfliteNode) -> Any:
    """x above 0, x * alpha below."""
    x, alpha, out = n.affine(0), n.affine(1), n.affine_out()
    own = whole(n, n.input(0), x.zero)
    slopes = whole(n, n.input(1), alpha.zero)
    above = rescaled(n, own, float(x.scale / out.scale))
    below = rescaled(n, n.emit("multiply", own, slopes), float(x.scale * alpha.scale / out.scale))
    positive = n.emit("greater_equal", own, n.constant(0, SUMS))
    chosen = n.emit("where", positive, above, below)
    moved = n.emit("add", chosen, n.constant(out.zero, SUMS))
    low, high = out.limits
    return n.cast(n.emit("clip", moved, min=low, max=high), out.dtype)


def concatenated(n: TfliteNode, axis: int) -> Value:
    """Concatenates; parts whose scale differs from the result's are converted by tables."""
    out = n.affine_out()

    def part(number: int) -> Value:
        own, x = n.affine(number), n.input(number)
        if own == out:
            return x
        scale = own.scale * (np.float32(1) / out.scale)
        bias = np.float32(-own.zero) * scale

        def stored(q: Array) -> Array:
            real = q.astype(np.float32) * scale + bias
            return np.array([round_away(float(r)) for r in real], np.int64) + out.zero

        return tabled(n, x, stored, out.dtype)

    return active(n, joined(n, [part(number) for number in range(len(n.inputs))], axis))


# --------------------------------------------------------------------------------- reductions


def _softmax(n: TfliteNode) -> Any:
    """Uses a table of e^(-scale * difference); sums in float32, from the first to the last."""
    x, own, out = n.input(0), n.affine(0), n.affine_out()
    shape = shape_of(x)
    if not shape or any(is_const(extent, 0) for extent in shape):
        raise ValueError(f"data of shape {list(shape)}")
    last = len(shape) - 1
    scale = -own.scale * np.float32(n.option("Beta"))
    powers = np.exp((scale * np.arange(VALUES, dtype=np.float32)).astype(np.float64))
    if not np.isfinite(powers).all():
        raise ValueError(f"beta is {n.option('Beta')}")
    largest = n.cast(n.emit("max", x, axes=[last], keepdims=True), SUMS)
    below = n.emit("subtract", largest, n.cast(x, SUMS))
    powers_of = n.emit("gather", n.constant(powers, "float32"), below, axis=0)
    flags = {"product": False, "exclusive": False, "reverse": False}
    sums = n.emit("cumulative", powers_of, axis=last, **flags)
    total = rows(n, sums, shape[last] - 1, 1, last)
    one = n.constant(1, "float32")
    factor = n.emit("divide", one, n.emit("multiply", total, n.constant(out.scale, "float32")))
    real = n.emit("multiply", powers_of, factor)
    if out.dtype == "uint8":
        low, high = out.limits
        y = n.cast(n.emit("add", real, n.constant(0.5, "float32")), SUMS)
        return n.cast(n.emit("clip", y, min=low, max=high), out.dtype)
    return n.cast(stored_numbers(n, real, out), out.dtype)


def _mean(n: TfliteNode) -> Any:
    """MEAN and SUM: the count of elements divides the multiplier."""
    x, own, out = n.input(0), n.affine(0), n.affine_out()
    axes, keep = n.axes(1), bool(n.option("KeepDims", False))
    if not axes:
        return x
    count = math.prod(shape_of(x)[axis] for axis in axes)
    sums = n.emit("sum", n.cast(x, SUMS), axes=axes, keepdims=keep)
    if own.zero:
        sums = n.emit("add", sums, n.constant(-own.zero * count, SUMS))
    multiplier, shift = multiplier_of(float(np.float64(own.scale) / np.float64(out.scale)))
    if n.op == "MEAN" and count:
        by = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << by) // count, shift - by
    tables = n.constant(multiplier, SUMS), n.constant(shift, SUMS)
    return n.emit("rescale", sums, *tables, n.constant(out.zero, out.dtype))


def _extremum_over(n: TfliteNode) -> Any:
    same_scales(n)
    op = "max" if n.op == "REDUCE_MAX" else "min"
    return n.emit(op, n.input(0), axes=n.axes(1), keepdims=bool(n.option("KeepDims", False)))


# ------------------------------------------------------------------------------------- images


def resized_bilinear(
    n: TfliteNode, x: Value, sizes: Sequence[int], half: bool, corners: bool
) -> Value:
    """Resizes int8 images [batch, channels, height, width] with weights of 10 bits."""
    total = n.cast(x, SUMS)
    for axis, size in zip((2, 3), sizes, strict=True):
        total = _between(n, total, axis, size, half, corners)
    positive = n.emit("greater", total, n.constant(0, SUMS))
    half_unit = n.emit("where", positive, n.constant(1 << 19, SUMS), n.constant(-(1 << 19), SUMS))
    rounded = n.emit("add", total, half_unit)
    return n.cast(n.emit("divide", rounded, n.constant(1 << 20, SUMS)), x.type.dtype)


def _between(n: TfliteNode, x: Value, axis: int, size: int, half: bool, corners: bool) -> Value:
    extent, unit = shape_of(x)[axis], 1 << 10
    step = (unit * extent + size // 2) // size
    if corners and size > 1:
        step = (unit * (extent - 1) + (size - 1) // 2) // (size - 1)
    at = np.arange(size, dtype=np.int64) * step + ((step // 2 - unit // 2) if half else 0)
    low = np.maximum(np.trunc(at / unit).astype(np.int64), 0)
    high = np.minimum(np.trunc((at + unit - 1) / unit).astype(np.int64), extent - 1)
    low = np.minimum(low, extent - 1)
    own = [size if d == axis else 1 for d in range(4)]
    part = (at - unit * low).reshape(own)
    terms = [
        n.emit("multiply", n.emit("gather", x, n.constant(places, "int64"), axis=axis), weights)
        for places, weights in (
            (low, n.constant(unit - part, SUMS)),
            (np.maximum(high, 0), n.constant(part, SUMS)),
        )
    ]
    return n.emit("add", *terms)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return np.array([0.5 * v * (1 + math.erf(v * math.sqrt(0.5))) for v in x.tolist()])


QUANTIZED: dict[str, Converter] = {
    "ADD": _sum, "ELU": of_reals(lambda x: np.where(x < 0, np.expm1(x), x)),
    "EXP": of_reals(np.exp), "GELU": of_reals(_gelu), "HARD_SWISH": _hard_swish,
    "LEAKY_RELU": _leaky_relu, "LOG": of_reals(np.log), "LOGISTIC": of_reals(_sigmoid),
    "MAXIMUM": _extremum, "MEAN": _mean, "MINIMUM": _extremum, "MUL": _product, "PRELU": _prelu,
    "REDUCE_MAX": _extremum_over, "REDUCE_MIN": _extremum_over, "RELU": _relu, "RELU6": _relu,
    "RELU_0_TO_1": _relu, "RELU_N1_TO_1": _relu, "SOFTMAX": _softmax, "SUB": _sum, "SUM": _mean,
    "TANH": of_reals(np.tanh),
}  # fmt: skip
