"""How numpy's reference rounds: it computes in float64, and rounds an operator's result once.

So it is at least as exact as what it judges, and the same on every host: numpy's float32 sums
depend on the kernels that its BLAS picks for the host's processor. Elements are taken in blocks,
so that a copy in float64 needs little memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .registry import Array, Attrs

# Elements of an array of float64 at a time, 16 MiB. `scripts/bench/reference.py` measures time and
# memory of the reference.
BLOCK = 1 << 21
Evaluate = Callable[[Sequence[Array], Attrs], Sequence[Array]]


def exact(x: Array) -> Array:
    """x in the dtype in which the reference sums it up. In float64, products of 8-bit numbers are
    exact, and fast."""
    return x.astype(np.float64, copy=False) if x.dtype.kind == "f" or x.dtype.itemsize == 1 else x


def narrowed(sums: Array, dtype: str | np.dtype) -> Array:
    """Sums of `exact` numbers as dtype; integers wrap."""
    whole = np.dtype(dtype).kind != "f" and sums.dtype.kind == "f"
    return (sums.astype(np.int64) if whole else sums).astype(dtype, copy=False)


def in_float64(evaluate: Evaluate) -> Evaluate:
    """The evaluation of an operator with its floats in float64, rounded to the widest of its
    arguments' dtypes."""

    def evaluated(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        floats = [x.dtype for x in inputs if x.dtype.kind == "f"]
        if not floats:
            return evaluate(inputs, attrs)
        to = np.result_type(*floats)
        wide = [exact(x) if x.dtype.kind == "f" else x for x in inputs]
        results = evaluate(wide, attrs)
        return [y.astype(to) if y.dtype.kind == "f" and y.dtype != to else y for y in results]

    return evaluated


def pieces(extent: int, across: int) -> Iterator[slice]:
    """Ranges of an axis with about BLOCK elements each, if each of its entries has `across`."""
    size = max(1, BLOCK // max(across, 1))
    for first in range(0, extent, size):
        yield slice(first, min(first + size, extent))


def by_elements(function: Callable[..., Array], *inputs: Array) -> Array:
    """A function of single elements, of floats in float64, as the first input's dtype."""
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    result = np.empty(shape, inputs[0].dtype)
    flat = result.reshape(-1)
    columns = [np.broadcast_to(x, shape).reshape(-1) for x in inputs]
    for part in pieces(flat.size, 1):
        flat[part] = function(*(exact(x[part]) for x in columns))
    return result


def matrix_product(a: Array, b: Array, dtype: str) -> Array:
    """[..., M, K] times [..., K, N]; the leading dimensions broadcast."""
    depth, columns = b.shape[-2:]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*batch, a.shape[-2], columns), dtype)
    for rows in pieces(a.shape[-2], math.prod(a.shape[:-2]) * depth):
        left = exact(a[..., rows, :])
        for some in pieces(columns, math.prod(b.shape[:-2]) * depth):
            right = exact(b[..., some])
            result[..., rows, some] = narrowed(np.matmul(left, right), dtype)
    return result


def convolution(
    data: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int, dtype: str
) -> Array:
    """Padded data [N, C, ...] with weights [O, C / groups, ...]: for each tap of the kernel one
    matrix product, summed up."""
    kernel = w.shape[2:]
    extents = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(data.shape[2:], kernel, strides, dilations, strict=True)
    ]
    batch, channels, out_channels = *data.shape[:2], w.shape[0]
    weights = exact(w).reshape(groups, out_channels // groups, *w.shape[1:])
    result = np.empty((batch, out_channels, *extents), dtype)
    across = batch * math.prod(extents[1:]) * max(channels, out_channels)
    for rows in pieces(extents[0], across):
        taken = [rows.stop - rows.start, *extents[1:]]
        begin = [rows.start * strides[0], *[0] * (len(kernel) - 1)]
        pixels = math.prod(taken)
        total = np.zeros((batch, groups, out_channels // groups, pixels), weights.dtype)
        for tap in itertools.product(*map(range, kernel)):
            steps = zip(begin, tap, dilations, strides, taken, strict=True)
            places = [slice(b + k * d, b + k * d + (n - 1) * s + 1, s) for b, k, d, s, n in steps]
            part = exact(data[(slice(None), slice(None), *places)])
            part = part.reshape(batch, groups, channels // groups, pixels)
            taps: Any = (..., *tap)
            own = weights[taps]
            # One channel in a group: a product of numbers, without a call per group.
            total += own * part if w.shape[1] == 1 else own @ part
        summed = narrowed(total, dtype).reshape(batch, out_channels, *taken)
        result[:, :, rows] = summed
    return result
