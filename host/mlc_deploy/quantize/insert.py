"""The int8 form of chosen layers: QuantizeLinear and DequantizeLinear on their data, integer
weights with a scale per output, integer biases.

    layer(x, w, b)   =>   layer(dequantize(quantize(x)), dequantize(w'), dequantize(b'))

All readers of x read the dequantized numbers, so that x is stored only as integers. The layer's
result is unchanged: the next layer quantizes its own data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from onnx import NodeProto, helper

from .net import Array, Layer, Net, renamed, with_inputs
from .ranges import Range

NARROW = 127  # the largest integer of a weight: symmetric, and two products fit into 16 bits
MOST_BIAS = 1 << 30  # leaves room for the sum in int32


def integer_weights(layer: Layer, least: Array | None = None) -> tuple[Array, Array]:
    """Weights as int8, and a float32 scale for each output. least: lower bounds of the scales."""
    others = tuple(a for a in range(layer.weights.ndim) if a != layer.axis)
    top = np.abs(layer.weights).max(axis=others)
    scales = np.where(top > 0, top / NARROW, 1).astype(np.float32)
    if least is not None:
        scales = np.maximum(scales, least).astype(np.float32)
    scales = np.maximum(scales, np.finfo(np.float32).tiny * NARROW)
    q = np.rint(layer.weights / _along(layer, scales))
    return np.clip(q, -NARROW, NARROW).astype(np.int8), scales


def rounded_weights(layer: Layer) -> Array:
    """The weights rounded to their integers."""
    q, scales = integer_weights(layer)
    return q.astype(np.float32) * _along(layer, scales)


def _along(layer: Layer, scales: Array) -> Array:
    shape = [1] * layer.weights.ndim
    shape[layer.axis] = -1
    return scales.reshape(shape)


def in_integers(
    net: Net,
    chosen: Collection[str],
    ranges: Mapping[str, Range],
    biases: Mapping[str, Array] | None = None,
) -> Net:
    """The net with the chosen layers in int8. ranges: of the tensors that they read, by name.
    biases: by layer, instead of the layer's own."""
    layers = {layer.name: layer for layer in net.layers if layer.name in chosen}
    constants = dict(net.constants)
    pairs: dict[str, list[NodeProto]] = {}
    names: dict[str, str] = {}
    for layer in layers.values():
        if layer.data not in names:
            pairs[layer.data] = _pair(net, layer.data, ranges[layer.data], constants)
            names[layer.data] = pairs[layer.data][-1].output[0]
    nodes = [node for i in net.inputs for node in pairs.get(i.name, ())]
    for node in net.nodes:
        made = renamed(node, names)
        if node.name in layers:
            layer = layers[node.name]
            bias = (biases or {}).get(layer.name)
            if bias is None and layer.bias:
                bias = net.constants[layer.bias]
            before, made = _integer_layer(net, layer, made, ranges[layer.data], bias, constants)
            nodes += before
        nodes.append(made)
        for name in node.output:
            nodes += pairs.get(name, ())
    return net.with_(nodes, constants)


def _pair(net: Net, name: str, of: Range, constants: dict[str, Array]) -> list[NodeProto]:
    scale, zero, q, real = (
        net.fresh(f"{name}.{part}", constants) for part in ("scale", "zero", "int8", "dequantized")
    )
    constants[scale], constants[zero] = np.asarray(of.scale), np.asarray(of.zero)
    return [
        helper.make_node("QuantizeLinear", [name, scale, zero], [q], f"{name}.quantize"),
        helper.make_node("DequantizeLinear", [q, scale, zero], [real], f"{name}.dequantize"),
    ]


def _integer_layer(
    net: Net,
    layer: Layer,
    node: NodeProto,
    data: Range,
    bias: Array | None,
    constants: dict[str, Array],
) -> tuple[list[NodeProto], NodeProto]:
    """The nodes that dequantize the layer's constants, and the layer."""
    outputs = layer.weights.shape[layer.axis]
    least = None
    if bias is not None:
        bias = np.broadcast_to(bias.reshape(-1), (outputs,)).astype(np.float64)
        least = np.abs(bias) / MOST_BIAS / float(data.scale)  # the integer bias is part of the sum
    q, scales = integer_weights(layer, least)
    first, w = _dequantized(net, f"{layer.name}.weights", q, scales, layer.axis, constants)
    inputs, before = [node.input[0], w], [first]
    if bias is not None:
        of_sums = (data.scale * scales).astype(np.float32)
        of_sums = np.where(of_sums > 0, of_sums, np.finfo(np.float32).tiny).astype(np.float32)
        whole = np.rint(bias / of_sums).astype(np.int32)
        second, b = _dequantized(net, f"{layer.name}.bias", whole, of_sums, 0, constants)
        before.append(second)
        inputs.append(b)
    return before, with_inputs(node, inputs)


def _dequantized(
    net: Net, name: str, q: Array, scales: Array, axis: int, constants: dict[str, Array]
) -> tuple[NodeProto, str]:
    stored, scale, real = (
        net.fresh(f"{name}.{part}", constants) for part in (str(q.dtype), "scale", "dequantized")
    )
    constants[stored], constants[scale] = q, scales
    node = helper.make_node(
        "DequantizeLinear", [stored, scale], [real], f"{name}.dequantize", axis=axis
    )
    return node, real
