"""Fourier transforms: products with constant matrices. A long one is made of two short ones, of
lengths that divide its own (Cooley and Tukey, An algorithm for the machine calculation of complex
Fourier series, 1965)."""

from __future__ import annotations

import math
from operator import index

import numpy as np
from numpy.typing import NDArray

from ...graph.nodes import Value
from ..node import Node, limited, shape_of
from .shapes import reshape, rows


def transform_matrix(
    length: int, parts: int, taken: int, inverse: bool, onesided: bool
) -> NDArray[np.float64]:
    """The matrix [taken * parts, …] of a Fourier transform of `length`, for signals of `taken`
    elements, real (parts 1) or complex (parts 2). Each row is the transform of a unit signal.
    """
    limited(taken * parts * length * parts, "a transform's matrix")
    signals = np.eye(taken * parts).reshape(-1, taken, parts)
    signal = signals[..., 0] + (1j * signals[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(signal, length)
    result = np.fft.ifft(signal, length) if inverse else np.fft.fft(signal, length)
    if onesided:
        result = result[:, : length // 2 + 1]
    return np.stack([result.real, result.imag], -1).reshape(taken * parts, -1)


MOST_WHOLE = 1 << 20  # elements of a matrix: 4 MB of float32, about what a core's caches hold


def _whole(n: Node, flat: Value, matrix: NDArray[np.float64]) -> Value:
    y: Value = n.emit("dense", flat, n.constant(matrix, flat.type.dtype), transpose_b=False)
    return y


def _factor(length: int) -> int:
    """The largest divisor up to the root."""
    return next(d for d in range(math.isqrt(length), 0, -1) if length % d == 0)


def _parted(n: Node, x: Value, inverse: bool) -> Value:
    """Complex transforms [rows, length, 2] of x [rows, length, 1 or 2].

    Element i * b + j of a length a * b becomes element k + m * a: for each j a transform along i
    gives k, which is turned by j * k parts of a circle; and for each k one along j gives m.
    """
    count, length, parts = shape_of(x)
    a = _factor(length)
    b = length // a
    if a == 1 or length * parts * length * 2 <= MOST_WHOLE:
        matrix = transform_matrix(length, parts, length, inverse, False)
        flat = reshape(n, x, (count, length * parts))
        return reshape(n, _whole(n, flat, matrix), (count, length, 2))
    x = n.emit("transpose", reshape(n, x, (count, a, b, parts)), axes=(0, 2, 1, 3))
    y = _parted(n, reshape(n, x, (count * b, a, parts)), inverse)
    y = reshape(n, y, (count, b, a, 2))
    angle = np.outer(np.arange(b), np.arange(a)) * ((2 if inverse else -2) * math.pi / length)
    sine = np.stack([-np.sin(angle), np.sin(angle)], -1)
    begin, step = (0, 0, 0, 1), (1, 1, 1, -1)
    other = n.emit("slice", y, begin=begin, step=step, shape=shape_of(y))
    straight = n.emit("multiply", y, n.constant(np.cos(angle)[..., None], x.type.dtype))
    across = n.emit("multiply", other, n.constant(sine, x.type.dtype))
    y = n.emit("transpose", n.emit("add", straight, across), axes=(0, 2, 1, 3))
    y = _parted(n, reshape(n, y, (count * a, b, 2)), inverse)
    y = n.emit("transpose", reshape(n, y, (count, a, b, 2)), axes=(0, 2, 1, 3))
    return reshape(n, y, (count, length, 2))


def transform(
    n: Node, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool
) -> Value:
    """x [..., 1 or 2] transformed along axis. The last dimension holds parts of complex numbers."""
    shape = shape_of(x)
    rank, parts = len(shape), shape[-1]
    real = inverse and onesided
    extent = index(shape[axis])
    if length is None:
        length = 2 * (extent - 1) if real else extent
    taken = min(extent, length // 2 + 1 if real else length)
    x = rows(n, x, 0, taken, axis)
    others = [d for d in range(rank - 1) if d != axis]
    x = n.emit("transpose", x, axes=(*others, axis, rank - 1))
    front = [shape[d] for d in others]
    made, made_parts = length // 2 + 1 if onesided and not real else length, 1 if real else 2
    if real or taken * parts * made * 2 <= MOST_WHOLE or _factor(length) == 1:
        flat = reshape(n, x, (math.prod(front), taken * parts))
        y = _whole(n, flat, transform_matrix(length, parts, taken, inverse, onesided))
    else:
        x = reshape(n, x, (math.prod(front), taken, parts))
        if taken < length:
            ends = [0, 0, 0, 0, length - taken, 0]
            x = n.emit("pad", x, pads=ends, mode="constant", value=0)
        y = rows(n, _parted(n, x, inverse), 0, made, 1)
    y = reshape(n, y, (*front, made, made_parts))
    order = [*others, axis, rank - 1]
    return n.emit("transpose", y, axes=[order.index(d) for d in range(rank)])
