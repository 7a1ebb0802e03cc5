"""ai.onnx.ml, which models of scikit-learn are exported to, against onnxruntime."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mlc_deploy import backend
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate

Array = NDArray[Any]
ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def model(
    op: str,
    inputs: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    opset: int = 3,
    **attributes: Any,
) -> Any:
    kind = helper.np_dtype_to_tensor_dtype
    given = [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in inputs.items()]
    # onnxruntime infers the types of outputs.
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    node = helper.make_node(op, [*inputs], [*outputs], name="n", domain=ML, **attributes)
    graph = helper.make_graph([node], "graph", given, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agrees(made: Any, inputs: dict[str, Array]) -> None:
    session = onnxruntime.InferenceSession(made.SerializeToString())
    theirs = session.run(None, inputs)
    for output, own in zip(made.graph.output, session.get_outputs(), strict=True):
        dtype = {"tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE,
                 "tensor(int64)": TensorProto.INT64}[own.type]  # fmt: skip
        output.CopyFrom(helper.make_tensor_value_info(output.name, dtype, own.shape))
    found = list(evaluate(from_onnx(made), inputs).values())
    for mine, other in zip(found, theirs, strict=True):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def refusal(made: Any) -> str:
    with pytest.raises(ImporterError) as caught:
        from_onnx(made)
    return str(caught.value)


def numbers(rng: Random, *shape: int) -> Array:
    """Whole numbers and halves, which meet the thresholds of trees exactly."""
    found = np.random.default_rng(rng.randrange(1 << 30)).integers(-6, 6, shape) / 2
    return found.astype(np.float32)


def forest(rng: Random, features: int, modes: tuple[str, ...], kind: str) -> dict[str, Any]:
    """The attributes of random trees; each node's mode is one of the given ones."""
    found: dict[str, list[Any]] = {
        key: []
        for key in "treeids nodeids modes featureids values truenodeids falsenodeids".split()
    }
    missing: list[int] = []
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, number: int, depth: int) -> int:
        """The number after those of this node and what is below it."""
        row = len(missing)
        leaf = depth == 0 or rng.random() < 0.2
        after = number + 1
        values: list[Any] = [tree, number, "LEAF", 0, 0.0, 0, 0]
        missing.append(0 if leaf else rng.randint(0, 1))
        for key, value in zip(found, values, strict=True):
            found[key].append(value)
        if leaf:
            leaves.append((tree, number))
            return after
        found["modes"][row] = rng.choice(modes)
        found["featureids"][row] = rng.randrange(features)
        found["values"][row] = rng.randint(-5, 5) / 2
        found["truenodeids"][row] = after
        after = grow(tree, after, depth - 1)
        found["falsenodeids"][row] = after
        return grow(tree, after, depth - 1)

    for tree in range(rng.randint(1, 4)):
        grow(tree, 0, rng.randint(1, 4))
    attributes: dict[str, Any] = {f"nodes_{key}": own for key, own in found.items()}
    attributes["nodes_missing_value_tracks_true"] = missing
    attributes[f"{kind}_treeids"] = [tree for tree, _ in leaves]
    attributes[f"{kind}_nodeids"] = [node for _, node in leaves]
    return attributes


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(how: str, seed: int) -> None:
    rng = Random(f"{how} {seed}")
    targets = rng.randint(1, 3)
    attributes = forest(rng, 4, rng.choice([MODES, MODES[:1], MODES[:4]]), "target")
    count = len(attributes["target_treeids"])
    attributes |= {
        # Each target has a leaf: where none does, onnxruntime gives 0 for MIN and MAX.
        "target_ids": [
            0 if how in ("MIN", "MAX") else rng.randrange(targets) for _ in range(count)
        ],
        "target_weights": [rng.uniform(-1, 1) for _ in range(count)],
        "n_targets": 1 if how in ("MIN", "MAX") else targets,
        "aggregate_function": how,
    }
    if attributes["n_targets"] == 1:  # onnxruntime adds it only where a leaf adds something
        attributes["base_values"] = [rng.uniform(-1, 1) for _ in range(attributes["n_targets"])]
    x = numbers(rng, 9, 4)
    x[0, 1] = x[3, 0] = np.nan
    agrees(model("TreeEnsembleRegressor", {"x": x}, **attributes), {"x": x})


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_tree_classifier(post: str, classes: int, seed: int) -> None:
    """One score for two classes may be negative. Of several, onnxruntime leaves out those that no
    leaf adds to, even where all others are below 0."""
    rng = Random(f"{post} {classes} {seed}")
    attributes = forest(rng, 4, MODES, "class")
    count = len(attributes["class_treeids"])
    low = -1.0 if classes == 2 and seed % 2 else 0.0
    attributes |= {
        "class_ids": [(0 if classes == 2 else k % classes) for k in range(count)],
        "class_weights": [rng.uniform(low, 1) for _ in range(count)],
        "classlabels_int64s": [7, 3, 9, 4][:classes],
        # onnxruntime has no softmax of one score and its opposite.
        "post_transform": "NONE" if classes == 2 and post == "SOFTMAX" else post,
    }
    x = numbers(rng, 9, 4)
    agrees(model("TreeEnsembleClassifier", {"x": x}, ("l", "y"), **attributes), {"x": x})


@pytest.mark.parametrize("board", ["local://", "qemu://cortex-a7"])
def test_trees_on_boards(board: str) -> None:
    rng = Random(5)
    attributes = forest(rng, 4, MODES, "target")
    count = len(attributes["target_treeids"])
    attributes |= {"target_ids": [0] * count, "target_weights": numbers(rng, count).tolist()}
    x = numbers(rng, 33, 4)
    x[2, :] = np.nan
    made = model("TreeEnsembleRegressor", {"x": x}, n_targets=1, **attributes)
    theirs = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (33, 1)))
    found = backend.run_model(made, [x], board)
    np.testing.assert_allclose(found[0], theirs[0], rtol=1e-6)


def test_a_circle_of_nodes() -> None:
    x = np.zeros((1, 1), np.float32)
    made = model(
        "TreeEnsembleRegressor", {"x": x}, n_targets=1, nodes_treeids=[0, 0], nodes_nodeids=[0, 1],
        nodes_modes=["BRANCH_LEQ", "LEAF"], nodes_featureids=[0, 0], nodes_values=[0.0, 0.0],
        nodes_truenodeids=[0, 0], nodes_falsenodeids=[1, 0], target_treeids=[0],
        target_nodeids=[1], target_ids=[0], target_weights=[1.0],
    )  # fmt: skip
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1)))
    assert refusal(made).startswith("the nodes of a tree form a circle\n")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear(post: str, seed: int) -> None:
    rng = Random(seed)
    x, classes = numbers(rng, 5, 3), rng.randint(2, 4)
    rows = 1 if classes == 2 and seed % 2 else classes
    weights, shift = numbers(rng, rows * 3).tolist(), numbers(rng, rows).tolist()
    given: dict[str, Any] = {"coefficients": weights, "intercepts": shift}
    made = model(
        "LinearClassifier", {"x": x}, ("l", "y"), 1, classlabels_ints=[4, 2, 9, 1][:classes],
        post_transform=post, multi_class=0, **given,
    )  # fmt: skip
    agrees(made, {"x": x})
    agrees(model("LinearRegressor", {"x": x}, ("y",), 1, targets=rows, **given), {"x": x})


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vectors(kernel: str, classes: int) -> None:
    rng = Random(kernel)
    x, owned = numbers(rng, 6, 3), [2, 3, 1][:classes]
    count, pairs = sum(owned), classes * (classes - 1) // 2
    common: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": [0.3, 0.5, 2.0],
        "support_vectors": numbers(rng, count * 3).tolist(),
    }  # fmt: skip
    made = model(
        "SVMClassifier", {"x": x}, ("l", "y"), 1, classlabels_ints=[5, 8, 6][:classes],
        vectors_per_class=owned, rho=numbers(rng, pairs).tolist(),
        coefficients=numbers(rng, (classes - 1) * count).tolist(), **common,
    )  # fmt: skip
    agrees(made, {"x": x})
    made = model(
        "SVMRegressor", {"x": x}, ("y",), 1, n_supports=count, rho=[0.25],
        coefficients=numbers(rng, count).tolist(), **common,
    )  # fmt: skip
    agrees(made, {"x": x})


X = np.array([[1, -2, 0.5], [0, 0, 0], [3, 4, -5]], np.float32)
I = np.array([[1, 2], [7, -1]], np.int64)  # noqa: E741
SIMPLE: list[tuple[str, dict[str, Array], dict[str, Any]]] = [
    ("ArrayFeatureExtractor", {"x": X, "i": np.array([2, 0], np.int64)}, {}),
    ("Binarizer", {"x": X}, {"threshold": 0.25}),
    ("FeatureVectorizer", {"a": X, "b": X[:, :1]}, {"inputdimensions": [3, 1]}),
    ("Imputer", {"x": X}, {"imputed_value_floats": [8.0, 9.0, 7.0], "replaced_value_float": 0.0}),
    ("Imputer", {"x": np.where(X == 0, np.nan, X).astype("f4")},
     {"imputed_value_floats": [8.0], "replaced_value_float": float("nan")}),
    ("Imputer", {"x": I}, {"imputed_value_int64s": [5], "replaced_value_int64": 7}),
    ("LabelEncoder", {"x": I}, {"keys_int64s": [1, 7], "values_floats": [0.5, 2.5]}),
    ("LabelEncoder", {"x": I},
     {"keys_int64s": [1, 7], "values_int64s": [9, 8], "default_int64": 3}),
    ("LabelEncoder", {"x": np.array([1, np.nan, 2], np.float32)},
     {"keys_floats": [1.0, float("nan")], "values_int64s": [9, 8]}),
    ("Normalizer", {"x": X}, {"norm": "L1"}),
    ("Normalizer", {"x": X}, {"norm": "L2"}),
    ("Normalizer", {"x": np.abs(X)}, {"norm": "MAX"}),
    ("OneHotEncoder", {"x": I}, {"cats_int64s": [7, 2, 1], "zeros": 1}),
    ("Scaler", {"x": X}, {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 2.0, -1.0]}),
    ("Scaler", {"x": I}, {"offset": [1.0], "scale": [0.5]}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes"), SIMPLE, ids=[s[0] for s in SIMPLE])
def test_preprocessing(op: str, inputs: dict[str, Array], attributes: dict[str, Any]) -> None:
    agrees(model(op, inputs, ("y",), 4 if op == "LabelEncoder" else 1, **attributes), inputs)


def test_text_is_refused() -> None:
    made = model(
        "LinearClassifier", {"x": X}, ("l", "y"), 1, classlabels_strings=["a", "b"],
        coefficients=[1.0, 2.0, 3.0],
    )  # fmt: skip
    for output in made.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    assert refusal(made) == (
        "labels that are text are not supported\n"
        "  in:  the model, node 'n' (LinearClassifier)\n"
        "  try: a model whose labels are numbers"
    )
