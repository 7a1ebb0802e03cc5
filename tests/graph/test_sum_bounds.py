"""Which rounded numbers are known to be short, and that kernels which rely on it stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Constant, Function, evaluate, optimize
from mlc_deploy.graph.passes import canonicalize_quantized
from mlc_deploy.ir import SHORT_FLOATS
from mlc_deploy.ops.quantize import SHORT
from tests.graph.test_graph import CONV

Array = NDArray[Any]
ZERO = Constant(np.array(5, np.int8))
LARGE = (1 << 15) - 1 - 5 - 1  # what is short with this zero point, and half a step of rounding


def constant(value: Any, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def layer(op: str, weights: Array, factor: float, bias: int = 0, dtype: str = "int8") -> Function:
    """requantize(layer(x, w) + bias)"""
    b = BlockBuilder()
    w = Constant(weights)
    if op == "conv2d":
        x = b.param("x", (1, weights.shape[1], 5, 5), dtype)
        sums: Any = b.emit("conv2d", x, w, **CONV)
        shape: tuple[int, ...] = (len(weights), 1, 1)
    else:
        x = b.param("x", (4, weights.shape[1]), dtype)
        sums = b.emit("dense", x, w, transpose_b=True)
        shape = (len(weights),)
    sums = b.emit("add", sums, constant(np.full(shape, bias), "int32"))
    return b.finish([b.emit("requantize", sums, constant(factor, "float32"), ZERO)])


def is_short(function: Function) -> bool:
    (call,) = (
        b.call
        for b in optimize(function, (canonicalize_quantized,)).bindings
        if isinstance(b.call, Call)
        and b.call.op in ("requantize", "quantize")
        and b.outputs[0] in function.outputs
    )
    return bool(call.attrs.get(SHORT))


@pytest.mark.parametrize("op", ["conv2d", "dense"])
def test_weights_decide(op: str) -> None:
    """Eight weights of 100 are 102,400 at most, of data of int8."""
    weights = np.full((3, 8, 1, 1) if op == "conv2d" else (3, 8), 100, np.int8)
    most = 8 * 100 * 128
    assert is_short(layer(op, weights, 0.9 * LARGE / most))
    assert not is_short(layer(op, weights, 1.1 * LARGE / most))
    assert not is_short(layer(op, weights, 0.9 * LARGE / most, bias=-most))
    weights[1] *= -1
    assert is_short(layer(op, weights, 0.9 * LARGE / most))
    weights[1, 0] = 127  # the largest channel decides
    assert is_short(layer(op, weights, 0.9 * LARGE / most))


def test_what_layers_give_is_short_when_it_is_added() -> None:
    def added(scale: float) -> Function:
        b = BlockBuilder()
        x, y = b.param("x", (4, 8), "int8"), b.param("y", (4, 8), "int8")
        parts = [b.emit("dequantize", v, constant(0.5, "float32"), ZERO) for v in (x, y)]
        total = b.emit("add", *parts)
        return b.finish([b.emit("quantize", total, constant(scale, "float32"), ZERO)])

    assert is_short(added(0.01))
    assert not is_short(added(0.001))


def test_floats_that_are_given_are_not() -> None:
    b = BlockBuilder()
    x = b.param("x", (4, 8))
    function = b.finish([b.emit("quantize", x, constant(0.5, "float32"), ZERO)])
    assert not is_short(function)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_same_bytes_at_the_ends(dtype: str) -> None:
    """Data that make the largest sums there are, and the smallest."""
    weights = np.resize(np.array([100, -100, 7], np.int8), (16, 16))
    function = optimize(
        layer("dense", weights, 0.1, bias=77, dtype=dtype), (canonicalize_quantized,)
    )
    assert is_short(function)
    ends = np.iinfo(dtype)
    rows = [np.where(weights[0] < 0, a, b) for a, b in ((ends.min, ends.max), (ends.max, ends.min))]
    x = np.array([*rows, *np.random.default_rng(0).integers(ends.min, ends.max, (2, 16))], dtype)
    (wanted,) = evaluate(function, {"x": x}).values()
    assert {-128, 127} <= set(wanted.reshape(-1).tolist())
    model = mlc.compile(function, "aarch64", workers=1)
    assert any(k.body.attrs.get(SHORT_FLOATS) for k in model.library.kernels)
    with mlc.connect("qemu://cortex-a72") as board:
        done = mlc.deploy(model, board, {"x": x})
    np.testing.assert_array_equal(done.outputs[function.output_names[0]], wanted)
