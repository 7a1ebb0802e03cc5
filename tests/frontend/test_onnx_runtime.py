"""onnxruntime's own operators, which its optimizers and quantizers write, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlc_deploy import backend
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.onnx_models import reference

Array = NDArray[Any]
Case = tuple[str, dict[str, Array | None], dict[str, Any]]


def f32(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def q8(seed: int, *shape: int, dtype: Any = np.uint8) -> Array:
    """Any uint8; int8 of seven bits, since onnxruntime adds two products of uint8 and int8 in
    saturating int16 on x86-64 without VNNI."""
    low, high = (-64, 64) if dtype == np.int8 else (0, 256)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def s(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def model(
    op: str,
    inputs: dict[str, Array | None],
    outputs: tuple[str, ...] = ("y",),
    constants: tuple[str, ...] = (),
    domain: str = "com.microsoft",
    **attributes: Any,
) -> Any:
    names = [name if value is not None else "" for name, value in inputs.items()]
    there = {name: value for name, value in inputs.items() if value is not None}
    kind = helper.np_dtype_to_tensor_dtype
    given = [
        helper.make_tensor_value_info(n, kind(v.dtype), v.shape)
        for n, v in there.items()
        if n not in constants
    ]
    node = helper.make_node(op, names, [*outputs], name="n", domain=domain, **attributes)
    weights = [numpy_helper.from_array(there[name], name) for name in constants]
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "graph", given, results, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agrees(made: Any, inputs: dict[str, Array | None], atol: float = 2e-5, board: str = "") -> None:
    given = {i.name: inputs[i.name] for i in made.graph.input}
    theirs: dict[str, Array] = reference(made, given)  # type: ignore[arg-type]
    for output in made.graph.output:
        array = theirs[output.name]
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        output.CopyFrom(helper.make_tensor_value_info(output.name, code, array.shape))
    if board:
        found = dict(zip(theirs, backend.run_model(made, given, board), strict=True))
    else:
        found = evaluate(from_onnx(made), given)  # type: ignore[arg-type]
    for name, array in theirs.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        if array.dtype.kind in "iu":
            np.testing.assert_array_equal(found[name], array)
        else:
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=atol)


X = f32(0, 2, 3, 8)
IMAGE = f32(1, 1, 4, 7, 6)
CONV: dict[str, Array | None] = {"x": IMAGE, "w": f32(2, 5, 4, 3, 3), "b": f32(3, 5)}
Q = {"zx": s(120, np.uint8), "zy": s(3, np.uint8), "sx": s(0.05), "sy": s(0.11)}
PLAIN: list[Case] = [
    ("Gelu", {"x": X}, {}),
    ("BiasGelu", {"x": X, "b": f32(1, 8)}, {}),
    ("FastGelu", {"x": X}, {}),
    ("FastGelu", {"x": X, "b": f32(1, 8)}, {}),
    ("QuickGelu", {"x": X}, {"alpha": 1.5}),
    ("FusedMatMul", {"a": f32(1, 2, 8, 3), "b": f32(2, 2, 8, 4)}, {"transA": 1, "alpha": 0.5}),
    ("FusedMatMul", {"a": f32(1, 2, 3, 8), "b": f32(2, 2, 4, 8)}, {"transB": 1}),
    ("FusedConv", CONV, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedConv", CONV, {"activation": "Clip", "activation_params": [-0.5, 0.5]}),
    ("FusedConv", CONV, {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
    ("FusedConv", {**CONV, "z": f32(4, 1, 5, 5, 4)}, {"activation": "LeakyRelu",
                                                     "activation_params": [0.1]}),
    ("FusedGemm", {"a": f32(1, 3, 4), "b": f32(2, 5, 4), "c": f32(3, 5)},
     {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2}),
    ("MatMulIntegerToFloat",
     {"a": q8(0, 3, 8), "b": q8(1, 8, 5, dtype=np.int8), "sa": s(0.1), "sb": s(0.2),
      "za": s(7, np.uint8)}, {}),
    ("DynamicQuantizeMatMul",
     {"a": f32(0, 3, 8), "b": q8(1, 8, 5), "sb": s(0.2), "zb": s(9, np.uint8), "c": f32(1, 5)}, {}),
    ("QLinearAveragePool",
     {"x": q8(0, 1, 3, 6, 6), "sx": Q["sx"], "zx": Q["zx"], "sy": Q["sy"], "zy": Q["zy"]},
     {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("QLinearAveragePool",
     {"x": q8(0, 1, 6, 6, 3), "sx": Q["sx"], "zx": Q["zx"], "sy": Q["sy"], "zy": Q["zy"]},
     {"kernel_shape": [2, 2], "channels_last": 1}),
    ("QLinearGlobalAveragePool",
     {"x": q8(0, 1, 6, 6, 3), "sx": Q["sx"], "zx": Q["zx"], "sy": Q["sy"], "zy": Q["zy"]},
     {"channels_last": 1}),
    ("QLinearWhere",
     {"c": np.array([True, False, True]), "x": q8(0, 2, 3), "sx": s(0.1), "zx": s(3, np.uint8),
      "v": q8(1, 2, 3), "sv": s(0.2), "zv": s(5, np.uint8), "sy": s(0.2), "zy": s(7, np.uint8)},
     {}),
    ("QLinearConv",
     {"x": q8(0, 1, 6, 5, 4), "sx": Q["sx"], "zx": Q["zx"], "w": q8(1, 3, 4, 3, 3, dtype=np.int8),
      "sw": s(0.01), "zw": s(0, np.int8), "sy": Q["sy"], "zy": Q["zy"]},
     {"channels_last": 1, "pads": [1, 1, 1, 1]}),
    ("NhwcMaxPool", {"x": q8(0, 1, 6, 6, 3)}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes"), PLAIN, ids=[case[0] for case in PLAIN])
def test_plain(op: str, inputs: dict[str, Array | None], attributes: dict[str, Any]) -> None:
    constants = ("sb", "zb", "sw", "zw", "w", "sx", "zx", "sy", "zy", "b", "sv", "zv")
    own = tuple(n for n in constants if n in inputs and op.startswith(("Q", "Dyn", "MatMul")))
    agrees(model(op, inputs, constants=own, **attributes), inputs)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("bias", [False, True])
def test_norms_of_sums(op: str, bias: bool) -> None:
    inputs: dict[str, Array | None] = {"x": X, "s": f32(1, 2, 3, 8), "g": f32(2, 8)}
    if op == "SkipLayerNormalization":
        inputs["b"] = f32(3, 8)
    if bias:
        inputs["c"] = f32(4, 8)
    agrees(model(op, inputs, ("y", "", "", "sum")), inputs)


def test_simplified_norm() -> None:
    inputs: dict[str, Array | None] = {"x": X, "g": f32(2, 8)}
    agrees(model("SimplifiedLayerNormalization", inputs, domain="", axis=-1), inputs)


@pytest.mark.parametrize("places", [False, True])
def test_embeddings(places: bool) -> None:
    words = np.array([[1, 4, 2], [3, 3, 0]], np.int32)
    inputs: dict[str, Array | None] = {
        "ids": words, "segments": words % 2, "w": f32(0, 6, 8), "p": f32(1, 5, 8),
        "s": f32(2, 2, 8), "g": f32(3, 8), "b": f32(4, 8),
        "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
    }  # fmt: skip
    if places:
        inputs["places"] = np.array([[2, 1, 0], [4, 3, 1]], np.int32)
    agrees(model("EmbedLayerNormalization", inputs, ("y", "count")), inputs)


MASKS: dict[str, Array | None] = {
    "none": None,
    "lengths": np.array([2, 3], np.int32),
    "keys": np.array([[1, 0, 1], [1, 1, 0]], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(causal: int, mask: str) -> None:
    inputs: dict[str, Array | None] = {
        "x": X, "w": f32(1, 8, 24), "b": f32(2, 24), "m": MASKS[mask],
    }  # fmt: skip
    agrees(model("Attention", inputs, num_heads=2, unidirectional=causal), inputs)


def test_attention_with_a_past() -> None:
    inputs: dict[str, Array | None] = {
        "x": X, "w": f32(1, 8, 24), "b": f32(2, 24), "m": None, "past": f32(3, 2, 2, 2, 5, 4),
    }  # fmt: skip
    made = model("Attention", inputs, ("y", "present"), num_heads=2, unidirectional=1)
    agrees(made, inputs)


@pytest.mark.parametrize("board", ["", "qemu://cortex-a7"])
def test_quantized_attention(board: str) -> None:
    inputs: dict[str, Array | None] = {
        "x": q8(0, 2, 3, 8), "w": q8(1, 8, 24, dtype=np.int8), "b": f32(2, 24), "sx": s(0.01),
        "sw": s(0.02), "m": MASKS["keys"], "zx": s(128, np.uint8), "zw": s(0, np.int8),
    }  # fmt: skip
    agrees(model("QAttention", inputs, constants=("w",), num_heads=2), inputs, board=board)


@pytest.mark.parametrize("form", ["plain", "bias", "past", "apart", "mask"])
def test_multi_head_attention(form: str) -> None:
    inputs: dict[str, Array | None] = {
        "q": X, "k": f32(1, 2, 5, 8), "v": f32(2, 2, 5, 8), "b": None, "m": None, "a": None,
    }  # fmt: skip
    outputs: tuple[str, ...] = ("y",)
    match form:
        case "bias":
            inputs["b"] = f32(3, 24)
        case "past":
            inputs |= {"pk": f32(4, 2, 2, 6, 4), "pv": f32(5, 2, 2, 6, 4)}
            inputs["k"], inputs["v"] = f32(1, 2, 3, 8), f32(2, 2, 3, 8)
            outputs = ("y", "nk", "nv")
        case "apart":
            inputs["k"], inputs["v"] = f32(1, 2, 2, 5, 4), f32(2, 2, 2, 5, 4)
        case "mask":
            inputs["m"] = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 0, 1]], np.int32)
            inputs["a"] = f32(6, 1, 2, 3, 5)
    agrees(model("MultiHeadAttention", inputs, outputs, num_heads=2), inputs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_rotary_embedding(apart: bool, first: bool, interleaved: int) -> None:
    places = np.array([2], np.int64) if first else np.array([[2, 0, 4], [1, 1, 3]], np.int64)
    inputs: dict[str, Array | None] = {
        "x": f32(0, 2, 2, 3, 8) if apart else f32(0, 2, 3, 16), "p": places,
        "c": f32(1, 6, 4), "s": f32(2, 6, 4),
    }  # fmt: skip
    agrees(model("RotaryEmbedding", inputs, interleaved=interleaved, num_heads=2), inputs)


def test_rotary_embedding_of_heads_that_the_cosines_tell() -> None:
    inputs: dict[str, Array | None] = {
        "x": f32(0, 2, 3, 16), "p": np.array([[2, 0, 4], [1, 1, 3]], np.int64),
        "c": f32(1, 6, 4), "s": f32(2, 6, 4),
    }  # fmt: skip
    agrees(model("RotaryEmbedding", inputs), inputs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("board", ["", "qemu://cortex-a7"])
def test_weights_of_few_bits(board: str, zeros: bool, bits: int) -> None:
    count, width, size = 6, 64, 32
    blocks = width // size
    inputs: dict[str, Array | None] = {
        "x": f32(0, 3, width), "q": q8(1, count, blocks, size * bits // 8),
        "s": np.abs(f32(2, count * blocks)) / 50,
        "z": q8(3, count * -(-blocks * bits // 8)) if zeros else None,
    }  # fmt: skip
    own = ("q", "s", "z") if zeros else ("q", "s")
    made = model("MatMulNBits", inputs, constants=own, bits=bits, N=count, K=width, block_size=size)
    agrees(made, inputs, 1e-3, board=board)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_lstm(direction: str) -> None:
    """Inputs of all steps are rounded to 8 bits together, and the state in each."""
    count = 2 if direction == "bidirectional" else 1
    inputs: dict[str, Array | None] = {
        "x": f32(0, 4, 2, 5), "w": q8(1, count, 5, 12, dtype=np.int8),
        "r": q8(2, count, 3, 12, dtype=np.int8), "b": f32(3, count, 24), "l": None, "h": None,
        "c": None, "p": None, "sw": np.full(count, 0.005, np.float32), "zw": q8(0, count) * 0,
        "sr": np.full(count, 0.004, np.float32), "zr": q8(0, count) * 0,
    }  # fmt: skip
    for name in ("zw", "zr"):
        inputs[name] = np.zeros(count, np.int8)
    own = ("w", "r", "sw", "zw", "sr", "zr")
    made = model(
        "DynamicQuantizeLSTM", inputs, ("y", "h1", "c1"), own, hidden_size=3, direction=direction
    )
    agrees(made, inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "message"),
    [
        ("SkipLayerNormalization", {"x": X, "s": X, "g": f32(2, 8), "b": f32(3, 8)}, ("y", "mean"),
         {}, "the outputs 'mean' and 'inv_std_var' are not supported"),
        ("FusedConv", CONV, ("y",), {"activation": "Softplus"},
         "activation 'Softplus' is not supported"),
        ("Attention", {"x": X, "w": f32(1, 8, 24)}, ("y",), {"num_heads": 2, "do_rotary": 1},
         "do_rotary is not supported"),
        ("MultiHeadAttention", {"q": f32(0, 2, 3, 2, 3, 4)}, ("y",), {"num_heads": 2},
         "queries, keys and values in one input are not supported"),
    ],
)  # fmt: skip
def test_refused(
    op: str, inputs: dict[str, Array | None], outputs: tuple[str, ...],
    attributes: dict[str, Any], message: str,
) -> None:  # fmt: skip
    made = model(op, inputs, outputs, **attributes)
    for output in made.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    with pytest.raises(ImporterError) as caught:
        from_onnx(made)
    assert str(caught.value) == f"{message}\n  in:  the model, node 'n' ({op})"
