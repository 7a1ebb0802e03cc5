"""Quantizes only weights: int8 or int4, with a scale for each block of 32.

Layers compute in floats; the model is smaller and reads less memory. Blocks run along the summed
axis. There are two forms: ONNX's DequantizeLinear with blocks, from opset 21 on, and onnxruntime's
MatMulNBits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .net import STANDARD, Array, Layer, Net, with_inputs

BLOCK = 32  # weights with one scale
BLOCKS_OPSET = 21  # the first with a scale per block
CONTRIBUTED = "com.microsoft"


def narrow_weights(net: Net, chosen: Collection[str], bits: int, matmul_nbits: bool = False) -> Net:
    """The net with the chosen layers' weights in `bits`, 4 or 8."""
    constants = dict(net.constants)
    nodes: list[NodeProto] = []
    layers = {layer.name: layer for layer in net.layers if layer.name in chosen}
    for node in net.nodes:
        if node.name not in layers:
            nodes.append(node)
        elif matmul_nbits:
            nodes += _matmul_nbits(net, layers[node.name], bits, constants)
        else:
            nodes += _dequantized(net, layers[node.name], bits, constants)
    made = net.with_(nodes, constants)
    return _importing(made, CONTRIBUTED) if matmul_nbits and layers else made


def blocks(w: Array, bits: int) -> tuple[Array, Array]:
    """Weights [k, n] as integers [blocks, 32, n] and scales [blocks, n]; zeros fill the last block.
    The weight of largest magnitude becomes the most negative integer, since the negative side has
    one level more."""
    k, n = w.shape
    count = -(-k // BLOCK)
    padded = np.zeros((count * BLOCK, n), np.float32)
    padded[:k] = w
    parts = padded.reshape(count, BLOCK, n)
    place = np.abs(parts).argmax(1, keepdims=True)
    largest = np.take_along_axis(parts, place, 1)
    half = 1 << (bits - 1)
    scales = np.where(largest != 0, largest / -half, 1).astype(np.float32)
    q = np.clip(np.rint(parts / scales), -half, half - 1).astype(np.int8)
    return q, scales[:, 0, :]


def _matrix(layer: Layer) -> Array:
    """The weights as [k, n]."""
    return layer.weights.T if layer.axis == 0 else layer.weights


def _dequantized(net: Net, layer: Layer, bits: int, constants: dict[str, Array]) -> list[NodeProto]:
    """layer(x, w)   =>   layer(x, DequantizeLinear(w', scales))"""
    w = _matrix(layer)
    q, scales = blocks(w, bits)
    whole = q.reshape(-1, w.shape[1])[: w.shape[0]]
    axis = 0
    if layer.axis == 0:
        whole, scales, axis = whole.T, scales.T, 1
    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.INT4) if bits == 4 else np.dtype(np.int8)
    stored, scale, real = (
        net.fresh(f"{layer.name}.weights.{part}", constants)
        for part in (f"int{bits}", "scale", "dequantized")
    )
    constants[stored] = np.ascontiguousarray(whole).astype(dtype)
    constants[scale] = np.ascontiguousarray(scales)
    first = helper.make_node(
        "DequantizeLinear", [stored, scale], [real], f"{layer.name}.weights.dequantize",
        axis=axis, block_size=BLOCK,
    )  # fmt: skip
    inputs = list(layer.node.input)
    inputs[1] = real
    return [first, with_inputs(layer.node, inputs)]


def _matmul_nbits(
    net: Net, layer: Layer, bits: int, constants: dict[str, Array]
) -> list[NodeProto]:
    """layer(x, w)   =>   MatMulNBits(x, w', scales), with unsigned integers, a row per output"""
    w = _matrix(layer)
    q, scales = blocks(w, bits)
    unsigned: Array = (q.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8).transpose(2, 0, 1)
    if bits == 4:
        unsigned = unsigned[..., ::2] | (unsigned[..., 1::2] << 4)
    stored, scale = (
        net.fresh(f"{layer.name}.weights.{part}", constants) for part in (f"int{bits}", "scale")
    )
    constants[stored] = np.ascontiguousarray(unsigned)
    constants[scale] = np.ascontiguousarray(scales.T).reshape(-1)
    result = layer.node.output[0]
    product = net.fresh(f"{layer.name}.product", constants) if layer.bias else result
    made = [
        helper.make_node(
            "MatMulNBits", [layer.data, stored, scale], [product], layer.name, domain=CONTRIBUTED,
            K=w.shape[0], N=w.shape[1], bits=bits, block_size=BLOCK,
        )
    ]  # fmt: skip
    if layer.bias:
        made.append(helper.make_node("Add", [product, layer.bias], [result], f"{layer.name}.bias"))
    return made


def _importing(net: Net, domain: str) -> Net:
    """The net with a domain among its opset imports."""
    assert domain not in STANDARD
    if all(o.domain != domain for o in net.source.opset_import):
        source = type(net.source)()
        source.CopyFrom(net.source)
        source.opset_import.append(helper.make_opsetid(domain, 1))
        return replace(net, source=source)
    return net
