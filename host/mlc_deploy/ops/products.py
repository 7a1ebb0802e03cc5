"""Layers as sums of products: the number of products, and the axes of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .layout import layout
from .registry import Attrs, TensorType


def conv_output_axes(attrs: Attrs, weights: int, result: int) -> tuple[int, int]:
    """For weights [O, I, ...] and results [N, O, ...] (registry.OutputAxes)."""
    return 0, 1


def matrix_output_axes(attrs: Attrs, weights: int, result: int) -> tuple[int, int]:
    """For weights [..., K, N], or [..., N, K] by the attribute transpose_b."""
    return weights - (2 if attrs.get("transpose_b") else 1), result - 1


def matrix_products(types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> int:
    """Multiply-accumulates of a matrix product."""
    return out.elements * types[0].sizes[-1]


def conv_products(window: int | None = None) -> Callable[..., int]:
    """Multiply-accumulates of a convolution, borders of zeros included; `window` is the number of
    taps, where it is not the size of the weights."""

    def products(types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> int:
        x, w = types[:2]
        sizes = _by_axis(w, attrs.get("kernel_layout", ""), "OI")
        taps = math.prod(size for axis, size in sizes.items() if axis not in "OI")
        data = _by_axis(x, attrs.get("data_layout", ""), "NC")
        outputs = _by_axis(out, attrs.get("out_layout", attrs.get("data_layout", "")), "NC")
        places = math.prod(size for axis, size in outputs.items() if axis != "C")
        per_output: int = (window or taps) * (data["C"] // attrs.get("groups", 1))
        return int(places * attrs.get("channels", outputs["C"])) * per_output

    return products


def _by_axis(t: TensorType, name: str, first: str) -> dict[str, int]:
    """A tensor's size along each axis of its layout; without one, `first` and then the others."""
    shape = t.sizes
    order = layout(name).order if name else (*first, *(f"{k}" for k in range(len(shape) - 2)))
    sizes: dict[str, int] = {}
    for axis, extent in zip(order, shape, strict=True):
        sizes[axis] = sizes.get(axis, 1) * extent
    return sizes
