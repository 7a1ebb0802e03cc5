"""Normalizations by statistics of the data itself; scale and shift are calls of their own.

    layer_norm(x)   (x - mean) / sqrt(variance + epsilon)
    rms_norm(x)     x / sqrt(mean of squares + epsilon)

Attributes: axes of the means, and epsilon. Over the axes of an image, layer_norm is instance
normalization; over those of a group of channels, group normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, const, dtype_of
from ..te import Tensor
from .half import rounded, sums
from .reference import in_float64
from .registry import Array, Attrs, Operator, register, require
from .shape import normal_axis

Index = tuple[Expr, ...]


class _Statistics:
    """Means over some axes of a tensor, without those axes."""

    def __init__(self, op: str, x: Tensor, attrs: Attrs) -> None:
        require(dtype_of(x.dtype).kind == "float", f"{op}: does not take {x.dtype}")
        self.axes = sorted({normal_axis(op, axis, x.ndim) for axis in attrs["axes"]})
        require(len(self.axes) == len(attrs["axes"]) > 0, f"{op}: axes {list(attrs['axes'])}")
        self.x = x
        self.kept_in = sums(x.dtype)
        self.kept = [axis for axis in range(x.ndim) if axis not in self.axes]

    def data(self, index: Any) -> Expr:
        """An element in the dtype of sums."""
        return self.x[index].astype(self.kept_in)

    def place(self, index: Sequence[Expr]) -> Index:
        """The index of the mean that includes an element of the tensor."""
        return tuple(index[axis] for axis in self.kept)

    def mean(self, name: str, value: Callable[[Any], Expr]) -> Tensor:
        """The mean of value(index) over the axes."""
        x, shape = self.x, [self.x.shape[axis] for axis in self.kept]
        over = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in self.axes}

        def element(*i: Expr) -> Expr:
            own = iter(i)
            at = tuple(over[axis] if axis in over else next(own) for axis in range(x.ndim))
            return te.sum(value(at), list(over.values()))

        total = te.compute(shape, element, name=f"{name}_sum")
        count: Any = 1
        for axis in self.axes:
            count = count * x.shape[axis]
        kept_in = self.kept_in
        number = const(count, kept_in) if isinstance(count, int) else count.astype(kept_in)
        mean: Tensor = te.compute(shape, lambda *i: total[i] / number, name=name)
        return mean


def _compute_layer_norm(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    own = _Statistics("layer_norm", x, attrs)
    mean = own.mean("mean", own.data)

    def squared(at: Any) -> Expr:
        centred = own.data(at) - mean[own.place(at)]
        return centred * centred

    variance = own.mean("variance", squared)

    def element(*i: Expr) -> Expr:
        deviation = te.sqrt(variance[own.place(i)] + attrs["epsilon"])
        return (own.data(i) - mean[own.place(i)]) / deviation

    return [rounded(te.compute(x.shape, element, name="layer_norm"), x.dtype)]


def _compute_rms_norm(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    own = _Statistics("rms_norm", x, attrs)
    squares = own.mean("squares", lambda at: own.data(at) * own.data(at))

    def element(*i: Expr) -> Expr:
        return own.data(i) / te.sqrt(squares[own.place(i)] + attrs["epsilon"])

    return [rounded(te.compute(x.shape, element, name="rms_norm"), x.dtype)]


def _normalized(inputs: Sequence[Array], attrs: Attrs, centre: bool) -> Sequence[Array]:
    x, axes = inputs[0], tuple(attrs["axes"])
    centred = x - x.mean(axes, keepdims=True) if centre else x
    variance = (centred * centred).mean(axes, keepdims=True)
    deviation = np.sqrt(variance + attrs["epsilon"])
    return [centred / deviation]


for _op in (
    Operator(
        "layer_norm",
        _compute_layer_norm,
        in_float64(lambda x, a: _normalized(x, a, True)),
        "anchor",
        ("follows_half",),
    ),
    Operator(
        "rms_norm",
        _compute_rms_norm,
        in_float64(lambda x, a: _normalized(x, a, False)),
        "anchor",
        ("follows_half",),
    ),
):
    register(_op)
