"""Layers of many variants against onnxruntime: recurrent, transposed, quantized, resized ones."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from mlc_deploy.frontend import from_onnx
from mlc_deploy.frontend.layers import fourier
from mlc_deploy.graph import Call, evaluate
from tests.onnx_models import one_node, reference

Array = NDArray[Any]


def agrees(
    op: str,
    inputs: dict[str, Array],
    constants: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    exact: bool = False,
    **attributes: Any,
) -> None:
    """One node, ours against theirs; integers exactly."""
    model = one_node(op, inputs, 20, outputs, constants, **attributes)
    given = {k: v for k, v in inputs.items() if k and k not in constants}
    found = evaluate(from_onnx(model), given)
    for name, theirs in reference(model, given).items():
        assert found[name].dtype == theirs.dtype and found[name].shape == theirs.shape
        if exact:
            np.testing.assert_array_equal(found[name], theirs)
        else:
            np.testing.assert_allclose(found[name], theirs, rtol=1e-4, atol=2e-5)


def floats(rng: Random, *shape: int) -> Array:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    return numbers.normal(size=shape).astype(np.float32)


def integers(rng: Random, dtype: Any, *shape: int, low: int = 0, high: int = 0) -> Array:
    info = np.iinfo(dtype)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    return numbers.integers(low or info.min, high or info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("length", [None, 60, 72])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("way", ["forward", "inverse", "onesided"])
def test_long_transforms_are_made_of_short_ones(
    way: str, parts: int, length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "onesided" and parts == 2:
        pytest.skip("of real signals only")
    monkeypatch.setattr(fourier, "MOST_WHOLE", 64)
    inputs = {"x": floats(Random(way), 2, 66, 3, parts)}
    if length is not None:
        inputs["length"] = np.array(length)
    flags: dict[str, Any] = {} if way == "forward" else {way: 1}
    constants = () if length is None else ("length",)
    model = one_node("DFT", inputs, 19, constants=constants, axis=1, **flags)
    given = {"x": inputs["x"]}
    (theirs,) = reference(model, given).values()
    (found,) = evaluate(from_onnx(model), given).values()
    np.testing.assert_allclose(found, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (5, 6, 7, 3)])
def test_large_pools(pads: tuple[int, ...], dilations: tuple[int, ...], ceil_mode: int) -> None:
    more: dict[str, Any] = {"pads": pads, "dilations": dilations, "ceil_mode": ceil_mode}
    x = floats(Random(1), 1, 2, 34, 29)
    agrees("MaxPool", {"x": x}, exact=True, kernel_shape=(11, 13), strides=(2, 3), **more)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 2, 0, 3)])
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_a_pool_larger_than_its_data(op: str, pads: tuple[int, ...]) -> None:
    """ceil_mode makes one window of it; the border up to its own extents would take gigabytes."""
    x = floats(Random(2), 1, 2, 7, 6)
    padded: dict[str, Any] = {"count_include_pad": 1} if op == "AveragePool" else {}
    more: dict[str, Any] = {"kernel_shape": (25000, 25000), "strides": (25000, 25000), "pads": pads}
    agrees(op, {"x": x}, ceil_mode=1, **more, **padded)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 5, 7), (2, 1, 4, 3), (1, 1, 2, 3, 4)])
def test_affine_grid_of_one_image_and_of_several(size: tuple[int, ...], corners: int) -> None:
    rank = len(size) - 2
    theta = floats(Random(4), size[0], rank, rank + 1)
    inputs = {"theta": theta, "size": np.array(size, np.int64)}
    agrees("AffineGrid", inputs, ("size",), align_corners=corners)


EQUATIONS = (
    "ij,jk,kl->il", "ij,kl->jl", "iij,jk,kk,l->il", "i,j,k->kji", "ij,ij,ij->", "abc,abd,ae->cde",
    "...ij,jk,...kl->...il",
)  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_factors_meet_two_by_two(equation: str) -> None:
    rng = Random(equation)
    sizes = {c: rng.randint(1, 6) for c in "abcdeijkl"} | {".": 2}
    terms = equation.split("->")[0].replace("...", ".").split(",")
    inputs = {f"x{k}": floats(rng, *(sizes[c] for c in t)) for k, t in enumerate(terms)}
    agrees("Einsum", inputs, equation=equation)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent(op: str, gates: int, seed: int) -> None:
    rng = Random(f"{op} {seed}")
    length, batch, width, hidden = (rng.randint(1, 5) for _ in range(4))
    direction = rng.choice(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1
    inputs = {
        "x": floats(rng, length, batch, width),
        "w": floats(rng, count, gates * hidden, width),
        "r": floats(rng, count, gates * hidden, hidden),
        "b": floats(rng, count, 2 * gates * hidden),
        "lengths": np.array([rng.randint(1, length) for _ in range(batch)], np.int32),
        "h": floats(rng, count, batch, hidden),
    }
    outputs: tuple[str, ...] = ("y", "last")
    if op == "LSTM":
        inputs |= {"c": floats(rng, count, batch, hidden), "p": floats(rng, count, 3 * hidden)}
        outputs = ("y", "last", "cell")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = rng.randint(0, 1)
    agrees(op, inputs, ("w", "r", "b"), outputs, **attributes)


@pytest.mark.parametrize("seed", range(12))
def test_transposed_convolution(seed: int) -> None:
    rng = Random(seed)
    rank, groups = rng.randint(1, 3), rng.choice((1, 1, 2))
    kernel = [rng.randint(1, 3) for _ in range(rank)]
    strides = [rng.randint(1, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "strides": strides,
        "dilations": [rng.choice((1, 1, 2)) for _ in range(rank)],
        "group": groups,
    }
    match rng.randrange(3):
        case 0:
            attributes["pads"] = [rng.randint(0, 1) * (k > 1) for k in kernel] * 2
            attributes["output_padding"] = [rng.randint(0, s - 1) for s in strides]
        case 1:
            attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER"))
            attributes["dilations"] = [1] * rank
            kernel = [max(k, s) for k, s in zip(kernel, strides, strict=True)]
    channels, filters = 2 * groups, rng.randint(1, 3)
    inputs = {
        "x": floats(rng, 2, channels, *(rng.randint(2, 5) for _ in range(rank))),
        "w": floats(rng, channels, filters, *kernel),
        "b": floats(rng, filters * groups),
    }
    agrees("ConvTranspose", inputs, **attributes)


@pytest.mark.parametrize("seed", range(24))
def test_transposed_convolution_by_phases(seed: int) -> None:
    """Weights that are known, kernels at least as large as strides: each phase is a convolution."""
    rng = Random(seed)
    rank, groups = rng.randint(1, 2), rng.choice((1, 1, 2, 3))
    strides = [rng.randint(1, 4) for _ in range(rank)]
    kernel = [s + rng.choice((0, 1, 2, s)) for s in strides]
    beyond = [-(-k // s) * s - k for k, s in zip(kernel, strides, strict=True)]
    attributes: dict[str, Any] = {
        "strides": strides,
        "group": groups,
        "pads": [rng.randint(0, k // 2) for k in (*kernel, *kernel)],
        "output_padding": [
            rng.randint(0, min(s - 1, b)) for s, b in zip(strides, beyond, strict=True)
        ],
    }
    channels, filters = groups * rng.choice((1, 4)), rng.choice((1, 4))
    inputs = {
        "x": floats(rng, 2, channels, *(rng.randint(4, 7) for _ in range(rank))),
        "w": floats(rng, channels, filters, *kernel),
        "b": floats(rng, filters * groups),
    }
    agrees("ConvTranspose", inputs, ("w", "b"), **attributes)
    function = from_onnx(one_node("ConvTranspose", inputs, 20, constants=("w", "b"), **attributes))
    operators = {b.call.op for b in function.bindings if isinstance(b.call, Call)}
    assert "col2im" not in operators and "conv2d" in operators


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_convolution_of_an_empty_batch(rank: int, groups: int) -> None:
    x = np.zeros((0, 3, *[9] * rank), np.float32)
    w = np.ones((6, 3 // groups, *[3] * rank), np.float32)
    function = from_onnx(one_node("Conv", {"x": x, "w": w}, 20, constants=("w",), group=groups))
    assert evaluate(function, [x])["y"].shape == (0, 6, *[7] * rank)


@pytest.mark.parametrize("seed", range(10))
def test_quantized_convolution(seed: int) -> None:
    """Signs may differ, zero points be others than 0, scales be per channel.

    Weights stay within 7 bits: onnxruntime's kernels for x86 without VNNI saturate sums of pairs.
    """
    rng = Random(seed)
    data, weights = rng.choice(((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)))
    groups, per, filters = rng.choice((1, 2)), rng.randint(1, 3), 2 * rng.randint(1, 3)
    low = -64 if weights is np.int8 else 1
    per_channel = rng.random() < 0.5 and weights is np.int8
    w_zero = np.zeros(filters, weights) if per_channel else np.array(rng.randint(0, 60), weights)
    w_scale = np.abs(floats(rng, *w_zero.shape)) * np.float32(0.02) + np.float32(0.001)
    inputs = {
        "x": integers(rng, data, 1, per * groups, 7, 6),
        "xs": np.array(0.04, np.float32),
        "xz": np.array(rng.randint(0, 100), data),
        "w": integers(rng, weights, filters, per, 3, 2, low=low, high=64),
        "ws": np.asarray(w_scale, np.float32),
        "wz": w_zero,
        "ys": np.array(0.3, np.float32),
        "yz": np.array(rng.randint(0, 100), data),
        "b": integers(rng, np.int32, filters, low=-999, high=999),
    }
    constants = tuple(k for k in inputs if k != "x")
    pads = [rng.randint(0, 1) for _ in range(4)]
    strides = [rng.randint(1, 2), 1]
    agrees("QLinearConv", inputs, constants, exact=True, pads=pads, strides=strides, group=groups)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_integer_products(seed: int, known: bool) -> None:
    """With zero points that are constants, or computed by the model."""
    rng = Random(seed)
    inputs = {
        "a": integers(rng, np.uint8, 2, 3, 9, high=128),
        "b": integers(rng, np.int8, 9, 4, low=-64, high=64),
        "az": np.array(rng.randint(0, 99), np.uint8),
        "bz": integers(rng, np.int8, 4, low=-9, high=9),
    }
    agrees("MatMulInteger", inputs, ("az", "bz") if known else (), exact=True)
    inputs = {
        "x": integers(rng, np.uint8, 1, 2, 5, 6, high=128),
        "w": integers(rng, np.uint8, 3, 2, 3, 3, low=1, high=64),
        "xz": np.array(rng.randint(0, 99), np.uint8),
        "wz": np.array(rng.randint(0, 9), np.uint8),
    }
    pads = [1, 0, 2, 1]
    agrees("ConvInteger", inputs, ("xz", "wz") if known else (), exact=True, pads=pads)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantized_arithmetic(op: str) -> None:
    rng = Random(op)
    inputs = {
        "a": integers(rng, np.uint8, 2, 3, 4),
        "as": np.array(0.05, np.float32),
        "az": np.array(7, np.uint8),
        "b": integers(rng, np.uint8, 3, 4),
        "bs": np.array(0.02, np.float32),
        "bz": np.array(130, np.uint8),
        "ys": np.array(0.07, np.float32),
        "yz": np.array(100, np.uint8),
    }
    constants = tuple(k for k in inputs if k not in ("a", "b"))
    model = one_node(op, inputs, 20, ("y",), constants, "com.microsoft")
    model.graph.output[0].type.tensor_type.elem_type = 2
    given = {k: inputs[k] for k in ("a", "b")}
    ours = evaluate(from_onnx(model), given)["y"].astype(int)
    theirs = reference(model, given)["y"].astype(int)
    assert np.abs(ours - theirs).max() <= 1  # theirs rounds between steps


TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


@pytest.mark.parametrize("seed", range(16))
def test_resize(seed: int) -> None:
    rng = Random(seed)
    mode = rng.choice(("nearest", "linear", "cubic"))
    shape = [1, 2, rng.randint(2, 6), rng.randint(2, 6)]
    inputs: dict[str, Array] = {"x": floats(rng, *shape), "": np.zeros(0, np.float32)}
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": rng.choice(TRANSFORMS),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = rng.choice(("round_prefer_floor", "floor", "ceil"))
    if mode == "cubic":
        attributes["exclude_outside"] = rng.randint(0, 1)
    sizes = [*shape[:2], rng.randint(1, 9), rng.randint(1, 9)]
    if rng.random() < 0.5:
        scales = [b / a for a, b in zip(shape, sizes, strict=True)]
        inputs["scales"] = np.array(scales, np.float32)
        agrees("Resize", inputs, ("scales",), **attributes)
    else:
        inputs["sizes"] = np.array(sizes)
        model = one_node("Resize", inputs, 20, ("y",), ("sizes",))
        model.graph.node[0].input[:] = ["x", "", "", "sizes"]
        for name, value in attributes.items():
            model.graph.node[0].attribute.append(helper.make_attribute(name, value))
        given = {"x": inputs["x"]}
        theirs = reference(model, given)["y"]
        np.testing.assert_allclose(evaluate(from_onnx(model), given)["y"], theirs, 1e-4, 2e-5)


def test_weights_of_qdq_stay_integers() -> None:
    """Else there would be nothing for integer kernels to take."""
    q = np.arange(-4, 4, dtype=np.int8)
    inputs: dict[str, Array] = {"q": q}
    inputs |= {"s": np.array(0.5, np.float32), "z": np.array(1, np.int8)}
    function = from_onnx(one_node("DequantizeLinear", inputs, 20, ("y",), ("q", "s", "z")))
    assert [b.call.op for b in function.bindings] == ["dequantize"]  # type: ignore[union-attr]
    (y,) = evaluate(function, {}).values()
    np.testing.assert_array_equal(y, (q.astype(np.float32) - 1) / 2)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_of_numbers_far_from_0(axis: int) -> None:
    """Squares of such numbers have no digits left for their variance."""
    x = floats(Random(1), 3, 4, 16) / 8 + 100
    scale, shift = (floats(Random(seed), *x.shape[axis:]) for seed in (2, 3))
    inputs, outputs = {"x": x, "scale": scale, "shift": shift}, ("y", "mean", "inverse")
    found = evaluate(
        from_onnx(one_node("LayerNormalization", inputs, 20, outputs, axis=axis)), inputs
    )
    wide, axes = x.astype(np.float64), tuple(range(axis % 3, 3))
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + 1e-5)
    wanted = {"y": (wide - mean) * inverse * scale + shift, "mean": mean, "inverse": inverse}
    for name, right in wanted.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], right, rtol=1e-3, atol=1e-3)


def test_group_normalization_scales_each_channel() -> None:
    scale, shift = (floats(Random(seed), 6) for seed in (2, 3))
    inputs = {"x": floats(Random(1), 2, 6, 5, 5) + 100, "scale": scale, "shift": shift}
    model = one_node("GroupNormalization", inputs, 21, num_groups=2)
    found = evaluate(from_onnx(model), inputs)["y"]
    grouped = inputs["x"].reshape(2, 2, -1).astype(np.float64)
    centred = grouped - grouped.mean(2, keepdims=True)
    own = (centred / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)).reshape(2, 6, 5, 5)
    right = own * scale[:, None, None] + shift[:, None, None]
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-3)


def test_mean_variance_normalization_of_numbers_far_from_0() -> None:
    x = floats(Random(1), 2, 6, 5, 5) + 100
    model = one_node("MeanVarianceNormalization", {"x": x}, 21, axes=[2, 3])
    wide = x.astype(np.float64)
    right = (wide - wide.mean((2, 3), keepdims=True)) / wide.std((2, 3), keepdims=True)
    found = evaluate(from_onnx(model), {"x": x})["y"]
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-3)
