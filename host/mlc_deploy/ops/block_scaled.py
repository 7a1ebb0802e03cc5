"""Products with weights of few bits, which have a scale per block along k; and data for them.

    dense_blocks(x, w, scale[, zero])
    y[m, n] = sum over blocks b of scale[n, b] * sum over k in b of x[m, k] * (w[n, k] - zero[n, b])

x is [M, K], int8 or float. w is [N, B, bytes], a row of bytes per block. Its numbers are in two's
complement: int8 for 8 `bits`; for 4, two in a uint8, the first in the lower half. scale is float
[N, B], zero int8 [N, B] (0 where there is none). A block has K / B elements, 16 to 256.
onnxruntime's MatMulNBits stores the same numbers, raised by 2^(bits - 1).

Attributes: bits; narrow, if int8 data are within ±127. With int8 data, a block's sum is exact in
int32; sums are scaled and added up in float32, and y is float32. With float data, everything is
computed in float32, and y has the data's dtype.

    quantize_rows(x)
    q[m, k] = x[m, k] / scale[m], rounded to the nearest (halves to even): within ±127
    scale[m, 0] = the largest |x[m, k]| / 127

x is float32 [M, K]; q is int8, scale float32 [M, 1] and at least 1e-36, so that zeros stay zeros.

Weights may be packed: kernel_layout then names the layout of [N, K]. With 4 bits, the dimension
`halves` of the layout counts the halves of a byte. channels is N, block the elements of a block.
Scales and zeros are in the layout NB with the tile of N: "NB16n".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, dtype_of, same_shape
from ..te import Tensor
from .elementwise import same_extent
from .half import rounded
from .layout import layout, pack, packed_index, packed_shape, unpack
from .products import matrix_products
from .quantize import saturated
from .reference import exact, pieces
from .registry import Array, Attrs, Operator, TensorType, register, require

STORED = {4: "uint8", 8: "int8"}  # the dtype that stores numbers, by bits
SIZES = (16, 32, 64, 128, 256)  # elements of a block
LARGEST = 127  # of int8 data: -128 is not used
LEAST_SCALE = 1e-36


def nibble(byte: Expr, half: Expr) -> Expr:
    """16 times the number in a half of a byte (0: the lower): its bits at the top of an int8."""
    return ((byte << (4 - half * 4).astype("uint8")) & 0xF0).astype("int8")


def raised_nibble(byte: Expr, half: Expr) -> Expr:
    """The number in a half of a byte, plus 8: 0 to 15, as int32."""
    return ((byte >> (half * 4).astype("uint8") & 15) ^ 8).astype("int32")


def unpacked_bytes(w: Array, bits: int) -> Array:
    """[N, B, bytes] as numbers, int8 [N, K]."""
    if bits == 8:
        return w.reshape(len(w), -1)
    signed = w.view(np.int8)
    both = np.stack([(signed << 4).view(np.int8) >> 4, signed >> 4], axis=-1)
    return both.reshape(len(w), -1)


def packed_numbers(numbers: Array, to: str, halves: int) -> Array:
    """Numbers [N, K] in a layout; its dimension `halves`, if not 0, becomes the halves of bytes."""
    laid_out = pack(numbers, "NK", to)
    if not halves:
        return laid_out
    low, high = np.moveaxis(laid_out.view(np.uint8) & 15, halves, 0)
    return np.ascontiguousarray(low | high << 4)


def packed_type(sizes: Sequence[int], to: str, halves: int) -> TensorType:
    """The type of packed_numbers, of [N, K]."""
    shape = list(packed_shape(layout(to), dict(zip("NK", sizes, strict=True))))
    if not halves:
        return TensorType(tuple(shape), "int8")
    del shape[halves]
    return TensorType(tuple(shape), "uint8")


def _plain_numbers(w: Array, attrs: Attrs, depth: int) -> Array:
    """Weights in any layout as numbers, int8 [N, K]."""
    if "kernel_layout" not in attrs:
        return unpacked_bytes(w, attrs["bits"])
    packed = layout(attrs["kernel_layout"])
    if attrs["bits"] == 4:
        halves = (w.view(np.int8) << 4).view(np.int8) >> 4, w.view(np.int8) >> 4
        w = np.stack(halves, axis=attrs["halves"])
    return unpack(w.view(np.int8), packed.text, "NK", (attrs["channels"], depth))


def _plain_of_blocks(x: Array, attrs: Attrs) -> Array:
    """Scales or zeros in any layout as [N, B]."""
    if "kernel_layout" not in attrs:
        return x
    whole = np.moveaxis(x, 1, 2).reshape(-1, x.shape[1])
    return whole[: attrs["channels"]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The sizes of a call, and its elements by plain index, whatever the layout."""

    columns: Any
    blocks: Any
    size: int
    number: Callable[[Expr, Expr], Expr]  # by n and k, int8
    scale: Callable[[Expr, Expr], Expr]  # by n and b
    zero: Callable[[Expr, Expr], Expr] | None


def read_blocks(inputs: Sequence[Tensor], attrs: Attrs) -> Blocks:
    """Raises ValueError for inputs that do not fit together."""
    x, w, scale, *more = inputs
    op, bits = "dense_blocks", attrs["bits"]
    require(bits in STORED, f"{op}: weights of {bits} bits")
    kinds = (w.dtype == STORED.get(bits), dtype_of(scale.dtype).kind == "float", x.ndim == 2)
    fits = all(kinds) and (x.dtype == "int8" or dtype_of(x.dtype).kind == "float")
    listed = ", ".join(f"{t.dtype}{list(t.shape)}" for t in inputs)
    require(fits and all(z.dtype == "int8" for z in more) and len(more) < 2, f"{op}: {listed}")
    if "kernel_layout" in attrs:
        packed, size, columns = layout(attrs["kernel_layout"]), attrs["block"], attrs["channels"]
        across = scale.shape[-1]
        blocks = scale.shape[1]

        def number(n: Expr, k: Expr) -> Expr:
            at = list(packed_index(packed, {"N": n, "K": k}))
            if bits == 8:
                return w[tuple(at)]
            half = at.pop(attrs["halves"])
            return nibble(w[tuple(at)], half) >> 4

        def of(t: Tensor) -> Callable[[Expr, Expr], Expr]:
            return lambda n, b: t[n // across, b, n % across]

    else:
        fits = w.ndim == 3 and scale.ndim == 2 and all(map(same_extent, w.shape, scale.shape))
        fits = fits and all(same_shape(z.shape, scale.shape) for z in more)
        require(fits and isinstance(w.shape[2], int), f"{op}: {listed}")
        columns, blocks, stored = w.shape
        size = stored * 8 // bits

        def number(n: Expr, k: Expr) -> Expr:
            block, inside = k // size, k % size
            if bits == 8:
                return w[n, block, inside]
            return nibble(w[n, block, inside // 2], inside % 2) >> 4

        def of(t: Tensor) -> Callable[[Expr, Expr], Expr]:
            return lambda n, b: t[n, b]

    require(size in SIZES, f"{op}: blocks of {size} elements, not of {', '.join(map(str, SIZES))}")
    require(same_extent(x.shape[1], blocks * size), f"{op}: {listed}, blocks of {size} elements")
    return Blocks(columns, blocks, size, number, of(scale), of(more[0]) if more else None)


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    x, given = inputs[0], read_blocks(inputs, attrs)
    sums = "int32" if x.dtype == "int8" else "float32"
    k = te.reduce_axis((0, given.size), "k")
    b = te.reduce_axis((0, given.blocks), "b")

    def of_block(i: Expr, j: Expr, block: Expr) -> Expr:
        at = block * given.size + k
        weight = given.number(j, at).astype(sums)
        if given.zero is not None:
            weight = weight - given.zero(j, block).astype(sums)
        return te.sum(x[i, at].astype(sums) * weight, k)

    parts = te.compute((x.shape[0], given.columns, given.blocks), of_block, name="of_block")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(parts[i, j, b].astype("float32") * given.scale(j, b.var).astype("float32"), b)

    total = te.compute((x.shape[0], given.columns), element, name="dense_blocks")
    return [rounded(total, "float32" if x.dtype == "int8" else x.dtype)]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, w, scale, *more = inputs
    rows, depth = x.shape
    numbers = _plain_numbers(w, attrs, depth)
    scales = _plain_of_blocks(scale, attrs)
    columns, blocks = scales.shape
    weights = numbers.reshape(columns, blocks, -1)
    zeros = [_plain_of_blocks(zero, attrs)[..., None] for zero in more]
    data = exact(x).reshape(rows, blocks, -1).transpose(1, 0, 2)
    y = np.empty((rows, columns), np.float32 if x.dtype == np.int8 else x.dtype)
    for some in pieces(columns, depth):
        own = weights[some].astype(np.float64)
        for zero in zeros:
            own -= zero[some]
        sums = data @ own.transpose(1, 2, 0)
        y[:, some] = np.einsum("bmn,nb->mn", sums, exact(scales[some]))
    return [y]


# --------------------------------------------------------------------------------- rows as int8


def _compute_rows(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    require(x.dtype == "float32" and x.ndim == 2, f"quantize_rows: {x.dtype}{list(x.shape)}")
    rows, k = x.shape[0], te.reduce_axis((0, x.shape[1]), "k")
    largest = te.compute((rows,), lambda i: te.max(te.abs(x[i, k]), k), name="largest")

    def scaled(i: Expr, _: Expr) -> Expr:
        return te.maximum(largest[i] * np.float32(1 / LARGEST).item(), LEAST_SCALE)

    scale = te.compute((rows, 1), scaled, name="scale")
    factor = te.compute((rows,), lambda i: 1 / scale[i, 0], name="factor")

    def rounded_element(i: Expr, j: Expr) -> Expr:
        return saturated(te.nearbyint(x[i, j] * factor[i]), "int8")

    return [te.compute(x.shape, rounded_element, name="quantize_rows"), scale]


def _evaluate_rows(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    largest = np.abs(x).max(axis=1, keepdims=True, initial=0)
    scale = np.maximum(largest * np.float32(1 / LARGEST), np.float32(LEAST_SCALE))
    factor = np.float32(1) / scale
    whole = np.clip(np.nan_to_num(np.rint(x * factor)), -128, 127)
    return [whole.astype(np.int8), scale]


register(Operator("quantize_rows", _compute_rows, _evaluate_rows, "opaque"))
register(Operator("dense_blocks", _compute, _evaluate, "anchor", multiplies=matrix_products))
