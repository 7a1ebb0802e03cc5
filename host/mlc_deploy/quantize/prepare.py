"""Prepares the float model: constants become initializers, scales and shifts after a layer become
part of its weights, and every node gets a unique name.

The result is the same, except for the rounding of floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, external_data_helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from ..errors import ImporterError
from ..frontend.narrow import BY_CODE, NarrowFloat
from ..frontend.onnx import known_inputs
from ..frontend.onnx_external import check_external_data
from ..frontend.onnx_file import (
    check_names,
    opset_of,
    parse_model,
    read_model,
    refuse_later_format,
    to_array,
)
from ..frontend.onnx_node import Converter
from ..ir.names import Names
from .net import STANDARD, WEIGHTS, Array, Net, attributes, node_inputs, renamed, with_inputs

PER_CHANNEL_OPSET = 13  # QuantizeLinear has an axis from here on
OTHERS = {
    ".tflite": "the model as it is: int8 .tflite files are made by TensorFlow's converter",
    ".pt2": "torch.onnx.export, and the .onnx file",
}
MOST_FOLDED = 1 << 22  # elements of the inputs of a node that is folded
KEPT = ("QuantizeLinear", "DequantizeLinear", "RandomNormal", "RandomUniform", "ConstantOfShape")


def read(
    model: str | Path | bytes | ModelProto,
    opset: int = PER_CHANNEL_OPSET,
    values: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    converters: Mapping[str, Converter] | None = None,
) -> Net:
    """The model in at least this opset, with constants as initializers and names for all nodes.
    values: inputs to make constants; shapes: theirs, if not the declared ones. Raises
    ImporterError."""
    where, folder = "the model", Path()
    if isinstance(model, (str, Path)):
        where, folder = str(model), Path(model).parent
        if Path(model).suffix in OTHERS:
            raise ImporterError(
                f"quantization takes ONNX models, and this is a {Path(model).suffix} file",
                where=where,
                mend=OTHERS[Path(model).suffix],
            )
        proto = read_model(model)
    else:
        proto = parse_model(model, where) if isinstance(model, bytes) else model
    check_names(proto, where)
    refuse_later_format(proto, where)
    given = opset_of(proto, where)
    _refuse_narrow_floats(proto, where)
    if any(external_data_helper.uses_external_data(t) for t in proto.graph.initializer):
        check_external_data(proto, folder / "model", where)
        proto = _with_own_data(proto, where, folder)
    if given < opset:
        proto = _converted(proto, opset, where)
    known = known_inputs(proto.graph, values or {}, shapes or {}, where)
    return _named(replace(_constants(proto, known, where), converters=converters or {}))


def _refuse_narrow_floats(proto: ModelProto, where: str) -> None:
    """Raises ImporterError for types that numpy lacks: a Net's constants are arrays."""
    values = (attributes(node).get("value") for node in proto.graph.node
              if node.op_type == "Constant")  # fmt: skip
    for tensor in (*proto.graph.initializer, *(v for v in values if v is not None)):
        kind = BY_CODE.get(tensor.data_type)
        if isinstance(kind, NarrowFloat):
            raise ImporterError(
                f"tensor '{tensor.name}' is {kind.name}; models with such tensors are not "
                "quantized",
                where=where,
                mend="the model with float32 weights",
            )


def prepare(net: Net) -> Net:
    """The net with constants computed and scales and shifts folded into layers."""
    return _folded_layers(_folded_constants(_without_identities(net)))


def _with_own_data(proto: ModelProto, where: str, folder: Path) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(proto)
    tensors = [numpy_helper.from_array(to_array(t, where, folder / "model"), t.name)
               for t in proto.graph.initializer]  # fmt: skip
    made.graph.ClearField("initializer")
    made.graph.initializer.extend(tensors)
    return made


def _converted(proto: ModelProto, opset: int, where: str) -> ModelProto:
    try:
        return version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises anything, often a RuntimeError of C++
        raise ImporterError(
            f"the model cannot be brought to opset {opset}: {' '.join(str(error).split())[:200]}",
            where=where,
            mend=f"export it with opset {opset} or later",
        ) from None


def _constants(proto: ModelProto, known: Mapping[str, Array], where: str) -> Net:
    """The net of a model, whose `known` inputs become constants."""
    constants = {t.name: to_array(t, where) for t in proto.graph.initializer} | dict(known)
    nodes: list[NodeProto] = []
    outputs = {o.name for o in proto.graph.output}
    for node in proto.graph.node:
        value = attributes(node) if node.op_type == "Constant" else {}
        if "value" in value and node.output[0] not in outputs:
            constants[node.output[0]] = to_array(value["value"], where)
        else:
            nodes.append(node)
    source = ModelProto()
    source.CopyFrom(proto)
    inputs = [i for i in proto.graph.input if i.name not in constants]
    source.graph.ClearField("input")
    source.graph.input.extend(inputs)
    return Net(source, tuple(nodes), constants)


def _named(net: Net) -> Net:
    """The net with a unique name for every node."""
    names = Names()
    nodes: list[NodeProto] = []
    for node in net.nodes:
        name = node.name or (f"{node.op_type}_{node.output[0]}" if node.output else node.op_type)
        found = names.fresh(name)
        if found != node.name:
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.name = found
            node = copy
        nodes.append(node)
    return replace(net, nodes=tuple(nodes))


def _without_identities(net: Net) -> Net:
    """Identity   =>   its input, unless its result is an output of the model"""
    names: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in net.nodes:
        node = renamed(node, names)
        if node.op_type == "Identity" and node.output[0] not in net.outputs:
            names[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    return net.with_(kept, net.constants)


def _folded_constants(net: Net) -> Net:
    """f(constants)   =>   its value, by onnx's reference evaluator"""
    constants = dict(net.constants)
    kept: list[NodeProto] = []
    imports = [onnx.helper.make_opsetid("", net.opset)]
    for node in net.nodes:
        inputs = node_inputs(node)
        known = inputs and all(name in constants for name in inputs)
        of_ours = node.domain in STANDARD and node.op_type not in KEPT
        small = sum(constants[n].size for n in inputs if n in constants) <= MOST_FOLDED
        if not (known and of_ours and small) or set(node.output) & set(net.outputs):
            kept.append(node)
            continue
        try:
            evaluator = ReferenceEvaluator(_alone(node, constants, imports))
            values = evaluator.run(None, {})
        except Exception:  # the evaluator does not know the operator
            kept.append(node)
            continue
        for name, value in zip((o for o in node.output if o), values, strict=True):
            constants[name] = np.asarray(value)
    return net.with_(kept, constants)


def _alone(
    node: NodeProto, constants: dict[str, Array], imports: Sequence[onnx.OperatorSetIdProto]
) -> ModelProto:
    """A model of one node and the constants that it reads."""
    tensors = [numpy_helper.from_array(constants[n], n) for n in dict.fromkeys(node_inputs(node))]
    outputs = [onnx.helper.make_empty_tensor_value_info(o) for o in node.output if o]
    graph = onnx.helper.make_graph([node], "alone", [], outputs, tensors)
    return onnx.helper.make_model(graph, opset_imports=imports)


# ------------------------------------------------------------- scales and shifts after layers


def _folded_layers(net: Net) -> Net:
    """layer(x, w) * s + b   =>   layer(x, w * s, b)"""
    while (folded := _folded_once(net)) is not None:
        net = folded
    return net


def _folded_once(net: Net) -> Net | None:
    """The net with the scales and shifts right after layers folded; None if there are none."""
    constants = dict(net.constants)
    made: dict[str, NodeProto] = {}  # folded layers, by their former result
    gone: dict[str, str] = {}
    by_output = {layer.node.output[0]: layer for layer in net.layers}
    for node in net.nodes:
        source = next((name for name in node.input if name in by_output), None)
        if source is None or source in made or source in net.outputs:
            continue
        layer = by_output[source]
        if layer.node.op_type == "MatMul" or net.readers[source] != (node,):
            continue
        if len(net.readers.get(layer.node.input[WEIGHTS], ())) != 1:
            continue
        found = _scale_and_shift(node, source, layer.weights, layer.axis, net)
        if found is None:
            continue
        scale, shift = found
        shape = [1] * layer.weights.ndim
        shape[layer.axis] = -1
        outputs = layer.weights.shape[layer.axis]
        bias = constants[layer.bias] if layer.bias else np.zeros(outputs, np.float32)
        if bias.size not in (1, outputs) or (layer.node.op_type == "Gemm" and bias.ndim > 1):
            continue
        weights_name = net.fresh(f"{layer.node.input[WEIGHTS]}.scaled", constants)
        constants[weights_name] = (layer.weights * scale.reshape(shape)).astype(np.float32)
        bias_name = net.fresh(f"{layer.name}.bias", constants)
        constants[bias_name] = (bias.reshape(-1) * scale + shift).astype(np.float32)
        layer_node = with_inputs(layer.node, (layer.data, weights_name, bias_name))
        layer_node.output[0] = node.output[0]
        made[source] = layer_node
        gone[node.name] = source
    if not made:
        return None
    nodes = [made.get(n.output[0], n) if n.output else n for n in net.nodes if n.name not in gone]
    return net.with_(nodes, constants)


def _scale_and_shift(
    node: NodeProto, source: str, weights: Array, axis: int, net: Net
) -> tuple[Array, Array] | None:
    """The factor and summand that a node applies to each channel of a layer's result; None if it
    does something else."""
    outputs = weights.shape[axis]
    one, none = np.ones(outputs, np.float64), np.zeros(outputs, np.float64)
    spatial = weights.ndim - 2 if axis == 0 and weights.ndim > 2 else 0
    match node.op_type:
        case "BatchNormalization":
            if any(name not in net.constants for name in node.input[1:5]) or len(node.output) > 1:
                return None
            gain, shift, mean, variance = (
                net.constants[n].astype(np.float64) for n in node.input[1:5]
            )
            factor = gain / np.sqrt(variance + attributes(node).get("epsilon", 1e-5))
            return factor, shift - mean * factor
        case "Add" | "Mul" | "Sub" | "Div":
            other = next((n for n in node.input if n != source), source)
            if other not in net.constants:
                return None
            value = _per_channel(net.constants[other], outputs, spatial)
            first = node.input[0] == source
            if value is None or (node.op_type in ("Sub", "Div") and not first):
                return None
            match node.op_type:
                case "Add":
                    return one, value
                case "Sub":
                    return one, -value
                case "Mul":
                    return value, none
            return (1 / value, none) if np.all(value) else None
    return None


def _per_channel(value: Array, outputs: int, spatial: int) -> Array | None:
    """A constant that varies only by channel, as one number for each channel; None for others."""
    if value.dtype != np.float32:
        return None
    if value.size == 1 and value.ndim <= spatial + 2:
        return np.full(outputs, value.reshape(()), np.float64)
    shape = list(value.shape)
    if shape[-spatial - 1 :] != [outputs] + [1] * spatial or value.size != outputs:
        return None
    return value.reshape(-1).astype(np.float64) if len(shape) <= spatial + 2 else None
