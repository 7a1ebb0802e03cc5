"""The pass that chooses Winograd's filtering: what it takes and leaves, and how to forbid it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc_deploy.driver.model_graph import graph_steps
from mlc_deploy.graph import BlockBuilder, Constant, Function, evaluate, optimize
from mlc_deploy.graph.count import multiply_accumulates
from mlc_deploy.graph.layouts import choose_plans
from mlc_deploy.graph.nodes import Call
from mlc_deploy.passes.context import PassContext
from mlc_targets import Target
from tests.graph.test_layouts import conv, layer, ops

TARGET = Target("aarch64")
LAYER: dict[str, Any] = {
    "strides": (1, 1),
    "dilations": (1, 1),
    "pads": (1, 1, 1, 1),
    "groups": 1,
}


def network() -> Function:
    """A first layer, two that are worth it with a sum around them, one of stride 2."""
    b = BlockBuilder()
    x = b.param("x", (1, 3, 24, 24))
    first = layer(b, x, 32)
    y = layer(b, layer(b, first, 32), 32)
    last = layer(b, b.emit("add", y, first), 32, strides=(2, 2))
    return b.finish([last])


def values(function: Function) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((1, 3, 24, 24)).astype(np.float32)
    return evaluate(function, {"x": x})


def test_layers_that_gain_are_transformed() -> None:
    function = network()
    result = choose_plans(TARGET)(function)
    wanted = ["winograd_conv2d" if n in (1, 2) else "conv2d" for n in range(4)]
    assert [op for op in ops(result) if "conv2d" in op] == wanted
    assert sum(map(multiply_accumulates, result.bindings)) == sum(
        map(multiply_accumulates, function.bindings)
    )
    for name, expected in values(function).items():
        np.testing.assert_allclose(values(result)[name], expected, rtol=1e-4, atol=1e-4)


def test_it_ends_in_blocks_with_weights_folded() -> None:
    result = optimize(network(), graph_steps(TARGET))
    found = [
        binding.call
        for kernel in result.bindings
        for binding in getattr(getattr(kernel.call, "function", None), "bindings", ())
        if binding.call.op == "winograd_conv2d"
    ]
    assert [call.attrs["data_layout"] for call in found] == ["NCHW4c", "NCHW4c"]
    sizes = {a.type.shape for k in result.bindings for a in k.call.args if isinstance(a, Constant)}
    tile = found[0].attrs["tile"]
    assert any(shape[1:5] == (tile + 2, tile + 2, 8, 4) for shape in sizes)


@pytest.mark.parametrize("name", ["choose_winograd", "choose_layouts"])
def test_whoever_wants_none_disables_the_pass(name: str) -> None:
    """Or the layouts that it needs."""
    with PassContext(disabled_pass=[name]):
        result = optimize(network(), [choose_plans(TARGET)])
    assert "winograd_conv2d" not in ops(result)


def of_integers() -> Function:
    """A layer of int8, with a zero point around its data, and its requantization."""
    b, rng = BlockBuilder(), np.random.default_rng(1)
    w = rng.integers(-127, 128, (64, 32, 3, 3)).astype(np.int8)
    attrs: dict[str, Any] = {**LAYER, "pad_value": -7}
    sums = b.emit("conv2d", b.param("x", (1, 32, 14, 14), "int8"), Constant(w, "w"), **attrs)
    multiplier, zero = np.full((64, 1, 1), 1e-4, np.float32), np.full((64, 1, 1), 3, np.int8)
    return b.finish([b.emit("requantize", sums, Constant(multiplier, "m"), Constant(zero, "z"))])


def test_integers_are_the_same() -> None:
    """Where the target has no instruction that sums up products."""
    function = of_integers()
    x = np.random.default_rng(0).integers(-128, 128, (1, 32, 14, 14)).astype(np.int8)
    (wanted,) = evaluate(function, {"x": x}).values()
    for name, op in (
        ("aarch64", "winograd_conv2d"),
        ("armv7a", "winograd_conv2d"),
        ("raspberry-pi/5", "conv2d"),
        ("host", "conv2d"),
    ):
        result = choose_plans(Target(name))(function)
        assert [found for found in ops(result) if "conv2d" in found] == [op], name
        (value,) = evaluate(result, {"x": x}).values()
        assert np.array_equal(value, wanted)


def test_weights_that_are_no_constants_stay() -> None:
    b = BlockBuilder()
    x, w = b.param("x", (1, 32, 24, 24)), b.param("w", (32, 32, 3, 3))
    function = b.finish([b.emit("conv2d", x, w, **LAYER)])
    (binding,) = choose_plans(TARGET)(function).bindings
    assert isinstance(binding.call, Call)
    assert (binding.call.op, *binding.call.args) == ("conv2d", x, w)


def test_targets_without_vectors_have_none() -> None:
    b = BlockBuilder()
    function = b.finish([conv(b, b.param("x", (1, 32, 24, 24)), 32)])
    result = choose_plans(Target("llvm -mtriple=armv7a-linux-gnueabihf"))(function)
    assert "winograd_conv2d" not in ops(result)
