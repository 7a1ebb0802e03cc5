"""onnxruntime's operators of decoders, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.frontend.test_onnx_runtime import agrees, f32, model, q8
from tests.onnx_models import reference

Array = NDArray[Any]
HEADS, KEPT, WIDTH = 4, 2, 16


def attention(batch: int = 1, count: int = 3, before: int = 5, **more: Array | None) -> Any:
    """The inputs of GroupQueryAttention."""
    inputs: dict[str, Array | None] = {
        "q": f32(0, batch, count, HEADS * WIDTH), "k": f32(1, batch, count, KEPT * WIDTH),
        "v": f32(2, batch, count, KEPT * WIDTH), "pk": f32(3, batch, KEPT, before, WIDTH),
        "pv": f32(4, batch, KEPT, before, WIDTH),
        "lengths": np.full(batch, before + count - 1, np.int32),
        "total": np.array(before + count, np.int32), "cos": None, "sin": None, "places": None,
        "bias": None, "sink": None,
    }  # fmt: skip
    return inputs | more


ANGLES = {"cos": f32(5, 16, WIDTH // 2), "sin": f32(6, 16, WIDTH // 2)}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "the first step": ({"before": 0}, {}),
    "one token": ({"count": 1}, {}),
    "texts of one length": ({"batch": 2, "before": 0}, {}),
    "turned": (ANGLES, {"do_rotary": 1}),
    "turned, interleaved": (ANGLES, {"do_rotary": 1, "rotary_interleaved": 1}),
    "a window": ({}, {"local_window_size": 3}),
    "a scale and a cap": ({}, {"scale": 0.3, "softcap": 2.0}),
    "bias": ({"bias": f32(7, 1, HEADS, 3, 8)}, {}),
    "smooth": ({}, {"smooth_softmax": 1}),
    "a sink": ({"sink": f32(8, HEADS)}, {}),
    "together": (
        {"q": f32(9, 1, 3, (HEADS + 2 * KEPT) * WIDTH), "k": None, "v": None, **ANGLES},
        {"do_rotary": 1},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_group_query_attention(form: str) -> None:
    given, attributes = FORMS[form]
    inputs = attention(**given)
    made = model(
        "GroupQueryAttention", inputs, ("y", "nk", "nv"), num_heads=HEADS, kv_num_heads=KEPT,
        **attributes,
    )  # fmt: skip
    agrees(made, inputs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("board", ["", "qemu://cortex-a7"])
def test_embeddings_of_few_bits(board: str, zeros: bool, bits: int) -> None:
    count, width, size = 10, 48, 16
    blocks = width // size
    inputs: dict[str, Array | None] = {
        "q": q8(0, count, width * bits // 8), "ids": np.array([[3, 0, 9], [1, 1, 7]], np.int64),
        "s": np.abs(f32(1, count, blocks)) / 50,
        "z": q8(2, count, -(-blocks * bits // 8)) if zeros else None,
    }  # fmt: skip
    own = ("q", "s", "z") if zeros else ("q", "s")
    made = model(
        "GatherBlockQuantized", inputs, constants=own, bits=bits, block_size=size, quantize_axis=1
    )
    agrees(made, inputs, board=board)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_embeddings_of_narrow_numbers(kind: int) -> None:
    low, high = (-8, 8) if kind == TensorProto.INT4 else (0, 16)
    rng = np.random.default_rng(0)
    numbers = rng.integers(low, high, (10, 48))
    scales = np.abs(f32(1, 10, 3)) / 50
    ids = np.array([[3, 0, 9]], np.int64)
    made = model(
        "GatherBlockQuantized", {"q": scales, "ids": ids, "s": scales}, constants=("s",),
        block_size=16, quantize_axis=1,
    )  # fmt: skip
    del made.graph.input[0]
    made.graph.initializer.append(helper.make_tensor("q", kind, (10, 48), numbers.reshape(-1)))
    agrees(made, {"ids": ids})


@pytest.mark.parametrize(
    ("given", "attributes", "message"),
    [
        ({"batch": 2}, {}, "2 texts with a past, each of a length of its own, are not supported\n"
         "  in:  the model, node 'n' (GroupQueryAttention)\n  try: one text"),
        ({}, {"k_quant_type": "PER_TENSOR"},
         "a cache of quantized numbers (k_quant_type) is not supported\n"
         "  in:  the model, node 'n' (GroupQueryAttention)"),
    ],
)  # fmt: skip
def test_refused_attention(given: Any, attributes: Any, message: str) -> None:
    made = model(
        "GroupQueryAttention", attention(**given), ("y", "nk", "nv"), num_heads=HEADS,
        kv_num_heads=KEPT, **attributes,
    )  # fmt: skip
    for output in made.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    with pytest.raises(ImporterError) as caught:
        from_onnx(made)
    assert str(caught.value) == message


def test_refused_embeddings() -> None:
    inputs: dict[str, Array | None] = {
        "q": q8(0, 4, 16), "ids": np.array([1], np.int64), "s": f32(1, 4, 2),
    }  # fmt: skip
    made = model("GatherBlockQuantized", inputs, constants=("q", "s"), gather_axis=1, block_size=16)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    with pytest.raises(ImporterError) as caught:
        from_onnx(made)
    assert str(caught.value) == (
        "axes other than 0 (of rows) and the last one (of blocks) are not supported\n"
        "  in:  the model, node 'n' (GatherBlockQuantized)"
    )
    assert numpy_helper.to_array(made.graph.initializer[0]).shape == (4, 16)


@pytest.mark.parametrize("form", ["", "unidirectional", "Attention"])
def test_attention_of_open_lengths(form: str) -> None:
    """onnxruntime's own operator, and ONNX's, over a past and a step known at run time."""
    heads, own = 4, form == "Attention"
    inputs: dict[str, Array | None] = {
        "q": f32(0, 1, 3, 64), "k": f32(1, 1, 3, 64), "v": f32(2, 1, 3, 64), "b": None,
    }  # fmt: skip
    if not own:
        inputs |= {"m": None, "a": None}
    inputs |= {"pk": f32(3, 1, heads, 5, 16), "pv": f32(4, 1, heads, 5, 16)}
    if own:
        sizes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": 1}
        made = model("Attention", inputs, ("y", "nk", "nv"), domain="", **sizes)
        made.opset_import[0].version, made.ir_version = 23, 10
    else:
        more: dict[str, Any] = {form: 1} if form else {}
        made = model("MultiHeadAttention", inputs, ("y", "nk", "nv"), num_heads=heads, **more)
    given = {n: a for n, a in inputs.items() if a is not None}
    right = reference(made, given)
    for info in made.graph.input:
        past = info.name.startswith("p")
        dim = info.type.tensor_type.shape.dim[2 if past else 1]
        dim.dim_param = "past" if past else "step"
    for output in made.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    found = evaluate(from_onnx(made, dims={"past": "<=16", "step": "<=8"}), given)
    for name, array in right.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-5)
