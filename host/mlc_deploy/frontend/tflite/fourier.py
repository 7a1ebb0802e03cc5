"""Fourier transforms, and the operators on their complex results.

A complex tensor is a float32 tensor with one more, last dimension for real and imaginary parts.
Inputs and outputs of models are real.
"""

from __future__ import annotations

from typing import Any

from ...graph.nodes import Value
from ...ir import is_const
from ..layers.fourier import transform
from ..layers.norms import lp_norm
from ..layers.shapes import reshape, rows, select, stacked
from ..node import shape_of
from .node import COMPLEX, Converter, TfliteNode
from .shapes import SHAPES

MOST_ELEMENTS = 1 << 24  # of the matrix of a transform


def _rfft2d(n: TfliteNode) -> Any:
    """Inputs: real data [..., height, width], and the transform's height and width: data are cut,
    or filled with zeros. The output has width // 2 + 1 columns."""
    x, lengths = n.input(0), n.ints(1, "fft_length")
    shape = shape_of(x)
    if len(shape) < 2 or len(lengths) != 2 or any(is_const(extent, 0) for extent in shape):
        raise ValueError(f"data of shape {list(shape)} transformed to {lengths}")
    if any(length < 1 or length & (length - 1) for length in lengths):
        raise ValueError(f"lengths of {lengths} are not powers of two")
    height, width = lengths
    if width == 1:  # LiteRT gives another imaginary part than 0
        raise n.refuse("a transform of width 1 is not supported")
    elements = max(min(shape[-1], width) * width, 4 * min(shape[-2], height) * height)
    if elements > MOST_ELEMENTS:
        raise n.refuse(f"lengths of {lengths} are too large")
    across = len(shape) - 1
    y = transform(n, reshape(n, x, (*shape, 1)), across, width, inverse=False, onesided=True)
    if height == 1:  # a transform of length 1 changes nothing
        return rows(n, y, 0, 1, across - 1)
    return transform(n, y, across - 1, height, inverse=False, onesided=False)


def _parts(n: TfliteNode) -> list[Value]:
    """The real and the imaginary part of the first input."""
    if not n.is_complex():
        raise ValueError("its input is real")
    x = n.input(0)
    return [select(n, x, k, len(shape_of(x)) - 1) for k in range(2)]


def _abs(n: TfliteNode) -> Any:
    if not n.is_complex():
        raise ValueError("its input is real")
    x, last = n.input(0), len(n.shape()) - 1
    return lp_norm(n, x, 2, lambda y: n.emit("sum", y, axes=[last], keepdims=False))


def _by_parts(name: str) -> Converter:
    """An operator that moves elements, applied to both parts."""
    plain = SHAPES[name]

    def convert(n: TfliteNode) -> Any:
        if not n.is_complex():
            return plain(n)
        moved = []
        for part in _parts(n):
            n.inputs[0] = part
            moved.append(plain(n))
        return stacked(n, moved, len(shape_of(moved[0])))

    return convert


FOURIER: dict[str, Converter] = {
    "COMPLEX_ABS": _abs, "IMAG": lambda n: _parts(n)[1], "REAL": lambda n: _parts(n)[0],
    "RFFT2D": _rfft2d, **{name: _by_parts(name) for name in COMPLEX if name in SHAPES},
}  # fmt: skip
