"""Quantized numbers: a real number r stands as an integer q, r = (q - zero) * scale.

    quantize(x, scale, zero)            float (or int32) -> zero's dtype
    dequantize(q, scale, zero)          integer -> scale's dtype
    requantize(sums, multiplier, zero)  int32 -> zero's dtype: sums * multiplier + zero
    rescale(sums, multiplier, shift, zero)
                                        the same in fixed point: sums * multiplier * 2^(shift - 31)
                                        + zero, of int32 numbers
    offset(q)                           uint8 -> int8: q - 128, int8 -> uint8: q + 128

Scales and zeros are tensors that broadcast against the first input as in any elementwise operator.
A scalar is per tensor, [C, 1, 1] per channel of NCHW; blocked scales are repeated to the data's
size first. zero may not widen the result; it carries the dtype, so it is never left out (zeros
where a model has none). One attribute: `short` of quantize and requantize says that the rounded
number is within int16 for any data, also with the zero point added.

ONNX's arithmetic exactly: float division (quantize) or multiplication (requantize, in float32),
rounding half to even, then the zero point, then saturation; NaN becomes the least integer. rescale
computes as LiteRT's reference kernels do, after gemmlowp: it rounds twice, first the product's
upper half, then the shifted number.

Sums come from conv2d, conv3d, dense and matmul, which take int8 or uint8 data and weights (of
different dtypes if need be) to int32; conv's attribute pad_value is then the data's zero point.
sum((x - zx) * (w - zw)) = conv(x, w) - zw * conv(x, 1) - zx * sum(w) + n * zx * zw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import te
from ..ir import Expr, dtype_of, value_range
from ..ir.lanes import number_or
from ..te import Tensor
from .elementwise import broadcast_shape, element_at, same_extent
from .registry import Array, Attrs, Operator, TensorType, register, require

# Dtypes of quantized numbers; sums of the first two are int32.
STORED = ("int8", "uint8", "int16", "uint16")
BYTES = ("int8", "uint8")
SUMS = "int32"
BLOCK = 8  # channels that kernels of int8 take together: a block of data, whatever the CPU

SHORT = "short"  # the attribute
OFFSET = {"int8": "uint8", "uint8": "int8"}
TOP_BIT = 128


def _check(op: str, x: Tensor, scale: Tensor, zero: Tensor, takes: Sequence[str]) -> None:
    require(x.dtype in takes, f"{op}: does not take {x.dtype}")
    kind = dtype_of(scale.dtype).kind
    require(kind == "float", f"{op}: the scale is {scale.dtype}")
    shape = broadcast_shape(op, [x.shape, scale.shape, zero.shape])
    fits = len(shape) == x.ndim and all(map(same_extent, shape, x.shape))
    sizes = f"scale {list(scale.shape)} and zero {list(zero.shape)}"
    require(fits, f"{op}: {sizes} for {list(x.shape)}")


def saturated(value: Expr, dtype: str) -> Expr:
    """A whole number in a float, as the nearest integer of dtype."""
    low, high = value_range(dtype)
    return te.minimum(te.maximum(value, low), high).astype(dtype)


def _saturated_array(value: Array, dtype: np.dtype[np.generic]) -> Array:
    low, high = value_range(str(dtype))
    inside: Array = np.clip(value, low, high)
    if value.dtype.kind == "f":
        inside = np.where(np.isnan(inside), low, inside)
    return inside.astype(dtype)


def _compute_quantize(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    x, scale, zero = inputs
    _check("quantize", x, scale, zero, ("float16", "float32", "float64", SUMS))
    require(zero.dtype in STORED, f"quantize: does not give {zero.dtype}")

    def element(*i: Expr) -> Expr:
        # The quotient is rounded in the scale's dtype; the zero point is added where it is exact.
        rounded = te.nearbyint(x[i].astype(scale.dtype) / element_at(scale, i))
        quotient = rounded.astype(_whole(scale))
        moved = quotient + element_at(zero, i).astype(quotient.dtype)
        if dtype_of(x.dtype).kind == "float":
            moved = number_or(moved, value_range(zero.dtype)[0])
        return saturated(moved, zero.dtype)

    return [te.compute(x.shape, element, name="quantize")]


def _whole(scale: Tensor | Array) -> str:
    """The dtype for whole numbers: float16 does not have all 16-bit ones."""
    return "float32" if str(scale.dtype) == "float16" else str(scale.dtype)


def _evaluate_quantize(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, scale, zero = inputs
    quotient = np.rint(x.astype(scale.dtype) / scale).astype(_whole(scale))
    return [_saturated_array(quotient + zero.astype(quotient.dtype), zero.dtype)]


def _compute_dequantize(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    q, scale, zero = inputs
    _check("dequantize", q, scale, zero, (*STORED, SUMS))
    require(zero.dtype == q.dtype, f"dequantize: {q.dtype} with a zero point of {zero.dtype}")

    def element(*i: Expr) -> Expr:
        real = (q[i].astype(SUMS) - element_at(zero, i).astype(SUMS)).astype(_whole(scale))
        return (real * element_at(scale, i).astype(real.dtype)).astype(scale.dtype)

    return [te.compute(q.shape, element, name="dequantize")]


def _evaluate_dequantize(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    q, scale, zero = inputs
    real = (q.astype(np.int32) - zero.astype(np.int32)).astype(_whole(scale))
    return [(real * scale.astype(real.dtype)).astype(scale.dtype, copy=False)]


def _compute_requantize(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    sums, multiplier, zero = inputs
    _check("requantize", sums, multiplier, zero, (SUMS,))
    require(multiplier.dtype == "float32", f"requantize: the multiplier is {multiplier.dtype}")
    require(zero.dtype in STORED, f"requantize: does not give {zero.dtype}")

    def element(*i: Expr) -> Expr:
        scaled = te.nearbyint(sums[i].astype("float32") * element_at(multiplier, i))
        return saturated(scaled + element_at(zero, i).astype("float32"), zero.dtype)

    return [te.compute(sums.shape, element, name="requantize")]


def _evaluate_requantize(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    sums, multiplier, zero = inputs
    scaled = np.rint(sums.astype(np.float32) * multiplier)
    return [_saturated_array(scaled + zero.astype(np.float32), zero.dtype)]


def _compute_rescale(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """multiplier is not negative, and shift is from -31 to 30; a left shift may wrap."""
    sums, multiplier, shift, zero = inputs
    given = {"data": sums.dtype, "multiplier": multiplier.dtype, "shift": shift.dtype}
    for what, dtype in given.items():
        require(dtype == SUMS, f"rescale: the {what} is {dtype}")
    require(zero.dtype in (*STORED, SUMS), f"rescale: does not give {zero.dtype}")
    shape = broadcast_shape("rescale", [t.shape for t in inputs])
    fits = len(shape) == sums.ndim and all(map(same_extent, shape, sums.shape))
    sizes = [list(t.shape) for t in inputs[1:]]
    require(fits, f"rescale: multiplier, shift and zero {sizes} for {list(sums.shape)}")

    def element(*i: Expr) -> Expr:
        factor = element_at(multiplier, i).astype("int64")
        by = te.bounded(element_at(shift, i), -31, 30)
        product = (sums[i] << te.maximum(by, 0)).astype("int64") * factor
        high = ((product + (1 << 30)) >> 31).astype(SUMS)
        result = _halves_away(high, by) + element_at(zero, i).astype(SUMS)
        return result if zero.dtype == SUMS else saturated(result, zero.dtype)

    return [te.compute(sums.shape, element, name="rescale")]


def _halves_away(x: Expr, shift: Expr) -> Expr:
    """x * 2^shift for a negative shift, else x; halves are rounded away from 0.

    Half of 2^right is added, and halves of negative numbers go down: floor((x + 2^(r - 1)) / 2^r)
    is floor((floor(x / 2^(r - 1)) + 1) / 2), which does not overflow.
    """
    right = te.maximum(-shift, 1)
    down = (((x + (x >> 31)) >> (right - 1)) + 1) >> 1
    return te.select(shift < 0, down, x)


def _evaluate_rescale(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    sums, multiplier, shift, zero = (a.astype(np.int64) for a in inputs)
    raised = (sums << np.maximum(shift, 0)).astype(np.int32).astype(np.int64)
    high = (raised * multiplier + (1 << 30)) >> 31
    right = np.maximum(-shift, 0)
    down = (high + ((1 << right) >> 1) - ((high < 0) & (right > 0))) >> right
    return [_saturated_array(down + zero, inputs[3].dtype)]


def offset(q: Expr) -> Expr:
    """A byte with its top bit flipped, in the other 8-bit dtype: 128 more, or less."""
    return (q.astype("uint8") ^ TOP_BIT).astype(OFFSET[q.dtype])


def _compute_offset(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (q,) = inputs
    require(q.dtype in OFFSET, f"offset: does not take {q.dtype}")

    return [te.compute(q.shape, lambda *i: offset(q[i]), name="offset")]


def _evaluate_offset(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (q,) = inputs
    return [(q.astype(np.uint8) ^ TOP_BIT).astype(OFFSET[str(q.dtype)])]


# ------------------------------------------------------------------------------------- sums


def sum_dtype(op: str, x: str, w: str) -> str:
    """The dtype of sums of products: int32 for 8-bit numbers, which may differ in sign, else
    the inputs' common one. Raises ValueError, naming op, for a mixture."""
    if {x, w} <= {"int8", "uint8"}:
        return SUMS
    require(x == w, f"{op}: data is {x}, weights are {w}")
    return x


def sums_alike(op: str, x: TensorType, w: TensorType) -> bool:
    """Whether sums are of the data's own dtype: 8-bit numbers have wider ones."""
    return sum_dtype(op, x.dtype, w.dtype) == x.dtype


def product(a: Expr, b: Expr, dtype: str) -> Expr:
    """a * b in the dtype of its sum."""
    return a.astype(dtype) * b.astype(dtype)


for _op in (
    Operator("quantize", _compute_quantize, _evaluate_quantize, "elementwise"),
    Operator("dequantize", _compute_dequantize, _evaluate_dequantize, "elementwise"),
    Operator("requantize", _compute_requantize, _evaluate_requantize, "elementwise"),
    Operator("rescale", _compute_rescale, _evaluate_rescale, "elementwise"),
    Operator("offset", _compute_offset, _evaluate_offset, "elementwise"),
):
    register(_op)
