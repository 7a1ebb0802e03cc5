"""Networks of layers.py as ONNX models, spelt as PyTorch's exporter spells them at opset 17."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.models.layers import (
    Activation,
    Array,
    Attention,
    BatchNorm,
    Chain,
    Conv,
    First,
    Flatten,
    Gate,
    GlobalPool,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Patches,
    Residual,
    Words,
    children,
    weights,
)

OPSET, IR_VERSION = 17, 8

Input = tuple[str, Sequence[int | str], str]  # name, shape, dtype


def to_onnx(network: Layer, name: str, inputs: Sequence[Input], seed: int = 0) -> ModelProto:
    """A model of the inputs, with the output "scores". The first input goes through the layers; a
    second one is the attention's mask."""
    emitter = _Emitter(weights(network, seed))
    if len(inputs) > 1:
        emitter.mask = emitter.mask_term(inputs[1][0])
    scores = emitter.layer(network, inputs[0][0], "")
    emitter.nodes.append(helper.make_node("Identity", [scores], ["scores"], "scores"))
    graph = helper.make_graph(
        emitter.nodes,
        name,
        [helper.make_tensor_value_info(n, _element(dtype), shape) for n, shape, dtype in inputs],
        [onnx.ValueInfoProto(name="scores")],
        [numpy_helper.from_array(a, n) for n, a in emitter.arrays.items()],
    )
    model = helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    model = onnx.shape_inference.infer_shapes(model)
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def _element(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class _Emitter:
    """Nodes and initializers as they are needed; `mask` is added to attention's scores."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = dict(arrays)
        self.nodes: list[onnx.NodeProto] = []
        self.mask = ""

    def emit(self, op: str, *inputs: str, path: str, **attributes: Any) -> str:
        """A node named after a layer; its output."""
        name = f"{path}{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        array: Array = np.asarray(value, dtype)
        name = f"{array.dtype}_{'_'.join(map(str, array.ravel().tolist()))}_{array.ndim}"
        self.arrays[name] = array
        return name

    def mask_term(self, mask: str) -> str:
        """[N, T] of whole numbers as [N, 1, 1, T]: 0 where attention may look, else far below."""
        bits = self.emit("Cast", mask, path="mask.", to=TensorProto.BOOL)
        term = self.emit("Where", bits, self.constant(0.0), self.constant(-1e9), path="mask.")
        return self.emit("Unsqueeze", term, self.constant([1, 2], np.int64), path="mask.")

    def layer(self, layer: Layer, x: str, path: str) -> str:
        match layer:
            case Conv(_, _, kernel, stride, groups, bias):
                given = [x, path + "weight", *([path + "bias"] if bias else [])]
                return self.emit("Conv", *given, path=path, kernel_shape=[kernel] * 2, group=groups,
                                 strides=[stride] * 2, pads=[layer.padding] * 4)  # fmt: skip
            case BatchNorm():
                names = (path + n for n in ("weight", "bias", "running_mean", "running_var"))
                return self.emit("BatchNormalization", x, *names, path=path)
            case LayerNorm(_, epsilon):
                return self.emit("LayerNormalization", x, path + "weight", path + "bias", path=path,
                                 epsilon=epsilon)  # fmt: skip
            case Linear():
                return self.linear(x, path)
            case Activation(kind):
                return self.activation(kind, x, path)
            case MaxPool(kernel, stride, padding):
                return self.emit("MaxPool", x, path=path, kernel_shape=[kernel] * 2,
                                 strides=[stride] * 2, pads=[padding] * 4)  # fmt: skip
            case GlobalPool():
                return self.emit("GlobalAveragePool", x, path=path)
            case Flatten():
                return self.emit("Flatten", x, path=path)
            case Chain(layers):
                for number, each in enumerate(layers):
                    x = self.layer(each, x, f"{path}{number}.")
                return x
            case Residual():
                ends = [self.layer(child, x, f"{path}{name}.") for name, child in children(layer)]
                return self.emit("Add", *ends, path=path)
            case Gate(body):
                return self.emit("Mul", x, self.layer(body, x, path + "body."), path=path)
            case Attention():
                return self.attention(layer, x, path)
            case Patches():
                return self.patches(layer, x, path)
            case Words():
                return self.words(x, path)
            case First():
                return self.emit("Gather", x, self.constant(0, np.int64), path=path, axis=1)

    def linear(self, x: str, path: str) -> str:
        """Exporters turn the weights round when they write them."""
        turned = path + "weight.T"
        self.arrays[turned] = np.ascontiguousarray(self.arrays.pop(path + "weight").T)
        product = self.emit("MatMul", x, turned, path=path)
        return self.emit("Add", product, path + "bias", path=path)

    def activation(self, kind: str, x: str, path: str) -> str:
        match kind:
            case "relu6":
                return self.emit("Clip", x, self.constant(0.0), self.constant(6.0), path=path)
            case "hardswish":
                return self.emit("HardSwish", x, path=path)
            case "hardsigmoid":
                return self.emit("HardSigmoid", x, path=path, alpha=1 / 6, beta=0.5)
            case "silu":
                return self.emit("Mul", x, self.emit("Sigmoid", x, path=path), path=path)
            case "gelu":
                share = self.emit("Div", x, self.constant(math.sqrt(2)), path=path)
                term = self.emit("Add", self.emit("Erf", share, path=path), self.constant(1.0),
                                 path=path)  # fmt: skip
                product = self.emit("Mul", x, term, path=path)
                return self.emit("Mul", product, self.constant(0.5), path=path)
        return self.emit({"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}[kind], x, path=path)

    def attention(self, layer: Attention, x: str, path: str) -> str:
        size = layer.width // layer.heads

        def reshape(value: str, *shape: int) -> str:
            return self.emit("Reshape", value, self.constant(shape, np.int64), path=path)

        def transpose(value: str, *axes: int) -> str:
            return self.emit("Transpose", value, path=path, perm=axes)

        parts = transpose(
            reshape(self.linear(x, path + "qkv."), 0, 0, 3, layer.heads, size), 2, 0, 3, 1, 4
        )
        q, k, v = (
            self.emit("Gather", parts, self.constant(n, np.int64), path=path, axis=0)
            for n in range(3)
        )
        scaled = self.emit("Mul", q, self.constant(1 / math.sqrt(size)), path=path)
        scores = self.emit("MatMul", scaled, transpose(k, 0, 1, 3, 2), path=path)
        if self.mask:
            scores = self.emit("Add", scores, self.mask, path=path)
        share = self.emit("Softmax", scores, path=path, axis=-1)
        mixed = transpose(self.emit("MatMul", share, v, path=path), 0, 2, 1, 3)
        return self.linear(reshape(mixed, 0, 0, layer.width), path + "out.")

    def patches(self, layer: Patches, x: str, path: str) -> str:
        shape = self.constant([0, layer.width, -1], np.int64)
        rows = self.emit("Transpose", self.emit("Reshape", x, shape, path=path), path=path,
                         perm=[0, 2, 1])  # fmt: skip
        batch = self.emit("Shape", x, path=path, start=0, end=1)
        one = self.constant([1, layer.width], np.int64)
        wide = self.emit("Concat", batch, one, path=path, axis=0)
        first = self.emit("Expand", path + "first", wide, path=path)
        every = self.emit("Concat", first, rows, path=path, axis=1)
        return self.emit("Add", every, path + "positions", path=path)

    def words(self, x: str, path: str) -> str:
        found = self.emit("Gather", path + "words", x, path=path)
        kind = self.emit("Gather", path + "kinds", self.constant(0, np.int64), path=path)
        length = self.emit("Shape", x, path=path, start=1, end=2)
        zero = self.constant([0], np.int64)
        places = self.emit("Slice", path + "positions", zero, length, zero, path=path)
        return self.emit("Add", self.emit("Add", found, kind, path=path), places, path=path)
