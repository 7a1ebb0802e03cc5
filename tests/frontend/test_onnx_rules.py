"""Files that onnx.checker refuses and engines run, beside onnxruntime; and what a node may not
be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4), dtype=np.float32)
W = RNG.standard_normal((4, 4), dtype=np.float32)
PRODUCT = [helper.make_node("MatMul", ["x", "w"], ["y"])]


def model(
    nodes: Sequence[NodeProto], weights: dict[str, Any], *, shape: Sequence[int] = (2, 4),
    opset: int = 17, ir: int = 8, typed: bool = True,
) -> ModelProto:  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    if not typed:
        y.ClearField("type")
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", [x], [y], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = ir
    return made


def is_right(path: Path, x: Any) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})
    for found, right in zip(evaluate(from_onnx(path), {"x": x}).values(), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def saved(made: ModelProto, folder: Path, *, beside: bool) -> Path:
    path = folder / "model.onnx"
    onnx.save(made, path, save_as_external_data=beside, location="w.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    "options", [{"typed": False}, {"opset": 7, "ir": 3}, {"opset": 21, "ir": onnx.IR_VERSION}]
)
def test_forms_that_engines_run(options: dict[str, Any], beside: bool, tmp_path: Path) -> None:
    is_right(saved(model(PRODUCT, {"w": W}, **options), tmp_path, beside=beside), X)


def test_a_cache_of_links(tmp_path: Path) -> None:
    """Hugging Face's: the names in a snapshot are links to files named by their hashes."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    path = saved(model(PRODUCT, {"w": W}), tmp_path, beside=True)
    for file in (path, tmp_path / "w.bin"):
        os.replace(file, blobs / f"hash-of-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/hash-of-{file.name}")
    is_right(snapshot / path.name, X)


def test_group_normalization_of_opset_18(tmp_path: Path) -> None:
    """Scale and bias have an element per group, and from opset 21 on one per channel."""
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    own = {"s": np.array([2, -1], "float32"), "b": np.array([0.5, 3], "float32")}
    x = RNG.standard_normal((3, 6, 5), dtype=np.float32)
    made = model([node], own, shape=x.shape, opset=18)
    is_right(saved(made, tmp_path, beside=False), x)


@pytest.mark.parametrize("peepholes", [False, True])
def test_coupled_gates(peepholes: bool, tmp_path: Path) -> None:
    names = ["x", "w", "r", "", "", "", "", "p"] if peepholes else ["x", "w", "r"]
    node = helper.make_node("LSTM", names, ["y"], hidden_size=3, input_forget=1)
    own = {"w": (1, 12, 2), "r": (1, 12, 3)} | ({"p": (1, 9)} if peepholes else {})
    weights = {name: RNG.standard_normal(shape, dtype=np.float32) for name, shape in own.items()}
    x = RNG.standard_normal((4, 2, 2), dtype=np.float32)
    made = model([node], weights, shape=x.shape, opset=14)
    is_right(saved(made, tmp_path, beside=False), x)


def refusal(made: ModelProto) -> str:
    with pytest.raises(ImporterError) as caught:
        from_onnx(made)
    return str(caught.value)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (helper.make_node("Relu", ["x", "x"], ["y"]), "2 inputs, where the operator has 1"),
        (helper.make_node("Clip", ["x"] * 4, ["y"]), "4 inputs, where the operator has 1 to 3"),
        (helper.make_node("Relu", ["x"], ["y", "z"]), "2 outputs, where the operator has 1"),
        (
            helper.make_node("Softmax", ["x"], ["y"], axes=1),
            "the operator has no attribute 'axes' in opset 13",
        ),
        (
            helper.make_node("Softmax", ["x"], ["y"], axis=1.0),
            "attribute 'axis' is FLOAT, and must be INT",
        ),
        (helper.make_node("Cast", ["x"], ["y"]), "attribute 'to' is missing"),
    ],
)
def test_nodes_that_their_operator_does_not_allow(node: NodeProto, why: str) -> None:
    node.name = "it"
    assert refusal(model([node], {})) == f"{why}\n  in:  the model, node 'it' ({node.op_type})"


def test_an_attribute_given_twice() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], name="it", axis=0)
    node.attribute.append(helper.make_attribute("axis", 1))
    assert refusal(model([node], {})).startswith("attribute 'axis' is given twice")


@pytest.mark.parametrize("name", ["y", "x", "w"])
def test_names_are_given_once(name: str) -> None:
    nodes = [*PRODUCT, helper.make_node("Relu", ["x"], [name])]
    assert refusal(model(nodes, {"w": W})) == (
        f"the ONNX model is damaged: '{name}' is computed or given 2 times\n"
        "  in:  the model\n  try: copy or export the file again"
    )
