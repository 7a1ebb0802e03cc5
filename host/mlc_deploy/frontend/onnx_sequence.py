"""Converters of sequences of tensors and of optionals. A sequence is a list of values during the
import; the graph has none. So its length, and whether an optional has a value, must be known."""

from __future__ import annotations

from typing import Any

from .layers.shapes import joined, split, stacked, without
from .node import shape_of
from .onnx_node import Converter, OnnxNode, TensorList


def _place(n: OnnxNode, number: int, length: int) -> int:
    """A position in a sequence; negative ones count from its end."""
    place = n.whole(number, "position")
    if not -length <= place < max(length, 1):
        raise ValueError(f"position {place} in a sequence of {length}")
    return place % length if length else 0


def _insert(n: OnnxNode) -> Any:
    own = list(n.sequence(0))
    place = len(own)
    if n.optional(2) is not None:
        given = n.whole(2, "position")
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


def _split(n: OnnxNode) -> Any:
    """A vector gives the sizes of all parts, a scalar gives one size; the default is 1."""
    axis, keep = n.axis(0), True
    extent = n.shape()[axis]
    if n.optional(1) is None:
        sizes, keep = [1] * extent, bool(n.attr("keepdims", 1))
    elif n.shape(1):
        sizes = [int(v) for v in n.known(1, "split")]
    else:
        size = n.whole(1, "split")
        sizes = [min(size, extent - begin) for begin in range(0, extent, size)]
    parts = split(n, n.input(0), sizes, axis)
    return TensorList(parts if keep else [without(n, part, [axis]) for part in parts])


def _concat(n: OnnxNode) -> Any:
    values, apart = list(n.sequence(0)), bool(n.attr("new_axis", 0))
    axis = n.axis(rank=len(shape_of(values[0])) + apart)
    return (stacked if apart else joined)(n, values, axis)


def _optional(n: OnnxNode) -> Any:
    return n.inputs[0] if n.inputs else None


def _get_element(n: OnnxNode) -> Any:
    if _optional(n) is None:
        raise ValueError("the optional has no element")
    return n.inputs[0]


SEQUENCES: dict[str, Converter] = {
    "ConcatFromSequence": _concat, "SequenceAt": _at, "Optional": _optional,
    "OptionalGetElement": _get_element, "SequenceErase": _erase, "SequenceInsert": _insert,
    "SplitToSequence": _split,
    "SequenceConstruct": lambda n: TensorList(n.every()),
    "OptionalHasElement": lambda n: n.constant(_optional(n) is not None, "bool"),
    "SequenceEmpty": lambda n: TensorList(),
    "SequenceLength": lambda n: n.constant(len(n.sequence(0)), "int64"),
}  # fmt: skip
