"""What a converter works on: one ONNX node, its inputs as graph values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, helper

from ..errors import ImporterError
from ..graph.nodes import Constant, Value
from ..graph.passes import fold_call
from ..ops import frozen_attrs
from .onnx_file import to_array

if TYPE_CHECKING:
    from .onnx_import import Importer, Scope

REQUIRED: Any = object()


class NeedsValue(ImporterError):
    """The model's inputs `names` decide about shapes: as constants, they make it one that works."""

    def __init__(self, what: str, where: str, mend: str, names: frozenset[str]) -> None:
        super().__init__(what, where=where, mend=mend)
        self.names = names


class TensorList(tuple[Value, ...]):
    """A sequence of tensors of known length."""

    __slots__ = ()


class OnnxNode:
    """`inputs` are values, None where an optional one is left out; `outputs` names, "" likewise.

    A converter takes this and gives the output, or a list of them. What it emits of constants is
    computed at once, so that shapes which a model computes are constants to the nodes behind.
    """

    def __init__(
        self,
        proto: NodeProto,
        inputs: Sequence[Value | TensorList | None],
        scope: Scope,
        importer: Importer,
        source: str,
    ) -> None:
        self.op: str = proto.op_type
        self.domain: str = proto.domain
        self.inputs = list(inputs)
        self.outputs: list[str] = list(proto.output)
        self.opset = scope.version(proto.domain)
        self.source = source
        self.where = importer.where
        self._scope = scope
        self._importer = importer
        self._attributes = {a.name: a for a in proto.attribute}

    # ------------------------------------------------------------------------------- inputs

    def input(self, number: int) -> Value:
        """An input that must be there."""
        value = self.optional(number)
        if value is None:
            raise ValueError(f"input {number} is missing")
        return value

    def optional(self, number: int) -> Value | None:
        value = self.inputs[number] if number < len(self.inputs) else None
        if isinstance(value, TensorList):
            raise ValueError(f"input {number} is a sequence, not a tensor")
        return value

    def sequence(self, number: int) -> TensorList:
        """An input that must be a sequence."""
        value = self.inputs[number] if number < len(self.inputs) else None
        if not isinstance(value, TensorList):
            raise ValueError(f"input {number} is no sequence of tensors")
        return value

    def shape(self, number: int = 0) -> tuple[int, ...]:
        return static_shape(self.input(number))

    def dtype(self, number: int = 0) -> str:
        return self.input(number).type.dtype

    def known(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that shapes or axes depend on; NeedsValue unless constant."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise NeedsValue(
                f"'{what}' depends on the model's data, but must be known when it is compiled",
                self.place,
                f"a model in which '{value.name}' is constant",
                self._importer.origins.get(value, frozenset()),
            )
        return value.value

    def fixed(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that says what is computed; ImporterError unless constant."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise ImporterError(
                f"'{what}' is computed when the model runs, which is not supported",
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
            return to_array(found.t, self.place, self._importer.folder)
        value = helper.get_attribute_value(found)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, (int, float, str)):
            return value
        return [v.decode() if isinstance(v, bytes) else v for v in value]

    def body(self, name: str, *inputs: Value) -> list[Value]:
        """The outputs of the graph that is an attribute, given its inputs."""
        if name not in self._attributes:
            raise ValueError(f"attribute '{name}' is missing")
        graph = self._attributes[name].g
        return self._importer.body(graph, inputs, self._scope, self.source)

    # ------------------------------------------------------------------------------- output

    def emit(self, op: str, *args: Value, **attrs: Any) -> Any:
        """A call of one of our operators; its output, or a tuple of them."""
        args = tuple(map(_known_if_empty, args))
        folded = fold_call(op, args, frozen_attrs(attrs))
        if folded is not None:
            return folded[0] if len(folded) == 1 else folded
        return self.call(op, *args, **attrs)

    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        """As emit, but constants stay what they are: quantized weights are worth more than the
        numbers they stand for."""
        name = next((o for o in self.outputs if o), "")
        return self._importer.emit(op, args, name=name or op, source=self.source, **attrs)

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value, dtype))

    @property
    def place(self) -> str:
        return f"{self.where}, node '{self.source}' ({self.op})"


MOST_CONSTANTS = 1 << 28  # elements of a table that the front end makes


def limited(count: int, what: str) -> int:
    """count; ValueError where a table of so many elements would be too large."""
    if count > MOST_CONSTANTS:
        raise ValueError(f"{what} of {count} elements is too large")
    return count


def _known_if_empty(value: Value) -> Value:
    """A tensor without elements is a constant, whatever computes it."""
    shape = static_shape(value)
    if isinstance(value, Constant) or 0 not in shape:
        return value
    return Constant(np.zeros(shape, value.type.dtype))


Converter = Callable[[OnnxNode], Any]


def static_shape(value: Value) -> tuple[int, ...]:
    shape = value.type.shape
    assert all(isinstance(extent, int) for extent in shape), f"{value} has a symbolic shape"
    return tuple(int(extent) for extent in shape if isinstance(extent, int))
