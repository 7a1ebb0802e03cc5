"""Dynamic quantization: each run finds the range of its data and makes them integers.

    x @ w + b   =>   cast(integers(x) @ w') * (scale of x * scales of w) + b

It needs no calibration data. It suits transformers, whose numbers differ from run to run.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .insert import integer_weights
from .net import Array, Layer, Net


def dynamic(net: Net, chosen: Collection[str]) -> Net:
    """The net with the chosen products of matrices in integers."""
    constants = dict(net.constants)
    nodes: list[NodeProto] = []
    known: dict[str, list[str]] = {}  # a tensor's integers, scale and zero point
    layers = {layer.name: layer for layer in net.layers if layer.name in chosen}
    for node in net.nodes:
        if node.name in layers:
            nodes += _product(net, layers[node.name], known, constants)
        else:
            nodes.append(node)
    return net.with_(nodes, constants)


def _product(
    net: Net, layer: Layer, known: dict[str, list[str]], constants: dict[str, Array]
) -> list[NodeProto]:
    made: list[NodeProto] = []
    name = layer.name

    def fresh(part: str) -> str:
        return net.fresh(f"{name}.{part}", constants)

    if layer.data not in known:
        parts = [net.fresh(f"{layer.data}.{p}", constants) for p in ("uint8", "scale", "zero")]
        known[layer.data] = parts
        quantize = ("DynamicQuantizeLinear", [layer.data], parts, f"{layer.data}.quantize")
        made.append(helper.make_node(*quantize))
    q, scale, zero = known[layer.data]
    weights, scales = integer_weights(layer)
    w, by_column = fresh("weights.int8"), fresh("weights.scale")
    constants[w] = np.ascontiguousarray(weights.T if layer.axis == 0 else weights)
    constants[by_column] = scales
    sums, real, factor = fresh("sums"), fresh("float"), fresh("scale")
    bias = net.constants[layer.bias] if layer.bias else None
    result = layer.node.output[0]
    product = result if bias is None else fresh("product")
    made += [
        helper.make_node("MatMulInteger", [q, w, zero], [sums], f"{name}.sums"),
        helper.make_node("Cast", [sums], [real], f"{name}.float", to=TensorProto.FLOAT),
        helper.make_node("Mul", [scale, by_column], [factor], f"{name}.scale"),
        helper.make_node("Mul", [real, factor], [product], name),
    ]
    if bias is not None:
        made.append(helper.make_node("Add", [product, layer.bias], [result], f"{name}.bias"))
    return made
