"""Models of floats and integers: right programs may differ by steps, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.driver.compare import Slack, compare
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import BlockBuilder, Function, Value, const, evaluate
from mlc_deploy.graph.nodes import Call, Constant
from mlc_deploy.graph.nudge import MOST, MOST_ELEMENTS, NUDGES, nudged, rounds_floats
from mlc_deploy.quantize.calibrate import calibrate
from mlc_deploy.quantize.insert import in_integers
from mlc_deploy.quantize.prepare import prepare, read
from tests.quantize.nets import pictures, residual

CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -device=arm_cpu -mcpu=cortex-a76"


def compiled(chosen: set[str]) -> mlc.CompiledModel:
    net = prepare(read(residual()))
    known = calibrate(net, [{"x": x[None]} for x in pictures(2)])
    return mlc.compile(from_onnx(in_integers(net, chosen, known.ranges).proto()), "host")


def test_integers_of_computed_floats_may_step() -> None:
    model = compiled({"first", "second"})  # which read what the float stem computes
    assert rounds_floats(model.reference)
    slacks = []
    for seed in range(4):
        given = {"x": pictures(1, seed)}
        right = model.evaluate(given)
        slack = model.slack(given, right)["y"]
        slacks.append(slack.within)
        assert slack.within < 0.05 * np.abs(right["y"]).max() and slack.elements == 0
    assert max(slacks) > 0
    with mlc.connect("local://") as board:
        assert mlc.deploy(model, board, {"x": pictures(1)}).ok


def test_integers_of_inputs_are_exact() -> None:
    given = {"x": pictures(1)}
    for model in (compiled({"stem"}), mlc.compile(from_onnx(residual()), "host")):
        assert not rounds_floats(model.reference)
        assert model.slack(given, model.evaluate(given)) == {}


def test_integers_in_loops_and_of_scales_that_are_computed_may_step() -> None:
    """As where weights alone are small integers, and a run finds the scale of the data."""
    b = BlockBuilder("main")
    x, scale = b.param("x", (1, 64), "float32"), b.param("scale", (), "float32")
    zero = const(np.array(0, np.int8))

    def turn(_: Value, states: list[Value], __: list[Value]) -> tuple[list[Value], list[Value]]:
        rounded = b.emit("quantize", b.emit("tanh", states[0]), scale, zero)
        return [b.emit("dequantize", rounded, scale, zero)], []

    own, _ = b.emit_loop(2, [x], turn)
    looping = b.finish(own, ["y"])
    b = BlockBuilder("main")
    x, scale = b.param("x", (1, 64), "float32"), b.param("scale", (), "float32")
    plain = b.finish([b.emit("quantize", b.emit("tanh", x), scale, zero)], ["y"])
    near = np.full((1, 64), np.arctanh(0.5 / 100), np.float32)  # a tie, after tanh
    for function in (looping, plain):
        assert rounds_floats(function)
        given = {"x": near, "scale": np.array(0.01, np.float32)}
        found = [evaluate(nudged(function, n), given)["y"] for n in NUDGES]
        assert (found[0] != found[1]).all()


def test_differences_in_float16_may_be_off_as_its_rounding_says() -> None:
    """Two sums of 64 positive numbers differ by little, and their rounding does not; an output that
    is off by more is wrong, and so is a weight."""
    rng = np.random.default_rng(1)
    b = BlockBuilder("main")
    x = b.param("x", (8, 64), "float32")
    first = rng.random((64, 16)).astype(np.float32)
    second = (first * (1 + 1e-3 * rng.standard_normal(first.shape))).astype(np.float32)
    sums = [b.emit("matmul", x, w) for w in (first, second)]
    function = b.finish([b.emit("subtract", *sums)], ["y"])
    model = mlc.compile(function, CORTEX_A76, precision="float16")
    given = {"x": rng.random((8, 64)).astype(np.float32)}
    right = model.evaluate(given)
    slack = model.slack(given, right)["y"]
    largest = float(np.abs(right["y"]).max())
    assert 0 < slack.within <= MOST * largest
    assert not compare(right["y"] + 0.1 * largest, right["y"], "float16", slack).ok
    wrong = evaluate(with_constant(function, "matmul", 1, lambda w: w * 1.01), given)["y"]
    assert not compare(wrong, right["y"], "float16", slack).ok


def test_slack_widens_the_tolerance_of_floats_alone() -> None:
    right = np.array([[1.0, 2.0]], np.float32)
    assert not compare(right + 0.01, right).ok
    assert compare(right + 0.01, right, slack=Slack(0.02)).ok
    whole = right.astype(np.int32)
    assert not compare(whole + 1, whole, slack=Slack(5, 5)).ok


def with_constant(
    function: Function, op: str, place: int, change: Callable[[NDArray[Any]], NDArray[Any]]
) -> Function:
    """The function that a kernel computes whose constant is another one; of the last such call."""
    bindings = list(function.bindings)
    calls = [(i, b.call) for i, b in enumerate(bindings) if isinstance(b.call, Call)]
    at, call = [(i, c) for i, c in calls if c.op == op][-1]
    args = list(call.args)
    constant = args[place]
    assert isinstance(constant, Constant)
    args[place] = Constant(change(constant.value).astype(constant.value.dtype), constant.name)
    bindings[at] = replace(bindings[at], call=replace(call, args=tuple(args)))
    return replace(function, bindings=tuple(bindings))


def without_a_tap(w: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([w[:, :-1], np.zeros_like(w[:, -1:])], axis=1)


WRONG = {
    "steps": ("quantize", 1, lambda v: v * 1.01),
    "zero": ("quantize", 2, lambda v: v + 1),
    "factors": ("requantize", 1, lambda v: v * 1.01),
    "result's zero": ("requantize", 2, lambda v: v + 1),
    "weights": ("conv2d", 1, without_a_tap),
    "back to floats": ("dequantize", 1, lambda v: v * 1.01),
    "floats": ("dense", 1, lambda v: v * 1.01),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_kernel_is_found_beyond_the_slack(which: str) -> None:
    model = compiled({"first", "second"})
    for seed in range(4):
        given = {"x": pictures(1, seed)}
        right = model.evaluate(given)
        slack = model.slack(given, right)["y"]
        got = evaluate(with_constant(model.reference, *WRONG[which]), given, module=model.module)
        assert not compare(got["y"], right["y"], slack=slack).ok


def test_slack_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc_deploy.driver.compile.NUDGES", (1.5,))  # which moves it by far more
    model, given = compiled({"first", "second"}), {"x": pictures(1)}
    right = model.evaluate(given)
    slack = model.slack(given, right)["y"]
    assert slack.within == pytest.approx(MOST * np.abs(right["y"]).max())
    assert slack.elements <= MOST_ELEMENTS * right["y"].size


def test_few_elements_may_be_off_by_any_amount() -> None:
    right = np.linspace(0, 1, 200, dtype=np.float32)
    for wrong, ok in ((3, True), (4, False)):
        got = right.copy()
        got[:wrong] += 0.5
        found = compare(got, right, slack=Slack(0.1, 3))
        assert (found.ok, found.stepped) == (ok, wrong if ok else 0)
    got[0] = np.nan
    assert not compare(got, right, slack=Slack(0.1, 3)).ok
