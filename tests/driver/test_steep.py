"""Models that move far when a last digit changes are compared within that; calm ones as before."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.cli.run import mismatches
from mlc_deploy.driver.compare import NO_SLACK, Slack, compare, steepness
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import Function, evaluate
from mlc_deploy.graph.nodes import Call, Constant
from mlc_deploy.graph.steep import computes_in_half, moved, weights_moved
from mlc_deploy.ops.registry import has
from tests.onnx_models import Array, reference
from tests.quantize.nets import pictures, residual

MODELS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models"


def detector(gain: float, blocks: int = 12) -> ModelProto:
    """Convolutions with random weights, each followed by a normalization and a function that
    bends: with a gain of 2, every block doubles by how much its data differ."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for n in range(blocks):
        w = rng.standard_normal((8, 8, 3, 3)) / math.sqrt(72)
        given = {
            f"w{n}": w,
            f"scale{n}": np.full(8, gain),
            f"shift{n}": rng.standard_normal(8) * 0.1,
        }
        weights += [numpy_helper.from_array(a.astype(np.float32), k) for k, a in given.items()]
        nodes += [
            helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], pads=[1] * 4),
            helper.make_node(
                "InstanceNormalization", [f"c{n}", f"scale{n}", f"shift{n}"], [f"n{n}"]
            ),
            helper.make_node("Sin", [f"n{n}"], [f"s{n}"]),
        ]
        x = f"s{n}"
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, [1, 8, 16, 16]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "detector", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def steepness_of(function: Function, given: dict[str, Array]) -> dict[str, Slack]:
    """As a compiled model measures it."""
    model = mlc.compile(function, "host")
    return model.steepness(given)


def test_right_outputs_of_a_steep_model_are_right_and_it_says_so() -> None:
    model, given = detector(2.0), {"x": numbers(1, 8, 16, 16)}
    compiled = mlc.compile(from_onnx(model), "host")
    (name, right), *_ = compiled.evaluate(given).items()
    (theirs,) = reference(model, given).values()
    assert not compare(theirs, right).ok  # onnxruntime's, too
    slack = compiled.steepness(given)[name]
    assert compare(theirs, right, slack=slack).ok
    with mlc.connect("local://") as board:
        done = mlc.deploy(compiled, board, given)
    assert done.ok and done.checks[name].moves == slack.moves > 1e-3
    assert done.record()["outputs"][0]["moves"] == slack.moves


def test_wrong_outputs_of_a_steep_model_are_wrong() -> None:
    model, given = detector(2.0), {"x": numbers(1, 8, 16, 16)}
    function = from_onnx(model)
    (name, right), *_ = evaluate(function, given).items()
    slack = steepness_of(function, given)[name]
    faults = [np.roll(right, 1, -1), right * 0, -right, right + np.nan]
    for number in (0, 3, 6):
        fault = faulty(function, number, 0.01, True)
        assert fault is not None
        faults += evaluate(fault, given).values()
    for wrong in faults:
        assert not compare(wrong, right, slack=slack).ok


def faulty(function: Function, number: int, change: float, tap: bool) -> Function | None:
    """The function with the weights of a layer larger by a share, or one tap of theirs."""
    layers = [
        n
        for n, b in enumerate(function.bindings)
        if isinstance(b.call, Call)
        and has(b.call.op, "products")
        and isinstance(b.call.args[1], Constant)
    ]
    if number >= len(layers):
        return None
    at = layers[number]
    binding = function.bindings[at]
    assert isinstance(binding.call, Call)
    x, w, *rest = binding.call.args
    assert isinstance(w, Constant)
    array = w.value.copy()
    array[(..., -1) if tap else ...] *= np.float32(1 + change)
    call = replace(binding.call, args=(x, Constant(array), *rest))
    bindings = (*function.bindings[:at], replace(binding, call=call), *function.bindings[at + 1 :])
    return replace(function, bindings=bindings)


CALM = ("digits_cnn", "digits_mlp", "residual", "detector")


def calm(name: str) -> tuple[Function, dict[str, Array]]:
    match name:
        case "residual":
            return from_onnx(residual()), {"x": pictures(1)}
        case "detector":
            return from_onnx(detector(1.0, 5)), {"x": numbers(1, 8, 16, 16)}
    with np.load(MODELS / "digits.npz") as digits:
        return from_onnx(MODELS / f"{name}.onnx"), {"image": digits["image"]}


@pytest.mark.parametrize("name", CALM)
def test_faults_of_calm_models_are_found(name: str) -> None:
    """One tap of a layer off by 1 %, or a layer by 3 %: whatever the tolerance finds, it still
    finds beside what the model moves by itself."""
    function, given = calm(name)
    right = evaluate(function, given)
    slack = steepness_of(function, given)
    found = 0
    for number in range(100):
        for change, tap in ((0.01, True), (0.03, False)):
            wrong = faulty(function, number, change, tap)
            if wrong is None:
                assert found >= number > 1
                return
            outputs = evaluate(wrong, given)
            plain, beside = (
                all(compare(outputs[n], right[n], slack=s.get(n, NO_SLACK)).ok for n in right)
                for s in ({}, slack)
            )
            assert plain == beside, (number, change)
            found += not beside


def test_counts_that_rounding_decides() -> None:
    """Elements above a threshold that lies on them: how many is a matter of the last digit."""
    x = np.full(500, 0.3, np.float32)
    right = np.zeros((2, 40), np.int64)
    slack = steepness(right, [np.zeros((2, n), np.int64) for n in (38, 41, 40)])
    assert slack.extents > 2 and not slack.moves
    got = np.zeros((2, 43), np.int64)
    assert compare(got, right, slack=slack).ok
    wrong = compare(got, right)
    assert not wrong.ok and wrong.shapes == ((2, 43), (2, 40))
    (text,) = mismatches({"y": wrong}, {"y": got})
    assert text == (
        "output 'y' has the shape [2, 43], the reference [2, 40]\n"
        "  in:  how many elements there are, known at run time\n"
        "  try: --output DIR, which writes the board's outputs"
    )
    assert compare(x[:0], x[:0]).ok


def test_integers_of_a_steep_model_may_differ_in_a_few_places() -> None:
    right = np.zeros(100, np.int64)
    other = right.copy()
    other[7] = 3
    slack = steepness(right, [right, other, right])
    got = right.copy()
    got[50:53] = 1
    assert compare(got, right, slack=slack).ok and not compare(got, right).ok
    assert not compare(right + 1, right, slack=slack).ok
    assert not compare(got, right, slack=steepness(right, [right] * 3)).ok


def test_moves_are_of_the_last_digit() -> None:
    rng = np.random.default_rng(0)
    for dtype, precision, unit in (
        (np.float32, "float32", 2.0**-23),
        (np.float32, "float16", 2.0**-10),
        (np.float64, "float64", 2.0**-52),
    ):
        x = np.linspace(-3, 3, 41).astype(dtype)
        share = np.abs(moved(x, rng, precision)[x != 0] / x[x != 0] - 1)
        assert (share > 0).all() and share.max() <= 2 * unit
    assert (moved(np.arange(3), rng, "float32") == np.arange(3)).all()
    function = from_onnx(detector(1.0, 1))
    changed = weights_moved(function, rng, "float32")
    assert [b.call.args for b in changed.bindings if b.outputs] != []
    kept = [
        b.call is a.call or (isinstance(b.call, Call) and b.call.op == "conv2d")
        for a, b in zip(function.bindings, changed.bindings, strict=True)
    ]
    assert all(kept) and changed.bindings != function.bindings


def half_inside() -> ModelProto:
    """float32 at both ends, float16 between them."""
    rng = np.random.default_rng(2)
    weights = [
        numpy_helper.from_array(
            (rng.standard_normal((64, 64)) / 8).astype(np.float16) * np.float16(3), f"w{n}"
        )
        for n in range(2)
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w0"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Tanh", ["c"], ["d"]),
        helper.make_node("Cast", ["d"], ["y"], to=TensorProto.FLOAT),
    ]
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, [8, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "half", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_tolerance_is_that_of_what_the_model_computes_in() -> None:
    compiled = mlc.compile(from_onnx(half_inside()), "host")
    assert computes_in_half(compiled.reference) and compiled.judged_in == "float16"
    assert not computes_in_half(from_onnx(detector(1.0, 1)))
    given = {"x": numbers(8, 64)}
    with mlc.connect("local://") as board:
        assert mlc.deploy(compiled, board, given).ok
    right = compiled.evaluate(given)["y"]
    assert compare(right * 1.003, right, compiled.judged_in).ok
    assert not compare(right * 1.02, right, compiled.judged_in).ok
