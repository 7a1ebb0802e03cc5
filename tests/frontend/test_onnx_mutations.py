"""Damaged models: an error message or a valid graph, never anything else; and where onnxruntime
takes the model too, the same numbers as there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import Function, evaluate, optimize, verify
from tests.frontend.onnx_suite import cases
from tests.onnx_models import one_node

DIGITS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models" / "digits_cnn.onnx"


def small_models() -> list[bytes]:
    """Models of few bytes, so that a mutation more often hits what gives them their shape."""
    x = np.ones((1, 2, 6, 6), np.float32)
    w = np.ones((4, 2, 3, 3), np.float32)
    ints = np.array
    return [
        DIGITS.read_bytes(),
        one_node(
            "Conv", {"x": x, "w": w}, constants=["w"], pads=[1, 1, 1, 1], strides=[2, 2], group=1
        ).SerializeToString(),
        one_node("Reshape", {"x": x, "s": ints([2, -1])}, constants=["s"]).SerializeToString(),
        one_node(
            "Slice",
            {"x": x, "starts": ints([1]), "ends": ints([-1]), "axes": ints([3])},
            constants=["starts", "ends", "axes"],
        ).SerializeToString(),
        one_node(
            "AveragePool", {"x": x}, kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1
        ).SerializeToString(),
        one_node(
            "Expand", {"x": x, "s": ints([3, 1, 1, 1, 1])}, constants=["s"]
        ).SerializeToString(),
    ]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """data with one to four of its bytes changed, some cut out, or some doubled."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + rng.randint(1, 8)]
            case _:
                out[at:at] = out[at : at + rng.randint(1, 8)]
    return bytes(out)


def refused_or_valid(model: bytes | ModelProto, seed: int) -> Function | None:
    """The graph of the model, None where a message says why there is none."""
    try:
        function = optimize(from_onnx(model))
    except ImporterError as error:
        assert error.what and error.where, seed
        return None
    verify(function)
    return function


def hold(seeds: range) -> int:
    """How many mutations of the models' bytes still gave a graph."""
    models = small_models()
    graphs = 0
    for seed in seeds:
        data = mutated(models[seed % len(models)], random.Random(seed))
        graphs += refused_or_valid(data, seed) is not None
    return graphs


def test_mutations() -> None:
    assert 0 < hold(range(1000)) < 1000


@pytest.mark.onnx
def test_many_mutations() -> None:
    assert 0 < hold(range(1000, 20_000)) < 19_000


# ------------------------------------------------------------------------------------- structure


def graphs() -> list[ModelProto]:
    """Models of several nodes, so that there is something to exchange."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    def ints(name: str, *values: int) -> TensorProto:
        return numpy_helper.from_array(np.array(values), name)

    node = helper.make_node
    network = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "s"], ["f"]),
        node("Gemm", ["f", "v"], ["g"], transB=1, alpha=0.5),
        node("Softmax", ["g"], ["y"], axis=-1),
    ]
    shapes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        node("Slice", ["t", "begin", "end", "axes"], ["l"]),
        node("Concat", ["l", "l"], ["d"], axis=1),
        node("ReduceMean", ["d"], ["m"], axes=[1], keepdims=1),
        node("Sub", ["d", "m"], ["z"]),
        node("Gather", ["z", "places"], ["k"], axis=2),
        node("Pad", ["k", "pads"], ["q"]),
        node("Clip", ["q", "low", "high"], ["y"]),
    ]
    bounds = [
        numpy_helper.from_array(np.array(bound, np.float32), name)
        for name, bound in (("low", -1), ("high", 1))
    ]
    parts = (
        (
            network,
            [weights("w", 4, 3, 3, 3), weights("b", 4), weights("v", 5, 16), ints("s", 2, -1)],
        ),
        (
            shapes,
            [
                ints("begin", 1, 0),
                ints("end", 7, 5),
                ints("axes", 1, 2),
                ints("places", 0, 3, -1),
                ints("pads", 0, 1, 0, 0, 0, 0, 2, 0),
                *bounds,
            ],
        ),
    )
    opsets = [helper.make_opsetid("", 17)]
    return [
        helper.make_model(
            helper.make_graph(nodes, "graph", [x], [y], tensors),
            opset_imports=opsets,
            ir_version=8,
        )
        for nodes, tensors in parts
    ]


def _rewire(model: ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    names = [i for n in nodes for i in (*n.input, *n.output)]
    node = rng.choice(nodes)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, ""])


def _rename(model: ModelProto, rng: random.Random) -> None:
    others = ("Add", "Relu", "MatMul", "Conv", "Transpose", "Concat", "Softmax", "Mul", "Flatten")
    rng.choice(model.graph.node).op_type = rng.choice(others)


def _drop(model: ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def _exchange(model: ModelProto, rng: random.Random) -> None:
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _attribute(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in model.graph.node if n.attribute])
    number = rng.randrange(len(node.attribute))
    attribute = node.attribute[number]
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(
            (-2, -1, 0, 1, 2, 3, 1 << 40)
        )
    elif attribute.HasField("i"):
        attribute.i = rng.choice((-3, -1, 0, 1, 2, 7))
    if rng.random() < 0.2:
        del node.attribute[number]


def _weights(model: ModelProto, rng: random.Random) -> None:
    """Other dimensions, or other numbers where they are indices and shapes."""
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype == np.int64 and array.size:
        array[rng.randrange(array.size)] = rng.choice((-9, -1, 0, 1, 2, 4, 9, 1 << 33))
    elif array.ndim > 1:
        array = (
            np.moveaxis(array, 0, -1) if rng.random() < 0.5 else array[..., : -rng.randint(0, 2)]
        )
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _input(model: ModelProto, rng: random.Random) -> None:
    kind = model.graph.input[0].type.tensor_type
    if rng.random() < 0.3:
        kind.elem_type = rng.choice((TensorProto.DOUBLE, TensorProto.INT32, TensorProto.FLOAT16))
    else:
        kind.shape.dim[rng.randrange(4)].dim_value = rng.choice((0, 1, 2, 3, 5, 9))


CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _rewire,
    _rename,
    _drop,
    _exchange,
    _attribute,
    _attribute,
    _weights,
    _weights,
    _input,
)


def by_onnxruntime(model: ModelProto, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    """Its outputs, None where it refuses the model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results: list[NDArray[Any]] = session.run(None, inputs)
    except Exception:  # it has a dozen kinds, of no common class
        return None
    return results


def has_empty(model: ModelProto) -> bool:
    """Whether a tensor has no elements: the mean of none is undefined."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = [i.type.tensor_type.shape for i in inferred.graph.value_info]
    return any(d.HasField("dim_value") and d.dim_value == 0 for s in shapes for d in s.dim)


def agree(seeds: range) -> tuple[int, int]:
    """How many mutations of the models' structure we took, and how many of them onnxruntime."""
    taken = compared = 0
    for seed in seeds:
        rng = random.Random(seed)
        model = graphs()[seed % 2]
        for _ in range(rng.randint(1, 3)):
            if model.graph.node:
                rng.choice(CHANGES)(model, rng)
        function = refused_or_valid(model, seed)
        if function is None:
            continue
        taken += 1
        numbers = np.random.default_rng(seed)
        inputs = {
            p.name: numbers.normal(0, 2, tuple(map(int, p.type.shape))).astype(p.type.dtype)  # type: ignore[arg-type]
            for p in function.params
        }
        theirs = None if has_empty(model) else by_onnxruntime(model, inputs)
        if theirs is None:
            continue
        compared += 1
        for a, b in zip(evaluate(function, inputs).values(), theirs, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, seed
            with np.errstate(all="ignore"):
                most = np.abs(b[np.isfinite(b)]).max(initial=0)
                near = np.isclose(a, b, 1e-3, 2e-4 * most + 1e-30, equal_nan=True)
            assert near.all(), seed
    return taken, compared


def test_structure() -> None:
    taken, compared = agree(range(200))
    assert taken >= 40 and compared >= 30


@pytest.mark.onnx
def test_much_structure() -> None:
    taken, compared = agree(range(200, 1500))
    assert taken >= 250 and compared >= 180


SUITE = (
    "ai_onnx_ml_tree_ensemble_set_membership", "tfidfvectorizer_tf_batch_uniandbigrams_skip5",
    "dequantizelinear_int4", "quantizelinear_e4m3fn", "cast_FLOAT8E5M2_to_FLOAT", "det_nd", "adam",
    "training_dropout", "resize_tf_crop_and_resize", "scan_sum", "melweightmatrix",
)  # fmt: skip


@pytest.mark.parametrize("name", SUITE)
def test_damaged_models_of_the_suite(name: str) -> None:
    data = cases()[f"node/test_{name}"].model.SerializeToString()
    for seed in range(60):
        refused_or_valid(mutated(data, random.Random(f"{name} {seed}")), seed)
