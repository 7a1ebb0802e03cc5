"""Data of layers without a sign where the target's kernels take them so: equal numbers, and nothing
in between that turns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc_deploy.driver.model_graph import graph_steps
from mlc_deploy.graph import BlockBuilder, Call, Function, evaluate, optimize
from mlc_deploy.graph.nodes import CallFused
from mlc_deploy.graph.signs import unsigned_data
from mlc_targets import Target

VNNI = "x86_64 -mcpu=cascadelake"
SCALE = np.array(0.05, np.float32)


def number(value: int) -> Any:
    return np.array(value, np.int8)


def weights(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-127, 128, shape).astype(np.int8)


def network(ends_in_sums: bool = False) -> Function:
    """Convolutions, one of them depthwise, with a sum around two of them and pooling."""
    b = BlockBuilder("network")
    x = b.param("x", (1, 16, 9, 9))
    square: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}

    def layer(q: Any, w: Any, zero: int, groups: int = 1) -> Any:
        sums = b.emit("conv2d", q, w, groups=groups, pad_value=zero, **square)
        bias = np.arange(len(w), dtype=np.int32).reshape(-1, 1, 1)
        scale = np.array(2e-3, np.float32)
        return b.emit("requantize", b.emit("add", sums, bias), scale, number(-7))

    first = b.emit("quantize", x, SCALE, number(3))
    second = layer(first, weights(16, 16, 3, 3), 3)
    third = layer(second, weights(16, 1, 3, 3), -7, groups=16)
    both = (b.emit("dequantize", q, SCALE, number(-7)) for q in (second, third))
    total = b.emit("quantize", b.emit("add", *both), SCALE, number(9))
    pooled = b.emit("max_pool", total, kernel=(2, 2), strides=(2, 2), dilations=(1, 1),
                    pads=(0,) * 4, ceil_mode=False)  # fmt: skip
    bounded = b.emit("clip", pooled, min=-100, max=90)
    last = layer(bounded, weights(8, 16, 3, 3), 9)
    return b.finish([last if not ends_in_sums else b.emit("cast", last, dtype="int32")])


def calls(function: Function) -> list[Call]:
    return [b.call for b in function.bindings if isinstance(b.call, Call)]


@pytest.mark.parametrize("ends_in_sums", [False, True])
def test_all_between_layers_is_turned(ends_in_sums: bool) -> None:
    function = network(ends_in_sums)
    turned = optimize(function, (unsigned_data(Target(VNNI)),))
    layers = [c for c in calls(turned) if c.op == "conv2d"]
    assert [c.args[0].type.dtype for c in layers] == ["uint8"] * 3
    assert [c.attrs["pad_value"] for c in layers] == [131, 121, 137]
    (clip,) = (c for c in calls(turned) if c.op == "clip")
    assert (clip.attrs["min"], clip.attrs["max"]) == (28, 218)
    assert [c.op for c in calls(turned)].count("offset") == 1  # of the output
    assert [c.op for c in calls(turned)].count("add") == 4  # a bias holds what makes up for it
    data = [np.random.default_rng(0).normal(0, 3, (1, 16, 9, 9)).astype(np.float32)]
    (before,), (after,) = (evaluate(f, data).values() for f in (function, turned))
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(after, before)


def test_fixed_point_is_turned_too() -> None:
    """As .tflite files have it."""
    b = BlockBuilder("network")
    x = b.param("x", (1, 16, 5, 5), "int8")
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "groups": 1}
    scaled = x
    for seed in (3, 4):
        sums = b.emit("conv2d", scaled, weights(16, 16, 1, 1), pad_value=seed, **attrs)
        factor, shift = np.array(1 << 30, np.int32), np.array(-6, np.int32)
        scaled = b.emit("rescale", sums, factor, shift, number(seed))
    function = b.finish([scaled])
    turned = optimize(function, (unsigned_data(Target(VNNI)),))
    assert [c.op for c in calls(turned)].count("offset") == 2  # of the input and of the output
    data = [np.random.default_rng(0).integers(-128, 128, (1, 16, 5, 5)).astype(np.int8)]
    (before,), (after,) = (evaluate(f, data).values() for f in (function, turned))
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("target", ["x86_64 -mcpu=haswell", "aarch64", "armv7a"])
def test_other_targets_leave_it(target: str) -> None:
    function = network()
    assert optimize(function, (unsigned_data(Target(target)),)) is function


def test_no_layer_of_floats_takes_its_place() -> None:
    """Convolutions with few channels are of floats elsewhere."""
    b = BlockBuilder("network")
    x = b.param("x", (1, 3, 16, 16), "int8")
    attrs: dict[str, Any] = {"strides": (2, 2), "dilations": (1, 1), "pads": (1,) * 4}
    sums = b.emit("conv2d", x, weights(16, 3, 3, 3), groups=1, pad_value=4, **attrs)
    function = b.finish([b.emit("requantize", sums, SCALE, number(0))])
    chosen = optimize(function, graph_steps(Target(VNNI)))
    fused = (b.call.function for b in chosen.bindings if isinstance(b.call, CallFused))
    layers = [c for f in (chosen, *fused) for c in calls(f) if c.op == "conv2d"]
    assert [c.args[0].type.dtype for c in layers] == ["uint8"]
