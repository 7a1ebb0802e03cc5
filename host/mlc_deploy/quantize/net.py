"""An ONNX model for quantization: nodes in order, constants by name, layers.

A Net is rebuilt, never edited. `proto` makes an ONNX message of it; everything but the graph's
nodes and constants is as it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..frontend.onnx_node import Converter
from ..ir.names import Names

Array = NDArray[Any]

STANDARD = ("", "ai.onnx")
WEIGHTS, BIAS = 1, 2  # their places among a layer's inputs


@dataclass(frozen=True)
class Layer:
    """A node that multiplies data by constant weights. axis: the axis of the weights that counts
    the outputs; channel: the axis of the result that counts them (negative: from the end)."""

    node: NodeProto
    weights: Array
    axis: int
    channel: int

    @property
    def name(self) -> str:
        return str(self.node.name)

    @property
    def data(self) -> str:
        """The tensor that the layer reads."""
        return str(self.node.input[0])

    @property
    def bias(self) -> str:
        """The constant that is added; "" if there is none."""
        return str(self.node.input[BIAS]) if len(self.node.input) > BIAS else ""


@dataclass(frozen=True)
class Net:
    """The nodes and constants of a model; `source` holds everything else. converters: for the
    user's own operators, as from_onnx takes them."""

    source: ModelProto
    nodes: tuple[NodeProto, ...]
    constants: Mapping[str, Array]
    converters: Mapping[str, Converter] = field(default_factory=dict)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        found = (_layer(node, self.constants) for node in self.nodes)
        return tuple(layer for layer in found if layer is not None)

    @cached_property
    def readers(self) -> Mapping[str, tuple[NodeProto, ...]]:
        """The nodes that read a tensor, by its name."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node_inputs(node)):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def makers(self) -> Mapping[str, NodeProto]:
        """The node that makes a tensor, by its name."""
        return {name: node for node in self.nodes for name in node.output if name}

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        return list(self.source.graph.input)

    @property
    def outputs(self) -> list[str]:
        return [o.name for o in self.source.graph.output]

    @property
    def opset(self) -> int:
        return int(next((o.version for o in self.source.opset_import if o.domain in STANDARD), 1))

    def proto(self, tapped: Iterable[str] = ()) -> ModelProto:
        """The model; tensors that are `tapped` are outputs as well."""
        made = ModelProto()
        made.CopyFrom(self.source)
        graph = made.graph
        for part in ("node", "initializer", "value_info"):
            graph.ClearField(part)
        graph.node.extend(self.nodes)
        graph.initializer.extend(to_tensor(name, a) for name, a in self.constants.items())
        known = set(self.outputs)
        for name in tapped:
            if name not in known:
                graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return made

    def fresh(self, name: str, taken: Iterable[str] = ()) -> str:
        """The name, or one like it if a tensor has it."""
        own = (*self.constants, *self.makers, *(i.name for i in self.inputs))
        return Names((*own, *taken)).fresh(name)

    def with_(self, nodes: Sequence[NodeProto], constants: Mapping[str, Array]) -> Net:
        """The net with other nodes and constants; unread constants are left out."""
        read = {name for node in nodes for name in node_inputs(node)} | set(self.outputs)
        kept = {name: array for name, array in constants.items() if name in read}
        return replace(self, nodes=tuple(nodes), constants=kept)


def to_tensor(name: str, array: Array) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def node_inputs(node: NodeProto) -> list[str]:
    """The tensors that a node reads, also in its branches and loops."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            for inner in graph.node:
                found += node_inputs(inner)
            found += [o.name for o in graph.output]
    return found


def attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """The node with the tensors that it reads renamed, also in branches and loops."""
    if not any(name in names for name in node_inputs(node)):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for place, name in enumerate(node.input):
        if name in names:
            node.input[place] = names[name]
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            for inner in graph.node:
                _rename(inner, names)
            for output in graph.output:
                output.name = names.get(output.name, output.name)


def with_inputs(node: NodeProto, inputs: Sequence[str], **changed: Any) -> NodeProto:
    """The node with other inputs. changed: attributes with other values; None removes one."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("input")
    copy.input.extend(inputs)
    kept = [a for a in copy.attribute if a.name not in changed]
    copy.ClearField("attribute")
    copy.attribute.extend(kept)
    copy.attribute.extend(helper.make_attribute(k, v) for k, v in changed.items() if v is not None)
    return copy


def _layer(node: NodeProto, constants: Mapping[str, Array]) -> Layer | None:
    if node.domain not in STANDARD or len(node.input) <= WEIGHTS:
        return None
    w = constants.get(node.input[WEIGHTS])
    if w is None or w.dtype != np.float32 or node.input[0] in constants or not w.size:
        return None
    if len(node.input) > BIAS and node.input[BIAS] and node.input[BIAS] not in constants:
        return None
    attrs = attributes(node)
    match node.op_type:
        case "Conv":
            return Layer(node, w, 0, 1)
        case "Gemm" if not attrs.get("transA") and attrs.get("alpha", 1.0) == 1.0:
            if len(node.input) > BIAS and attrs.get("beta", 1.0) != 1.0:
                return None
            return Layer(node, w, 0 if attrs.get("transB") else 1, -1)
        case "MatMul" if w.ndim == 2:
            return Layer(node, w, 1, -1)
    return None
