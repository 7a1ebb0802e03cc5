"""Quantized models as integers: against the floats they stand for, and onnxruntime's kernels."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import (
    BlockBuilder,
    Call,
    CallFused,
    Constant,
    Function,
    evaluate,
    optimize,
)
from mlc_deploy.graph.fuse import fuse_operators
from mlc_deploy.graph.passes import canonicalize_quantized
from tests.graph.small_graphs import built, drawn, inputs_of, ops
from tests.graph.test_graph import CONV

Array = NDArray[Any]
SCALE = 0.05  # of what layers give


def constant(value: Any, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def pair(b: BlockBuilder, x: Any, scale: float, zero: int, dtype: str = "uint8") -> Any:
    """x as numbers of that dtype can say it."""
    how = constant(scale, "float32"), constant(zero, dtype)
    return b.emit("dequantize", b.emit("quantize", x, *how), *how)


def weights(b: BlockBuilder, shape: tuple[int, ...], dtype: str, zero: int, channels: bool) -> Any:
    """Integers, and their scale or scales."""
    rng = np.random.default_rng(1)
    low, high = (0, 256) if dtype == "uint8" else (-127, 128)
    q = Constant(rng.integers(low, high, shape).astype(dtype))
    along = (-1,) + (1,) * (len(shape) - 1)
    scale = rng.uniform(0.002, 0.01, shape[0]).reshape(along) if channels else np.asarray(0.004)
    zeros = np.full(scale.shape, zero, dtype)
    return b.emit("dequantize", q, constant(scale, "float32"), Constant(zeros)), scale


def layer(
    op: str, dtype: str, weight: tuple[str, int], channels: bool, activation: str, bias: str
) -> Function:
    """quantize(activation(layer(dequantize(x), dequantize(w)) + bias)), as exporters write it."""

    def build(b: BlockBuilder, x: Any) -> Any:
        zero = 120 if dtype == "uint8" else 3
        x = pair(b, x, 0.02, zero, dtype)
        if op == "dense":
            w, scale = weights(b, (6, 20), *weight, channels)
            y = b.emit("dense", b.emit("reshape", x, shape=(5, 20)), w, transpose_b=True)
        elif op == "matmul":
            w, scale = weights(b, (6, 5), *weight, channels)
            y = b.emit("matmul", x, b.emit("transpose", w, axes=(1, 0)))
        else:
            groups = 2 if op == "grouped" else 1
            w, scale = weights(b, (6, 4 // groups, 3, 3), *weight, channels)
            y = b.emit("conv2d", x, w, **{**CONV, "groups": groups})
        along = (6,) if op in ("dense", "matmul") else (6, 1, 1)
        if bias == "int32":
            of_sums = np.float32(0.02) * scale.astype(np.float32)
            of_sums = of_sums.reshape(-1 if channels else ())
            q = Constant(np.arange(-900, 900, 300).astype(np.int32))
            zeros = Constant(np.zeros(of_sums.shape, np.int32))
            real = b.emit("dequantize", q, Constant(of_sums), zeros)
            y = b.emit("add", y, b.emit("reshape", real, shape=along))
        elif bias == "float32":
            y = b.emit("add", y, Constant(drawn(6).value.reshape(along)))
        if activation == "relu":
            y = b.emit("relu", y)
        elif activation == "clip":
            y = b.emit("clip", y, min=-0.5, max=2.0)
        return pair(b, y, SCALE, 100 if dtype == "uint8" else -10, dtype)

    return built(build)


def differences(function: Function, result: Function) -> Array:
    """How many steps of the output's scale apart."""
    inputs = inputs_of(function)
    (before,), (after,) = (list(evaluate(f, inputs).values()) for f in (function, result))
    steps: Array = np.rint(np.abs(before - after) / SCALE)
    return steps


FORMS = list(
    itertools.product(
        ("conv2d", "grouped", "dense", "matmul"),
        ("uint8", "int8"),
        (("int8", 0), ("int8", 5), ("uint8", 128), ("uint8", 90)),
    )
)


@pytest.mark.parametrize("op, dtype, weight", FORMS, ids=str)
def test_layers(op: str, dtype: str, weight: tuple[str, int]) -> None:
    """Floats differ from integers by a step where their sums round across a half: here nowhere,
    or in single outputs."""
    for channels, activation, bias in itertools.product(
        (False, True), ("", "relu", "clip"), ("", "int32", "float32")
    ):
        function = layer(op, dtype, weight, channels, activation, bias)
        result = optimize(function, (canonicalize_quantized,))
        made = ops(result)
        assert "requantize" in made and made.count("dequantize") == 1, made
        steps = differences(function, result)
        assert steps.max() <= 1 and steps.mean() <= 0.01


def test_zero_points_become_part_of_the_bias() -> None:
    function = layer("conv2d", "uint8", ("int8", 0), True, "relu", "int32")
    result = optimize(function, (canonicalize_quantized,))
    assert ops(result) == "quantize conv2d add add requantize clip dequantize"
    conv = result.bindings[1].call
    assert isinstance(conv, Call) and conv.attrs["pad_value"] == 120 - 128  # int8 by then


def test_relu_that_saturation_does_is_left_out() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        w, _ = weights(b, (6, 4, 3, 3), "int8", 0, False)
        y = b.emit("relu", b.emit("conv2d", pair(b, x, 0.02, 0, "uint8"), w, **CONV))
        return pair(b, y, SCALE, 0)

    result = optimize(built(build), (canonicalize_quantized,))
    assert ops(result) == "quantize conv2d add requantize dequantize"


def test_a_layer_without_quantized_output_gives_floats_of_exact_sums() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        w, _ = weights(b, (6, 4), "int8", 0, True)
        return b.emit("dense", pair(b, x, 0.02, 0, "int8"), w, transpose_b=True)

    function = built(build, (3, 4))
    result = optimize(function, (canonicalize_quantized,))
    assert ops(result) == "quantize dense dequantize"
    inputs = inputs_of(function)
    (before,), (after,) = (list(evaluate(f, inputs).values()) for f in (function, result))
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_two_computed_factors() -> None:
    """As in attention: both have zero points, so rows and columns are summed up as well."""

    def build(b: BlockBuilder, x: Any) -> Any:
        other = b.emit("transpose", pair(b, b.emit("tanh", x), 0.01, 7, "int8"), axes=(0, 2, 1))
        y = b.emit("matmul", pair(b, x, 0.02, 120), other)
        return pair(b, y, SCALE, 128)

    function = built(build, (2, 3, 4))
    result = optimize(function, (canonicalize_quantized,))
    assert "dequantize matmul" not in ops(result)
    assert differences(function, result).max() == 0


def test_integers_move_through_what_keeps_them() -> None:
    """Every output is exactly that of the floats."""
    window: dict[str, Any] = {
        "kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 1, 1, 0),
        "ceil_mode": False,
    }  # fmt: skip

    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("max_pool", pair(b, x, SCALE, 9), **window)
        y = b.emit("concatenate", b.emit("relu", y), y, axis=1)
        y = b.emit("pad", y, pads=(0, 0, 1, 1, 0, 0, 0, 0), mode="constant", value=0.0)
        y = b.emit("transpose", y, axes=(0, 2, 3, 1))
        return pair(b, b.emit("reshape", y, shape=(1, y.type.elements)), SCALE, 9)

    function = built(build)
    result = optimize(function, (canonicalize_quantized,))
    assert ops(result).startswith("quantize max_pool maximum concatenate pad transpose reshape ")
    assert ops(result).endswith("dequantize") and ops(result).count("quantize") == 2
    assert differences(function, result).max() == 0


def test_other_scales_stay_float() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return b.emit("concatenate", pair(b, x, 0.02, 3), pair(b, x, 0.03, 3), axis=1)

    function = built(build)
    assert ops(optimize(function, (canonicalize_quantized,))) == ops(function)


def test_averages_are_sums_of_integers() -> None:
    window: dict[str, Any] = {
        "kernel": (2, 3), "strides": (2, 1), "dilations": (1, 1), "pads": (0, 1, 0, 1),
        "ceil_mode": False,
    }  # fmt: skip

    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("avg_pool", pair(b, x, 0.02, 120), count_include_pad=True, **window)
        y = b.emit("mean", pair(b, y, 0.02, 120), axes=(2, 3), keepdims=True)
        return pair(b, y, 0.01, 3)

    function = built(build)
    result = optimize(function, (canonicalize_quantized,))
    made = ops(result)
    assert "sum_pool" in made and "mean" not in made and made.count("requantize") == 2
    (before,), (after,) = (
        list(evaluate(f, inputs_of(function)).values()) for f in (function, result)
    )
    assert np.rint(np.abs(before - after) / 0.01).max() <= 1

    def uneven(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("avg_pool", pair(b, x, 0.02, 120), count_include_pad=False, **window)
        return pair(b, y, 0.02, 120)

    assert "avg_pool" in ops(optimize(built(uneven), (canonicalize_quantized,)))


def test_uint8_is_int8_inside() -> None:
    """Parameters and outputs stay what they are; so do integer layers of other importers."""
    b = BlockBuilder()
    x = b.param("x", (1, 4, 5, 5), "uint8")
    w = Constant(np.random.default_rng(0).integers(-127, 128, (8, 4, 3, 3)).astype(np.int8))
    sums = b.emit("conv2d", x, w, pad_value=200, **CONV)
    y = b.emit("requantize", sums, constant(0.003, "float32"), constant(90, "uint8"))
    window: dict[str, Any] = {"kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1)}
    y = b.emit("max_pool", y, pads=(0, 1, 1, 0), ceil_mode=False, **window)
    y = b.emit("clip", y, min=95, max=None)
    z = b.emit(
        "conv2d", y, Constant(w.value[:, :, :1, :1].repeat(2, 1)), **{**CONV, "pads": (0,) * 4}
    )
    function = b.finish([b.emit("concatenate", y, y, axis=1), z])
    result = optimize(function, (canonicalize_quantized,))
    layers = [c.call for c in result.bindings if isinstance(c.call, Call)]
    data = [c.args[0].type.dtype for c in layers if c.op in ("conv2d", "max_pool", "clip")]
    assert data == ["int8"] * 4, str(result)
    inputs = inputs_of(function)
    inputs[0] = np.random.default_rng(1).integers(0, 256, (1, 4, 5, 5)).astype(np.uint8)
    before, after = (list(evaluate(f, inputs).values()) for f in (function, result))
    for wanted, found in zip(before, after, strict=True):
        assert wanted.dtype == found.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("most", [127, 255])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_weights_of_uint8_are_int8_inside(groups: int, most: int, dtype: str) -> None:
    """As onnxruntime's dynamic quantization has them; those below 128 stay as they are."""
    b = BlockBuilder()
    x = b.param("x", (1, 4, 5, 5), dtype)
    rng = np.random.default_rng(0)
    w = Constant(rng.integers(0, most + 1, (8, 4 // groups, 3, 3)).astype(np.uint8))
    y = b.emit("conv2d", x, w, **{**CONV, "groups": groups}, pad_value=100)
    function = b.finish([y])
    result = optimize(function, (canonicalize_quantized,))
    convs = [c.call for c in result.bindings if isinstance(c.call, Call) and c.call.op == "conv2d"]
    assert {a.type.dtype for c in convs for a in c.args} == {"int8"}
    assert len(convs) == (1 if most == 127 else 2)
    limits = np.iinfo(dtype)
    given = [rng.integers(limits.min, limits.max + 1, (1, 4, 5, 5)).astype(dtype)]
    (before,), (after,) = (list(evaluate(f, given).values()) for f in (function, result))
    np.testing.assert_array_equal(after, before)


def test_another_layer_reads_integers() -> None:
    """Where two quantized branches meet, the one that is computed first is stored as int8."""

    def build(b: BlockBuilder, x: Any) -> Any:
        x = pair(b, x, 0.02, 3, "int8")
        branches = []
        for seed in (1, 2):
            rng = np.random.default_rng(seed)
            q = Constant(rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8))
            w = b.emit("dequantize", q, constant(0.004, "float32"), constant(0, "int8"))
            y = b.emit("conv2d", x, w, **CONV)
            branches.append(pair(b, y, SCALE, seed, "int8"))
        return pair(b, b.emit("add", *branches), SCALE, 0, "int8")

    function = optimize(built(build), (canonicalize_quantized,))
    kernels = [b for b in fuse_operators(function).bindings if isinstance(b.call, CallFused)]
    assert sorted(str(k.outputs[0].type.dtype) for k in kernels) == ["float32", "int8", "int8"]


# ------------------------------------------------------------------------------ onnxruntime


def network() -> onnx.ModelProto:
    """Convolutions (one depthwise), a residual sum, pooling, a classifier."""
    rng = np.random.default_rng(0)

    def w(*shape: int) -> Array:
        size = np.sqrt(np.prod(shape[1:]))
        drawn: Array = (rng.normal(size=shape) / size).astype(np.float32)
        return drawn

    init = {
        "w1": w(8, 3, 3, 3), "b1": w(8), "w2": w(8, 1, 3, 3), "b2": w(8), "w3": w(8, 8, 3, 3),
        "w4": w(16, 8, 1, 1), "w5": w(10, 256), "b5": w(10), "low": np.float32(0),
        "high": np.float32(6),
    }  # fmt: skip
    same, node = [1, 1, 1, 1], helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=same),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=same, group=8),
        node("Clip", ["c2", "low", "high"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"], pads=same),
        node("Add", ["c3", "r1"], ["sum"]),
        node("Relu", ["sum"], ["r3"]),
        node("MaxPool", ["r3"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pool", "w4"], ["c4"]),
        node("Flatten", ["c4"], ["flat"]),
        node("Gemm", ["flat", "w5", "b5"], ["y"], transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "network", [value("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in init.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(count: int, seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def quantized(folder: Path, activations: str, weight: str, channels: bool, form: str) -> Path:
    """The network as onnxruntime's tools quantize it, to int8 weights of seven bits: onnxruntime
    adds two products of uint8 and int8 in saturating int16 on x86-64 without VNNI."""
    from onnxruntime import quantization as tools

    class Reader(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(images(8, 1))

        def get_next(self) -> Any:
            return next(self.left, None)

    onnx.save(network(), folder / "float.onnx")
    tools.quantize_static(
        str(folder / "float.onnx"), str(folder / "quantized.onnx"), Reader(),
        quant_format=tools.QuantFormat[form], per_channel=channels,
        activation_type=tools.QuantType[activations], weight_type=tools.QuantType[weight],
        reduce_range=True,
    )  # fmt: skip
    return folder / "quantized.onnx"


def runtime(model: Path, level: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


KINDS = [("QUInt8", "QInt8"), ("QUInt8", "QUInt8"), ("QInt8", "QInt8")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_as_onnxruntime(tmp_path: Path, form: str, kind: tuple[str, str], channels: bool) -> None:
    """With QLinear kernels results are equal; float arithmetic between the pairs (ORT_DISABLE_ALL
    on QDQ) may round to the neighbour in one output of a hundred."""
    model = quantized(tmp_path, *kind, channels, form)
    result = optimize(from_onnx(model), (canonicalize_quantized,))
    assert "conv2d" in ops(result) and ops(result).count("dequantize") <= 5
    optimized = optimize(result)
    integer, plain = runtime(model, "ORT_ENABLE_ALL"), runtime(model, "ORT_DISABLE_ALL")
    apart = {"integer": 0, "plain": 0}
    count = 0
    for inputs in images(20, 2):
        (mine,) = evaluate(result, inputs).values()
        (after,) = evaluate(optimized, inputs).values()
        np.testing.assert_array_equal(after, mine)
        for name, session in (("integer", integer), ("plain", plain)):
            (theirs,) = session.run(None, inputs)
            apart[name] += int((mine != theirs).sum())
        count += mine.size
    assert max(apart.values()) <= count // 100, apart
