"""Converters of signal processing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ops.shape import normal_axis
from .layers.fourier import transform
from .layers.shapes import reshape
from .node import limited, shape_of
from .onnx_node import Converter, OnnxNode


def _dft(n: OnnxNode) -> Any:
    if n.opset < 20:
        axis = n.axis(1)
    else:
        given = n.whole(2, "axis") if n.optional(2) is not None else -2
        axis = normal_axis(n.op, given, len(n.shape()))
    length = None if n.optional(1) is None else n.whole(1, "dft_length")
    flags = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    return transform(n, n.input(0), axis, length, *flags)


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
    return transform(n, frames, 2, None, False, bool(n.attr("onesided", 1)))


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
