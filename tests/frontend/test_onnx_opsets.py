"""Operators whose form changed from opset to opset, each form against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate, optimize
from tests.onnx_models import Array, one_node, reference

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
ONES = RNG.normal(size=(1, 3, 1, 5)).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def f32(value: float) -> Array:
    return np.array(value, np.float32)


def channels(seed: int) -> Array:
    return np.random.default_rng(seed).uniform(0.5, 2, 3).astype(np.float32)


BN = {"scale": channels(1), "shift": channels(2), "mean": channels(3), "var": channels(4)}
FORMS: list[tuple[str, tuple[int, ...], dict[str, Array], dict[str, Any]]] = [
    # operator, opsets, inputs behind x, attributes
    ("BatchNormalization", (7, 8, 9, 14, 15), BN, {"epsilon": 1e-3}),
    ("Clip", (7, 10), {}, {"min": -0.5, "max": 0.5}),
    ("Clip", (7, 10), {}, {"max": 0.5}),
    ("Clip", (11, 12, 13), {"min": f32(-0.5), "max": f32(0.5)}, {}),
    ("Clip", (11, 13), {"": f32(0), "max": f32(0.5)}, {}),
    ("Dropout", (7, 10, 12, 13, 22), {}, {}),
    ("Dropout", (7, 10), {}, {"ratio": 0.9}),
    ("Dropout", (12, 13), {"ratio": f32(0.9)}, {}),
    ("Flatten", (7, 9, 11, 13), {}, {"axis": 2}),
    ("Flatten", (11, 13), {}, {"axis": -1}),
    ("LogSoftmax", (7, 11, 13), {}, {"axis": 2}),
    ("Pad", (7, 10), {}, {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 0.5}),
    ("Pad", (7, 10), {}, {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    ("Pad", (11, 13, 18), {"pads": ints(0, 0, 1, 2, 0, 0, 0, 1), "value": f32(0.5)}, {}),
    ("Pad", (18, 19), {"pads": ints(1, 2, 0, 1), "": f32(0), "axes": ints(-2, 3)}, {}),
    ("Pad", (19,), {"pads": ints(0, 0, 1, 2, 0, 0, 0, 1)}, {"mode": "wrap"}),
    ("ReduceMax", (7, 11, 12, 13), {}, {"axes": [1, 3], "keepdims": 0}),
    ("ReduceMax", (18, 20), {"axes": ints(1, -1)}, {"keepdims": 0}),
    ("ReduceMean", (7, 11, 13), {}, {"axes": [-1]}),
    ("ReduceMean", (7, 13, 18), {}, {}),
    ("ReduceMean", (18,), {"axes": ints(-1)}, {}),
    ("ReduceSum", (7, 11), {}, {"axes": [0, 1]}),
    ("ReduceSum", (13,), {"axes": ints(0, 1)}, {}),
    ("ReduceSum", (13,), {}, {"noop_with_empty_axes": 1}),
    ("Slice", (7, 9), {}, {"starts": [1, -3], "ends": [9, -1], "axes": [1, 3]}),
    ("Slice", (10, 11, 13), {"s": ints(1, -3), "e": ints(9, -1), "a": ints(1, 3)}, {}),
    ("Slice", (11, 13), {"s": ints(-1), "e": ints(-9), "a": ints(-1), "t": ints(-2)}, {}),
    ("Softmax", (7, 11, 13), {}, {}),
    ("Softmax", (7, 11, 13), {}, {"axis": 1}),
    ("Softmax", (11, 13), {}, {"axis": -1}),
    ("Split", (7, 11), {}, {"axis": 3, "split": [2, 3]}),
    ("Split", (13, 18), {"split": ints(2, 3)}, {"axis": 3}),
    ("Split", (18,), {}, {"axis": 3, "num_outputs": 2}),
    ("Unsqueeze", (7, 11), {}, {"axes": [0, 3]}),
    ("Unsqueeze", (13,), {"axes": ints(-1, 0)}, {}),
]
SQUEEZE: list[tuple[int, dict[str, Array], dict[str, Any]]] = [
    (7, {}, {"axes": [0]}),
    (11, {}, {"axes": [-2]}),
    (11, {}, {}),
    (13, {"axes": ints(0, 2)}, {}),
    (13, {}, {}),
]


def compare(model: ModelProto, inputs: dict[str, Array]) -> None:
    expected = reference(model, inputs)
    function = from_onnx(model)
    for graph in (function, optimize(function)):
        found = evaluate(graph, inputs)
        for name, theirs in expected.items():
            assert found[name].dtype == theirs.dtype
            np.testing.assert_allclose(found[name], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "opset", "extra", "attributes"),
    [(op, opset, extra, attrs) for op, opsets, extra, attrs in FORMS for opset in opsets],
    ids=lambda v: str(v) if isinstance(v, (str, int)) else "",
)
def test_forms(op: str, opset: int, extra: dict[str, Array], attributes: dict[str, Any]) -> None:
    outputs = ["y", "z"] if op == "Split" else ["y"]
    constants = [name for name in extra if name]
    model = one_node(op, {"x": X, **extra}, opset, outputs, constants, **attributes)
    compare(model, {"x": X})


@pytest.mark.parametrize(("opset", "extra", "attributes"), SQUEEZE)
def test_squeeze(opset: int, extra: dict[str, Array], attributes: dict[str, Any]) -> None:
    model = one_node("Squeeze", {"x": ONES, **extra}, opset, constants=list(extra), **attributes)
    compare(model, {"x": ONES})


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(opset: int, transposed: int) -> None:
    a, b = X[0, 0], X[1, 1] if transposed else X[1, 1].T
    inputs = {"a": a, "b": b, "c": X[1, 2, :, :1]}
    attributes: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "transB": transposed}
    compare(one_node("Gemm", inputs, opset, **attributes), inputs)
    compare(one_node("Gemm", inputs, opset, constants=["b", "c"], **attributes), {"a": a})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)),
        ((4, 5), (5,)),
        ((5,), (5, 4)),
        ((3, 4, 5), (5, 2)),
        ((3, 4, 5), (5,)),
        ((5,), (3, 5, 4)),
        ((2, 1, 4, 5), (3, 5, 2)),
        ((3, 4, 5), (3, 5, 4)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    inputs = {
        name: np.random.default_rng(n).normal(size=shape).astype(np.float32)
        for n, (name, shape) in enumerate({"a": a, "b": b}.items())
    }
    compare(one_node("MatMul", inputs), inputs)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2])
def test_conv_auto_pad(auto_pad: str, stride: int, rank: int) -> None:
    rng = np.random.default_rng(stride)
    x = rng.normal(size=(2, 4, 7, 8)[: 2 + rank]).astype(np.float32)
    w = rng.normal(size=(6, 2, 3, 2)[: 2 + rank]).astype(np.float32)
    inputs = {"x": x, "w": w, "b": rng.normal(size=6).astype(np.float32)}
    attributes: dict[str, Any] = {"auto_pad": auto_pad, "strides": [stride] * rank, "group": 2}
    compare(one_node("Conv", inputs, **attributes), inputs)
    compare(one_node("Conv", inputs, constants=["w", "b"], **attributes), {"x": x})
