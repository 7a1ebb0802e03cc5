"""Operators of .tflite files against LiteRT's reference kernels: integers bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from mlc_deploy.frontend import from_tflite
from mlc_deploy.graph import evaluate, optimize
from tests.tflite_models import Array, Model, by_litert, drawn

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install ai-edge-litert")

# Scales as trained models have them, and powers of two, with which many results are halves.
SCALES = ((0.0131, 0.0279, 0.0412), (0.5, 0.25, 2.0), (0.25, 0.5, 0.125), (0.11, 0.02, 0.0071))
BYTES = {"int8": (3, -7, -11), "uint8": (130, 121, 117)}  # zero points


def outputs(model: Model, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Ours, and LiteRT's; ours are the same after the graph's passes."""
    data = model.build()
    function = from_tflite(data)
    named = {p.name: a for p, a in zip(function.params, inputs, strict=True)}
    ours = list(evaluate(function, named).values())
    for a, b in zip(ours, evaluate(optimize(function), named).values(), strict=True):
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
    return ours, by_litert(data, inputs)


def agree(model: Model, inputs: Sequence[Array], tolerance: float = 1e-5) -> None:
    for a, b in zip(*outputs(model, inputs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, tolerance, tolerance * np.abs(b).max(initial=1e-30))
        else:
            np.testing.assert_array_equal(a, b)


def one(
    name: str,
    shapes: Sequence[Sequence[int]],
    result: Sequence[int],
    dtype: str = "float32",
    options: str = "",
    *,
    scales: Sequence[float] | None = None,
    zeros: Sequence[int] | None = None,
    constants: Sequence[Any] = (),
    out: str = "",
    version: int = 1,
    seed: int = 0,
    **values: Any,
) -> None:
    """An operator on random tensors, then constants; scales and zeros are of inputs and output."""
    rng, model = np.random.default_rng(seed), Model()
    quantized: list[dict[str, Any]] = [
        {} if scales is None else {"scale": s, "zero": z}
        for s, z in zip(scales or [0] * 9, zeros or [0] * 9, strict=False)
    ]
    places = [model.input(s, dtype, **q) for s, q in zip(shapes, quantized, strict=False)]
    places += [model.constant(c, "int32") for c in constants]
    y = model.tensor(result, out or dtype, **quantized[-1])
    model.outputs = [y]
    model.op(name, places, [y], options, version=version, **values)
    agree(model, [drawn(rng, s, dtype) for s in shapes])


# ---------------------------------------------------------------------------------- quantized


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_quantized_binary(name: str, dtype: str, activation: int, scales: Any) -> None:
    shape = (2, 5, 7, 16)
    options = f"{name.capitalize()}Options"
    more = {"FusedActivationFunction": activation, "scales": scales, "zeros": BYTES[dtype]}
    one(name, [shape, shape], shape, dtype, options, version=2, **more)
    one(name, [shape, (16,)], shape, dtype, options, version=2, **more)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    "name", ["RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH", "LEAKY_RELU", "TANH", "ELU"]
)
def test_quantized_unary(name: str, dtype: str, scales: Any) -> None:
    if name == "ELU" and dtype == "uint8":
        pytest.skip("LiteRT has none")
    if name == "HARD_SWISH" and scales[0] / 128 >= scales[1]:
        pytest.skip("LiteRT refuses these scales")
    model = Model()
    zeros = BYTES[dtype]
    out = (1 / 128, 128 if dtype == "uint8" else 0) if name == "TANH" else (scales[1], zeros[1])
    x = model.input((256,), dtype, scale=scales[0], zero=zeros[0])
    y = model.tensor((256,), dtype, scale=out[0], zero=out[1])
    options = {"LEAKY_RELU": {"options": "LeakyReluOptions", "Alpha": 0.3}}
    model.outputs = [y]
    version = 1 if name in ("RELU_N1_TO_1", "HARD_SWISH", "ELU") else 2
    model.op(name, [x], [y], version=version, **options.get(name, {}))  # type: ignore[arg-type]
    agree(model, [np.arange(256, dtype=np.uint8).view(dtype)])


@pytest.mark.parametrize("scale", [0.003, 0.0173, 0.09, 0.25])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", ["LOGISTIC", "SOFTMAX"])
def test_quantized_to_probabilities(name: str, dtype: str, scale: float) -> None:
    model, rng = Model(), np.random.default_rng(1)
    zero = 0 if dtype == "uint8" else -128
    shape = (64, 2, 21)
    x = model.input(shape, dtype, scale=scale, zero=BYTES[dtype][0])
    y = model.tensor(shape, dtype, scale=1 / 256, zero=zero)
    model.outputs = [y]
    more: dict[str, Any] = {"options": "SoftmaxOptions", "Beta": 1.0} if name == "SOFTMAX" else {}
    model.op(name, [x], [y], version=2, **more)
    agree(model, [drawn(rng, shape, dtype)])


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", ["MEAN", "SUM", "REDUCE_MAX"])
def test_quantized_reduction(name: str, dtype: str, scales: Any) -> None:
    zeros = BYTES[dtype]
    if name == "SUM" and dtype == "int8":
        pytest.skip("LiteRT writes nothing there")
    if name == "REDUCE_MAX":
        scales, zeros = (scales[0],) * 2, (zeros[0],) * 3
    for axes, result in (([1, 2], (2, 1, 1, 24)), ([3], (2, 7, 9, 1)), ([1], (2, 1, 9, 24))):
        one(
            name, [(2, 7, 9, 24)], result, dtype, "ReducerOptions", scales=scales, zeros=zeros,
            constants=[axes], KeepDims=True, version=2,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_quantized_pool(name: str, padding: int, dtype: str) -> None:
    for kernel, stride, extent in ((3, 2, 9), (2, 2, 8), (3, 1, 6)):
        size = -(-extent // stride) if padding == 0 else (extent - kernel) // stride + 1
        one(
            name, [(2, extent, extent, 5)], (2, size, size, 5), dtype, "Pool2DOptions",
            scales=(0.1, 0.1), zeros=(BYTES[dtype][0],) * 2, Padding=padding, StrideW=stride,
            StrideH=stride, FilterWidth=kernel, FilterHeight=kernel, FusedActivationFunction=1,
            version=2,
        )  # fmt: skip


def convolution(
    dtype: str,
    depthwise: bool,
    scales: Sequence[float],
    channels: int = 8,
    padding: int = 0,
    stride: int = 1,
    dilation: int = 1,
    bias: bool = True,
    weights_zero: int | None = None,
) -> tuple[Model, list[Array]]:
    """A convolution of 3 x 3 with 16 outputs; scales of weights per channel for int8."""
    model, rng = Model(), np.random.default_rng(2)
    zeros = BYTES[dtype]
    x = model.input((2, 11, 10, channels), dtype, scale=scales[0], zero=zeros[0])
    shape = (1, 3, 3, 16) if depthwise else (16, 3, 3, channels)
    per_channel = dtype == "int8"
    own = scales[1] * (rng.uniform(0.5, 1, 16) if per_channel else np.ones(1))
    zero = 0 if per_channel else (zeros[1] if weights_zero is None else weights_zero)
    drawn_w = drawn(rng, shape, dtype)
    w = model.constant(drawn_w, dtype, scale=own, zero=zero, axis=3 if depthwise else 0)
    places = [x, w]
    if bias:
        b = rng.integers(-2000, 2000, 16)
        places.append(model.constant(b, "int32", scale=own * scales[0]))
    reach = dilation * 2 + 1
    sizes = [-(-e // stride) if padding == 0 else (e - reach) // stride + 1 for e in (11, 10)]
    y = model.tensor((2, *sizes, 16), dtype, scale=scales[2] * 30, zero=zeros[2])
    model.outputs = [y]
    more: dict[str, Any] = {"DepthMultiplier": 16 // channels} if depthwise else {}
    model.op(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", places, [y],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions", version=3, Padding=padding,
        StrideW=stride, StrideH=stride, DilationWFactor=dilation, DilationHFactor=dilation, **more,
    )  # fmt: skip
    return model, [drawn(rng, (2, 11, 10, channels), dtype)]


@pytest.mark.parametrize("scales", SCALES[:3])
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_convolution(dtype: str, depthwise: bool, scales: Any) -> None:
    agree(*convolution(dtype, depthwise, scales))
    agree(*convolution(dtype, depthwise, scales, padding=1, stride=2))
    agree(*convolution(dtype, depthwise, scales, dilation=2, bias=not depthwise))


def test_quantized_convolution_of_groups() -> None:
    model, inputs = convolution("int8", False, SCALES[0], channels=8)
    rng = np.random.default_rng(0)
    model.tensors[1] |= {"shape": [16, 3, 3, 4], "data": drawn(rng, (16, 3, 3, 4), "int8")}
    agree(model, inputs)


def test_weights_of_uint8_that_fit_int8_less_their_zero_point() -> None:
    agree(*convolution("uint8", False, SCALES[0], weights_zero=128))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_matrix_product(dtype: str, scales: Any) -> None:
    model, rng = Model(), np.random.default_rng(3)
    zeros = BYTES[dtype]
    x = model.input((40, 24), dtype, scale=scales[0], zero=zeros[0])
    zero = 0 if dtype == "int8" else zeros[1]
    w = model.constant(drawn(rng, (32, 24), dtype), dtype, scale=scales[1], zero=zero)
    b = model.constant(rng.integers(-900, 900, 32), "int32", scale=scales[0] * scales[1])
    y = model.tensor((40, 32), dtype, scale=scales[2] * 20, zero=zeros[2])
    model.outputs = [y]
    model.op("FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions", version=4)
    agree(model, [drawn(rng, (40, 24), dtype)])


def test_quantized_matrix_product_per_channel() -> None:
    model, rng = Model(), np.random.default_rng(3)
    own = rng.uniform(0.01, 0.02, 32)
    x = model.input((40, 24), "int8", scale=0.02, zero=3)
    w = model.constant(drawn(rng, (32, 24), "int8"), "int8", scale=own)
    b = model.constant(rng.integers(-900, 900, 32), "int32", scale=own * 0.02)
    y = model.tensor((40, 32), "int8", scale=0.7, zero=-9)
    model.outputs = [y]
    model.op("FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions", version=5)
    agree(model, [drawn(rng, (40, 24), "int8")])


def test_quantized_product_of_two_tensors() -> None:
    model, rng = Model(), np.random.default_rng(3)
    x = model.input((3, 8, 12), "int8", scale=0.02, zero=3)
    z = model.input((3, 12, 9), "int8", scale=0.03, zero=-4)
    y = model.tensor((3, 8, 9), "int8", scale=0.4, zero=-9)
    model.outputs = [y]
    model.op("BATCH_MATMUL", [x, z], [y], "BatchMatMulOptions", version=2)
    agree(model, [drawn(rng, (3, 8, 12), "int8"), drawn(rng, (3, 12, 9), "int8")])


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("after", BYTES)
@pytest.mark.parametrize("before", ["float32", *BYTES])
def test_quantize(before: str, after: str, scales: Any) -> None:
    model = Model()
    known = {} if before == "float32" else {"scale": scales[0], "zero": BYTES[before][0]}
    x = model.input((256,), before, **known)
    y = model.tensor((256,), after, scale=scales[1], zero=BYTES[after][1])
    model.outputs = [y]
    model.op("QUANTIZE", [x], [y], version=2)
    data = np.arange(256, dtype=np.uint8)
    halves = (np.arange(256) - 128).astype(np.float32) * np.float32(scales[1] / 2)
    agree(model, [halves if before == "float32" else data.view(before)])


@pytest.mark.parametrize("dtype", BYTES)
def test_dequantize(dtype: str) -> None:
    model = Model()
    x = model.input((256,), dtype, scale=0.0173, zero=BYTES[dtype][0])
    y = model.tensor((256,))
    model.outputs = [y]
    model.op("DEQUANTIZE", [x], [y], version=2)
    ours, theirs = outputs(model, [np.arange(256, dtype=np.uint8).view(dtype)])
    np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("half,corners", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resize(name: str, dtype: str, half: bool, corners: bool) -> None:
    kind = "ResizeBilinearOptions" if "BI" in name else "ResizeNearestNeighborOptions"
    known: dict[str, Any] = {"scales": (0.1, 0.1), "zeros": (4, 4)} if dtype == "int8" else {}
    for height, width in ((14, 10), (5, 3), (11, 13)):
        one(
            name, [(2, 7, 5, 3)], (2, height, width, 3), dtype, kind, version=3,
            constants=[[height, width]], HalfPixelCenters=half, AlignCorners=corners, **known,
        )  # fmt: skip


def test_parts_of_other_scales_are_joined() -> None:
    model, rng = Model(), np.random.default_rng(5)
    places = [model.input((2, 9), "uint8", scale=s, zero=z) for s, z in ((0.1, 3), (0.07, 128))]
    y = model.tensor((2, 18), "uint8", scale=0.1, zero=3)
    model.outputs = [y]
    model.op("CONCATENATION", places, [y], "ConcatenationOptions", Axis=1)
    agree(model, [drawn(rng, (2, 9), "uint8") for _ in places])


def test_pads_are_the_zero_point() -> None:
    one("PAD", [(1, 3, 4, 2)], (1, 6, 5, 2), "int8", "PadOptions", scales=(0.1, 0.1),
        zeros=(-9, -9), constants=[[[0, 0], [1, 2], [1, 0], [0, 0]]], version=2)  # fmt: skip


# ------------------------------------------------------------------- floats, weights of int8


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_hybrid_matrix_product(per_channel: bool, asymmetric: bool) -> None:
    model, rng = Model(), np.random.default_rng(3)
    x = model.input((4, 24))
    own = rng.uniform(0.01, 0.02, 32) if per_channel else 0.013
    data = np.maximum(drawn(rng, (32, 24), "int8"), -127)
    w = model.constant(data, "int8", scale=own)
    b = model.constant(rng.normal(size=32), "float32")
    y = model.tensor((4, 32))
    model.outputs = [y]
    model.op(
        "FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions", version=9,
        AsymmetricQuantizeInputs=asymmetric,
    )  # fmt: skip
    inputs = drawn(rng, (4, 24), "float32")
    inputs[2] = 0
    agree(model, [inputs])


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "per tensor"])
def test_hybrid_convolution(kind: str) -> None:
    model, rng = Model(), np.random.default_rng(3)
    depthwise = kind == "DEPTHWISE_CONV_2D"
    x = model.input((2, 9, 8, 16))
    shape = (1, 3, 3, 16) if depthwise else (16, 3, 3, 16)
    own = 0.013 if kind == "per tensor" else rng.uniform(0.01, 0.02, 16)
    data = np.maximum(drawn(rng, shape, "int8"), -127)
    w = model.constant(data, "int8", scale=own, axis=3 if depthwise else 0)
    b = model.constant(rng.normal(size=16), "float32")
    y = model.tensor((2, 9, 8, 16))
    model.outputs = [y]
    more: dict[str, Any] = {"DepthMultiplier": 1} if depthwise else {}
    model.op(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", [x, w, b], [y],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions", version=5, StrideW=1,
        StrideH=1, DilationWFactor=1, DilationHFactor=1, FusedActivationFunction=1, **more,
    )  # fmt: skip
    agree(model, [drawn(rng, (2, 9, 8, 16), "float32")])


def test_weights_of_float16() -> None:
    model, rng = Model(), np.random.default_rng(3)
    x = model.input((4, 24))
    half = model.constant(rng.normal(size=(32, 24)), "float16")
    w = model.tensor((32, 24))
    y = model.tensor((4, 32))
    model.outputs = [y]
    model.op("DEQUANTIZE", [half], [w], version=2)
    model.op("FULLY_CONNECTED", [x, w], [y], "FullyConnectedOptions")
    agree(model, [drawn(rng, (4, 24), "float32")])


# -------------------------------------------------------------------------------------- floats


@pytest.mark.parametrize(
    "name",
    ["ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH", "L2_NORMALIZATION",
     "LOGISTIC", "LOG_SOFTMAX", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "SIN", "SQUARE",
     "TANH"],
)  # fmt: skip
def test_unary(name: str) -> None:
    one(name, [(3, 4, 5)], (3, 4, 5))


@pytest.mark.parametrize("activation", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "DIV"])
def test_binary(name: str, activation: int) -> None:
    options = f"{name.capitalize()}Options"
    one(name, [(3, 4, 5), (5,)], (3, 4, 5), options=options, FusedActivationFunction=activation)


@pytest.mark.parametrize(
    "name", ["FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"]
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_more_binary(name: str, dtype: str) -> None:
    if name == "SQUARED_DIFFERENCE" and dtype == "int32":
        pytest.skip("squares of any int32 overflow")
    one(name, [(3, 4, 5), (3, 4, 5)], (3, 4, 5), dtype)


@pytest.mark.parametrize(
    "name", ["EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"]
)
def test_comparison(name: str) -> None:
    one(name, [(3, 4, 5), (5,)], (3, 4, 5), out="bool")


@pytest.mark.parametrize("name", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("keep", [False, True])
def test_reduction(name: str, keep: bool) -> None:
    result = (2, 1, 1, 5) if keep else (2, 5)
    one(name, [(2, 3, 4, 5)], result, options="ReducerOptions", constants=[[1, -2]], KeepDims=keep)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"])
def test_pool(name: str, padding: int) -> None:
    size = 5 if padding == 0 else 4
    one(
        name, [(2, 9, 9, 5)], (2, size, size, 5), options="Pool2DOptions", Padding=padding,
        StrideW=2, StrideH=2, FilterWidth=3, FilterHeight=3,
    )  # fmt: skip


@pytest.mark.parametrize("padding,extent", [(0, 10), (1, 11)])
def test_transposed_convolution(padding: int, extent: int) -> None:
    model, rng = Model(), np.random.default_rng(3)
    shape = model.constant([2, extent, extent, 4], "int32")
    w = model.constant(rng.normal(size=(4, 3, 3, 6)), "float32")
    x = model.input((2, 5, 5, 6))
    b = model.constant(rng.normal(size=4), "float32")
    y = model.tensor((2, extent, extent, 4))
    model.outputs = [y]
    model.op(
        "TRANSPOSE_CONV", [shape, w, x, b], [y], "TransposeConvOptions", version=3,
        Padding=padding, StrideW=2, StrideH=2,
    )  # fmt: skip
    data = drawn(rng, (2, 5, 5, 6), "float32")
    agree(model, [data])
    # MediaPipe's operator of its own is the same; LiteRT has it not.
    custom = Model(tensors=model.tensors, inputs=model.inputs, outputs=model.outputs)
    options = struct.pack("<3i", 1 if padding == 0 else 2, 2, 2)
    custom.op("CUSTOM Convolution2DTransposeBias", [x, w, b], [y], custom=options)
    function = from_tflite(custom.build())
    (ours,) = evaluate(function, {function.params[0].name: data}).values()
    np.testing.assert_allclose(ours, by_litert(model.build(), [data])[0], 1e-5, 1e-5)


def test_prelu() -> None:
    model, rng = Model(), np.random.default_rng(3)
    x = model.input((2, 3, 4, 5))
    slopes = model.constant(rng.normal(size=(1, 1, 5)), "float32")
    y = model.tensor((2, 3, 4, 5))
    model.outputs = [y]
    model.op("PRELU", [x, slopes], [y])
    agree(model, [drawn(rng, (2, 3, 4, 5), "float32")])


# --------------------------------------------------------------------------------------- moves

Move = tuple[str, Sequence[int], Sequence[int], dict[str, Any]]
MOVES: list[Move] = [
    ("RESHAPE", (2, 6), (3, 4), {"constants": [[3, -1]]}),
    ("SQUEEZE", (1, 2, 1, 3), (2, 1, 3), {"options": "SqueezeOptions", "SqueezeDims": [0]}),
    ("EXPAND_DIMS", (2, 3), (2, 1, 3), {"constants": [[1]]}),
    ("TRANSPOSE", (2, 3, 4), (4, 2, 3), {"constants": [[2, 0, 1]]}),
    ("SLICE", (4, 5, 6), (2, 5, 1), {"constants": [[1, 0, 3], [2, -1, 1]]}),
    ("STRIDED_SLICE", (4, 5, 6), (2, 6), {
        "options": "StridedSliceOptions", "constants": [[0, 3, 0], [4, 0, 0], [2, 1, 1]],
        "EndMask": 4, "ShrinkAxisMask": 2}),
    ("STRIDED_SLICE", (4, 5), (4, 2), {
        "options": "StridedSliceOptions", "constants": [[-1, -2], [0, 0], [-1, -2]],
        "EndMask": 3}),
    ("STRIDED_SLICE", (4, 5), (4, 1, 5), {
        "options": "StridedSliceOptions", "constants": [[0, 0, 0], [0, 0, 5], [1, 1, 1]],
        "EllipsisMask": 1, "NewAxisMask": 2}),
    ("MIRROR_PAD", (4, 5), (7, 8), {
        "options": "MirrorPadOptions", "constants": [[[1, 2], [2, 1]]], "Mode": 0}),
    ("MIRROR_PAD", (4, 5), (7, 8), {
        "options": "MirrorPadOptions", "constants": [[[1, 2], [2, 1]]], "Mode": 1}),
    ("TILE", (2, 3), (4, 9), {"constants": [[2, 3]]}),
    ("BROADCAST_TO", (2, 1), (3, 2, 4), {"constants": [[3, 2, 4]], "version": 2}),
    ("GATHER", (4, 5), (4, 3), {"options": "GatherOptions", "constants": [[3, 0, 4]], "Axis": 1}),
    ("REVERSE_V2", (3, 4), (3, 4), {"constants": [[1]]}),
    ("DEPTH_TO_SPACE", (2, 3, 4, 12), (2, 6, 8, 3), {
        "options": "DepthToSpaceOptions", "BlockSize": 2}),
    ("SPACE_TO_DEPTH", (2, 6, 8, 3), (2, 3, 4, 12), {
        "options": "SpaceToDepthOptions", "BlockSize": 2}),
    ("SPACE_TO_BATCH_ND", (2, 5, 6, 3), (12, 3, 2, 3), {
        "constants": [[2, 3], [[1, 0], [0, 0]]]}),
    ("BATCH_TO_SPACE_ND", (12, 3, 2, 3), (2, 5, 6, 3), {
        "constants": [[2, 3], [[1, 0], [0, 0]]]}),
    ("ARG_MAX", (3, 9), (3,), {
        "options": "ArgMaxOptions", "constants": [[1]], "out": "int32", "OutputType": 2}),
    ("CUMSUM", (3, 9), (3, 9), {"options": "CumsumOptions", "constants": [1], "Exclusive": True}),
]  # fmt: skip


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move[0])
def test_move(move: Move) -> None:
    name, shape, result, more = move
    one(name, [shape], result, **more)


def test_pack() -> None:
    one("PACK", [(2, 3), (2, 3)], (2, 2, 3), options="PackOptions", Axis=1, ValuesCount=2)


def test_split() -> None:
    for name, options, sizes in (
        ("SPLIT", "SplitOptions", (3, 3)),
        ("SPLIT_V", "SplitVOptions", (2, 4)),
    ):
        model, rng = Model(), np.random.default_rng(3)
        x = model.input((2, 6))
        axis = model.constant([1], "int32")
        if name == "SPLIT":
            axis = model.constant(1, "int32")
        places = [axis, x] if name == "SPLIT" else [x, model.constant(sizes, "int32"), axis]
        model.outputs = [model.tensor((2, size)) for size in sizes]
        model.op(name, places, model.outputs, options, NumSplits=2)
        agree(model, [drawn(rng, (2, 6), "float32")])


# ----------------------------------------------------------------------------------- detection


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("each", [1, 2])
def test_detections(by_class: bool, each: int, dtype: str) -> None:
    """Boxes around the same places, so that many are struck out."""
    rng, count, classes = np.random.default_rng(4), 60, 5
    model = Model()
    known: list[dict[str, Any]] = [{}, {}]
    if dtype == "uint8":
        known = [{"scale": 0.01, "zero": 128}, {"scale": 1 / 256, "zero": 0}]
    boxes = model.input((1, count, 4), dtype, **known[0])
    scores = model.input((1, count, classes + 1), dtype, **known[1])
    centres = np.repeat(rng.uniform(0.2, 0.8, (count // 6, 2)), 6, axis=0)
    anchors = np.concatenate([centres, rng.uniform(0.1, 0.3, (count, 2))], axis=1)
    own = known[0] and {"scale": 1 / 255, "zero": 0}
    data = np.rint(anchors * 255) if dtype == "uint8" else anchors
    places = [boxes, scores, model.constant(data, dtype, **own)]
    detections = 12
    slots = detections * each
    shapes = ((1, slots, 4), (1, slots), (1, slots), (1,))
    model.outputs = [model.tensor(shape) for shape in shapes]
    options = flexbuffers.Dumps({
        "max_detections": detections, "max_classes_per_detection": each,
        "detections_per_class": 4, "use_regular_nms": by_class, "nms_score_threshold": 0.4,
        "nms_iou_threshold": 0.5, "num_classes": classes, "y_scale": 10.0, "x_scale": 10.0,
        "h_scale": 5.0, "w_scale": 5.0,
    })  # fmt: skip
    model.op("CUSTOM TFLite_Detection_PostProcess", places, model.outputs, custom=options)
    # LiteRT leaves open which of a box's classes comes first if their scores are equal.
    distinct = rng.permuted(np.tile(np.arange(256.0), (count, 1)), axis=1)[None, :, : classes + 1]
    probabilities = distinct if dtype == "uint8" else distinct / 256 + rng.random(1) / 300
    inputs = [drawn(rng, (1, count, 4), dtype), probabilities.astype(dtype)]
    ours, theirs = outputs(model, inputs)
    number = int(theirs[3][0])
    assert 0 < number < detections + 1 and ours[3] == number
    written = number if by_class else number * each
    for a, b in zip(ours[:3], theirs[:3], strict=True):
        if by_class and each > 1:
            a, b = a[:, :detections], b[:, :detections]
        np.testing.assert_allclose(a[:, :written], b[:, :written], 1e-5, 1e-6)
