"""Operators of which ONNX's suite has few tests: determinants, regions that are data, n-grams,
random numbers, steps of training, old opsets. Against onnxruntime, numpy or onnx's reference."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mlc_deploy import backend
from mlc_deploy.errors import ImporterError, ModelWarning
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.onnx_models import one_node, reference

Array = NDArray[Any]
BOARDS = ("local://", "qemu://cortex-a7")


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def refusal(model: Any) -> str:
    with pytest.raises(ImporterError) as caught:
        from_onnx(model)
    return str(caught.value)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5, 5), (2, 2, 8, 8)])
def test_determinants(shape: tuple[int, ...], board: str) -> None:
    x = floats(3, *shape)
    x[..., 0, 0] = 0  # so that rows change places
    (y,) = backend.run_model(one_node("Det", {"x": x}), [x], board)
    assert y.shape == shape[:-2]
    np.testing.assert_allclose(y, np.linalg.det(x.astype(np.float64)), rtol=1e-3, atol=1e-4)


def test_a_singular_matrix() -> None:
    x = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
    assert evaluate(from_onnx(one_node("Det", {"x": x})), [x])["y"] == 0


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_region_that_is_data(mode: str, seed: int, board: str) -> None:
    rng = Random(seed)
    begin = [0, 0, rng.uniform(-0.2, 0.4), rng.uniform(0, 0.3)]
    end = [1, 1, rng.uniform(0.5, 1.2), rng.uniform(0.6, 1)]
    given = {
        "x": floats(seed, 2, 3, 7, 6),
        "roi": np.array([*begin, *end], np.float32),
        "": np.zeros(0, np.float32),
        "sizes": np.array([2, 3, rng.randint(1, 9), rng.randint(1, 9)], np.int64),
    }
    model = one_node(
        "Resize", given, 19, constants=("sizes",), mode=mode, extrapolation_value=9.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    inputs = {name: given[name] for name in ("x", "roi")}
    (y,) = backend.run_model(model, inputs, board)
    np.testing.assert_allclose(y, reference(model, inputs)["y"], rtol=1e-4, atol=1e-5)


def test_a_region_that_is_data_and_cubic() -> None:
    given = {
        "x": floats(0, 1, 1, 4, 4),
        "roi": np.zeros(8, np.float32),
        "": np.zeros(0, np.float32),
        "sizes": np.array([1, 1, 3, 3], np.int64),
    }
    model = one_node(
        "Resize", given, 19, constants=("sizes",), mode="cubic",
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    assert refusal(model) == (
        "this way of sampling a region that is known at run time is not supported\n"
        "  in:  the model, node 'node' (Resize)\n"
        "  try: mode linear, or a model in which 'roi' is constant"
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_term_of_regions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 5, (4, 2))
    given = {
        "x": floats(seed, 2, 3, 9, 8),
        "rois": np.hstack([corner, corner + rng.uniform(1, 6, (4, 2))]).astype(np.float32),
        "batch": rng.integers(0, 2, 4),
    }
    model = one_node(
        "RoiAlign", given, 16, mode="max", output_height=3, output_width=2, sampling_ratio=2
    )
    found = evaluate(from_onnx(model), given)["y"]
    np.testing.assert_allclose(found, reference(model, given)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_samples_around_an_image(mode: str, padding: str, corners: int) -> None:
    """As onnxruntime and PyTorch have them, also within two pixels of the image."""
    grid = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 9, 8, 2)).astype(np.float32)
    given = {"x": floats(4, 2, 3, 6, 7), "grid": grid}
    model = one_node(
        "GridSample", given, 20, mode=mode, padding_mode=padding, align_corners=corners
    )
    found = evaluate(from_onnx(model), given)["y"]
    np.testing.assert_allclose(found, reference(model, given)["y"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 2), (2, 3)])
def test_sequences_of_numbers(lengths: tuple[int, int], skips: int, mode: str) -> None:
    x = np.random.default_rng(skips).integers(0, 4, (3, 9))
    model = one_node(
        "TfIdfVectorizer", {"x": x}, 9, mode=mode, min_gram_length=lengths[0],
        max_gram_length=lengths[1], max_skip_count=skips, ngram_counts=[0, 3, 7],
        ngram_indexes=[4, 0, 1, 3, 2, 5], weights=[0.5, 1.5, 2.0, 3.0, 1.0, 0.25],
        pool_int64s=[0, 1, 3, 2, 1, 0, 3, 1, 2, 3],
    )  # fmt: skip
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    found = evaluate(from_onnx(model), [x])["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"])


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("RandomNormal", {"mean": 2.0, "scale": 0.5}), ("RandomUniform", {"low": -1.0})],
)
def test_random_numbers_of_a_seed(op: str, attributes: dict[str, Any]) -> None:
    """onnx's reference draws them with numpy's generator, too."""
    node = helper.make_node(op, [], ["r"], shape=[4, 5], seed=7.0, **attributes)
    add = helper.make_node("Add", ["x", "r"], ["y"])
    info = helper.make_tensor_value_info
    names = (info("x", TensorProto.FLOAT, [4, 5]), info("y", TensorProto.FLOAT, [4, 5]))
    graph = helper.make_graph([node, add], "graph", [names[0]], [names[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    x = floats(1, 4, 5)
    (theirs,) = list(ReferenceEvaluator(model).run(None, {"x": x}))
    np.testing.assert_allclose(evaluate(from_onnx(model), [x])["y"], theirs, rtol=1e-6)


def test_bernoulli_of_a_seed() -> None:
    x = np.repeat(np.array([0.1, 0.5, 0.9], np.float32), 2000).reshape(3, 2000)
    found = evaluate(from_onnx(one_node("Bernoulli", {"x": x}, 22, seed=1.0)), [x])["y"]
    assert set(np.unique(found)) == {0, 1}
    np.testing.assert_allclose(found.mean(1), x.mean(1), atol=0.03)


def test_random_numbers_without_a_seed() -> None:
    x = floats(1, 4)
    assert refusal(one_node("RandomNormalLike", {"x": x})) == (
        "without a seed, every run would have other random numbers\n"
        "  in:  the model, node 'node' (RandomNormalLike)\n"
        "  try: a seed, or the random numbers as an input"
    )


@pytest.mark.parametrize("training", [False, True])
def test_dropout_decided_by_an_input(training: bool) -> None:
    ratio, decided = np.array(0.3, np.float32), np.array(training)
    given: dict[str, Array] = {"x": floats(2, 6, 7), "ratio": ratio, "training": decided}
    model = one_node("Dropout", given, 13, ("y", "mask"), seed=3)
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.BOOL
    found = evaluate(from_onnx(model), given)
    theirs = ReferenceEvaluator(model).run(None, given)
    for mine, other in zip(found.values(), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)


@pytest.mark.parametrize("op", ["Adagrad", "Adam", "Momentum"])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_of_training(op: str, count: int, groups: int) -> None:
    kept = 2 if op == "Adam" else 1
    given: dict[str, Array] = {"r": np.array(0.1, np.float32), "t": np.array(count)}
    for k in range((2 + kept) * groups):
        given[f"v{k}"] = np.abs(floats(k, 3, 2))
    attributes: dict[str, Any] = {"norm_coefficient": 0.01}
    if op == "Momentum":
        attributes |= {"alpha": 0.9, "beta": 0.8, "mode": "nesterov"}
    outputs = tuple(f"y{k}" for k in range((1 + kept) * groups))
    domain = "ai.onnx.preview.training"
    model = one_node(op, given, 17, outputs, domain=domain, **attributes)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    found = evaluate(from_onnx(model), given)
    theirs = ReferenceEvaluator(model).run(None, given)
    for mine, other in zip(found.values(), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_an_opset_before_6() -> None:
    """onnx itself brings it to opset 6: Reshape had its shape as an attribute."""
    node = helper.make_node("Reshape", ["x"], ["y"], shape=[3, 2])
    info = helper.make_tensor_value_info
    names = (info("x", TensorProto.FLOAT, [2, 3]), info("y", TensorProto.FLOAT, [3, 2]))
    graph = helper.make_graph([node], "graph", [names[0]], [names[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=3)
    x = floats(0, 2, 3)
    np.testing.assert_array_equal(evaluate(from_onnx(model), [x])["y"], x.reshape(3, 2))


def test_mel_weights() -> None:
    values = {"bins": 8, "length": 64, "rate": 8192, "low": 100.0, "high": 4000.0}
    dtypes = {k: np.float32 if isinstance(v, float) else np.int64 for k, v in values.items()}
    given = {k: np.array(v, dtypes[k]) for k, v in values.items()}
    model = one_node("MelWeightMatrix", given, 17, constants=tuple(given))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    (theirs,) = list(ReferenceEvaluator(model).run(None, {}))
    np.testing.assert_allclose(evaluate(from_onnx(model), [])["y"], theirs, atol=1e-6)


@pytest.mark.parametrize(
    "classes", [{"classlabels_int64s": [1, 2, 7]}, {"classlabels_strings": ["1", "2", "7"]}]
)
def test_maps_are_columns(classes: dict[str, Any]) -> None:
    """As skl2onnx writes a classifier, whose second output is a sequence of maps."""
    x = floats(0, 2, 3)
    model = one_node("ZipMap", {"x": x}, domain="ai.onnx.ml", **classes)
    key = TensorProto.INT64 if "classlabels_int64s" in classes else TensorProto.STRING
    score = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, score))
    model.graph.output[0].type.CopyFrom(maps)
    with pytest.warns(ModelWarning, match="a tensor with a column for each class: 1, 2, 7$"):
        function = from_onnx(model)
    found = evaluate(function, [x])["y"]
    theirs = reference(model, {"x": x})["y"]
    for row, wanted in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(row, list(wanted.values()))


def test_maps_need_a_column_for_each_class() -> None:
    x = floats(0, 2, 4)
    text = refusal(one_node("ZipMap", {"x": x}, domain="ai.onnx.ml", classlabels_int64s=[1, 2, 3]))
    assert text.startswith("4 columns for 3 classes")


def test_models_of_the_backend_are_freed_with_their_last_reference() -> None:
    """onnx's own runner never closes what it prepares; a board holds 256 modules."""
    x = floats(0, 3)
    for number in range(300):
        model = one_node("Add", {"x": x, "c": np.full(3, number % 3, np.float32)}, constants=("c",))
        (y,) = backend.prepare(model).run([x])
        np.testing.assert_array_equal(y, x + np.float32(number % 3))


SMALL: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    **{
        f"an output of {size}, whose natural size is 8, {mode}": (
            "ConvTranspose",
            {"x": floats(1, 1, 1, 3), "w": floats(2, 1, 1, 2)},
            {"strides": [3], "output_shape": [size], "auto_pad": mode},
        )
        for size in (6, 8, 9, 10)
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
    },
    **{
        f"a label of 1 and 4 in {equation}": (
            "Einsum",
            {"a": floats(1, 3, 1), "b": floats(2, *shape)},
            {"equation": equation},
        )
        for equation, shape in {
            "ij,jk->ik": (4, 5), "ij,ij->ij": (3, 4), "ij,ij->": (3, 4), "ij,ij->j": (1, 4),
        }.items()
    },
    "powers of float64": ("Pow", {"a": np.array([2.0, 3]), "b": np.array([0.5, 2])}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_as_onnxruntime(name: str) -> None:
    op, given, attributes = SMALL[name]
    model = one_node(op, given, 13, **attributes)
    (y,) = backend.run_model(model, given, BOARDS[0])
    np.testing.assert_allclose(y, reference(model, given)["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("board", BOARDS)
def test_specials_of_powers_of_float64(board: str) -> None:
    x = np.array([0, -0.0, 1, -1, 2, -2, -8, 1e300, np.inf, -np.inf, np.nan, 0.5])
    y = np.array([0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1 / 3, 1e3, np.inf, -np.inf, np.nan, 1025])
    given = dict(zip("ab", (v.ravel() for v in np.meshgrid(x, y)), strict=True))
    (found,) = backend.run_model(one_node("Pow", given), given, board)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.power(given["a"], given["b"]), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("outputs", [("y",), ("y", "mask")])
def test_dropout_of_nothing_in_training(outputs: tuple[str, ...]) -> None:
    given = {"x": floats(1, 3, 4), "ratio": np.array(0, np.float32), "train": np.array(True)}
    model = one_node("Dropout", given, 13, outputs, constants=("ratio", "train"))
    y, *mask = backend.run_model(model, {"x": given["x"]}, BOARDS[0])
    np.testing.assert_array_equal(y, given["x"])
    assert all(m.all() for m in mask)
