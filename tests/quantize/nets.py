"""Small ONNX models with random weights, and data for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


def model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    shape: tuple[int | str, ...],
    output: str = "y",
    opset: int = 14,
    rank: int = 0,
) -> onnx.ModelProto:
    """A model of one input x and one output, of the input's rank unless told otherwise."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value(output, onnx.TensorProto.FLOAT, [f"y{n}" for n in range(rank or len(shape))])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def conv(name: str, x: str, y: str, bias: bool = True, **attrs: Any) -> onnx.NodeProto:
    inputs = [x, f"{name}.w", *([f"{name}.b"] if bias else [])]
    return helper.make_node("Conv", inputs, [y], name, **attrs)


def weights(name: str, *shape: int, seed: int = 0) -> dict[str, Array]:
    """Of a convolution, with its bias."""
    rng = np.random.default_rng([seed, *name.encode()])
    size = np.sqrt(np.prod(shape[1:]))
    return {
        f"{name}.w": (rng.normal(size=shape) / size).astype(np.float32),
        f"{name}.b": rng.normal(0, 0.2, shape[0]).astype(np.float32),
    }


def residual() -> onnx.ModelProto:
    """A convolution, a residual block, a pool and a classifier: [1, 3, 16, 16] to [1, 10]."""
    node = helper.make_node
    nodes = [
        conv("stem", "x", "s", pads=[1, 1, 1, 1]),
        node("Relu", ["s"], ["a"], "relu0"),
        conv("first", "a", "f", pads=[1, 1, 1, 1]),
        node("Relu", ["f"], ["b"], "relu1"),
        conv("second", "b", "g", pads=[1, 1, 1, 1]),
        node("Add", ["g", "a"], ["h"], "add"),
        node("Relu", ["h"], ["c"], "relu2"),
        node("GlobalAveragePool", ["c"], ["p"], "pool"),
        node("Flatten", ["p"], ["v"], "flat"),
        node("Gemm", ["v", "head.w", "head.b"], ["y"], "head", transB=1),
    ]
    constants = weights("stem", 16, 3, 3, 3)
    constants |= weights("first", 16, 16, 3, 3) | weights("second", 16, 16, 3, 3)
    return model(nodes, constants | weights("head", 10, 16), (1, 3, 16, 16), rank=2)


def pictures(count: int = 8, seed: int = 0) -> Array:
    """Smooth pictures, [n, 3, 16, 16]."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(count, 3, 4, 4))
    return coarse.repeat(4, 2).repeat(4, 3).astype(np.float32) + rng.normal(
        0, 0.1, (count, 3, 16, 16)
    ).astype(np.float32)
