"""Normalizations, and the norms and variances that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.nodes import Value
from ...ir import is_const
from ..node import Node, shape_of
from .shapes import reshape
from .windows import by_channel


def affine(n: Node, x: Value, scale: Value | None, shift: Value | None) -> Value:
    x = x if scale is None else n.emit("multiply", x, scale)
    return x if shift is None else n.emit("add", x, shift)


def group_norm(
    n: Node, x: Value, groups: int, scale: Value | None, shift: Value | None, epsilon: float
) -> Value:
    """Normalizes each group of channels of each image. A group per channel makes it the instance
    normalization. scale and shift have an element per channel."""
    batch, channels, *rest = shape_of(x)
    grouped = (channels,) if is_const(channels, groups) else (groups, channels // groups)
    axes = list(range(2, 1 + len(grouped) + len(rest)))
    y = n.emit("layer_norm", reshape(n, x, (batch, *grouped, *rest)), axes=axes, epsilon=epsilon)
    own = (v if v is None else by_channel(n, v, len(shape_of(x))) for v in (scale, shift))
    return affine(n, reshape(n, y, shape_of(x)), *own)


def batch_statistics(n: Node, x: Value) -> tuple[Value, Value]:
    """Each channel's mean and variance over the batch and the space, [channels]."""
    axes = [axis for axis in range(len(shape_of(x))) if axis != 1]
    mean, squares = squared_deviations(n, x, axes)
    variance = n.emit("mean", squares, axes=axes, keepdims=True)
    mean, variance = (reshape(n, v, shape_of(x)[1:2]) for v in (mean, variance))
    return mean, variance


def squared_deviations(n: Node, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """The mean over some axes, with extent 1 there, and the squares of x - mean."""
    mean = n.emit("mean", x, axes=axes, keepdims=True)
    centred = n.emit("subtract", x, mean)
    return mean, n.emit("multiply", centred, centred)


def lp_norm(n: Node, x: Value, p: float, total: Callable[[Value], Value]) -> Value:
    """(sum of |x|^p)^(1/p). total(y) computes the sum."""
    match p:
        case 1:
            return total(n.emit("abs", x))
        case 2:
            return n.emit("sqrt", total(n.emit("multiply", x, x)))
    dtype = x.type.dtype
    powers = n.emit("power", n.emit("abs", x), n.constant(p, dtype))
    return n.emit("power", total(powers), n.constant(1 / p, dtype))
