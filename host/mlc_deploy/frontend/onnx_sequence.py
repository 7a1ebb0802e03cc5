"""Sequences of tensors, as long as their lengths are known: lists of values while a model is read,
gone from the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.shape import normal_axis
from .onnx_node import Converter, OnnxNode, TensorList, static_shape


def _empty(n: OnnxNode) -> Any:
    return TensorList()


def _construct(n: OnnxNode) -> Any:
    return TensorList(n.input(k) for k in range(len(n.inputs)))


def _place(n: OnnxNode, number: int, length: int) -> int:
    """A position in a sequence; negative ones count from its end."""
    place = int(n.known(number, "position").item())
    if not -length <= place < max(length, 1):
        raise ValueError(f"position {place} in a sequence of {length}")
    return place % length if length else 0


def _insert(n: OnnxNode) -> Any:
    own = list(n.sequence(0))
    place = len(own)
    if n.optional(2) is not None:
        given = int(n.known(2, "position").item())
        place = given + len(own) if given < 0 else given
    if not 0 <= place <= len(own):
        raise ValueError(f"position {place} in a sequence of {len(own)}")
    return TensorList([*own[:place], n.input(1), *own[place:]])


def _erase(n: OnnxNode) -> Any:
    own = list(n.sequence(0))
    place = len(own) - 1 if n.optional(1) is None else _place(n, 1, len(own))
    del own[place]
    return TensorList(own)


def _at(n: OnnxNode) -> Any:
    own = n.sequence(0)
    return own[_place(n, 1, len(own))]


def _length(n: OnnxNode) -> Any:
    return n.constant(len(n.sequence(0)), "int64")


def _split(n: OnnxNode) -> Any:
    """Into parts of given sizes; of one size, or of one element, where a scalar or nothing is
    given."""
    x, shape = n.input(0), n.shape()
    axis = normal_axis(n.op, n.attr("axis", 0), len(shape))
    keep = True
    if n.optional(1) is None:
        sizes, keep = [1] * shape[axis], bool(n.attr("keepdims", 1))
    elif static_shape(n.input(1)):
        sizes = [int(v) for v in n.known(1, "split")]
    else:
        size = int(n.known(1, "split").item())
        whole, rest = divmod(shape[axis], size)
        sizes = [size] * whole + [rest] * (rest > 0)
    if sum(sizes) != shape[axis]:
        raise ValueError(f"the sizes {sizes} do not add up to dimension {axis} of {list(shape)}")
    parts = []
    for begin, size in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        at = [begin if d == axis else 0 for d in range(len(shape))]
        own = [size if d == axis else e for d, e in enumerate(shape)]
        part = n.emit("slice", x, begin=at, step=[1] * len(shape), shape=own)
        if not keep:
            part = n.emit("reshape", part, shape=[e for d, e in enumerate(own) if d != axis])
        parts.append(part)
    return TensorList(parts)


def _concat(n: OnnxNode) -> Any:
    values = list(n.sequence(0))
    rank = len(static_shape(values[0])) + bool(n.attr("new_axis", 0))
    axis = normal_axis(n.op, n.attr("axis"), rank)
    if n.attr("new_axis", 0):
        shapes = [static_shape(v) for v in values]
        values = [
            n.emit("reshape", v, shape=(*s[:axis], 1, *s[axis:]))
            for v, s in zip(values, shapes, strict=True)
        ]
    return n.emit("concatenate", *values, axis=axis)


SEQUENCES: dict[str, Converter] = {
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
