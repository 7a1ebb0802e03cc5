"""Converters of signal processing: Fourier transforms are products with constant matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.nodes import Value
from ..ops.shape import normal_axis
from .layers.shapes import reshape, rows
from .node import limited, shape_of
from .onnx_node import Converter, OnnxNode


def transform_matrix(
    length: int, parts: int, taken: int, inverse: bool, onesided: bool
) -> NDArray[np.float64]:
    """The matrix [taken * parts, …] of a Fourier transform of `length`. Signals have `taken`
    elements, which are real (parts 1) or complex (parts 2); a row is the transform of one of them.
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


def _transform(
    n: OnnxNode, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool
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


def _dft(n: OnnxNode) -> Any:
    if n.opset < 20:
        axis = n.axis(1)
    else:
        given = n.whole(2, "axis") if n.optional(2) is not None else -2
        axis = normal_axis(n.op, given, len(n.shape()))
    length = None if n.optional(1) is None else n.whole(1, "dft_length")
    flags = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    return _transform(n, n.input(0), axis, length, *flags)


def _stft(n: OnnxNode) -> Any:
    """Frames of the signal, times the window, transformed."""
    step = n.whole(1, "frame_step")
    batch, length, parts = (*n.shape(), 1)[:3]
    window = n.optional(2)
    if n.optional(3) is not None:
        size = n.whole(3, "frame_length")
    else:
        size = shape_of(window)[0] if window is not None else length
    count = 1 + (length - size) // step
    limited(count * size, "a table of frames")
    places = np.arange(count)[:, None] * step + np.arange(size)
    x = reshape(n, n.input(0), (batch, length, parts))
    frames = n.emit("gather", x, n.constant(places, "int64"), axis=1)
    if window is not None:
        frames = n.emit("multiply", frames, reshape(n, window, (size, 1)))
    return _transform(n, frames, 2, None, False, bool(n.attr("onesided", 1)))


def _mel_weight_matrix(n: OnnxNode) -> Any:
    """Triangles between bins that are equally far apart in mel, 2595 log10(1 + f / 700)."""
    names = "num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz".split()
    count, length, rate, low, high = (n.known(k, name).item() for k, name in enumerate(names))
    rows = limited(length // 2 + 1, "a table of frequencies")
    limited(rows * count, "a table of frequencies")
    first, last = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    mel = first + np.arange(count + 2) * (last - first) / (count + 2)
    bins = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate)
    left, middle, right = bins[:-2], bins[1:-1], bins[2:]
    place = np.arange(rows)[:, None]
    rising = np.where(middle > left, (place - left) / np.maximum(middle - left, 1), 1)
    falling = (right - place) / np.maximum(right - middle, 1)
    matrix = np.where((left <= place) & (place <= middle), rising, 0)
    matrix = np.where((middle <= place) & (place < right), falling, matrix)
    return n.constant(matrix, n.dtype_of("output_datatype", "float32"))


SIGNAL: dict[str, Converter] = {
    "DFT": _dft, "MelWeightMatrix": _mel_weight_matrix, "STFT": _stft,
}  # fmt: skip
