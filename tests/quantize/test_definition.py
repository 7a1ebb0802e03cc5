"""What a QDQ model means: of float convolutions between QuantizeLinear and DequantizeLinear, ONNX
fixes neither the order of sums nor their rounding, so that engines differ by one step where a
quotient lies next to a tie, and a deep model hands the step on. In exact arithmetic there is one
answer. Ours is held against it, and so are onnx.reference and onnxruntime, for the layers of a
ResNet-50 (opset 14) and for a whole one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, version_converter
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.quantize.insert import in_integers, integer_weights
from mlc_deploy.quantize.net import Net
from mlc_deploy.quantize.prepare import prepare, read
from mlc_deploy.quantize.ranges import Range
from tests.models.architectures import inputs, onnx_model
from tests.models.quantized import quantized
from tests.quantize.nets import conv, model, weights

Array = NDArray[Any]

# Kernel, input channels, output channels, stride: those of ResNet-50's stages, in small pictures.
LAYERS = [(7, 3, 64, 2), (1, 64, 256, 1), (3, 128, 128, 2), (1, 1024, 256, 1), (3, 512, 512, 1)]
SIZE = 12
DATA, RESULT = Range(-1.7, 3.1), Range(0.0, 2.5)
NEAR = 2e-3  # of a step: how far from a tie float32 sums can matter here


def layer(kernel: int, channels: int, outputs: int, stride: int) -> Net:
    """quantize(relu(conv(x, w) + b)), dequantized"""
    pad = kernel // 2
    node = conv("layer", "x", "sums", pads=[pad] * 4, strides=[stride] * 2)
    zero: dict[str, Array] = {"scale": np.asarray(RESULT.scale), "zero": np.asarray(RESULT.zero)}
    nodes = [
        node,
        helper.make_node("Relu", ["sums"], ["real"], "relu"),
        helper.make_node("QuantizeLinear", ["real", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    constants = weights("layer", outputs, channels, kernel, kernel) | zero
    net = prepare(read(model(nodes, constants, (1, channels, SIZE, SIZE))))
    return in_integers(net, {"layer"}, {"x": DATA})


def quotients(net: Net, x: Array, stride: int) -> Array:
    """relu(sums) / scale in exact arithmetic: integers, and float64 for their scales."""
    of = {n.op_type: n for n in net.nodes}
    w, w_scale, b = (
        next(a for n, a in net.constants.items() if n.startswith(f"layer.{part}"))
        for part in ("weights.int8", "weights.scale", "bias.int32")
    )
    assert of["Conv"].name == "layer"
    zero = int(DATA.zero)
    q = np.clip(np.rint(x / DATA.scale) + zero, -128, 127).astype(np.int64) - zero
    pad = w.shape[2] // 2
    q = np.pad(q, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(q, w.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    sums = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64))
    sums += b.astype(np.int64).reshape(-1, 1, 1)
    scale = float(DATA.scale) * w_scale.astype(np.float64) / float(RESULT.scale)
    found: Array = np.maximum(sums * scale.reshape(-1, 1, 1), 0)
    return found


def steps(y: Array) -> Array:
    """The integers of a dequantized result, less their zero point."""
    return np.rint(y / np.float64(RESULT.scale)).astype(np.int64)


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Of onnxruntime without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def by_reference(proto: onnx.ModelProto, x: Array) -> Array:
    (found,) = ReferenceEvaluator(proto).run(None, {"x": x})
    return np.asarray(found)


@pytest.mark.parametrize(("kernel", "channels", "outputs", "stride"), LAYERS)
def test_layers_of_a_resnet_are_exact(
    kernel: int, channels: int, outputs: int, stride: int
) -> None:
    net = layer(kernel, channels, outputs, stride)
    x = np.random.default_rng(kernel).normal(0.4, 0.9, (1, channels, SIZE, SIZE))
    x = x.astype(np.float32)
    exact = quotients(net, x, stride)
    right = np.clip(np.rint(exact), 0, 255)
    near = np.abs(exact - np.floor(exact) - 0.5) < NEAR
    proto = net.proto()
    assert proto.opset_import[0].version == 14
    compiled = mlc.compile(from_onnx(proto), "host")
    with mlc.connect("local://") as board:
        (ours,) = board.load(compiled).run({"x": x}).values()
    # onnx.reference has these operators from opset 19 on, which define them alike.
    later = version_converter.convert_version(proto, 19)
    others = {
        "onnx.reference": by_reference(later, x),
        "onnxruntime": session(proto).run(None, {"x": x})[0],
    }
    wrong = steps(ours) != right
    assert not np.any(wrong & ~near) and np.abs(steps(ours) - right).max() <= 1
    assert wrong.sum() <= right.size // 20000
    for name, found in others.items():
        missed = steps(np.asarray(found)) != right
        assert not np.any(missed & ~near), name
        assert wrong.sum() <= missed.sum() + right.size // 20000, name


class DequantizeLinear(OpRun):  # type: ignore[misc, unused-ignore]
    """In double precision: onnx.reference computes what follows in it, too."""

    def _run(self, q: Array, scale: Array, zero: Array, axis: int = 1, **_: Any) -> tuple[Array]:
        scale, zero = (along(a.astype(np.float64), q, axis) for a in (scale, zero))
        return ((q - zero) * scale,)


class QuantizeLinear(OpRun):  # type: ignore[misc, unused-ignore]
    def _run(self, x: Array, scale: Array, zero: Array, axis: int = 1, **_: Any) -> tuple[Array]:
        limits = np.iinfo(zero.dtype)
        steps = np.rint(x / along(scale.astype(np.float64), x, axis)) + along(zero, x, axis)
        return (np.clip(steps, limits.min, limits.max).astype(zero.dtype),)


def along(a: Array, x: Array, axis: int) -> Array:
    """A scalar, or a vector that runs along an axis of x."""
    return a.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)]) if a.size > 1 else a


def output(engine: Any, given: dict[str, Array]) -> Array:
    return np.asarray(engine.run(None, given)[0])


@pytest.mark.quantize
def test_a_whole_resnet_is_nearest_to_exact_arithmetic() -> None:
    """All engines differ from it, and from each other, by percents of an output; the fewest of
    ours do."""
    proto = onnx_model("resnet50")
    (image,) = proto.graph.input
    for place in (2, 3):  # a small picture: onnx.reference takes its time
        image.type.tensor_type.shape.dim[place].dim_value = 64
    seeds = (2, 3, *range(10, 18))
    pictures = [inputs("resnet50", seed)[image.name][:, :, :64, :64] for seed in seeds]
    proto = quantized(proto, [{image.name: x} for x in pictures[:2]], activations="u8")
    compiled = mlc.compile(from_onnx(proto), "host")
    later = version_converter.convert_version(proto, 21)
    exact = ReferenceEvaluator(later, new_ops=[QuantizeLinear, DequantizeLinear])
    reference = ReferenceEvaluator(later)
    theirs = session(proto)
    away: dict[str, list[float]] = {"ours": [], "onnx.reference": [], "onnxruntime": []}
    with mlc.connect("local://") as board:
        loaded = board.load(compiled)
        for x in pictures[2:]:
            given = {image.name: np.ascontiguousarray(x)}
            right = output(exact, given)
            assert right.dtype == np.float64
            (ours,) = loaded.run(given).values()
            others = (output(engine, given) for engine in (reference, theirs))
            for engine, y in zip(away, (ours, *others), strict=True):
                away[engine].append(float(np.linalg.norm(y - right) / np.linalg.norm(right)))
    equal = {engine: sum(d < 1e-6 for d in found) for engine, found in away.items()}
    assert equal["ours"] >= 4 and max(map(max, away.values())) < 0.05
    for other in ("onnx.reference", "onnxruntime"):
        assert equal["ours"] >= equal[other], equal
        assert np.mean(away["ours"]) < np.mean(away[other]), away


def test_weights_are_symmetric_and_by_output() -> None:
    net = prepare(read(model([conv("c", "x", "y")], weights("c", 8, 4, 3, 3), (1, 4, 8, 8))))
    (only,) = net.layers
    q, scales = integer_weights(only)
    assert q.dtype == np.int8 and scales.shape == (8,)
    assert np.all(np.abs(q).reshape(8, -1).max(1) == 127)
    step = scales.reshape(8, 1, 1, 1)
    assert np.abs(q * step - only.weights).max() <= step.max() / 2 * 1.001
