"""Fourier transforms: products with constant matrices."""

from __future__ import annotations

import math

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


def transform(
    n: Node, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool
) -> Value:
    """x [..., 1 or 2] transformed along axis. The last dimension holds parts of complex numbers."""
    shape = shape_of(x)
    rank, parts = len(shape), shape[-1]
    real = inverse and onesided
    if length is None:
        length = 2 * (shape[axis] - 1) if real else shape[axis]
    taken = min(shape[axis], length // 2 + 1 if real else length)
    x = rows(n, x, 0, taken, axis)
    others = [d for d in range(rank - 1) if d != axis]
    x = n.emit("transpose", x, axes=(*others, axis, rank - 1))
    front = [shape[d] for d in others]
    flat = reshape(n, x, (math.prod(front), taken * parts))
    matrix = transform_matrix(length, parts, taken, inverse, onesided)
    y = n.emit("dense", flat, n.constant(matrix, x.type.dtype), transpose_b=False)
    parts = 1 if real else 2
    y = reshape(n, y, (*front, matrix.shape[1] // parts, parts))
    order = [*others, axis, rank - 1]
    return n.emit("transpose", y, axes=[order.index(d) for d in range(rank)])
