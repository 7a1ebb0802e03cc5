"""Converters of signal processing: Fourier transforms are products with constant matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.nodes import Value
from ..ops.shape import normal_axis
from .onnx_node import Converter, OnnxNode, limited, static_shape


def transform_matrix(
    length: int, parts: int, taken: int, inverse: bool, onesided: bool
) -> NDArray[np.float64]:
    """The matrix [taken * parts, …] of a transform of `length` of signals of `taken` elements, real
    ones or (parts 2) complex ones: each row is what one element of the signal adds."""
    limited(taken * parts * length * parts, "a transform's matrix")
    signals = np.eye(taken * parts).reshape(-1, taken, parts)
    signal = signals[..., 0] + (1j * signals[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(signal, length)
    result = np.fft.ifft(signal, length) if inverse else np.fft.fft(signal, length)
    if onesided:
        result = result[:, : length // 2 + 1]
    return np.stack([result.real, result.imag], -1).reshape(taken * parts, -1)


def _transform(
    n: OnnxNode, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool
) -> Value:
    """x [..., 1 or 2], its last dimension the parts of complex numbers, transformed along axis."""
    shape = list(static_shape(x))
    rank = len(shape)
    if length is None:
        length = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    taken = min(shape[axis], length // 2 + 1 if inverse and onesided else length)
    shape[axis] = taken
    if taken != static_shape(x)[axis]:
        x = n.emit("slice", x, begin=[0] * rank, step=[1] * rank, shape=shape)
    others = [d for d in range(rank - 1) if d != axis]
    x = n.emit("transpose", x, axes=(*others, axis, rank - 1))
    rows = [shape[d] for d in others]
    flat = n.emit("reshape", x, shape=(math.prod(rows), taken * shape[-1]))
    matrix = transform_matrix(length, shape[-1], taken, inverse, onesided)
    y = n.emit("dense", flat, n.constant(matrix, x.type.dtype), transpose_b=False)
    parts = 1 if inverse and onesided else 2
    y = n.emit("reshape", y, shape=(*rows, matrix.shape[1] // parts, parts))
    back: Value = n.emit(
        "transpose", y, axes=[*(_place(d, axis, rank) for d in range(rank - 1)), rank - 1]
    )
    return back


def _place(d: int, axis: int, rank: int) -> int:
    """Where dimension d stands when axis has moved behind the others."""
    return rank - 2 if d == axis else d - (d > axis)


def _dft(n: OnnxNode) -> Any:
    rank = len(n.shape())
    if n.opset < 20:
        axis = n.attr("axis", 1)
    else:
        axis = int(n.known(2, "axis").item()) if n.optional(2) is not None else -2
    length = None if n.optional(1) is None else int(n.known(1, "dft_length").item())
    flags = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    return _transform(n, n.input(0), normal_axis(n.op, axis, rank), length, *flags)


def _stft(n: OnnxNode) -> Any:
    """Frames of the signal, times the window, transformed."""
    step = int(n.known(1, "frame_step").item())
    batch, length, parts = (*n.shape(), 1)[:3]
    window = n.optional(2)
    if n.optional(3) is not None:
        size = int(n.known(3, "frame_length").item())
    else:
        size = static_shape(window)[0] if window is not None else length
    count = 1 + (length - size) // step
    limited(count * size, "a table of frames")
    places = np.arange(count)[:, None] * step + np.arange(size)
    x = n.emit("reshape", n.input(0), shape=(batch, length, parts))
    frames = n.emit("gather", x, n.constant(places, "int64"), axis=1)
    if window is not None:
        frames = n.emit("multiply", frames, n.emit("reshape", window, shape=(size, 1)))
    return _transform(n, frames, 2, None, False, bool(n.attr("onesided", 1)))


SIGNAL: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
