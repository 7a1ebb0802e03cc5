"""What a converter works on: one ONNX node, its inputs as graph values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, helper

from ..errors import ImporterError
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Value
from ..graph.passes import fold_call
from ..ops import frozen_attrs, infer_types
from .onnx_file import to_array

REQUIRED: Any = object()


class OnnxNode:
    """`inputs` are values, None where an optional one is left out; `outputs` names, "" likewise.

    A converter takes this and gives the output, or a list of them. What it emits of constants is
    computed at once, so that shapes which a model computes are constants to the nodes behind.
    """

    def __init__(
        self,
        proto: NodeProto,
        inputs: Sequence[Value | None],
        opset: int,
        builder: BlockBuilder,
        source: str,
        where: str,
        folder: Path | None = None,
    ) -> None:
        self.op: str = proto.op_type
        self.domain: str = proto.domain
        self.inputs = list(inputs)
        self.outputs: list[str] = list(proto.output)
        self.opset = opset
        self.source = source
        self.where = where
        self._builder = builder
        self._folder = folder
        self._attributes = {a.name: a for a in proto.attribute}

    # ------------------------------------------------------------------------------- inputs

    def input(self, number: int) -> Value:
        """An input that must be there."""
        value = self.optional(number)
        if value is None:
            raise ValueError(f"input {number} is missing")
        return value

    def optional(self, number: int) -> Value | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def shape(self, number: int = 0) -> tuple[int, ...]:
        return static_shape(self.input(number))

    def dtype(self, number: int = 0) -> str:
        return self.input(number).type.dtype

    def known(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that shapes or axes depend on; ImporterError unless constant."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise ImporterError(
                f"'{what}' depends on the model's data, but must be known when it is compiled",
                where=self.place,
                mend=f"a model in which '{value.name}' is constant",
            )
        return value.value

    def ints(self, name: str, number: int) -> list[int] | None:
        """What is an attribute in older opsets, and input `number` in newer ones."""
        found: list[int] | None = self.attr(name, None)
        if found is None and self.optional(number) is not None:
            found = [int(v) for v in self.known(number, name).reshape(-1)]
        return found

    # --------------------------------------------------------------------------- attributes

    def attr(self, name: str, default: Any = REQUIRED) -> Any:
        """An attribute as a Python value (tensors as arrays); ValueError where it must be there."""
        found = self._attributes.get(name)
        if found is None:
            if default is REQUIRED:
                raise ValueError(f"attribute '{name}' is missing")
            return default
        if found.type == AttributeProto.TENSOR:
            return to_array(found.t, self.place, self._folder)
        value = helper.get_attribute_value(found)
        if isinstance(value, bytes):
            return value.decode()
        return value if isinstance(value, (int, float, str)) else list(value)

    # ------------------------------------------------------------------------------- output

    def emit(self, op: str, *args: Value, **attrs: Any) -> Any:
        """A call of one of our operators; its output, or a tuple of them."""
        types = infer_types(op, [a.type for a in args], attrs)
        folded = fold_call(op, args, frozen_attrs(attrs))
        if folded is not None:
            return folded[0] if len(types) == 1 else folded
        name = next((o for o in self.outputs if o), "")
        return self._builder.emit(op, *args, name=name or op, source=self.source, **attrs)

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value, dtype))

    def refuse_outputs(self, first: int, why: str) -> None:
        """ImporterError where a further output than the first ones is used."""
        if any(self.outputs[first:]):
            raise ImporterError(f"output {first} {why}, which is not supported", where=self.place)

    @property
    def place(self) -> str:
        return f"{self.where}, node '{self.source}' ({self.op})"


Converter = Callable[[OnnxNode], Any]


def static_shape(value: Value) -> tuple[int, ...]:
    shape = value.type.shape
    assert all(isinstance(extent, int) for extent in shape), f"{value} has a symbolic shape"
    return tuple(int(extent) for extent in shape if isinstance(extent, int))
