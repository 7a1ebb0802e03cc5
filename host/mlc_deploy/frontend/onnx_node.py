"""ONNX nodes as converters see them: the inputs are graph values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto, helper

from ..errors import ImporterError
from ..graph.nodes import Constant, Value
from ..ir import Dim
from ..ops.shape import normal_axis
from .narrow import Narrow
from .node import Branch, Extent, NumberedNode, Step
from .onnx_file import dtype_name, to_array

if TYPE_CHECKING:
    from .onnx_import import Importer, Scope

REQUIRED: Any = object()
T = TypeVar("T")


class NeedsValue(ImporterError):
    """The values of the model's inputs `names` decide about shapes. The import succeeds if they are
    constants."""

    def __init__(self, what: str, where: str, mend: str, names: frozenset[str]) -> None:
        super().__init__(what, where=where, mend=mend)
        self.names = names


class TensorList(tuple[Value, ...]):
    """A sequence of tensors of known length."""

    __slots__ = ()


Given = Value | TensorList | None  # None: an input that is left out, or an optional without a value


def tensors(values: Iterable[Given]) -> list[Value]:
    """The values. Raises ValueError if one of them is a sequence, or left out."""
    found = []
    for value in values:
        if value is None or isinstance(value, TensorList):
            raise ValueError(f"{'nothing' if value is None else 'a sequence'}, and not a tensor")
        found.append(value)
    return found


class OnnxNode(NumberedNode):
    """`inputs` are values, None for an input that is left out; `outputs` are names, or "".

    A converter takes this and gives the output, or a list of them.
    """

    def __init__(
        self,
        proto: NodeProto,
        inputs: Sequence[Given],
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
        self.place = f"{importer.where}, node '{source}' ({proto.op_type})"
        self.builder = importer.builder
        self.extents = importer.extents
        self._scope = scope
        self._importer = importer
        self._attributes = {a.name: a for a in proto.attribute}

    # ------------------------------------------------------------------------------- inputs

    def optional(self, number: int) -> Value | None:
        value = self.inputs[number] if number < len(self.inputs) else None
        if isinstance(value, TensorList):
            raise ValueError(f"input {number} is a sequence, not a tensor")
        return value

    def sequence(self, number: int) -> TensorList:
        """An input. Raises ValueError unless it is a sequence."""
        value = self.inputs[number] if number < len(self.inputs) else None
        if not isinstance(value, TensorList):
            raise ValueError(f"input {number} is not a sequence of tensors")
        return value

    def two_dimensional(self, axis: int) -> tuple[int, int]:
        """The first input's shape as a matrix: the elements before an axis, and from it on."""
        shape = self.shape()
        if not -len(shape) <= axis <= len(shape):
            raise ValueError(f"axis {axis} of a tensor with {len(shape)} dimensions")
        front = axis + len(shape) if axis < 0 else axis
        return math.prod(shape[:front]), math.prod(shape[front:])

    def known(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that decides about shapes or axes. Raises NeedsValue unless it is
        constant."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise self._needs(value, what)
        return value.value

    def most(self, number: int, what: str) -> int:
        """The bound that the user gives of the first output's elements, since input `number`
        decides about them. Raises NeedsValue if none is given."""
        name = self.outputs[0]
        if name not in self._importer.counts:
            way = f"--bind '{name}<=512', with the most elements that '{name}' has; or "
            raise self._needs(self.input(number), what, way)
        return self._importer.counts[name]

    def _needs(self, value: Value, what: str, way: str = "") -> NeedsValue:
        """The error for a value that must be constant. way: another way out."""
        origins = self._importer.origins.get(value, frozenset())
        fixed = " ".join(f"--const {name}=…" for name in sorted(origins))
        mend = (
            f"{fixed} (values= in Python), where that is always the same"
            if fixed
            else f"a model in which '{value.name}' is constant"
        )
        said = f"'{what}' is known only at run time, but is needed when the model is compiled"
        return NeedsValue(said, self.place, way + mend, origins)

    def fixed(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that decides about the computation. Raises ImporterError unless it
        is constant."""
        return self.constant_input(number, what).value

    def constant_input(self, number: int, what: str) -> Constant:
        """An input that must be constant. Raises ImporterError unless it is."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise self.refuse(
                f"'{what}' is computed when the model runs, which is not supported",
                f"a model in which '{value.name}' is constant",
            )
        return value

    def ints(self, name: str, number: int) -> list[int] | None:
        """Integers that are an attribute in old opsets and input `number` in recent ones. Extents
        known only at run time are expressions."""
        found: list[int] | None = self.attr(name, None)
        if found is None and self.optional(number) is not None:
            found = list(self.dims(number, name))
        return found

    def dims(self, number: int, what: str) -> list[Extent]:
        """The integers of an input; extents known at run time are expressions. Raises NeedsValue
        for other data."""
        value = self.input(number)
        if self.extents.is_followed(value):
            return list(self.extents.of(value).reshape(-1))  # type: ignore[union-attr]
        return [Extent(v) for v in self.known(number, what).reshape(-1)]

    # --------------------------------------------------------------------------- attributes

    def attr(self, name: str, default: Any = REQUIRED) -> Any:
        """An attribute as a Python value (tensors as arrays). Raises ValueError if it is missing
        and there is no default."""
        found = self._attributes.get(name)
        if found is None:
            if default is REQUIRED:
                raise ValueError(f"attribute '{name}' is missing")
            return default
        if found.type == AttributeProto.TENSOR:
            dtype_name(found.t.data_type, f"attribute '{name}'", self.place)
            return to_array(found.t, self.place, self._importer.file)
        value = helper.get_attribute_value(found)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, (int, float, str)):
            return value
        return [v.decode() if isinstance(v, bytes) else v for v in value]

    def tensor(self, name: str, default: Constant | None = None) -> Constant:
        """An attribute that is a tensor; narrow numbers are in their carrier. Raises ValueError if
        it is missing and there is no default."""
        if name not in self._attributes:
            if default is None:
                raise ValueError(f"attribute '{name}' is missing")
            return default
        return self._importer.constant(self._attributes[name].t, self.place, self.outputs[0])

    def axis(self, default: Any = REQUIRED, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front. rank: the tensor's (default: input 0's)."""
        axis = self.attr("axis", default)
        return normal_axis(self.op, axis, len(self.shape()) if rank is None else rank)

    # ----------------------------------------------------------------------- narrow numbers

    def kind(self, number: int) -> Narrow | None:
        """The narrow type of an input in a carrier; None for other inputs."""
        return self.kind_of(self.optional(number))

    def kind_of(self, value: Value | None) -> Narrow | None:
        return self._importer.narrow.get(value) if value is not None else None

    def real(self, number: int) -> Value:
        """An input, converted from its carrier if it is narrow."""
        value, kind = self.input(number), self.kind(number)
        return value if kind is None else kind.read(self, value)

    def written(self, value: Value, kind: Narrow, **how: Any) -> Value:
        return self.marked(kind.write(self, value, **how), kind)

    def marked(self, value: Value, kind: Narrow | None) -> Value:
        """Notes that value is the carrier of a narrow type; returns value."""
        return self._importer.marked(value, kind)

    def dtype_of(self, name: str, default: str) -> str:
        """The dtype that an attribute names by ONNX's number; the default if missing or 0."""
        code = self.attr(name, 0)
        return dtype_name(code, "the result", self.place) if code else default

    def body(self, name: str, *inputs: Given) -> list[Given]:
        """The outputs of the graph in an attribute, for these inputs."""
        return self._importer.body(self.graph(name), inputs, self._scope, self.source)

    def graph(self, name: str) -> GraphProto:
        """The graph in an attribute. Raises ValueError if it is missing."""
        if name not in self._attributes:
            raise ValueError(f"attribute '{name}' is missing")
        graph: GraphProto = self._attributes[name].g
        return graph

    def tried(self, convert: Callable[[], list[T]]) -> list[T]:
        """The result of convert, without leaving its calls in the graph."""
        with self.extents.forgotten(), self._importer.within(), self.builder.discarded():
            return convert()

    # ------------------------------------------------------------------------------- output

    def standard(
        self, op: str, *inputs: Value | None, outputs: int = 1, keep: Sequence[str] = (), **own: Any
    ) -> list[Value]:
        """The outputs of an ONNX operator, with the attributes `own` and this node's attributes
        named in `keep`."""
        kept = [self._attributes[name] for name in keep if name in self._attributes]
        made = [helper.make_attribute(name, value) for name, value in own.items()]
        return self._importer.standard(op, inputs, outputs, self.source, [*kept, *made])

    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        name = next((o for o in self.outputs if o), "")
        return self._importer.emit(op, args, name=name or op, source=self.source, **attrs)

    def emit_loop(
        self, turns: Dim, states: Sequence[Value], step: Step, **parts: Any
    ) -> tuple[list[Value], list[Value]]:
        with self._importer.within():
            ends, results = super().emit_loop(turns, states, step, **parts)
        read = (*states, *(x for x, _ in parts.get("read", ())))
        self._importer.come_from([*ends, *results], read)
        return ends, results

    def emit_branch(self, condition: Value, then: Branch, otherwise: Branch) -> list[Value]:
        with self._importer.within():
            results = super().emit_branch(condition, then, otherwise)
        self._importer.come_from(results, [condition])
        return results


Converter = Callable[[OnnxNode], Any]
