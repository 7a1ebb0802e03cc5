"""Models of floats and integers: right programs may differ by steps, and no more."""

from __future__ import annotations

import numpy as np

import mlc_deploy as mlc
from mlc_deploy.driver.compare import compare
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph.nudge import rounds_floats
from mlc_deploy.quantize.calibrate import calibrate
from mlc_deploy.quantize.insert import in_integers
from mlc_deploy.quantize.prepare import prepare, read
from tests.quantize.nets import pictures, residual


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
        slacks.append(model.slack(given, right)["y"])
        assert slacks[-1] < 0.05 * np.abs(right["y"]).max()
    assert max(slacks) > 0
    with mlc.connect("local://") as board:
        assert mlc.deploy(model, board, {"x": pictures(1)}).ok


def test_integers_of_inputs_are_exact() -> None:
    given = {"x": pictures(1)}
    for model in (compiled({"stem"}), mlc.compile(from_onnx(residual()), "host")):
        assert not rounds_floats(model.reference)
        assert model.slack(given, model.evaluate(given)) == {}


def test_slack_widens_the_tolerance_of_floats_alone() -> None:
    right = np.array([[1.0, 2.0]], np.float32)
    assert not compare(right + 0.01, right).ok
    assert compare(right + 0.01, right, slack=0.02).ok
    whole = right.astype(np.int32)
    assert not compare(whole + 1, whole, slack=5).ok
