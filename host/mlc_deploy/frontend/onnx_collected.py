"""Inputs and outputs of models that are sequences of tensors, or optionals.

A sequence `x` of three tensors becomes the inputs or outputs x.0, x.1 and x.2. An optional has a
value, unless the user says that it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnx import TypeProto, ValueInfoProto

from ..errors import ImporterError
from ..graph.nodes import Value
from .onnx_node import Given, TensorList


def content(kind: TypeProto) -> TypeProto:
    """The type of an optional's value; any other type as it is."""
    return kind.optional_type.elem_type if kind.HasField("optional_type") else kind


def is_sequence(info: ValueInfoProto) -> bool:
    return bool(content(info.type).HasField("sequence_type"))


def known_collected(
    inputs: Iterable[ValueInfoProto], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Given]]:
    """The given values of inputs: first those that are arrays, then the others: None for an
    optional without a value, an empty list for a sequence of no tensors."""
    arrays, found = dict(values), dict[str, Given]()
    for info in inputs:
        name = info.name
        if name in values and values[name] is None and info.type.HasField("optional_type"):
            found[name] = arrays.pop(name)
        elif is_sequence(info) and name in values and not len(values[name]):
            found[name] = TensorList()
            del arrays[name]
    return arrays, found


def input_parts(
    info: ValueInfoProto, shapes: Mapping[str, Any], where: str
) -> list[ValueInfoProto]:
    """The tensors that an input stands for. Raises ImporterError for a sequence without given
    shapes."""
    kind = content(info.type)
    if not is_sequence(info):
        return [_tensor(info.name, kind)]
    parts: list[ValueInfoProto] = []
    while (name := f"{info.name}.{len(parts)}") in shapes:
        parts.append(_tensor(name, kind.sequence_type.elem_type))
        for dim in parts[-1].type.tensor_type.shape.dim:
            dim.ClearField("dim_param")  # one name for all tensors, but the sizes may differ
    if parts:
        return parts
    raise ImporterError(
        f"input '{info.name}' is a sequence, and nothing says how many tensors it has",
        where=where,
        mend=f"--shape {info.name}.0=2,3 --shape {info.name}.1=2,3 …: their shapes",
    )


def _tensor(name: str, kind: TypeProto) -> ValueInfoProto:
    info = ValueInfoProto()
    info.name = name
    info.type.CopyFrom(kind)
    return info


def result_parts(name: str, value: Given) -> Iterator[tuple[str, Value]]:
    """The outputs, with their names, that an output of the model becomes."""
    if isinstance(value, TensorList):
        yield from ((f"{name}.{number}", part) for number, part in enumerate(value))
    elif value is not None:
        yield name, value
