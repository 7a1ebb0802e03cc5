"""Questions of passes about values: the content of constants, the shape of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops import Array, TensorType
from .nodes import Constant, Value


def is_static(value: Value) -> bool:
    return all(isinstance(extent, int) for extent in value.type.shape)


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape; TypeError if it is symbolic."""
    return value.type.sizes


def is_float(value: Value) -> bool:
    return value.type.dtype.startswith("float")


def uniform(value: Value) -> Any:
    """The number that all elements of a constant equal; None if they differ, or for no constant."""
    if not isinstance(value, Constant) or not value.type.elements:
        return None
    array = value.value
    first = array.reshape(-1)[0]
    return first.item() if array.size == 1 or (array == first).all() else None


def with_constant(args: Sequence[Value]) -> tuple[Value, Constant | None]:
    """Two arguments as (variable, constant); the constant is None unless exactly one of the two
    is."""
    match args:
        case (x, Constant() as c) | (Constant() as c, x) if not isinstance(x, Constant):
            return x, c
    return args[0], None


def same_dtype(value: Array, like: Array) -> Array:
    return np.asarray(value).astype(like.dtype, copy=False)


def channel_axis(rank: int) -> int:
    """The axis of channels: [N, C, ...]; 0 for a single axis."""
    return min(1, rank - 1)


def per_channel(constant: Constant, out: TensorType) -> Array | None:
    """The constant as one number per channel of out; None if it has other dimensions."""
    rank = len(out.shape)
    if rank < 2:
        return None
    axis = channel_axis(rank)
    channels = out.shape[axis]
    shape = (1,) * (rank - constant.value.ndim) + constant.value.shape
    if len(shape) != rank or any(n != 1 for k, n in enumerate(shape) if k != axis):
        return None
    if not isinstance(channels, int) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(constant.value.reshape(-1), (channels,))


def along_channels(values: Array, rank: int) -> Array:
    """One number per channel, in a shape that broadcasts against a tensor of this rank."""
    return values if rank <= 2 else values.reshape((-1,) + (1,) * (rank - 2))
