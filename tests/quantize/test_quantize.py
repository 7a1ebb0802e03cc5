"""Quantized models: what engines make of them, that the budget holds, and what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from mlc_deploy.quantize.agreement import judge, kind_of
from mlc_deploy.quantize.calibrate import calibrate, equalized
from mlc_deploy.quantize.costs import Costs, within_cost
from mlc_deploy.quantize.data import samples_of
from mlc_deploy.quantize.images import parse, settled
from mlc_deploy.quantize.insert import in_integers
from mlc_deploy.quantize.net import Net
from mlc_deploy.quantize.prepare import prepare, read
from mlc_deploy.quantize.ranges import Range, Seen, proposals
from mlc_deploy.quantize.run import run
from mlc_deploy.quantize.search import within_budget
from mlc_deploy.quantize.weights import blocks
from tests.quantize.nets import conv, model, pictures, residual, weights

Array = NDArray[Any]
MODELS = Path(mlc.__file__).parent / "models"
DIGITS = MODELS / "digits.npz"


def by_onnxruntime(proto: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    found: Array = session.run(None, inputs)[0]
    return found


def by_reference(proto: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    """onnxruntime, unless products of uint8 and int8 are among the operators: it adds two of them
    in saturating int16 on x86-64 without VNNI. Then onnx.reference."""
    if all(node.op_type != "MatMulInteger" for node in proto.graph.node):
        return by_onnxruntime(proto, inputs)
    (found,) = ReferenceEvaluator(proto).run(None, inputs)
    return np.asarray(found)


def ours(proto: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    (found,) = evaluate(from_onnx(proto), inputs).values()
    return found


# ------------------------------------------------------------------------------- whole models


def test_static_runs_everywhere_and_keeps_the_budget() -> None:
    x = pictures(16)
    made = mlc.quantize(residual(), {"x": x}, max_drop=1)
    assert {layer.bits for layer in made.layers} == {8}
    assert made.before == 100 and made.after is not None and made.after >= 99
    onnx.checker.check_model(made.model)
    one = {"x": x[:1]}
    (right,) = evaluate(from_onnx(residual()), one).values()
    for found in (ours(made.model, one), by_onnxruntime(made.model, one)):
        assert np.corrcoef(found.ravel(), right.ravel())[0, 1] > 0.99
    compiled = mlc.compile(from_onnx(made.model), "host")
    with mlc.connect("local://") as board:
        (run_here,) = board.load(compiled).run(one).values()
    np.testing.assert_allclose(
        run_here, next(iter(compiled.evaluate(one).values())), rtol=1e-4, atol=1e-5
    )
    kernels = " ".join(compiled.program.kernels)
    assert "requantize" in kernels  # integers pass from layer to layer


@pytest.mark.parametrize("scheme", ["dynamic", "int8-weights", "int4-weights"])
@pytest.mark.parametrize("matmul_nbits", [False, True])
def test_schemes_without_data(scheme: str, matmul_nbits: bool) -> None:
    if scheme == "dynamic" and matmul_nbits:
        return
    path = MODELS / "digits_mlp.onnx"
    made = mlc.quantize(path, scheme=scheme, matmul_nbits=matmul_nbits)
    assert made.before is None and {layer.bits for layer in made.layers} <= {4, 8}
    with np.load(DIGITS) as data:
        given, label = {"image": data["image"]}, data["label"]
    found = ours(made.model, given)
    np.testing.assert_allclose(found, by_reference(made.model, given), atol=1e-5)
    np.testing.assert_array_equal(found.argmax(1), label)
    size = len(made.model.SerializeToString())
    assert size < path.stat().st_size * (0.35 if "4" in scheme else 0.5)
    operators = {node.op_type for node in made.model.graph.node}
    expected = {"dynamic": "MatMulInteger"}.get(
        scheme, "MatMulNBits" if matmul_nbits else "DequantizeLinear"
    )
    assert expected in operators


def test_a_scheme_without_calibration_holds_the_budget_with_data() -> None:
    made = mlc.quantize(MODELS / "digits_mlp.onnx", DIGITS, scheme="int4-weights", max_drop=0)
    assert made.after == made.before == 100


def test_labels_measure_accuracy() -> None:
    with np.load(DIGITS) as data:
        image, label = data["image"], data["label"]
    made = mlc.quantize(MODELS / "digits_cnn.onnx", {"image": image}, labels=label)
    assert (made.measure, made.before, made.after) == ("accuracy", 100, 100)
    assert not made.notes


def digits(runs: int) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    """A model of one digit, images as often as that, and their labels."""
    proto = onnx.load(MODELS / "digits_cnn.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    with np.load(DIGITS) as data:
        of = np.arange(runs) % len(data["image"])
        return proto, {"image": data["image"][of]}, data["label"][of]


def test_labels_of_all_runs_are_cut_to_those_that_are_taken() -> None:
    proto, images, labels = digits(48)
    made = mlc.quantize(proto, images, labels=labels, samples=32)
    assert (made.runs, made.measure, made.before) == (32, "accuracy", 100)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda labels: labels[:40], "there are 40, and 'probability' has 32 rows"),
        (lambda labels: labels + 1,
         "they are 1 to 10, and 'probability' has 10 classes, counted from 0"),
        (lambda labels: labels * 1.0, "they are float64, not integers"),
    ],
    ids=["count", "classes", "numbers"],
)  # fmt: skip
def test_labels_that_do_not_fit(change: Callable[[Array], Array], what: str) -> None:
    proto, images, labels = digits(48)
    with pytest.raises(mlc.InputError) as refused:
        mlc.quantize(proto, images, labels=change(labels), samples=32)
    assert refused.value.what == f"the labels do not fit: {what}"


def test_labels_of_other_data_are_doubted() -> None:
    proto, images, labels = digits(32)
    made = mlc.quantize(proto, images, labels=(labels + 1) % 10)
    assert made.notes == (
        "the float model itself is right in 0.0%, which chance makes 10.0%: "
        "do labels and preprocessing fit the data?",
    )


def test_what_was_said_of_images_is_kept(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for n, x in enumerate(pictures(4)):
        pixels = np.clip(x.transpose(1, 2, 0) * 60 + 128, 0, 255).astype(np.uint8)
        image.fromarray(pixels).resize((40, 30)).save(tmp_path / f"{n}.png")
    text = "resize=20 crop=16x16 mean=0.5,0.5,0.5 std=0.25"
    made = mlc.quantize(residual(), tmp_path, preprocess=text, max_drop=5)
    whole = "resize=20 crop=16x16 scale=255 mean=0.5,0.5,0.5 std=0.25 color=RGB layout=NCHW"
    assert made.record()["preprocess"] == whole and made.runs == 4
    entries = {entry.key: entry.value for entry in made.model.metadata_props}
    assert entries["mlc.quantize.preprocess"] == whole
    assert parse(whole) == settled(parse(text), (1, 3, 16, 16))


def test_images_come_as_many_at_once_as_the_model_takes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    nodes = [conv("c", "x", "y")]
    net = model(nodes, weights("c", 4, 3, 3, 3), (2, 3, 16, 16))
    x = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3)).astype(np.uint8)
    for n, pixels in enumerate(x):
        image.fromarray(pixels).save(tmp_path / f"{n}.png")
    data = samples_of(read(net), tmp_path, "", 64, {}, {})
    assert data.preprocess == "resize=16x16 scale=255 mean=0 std=1 color=RGB layout=NCHW"
    assert len(data.runs) == 2  # the fifth is left over
    expected = (x[2:4] / np.float32(255)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(data.runs[1]["x"], expected)
    for n in range(1, 5):
        (tmp_path / f"{n}.png").unlink()
    with pytest.raises(mlc.InputError) as refused:
        samples_of(read(net), tmp_path, "", 64, {}, {})
    assert refused.value.what == (
        "the input 'x' is float32[2, 3, 16, 16], and the folder holds 1 image"
    )


def test_a_function_gives_runs(tmp_path: Path) -> None:
    (tmp_path / "calib.py").write_text(
        "import numpy as np\n"
        "def runs():\n"
        "    for seed in range(3):\n"
        "        yield np.random.default_rng(seed).normal(size=(1, 3, 16, 16)).astype('float32')\n"
    )
    assert mlc.quantize(residual(), f"{tmp_path / 'calib.py'}:runs", max_drop=10).runs == 3


# ----------------------------------------------------------------------------------- preparing


def test_scales_and_shifts_become_weights() -> None:
    names = ("gain", "shift", "mean", "variance")
    rng = np.random.default_rng(0)
    constants = {name: rng.uniform(0.5, 2, 8).astype(np.float32) for name in names}
    constants |= weights("c", 8, 3, 3, 3)
    constants["more"] = rng.normal(size=(1, 8, 1, 1)).astype(np.float32)
    constants["times"] = np.asarray(3, np.float32)
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("BatchNormalization", ["a", *names], ["b"], "norm"),
        helper.make_node("Add", ["more", "b"], ["d"], "add"),
        helper.make_node("Identity", ["d"], ["e"], "same"),
        helper.make_node("Mul", ["e", "times"], ["y"], "mul"),
    ]
    proto = model(nodes, constants, (1, 3, 8, 8))
    net = prepare(read(proto))
    assert [node.op_type for node in net.nodes] == ["Conv"]
    x = {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    np.testing.assert_allclose(ours(net.proto(), x), ours(proto, x), rtol=1e-4, atol=1e-4)


def test_a_result_that_others_read_keeps_its_scale_apart() -> None:
    constants = weights("c", 4, 3, 1, 1) | {"two": np.asarray(2, np.float32)}
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("Mul", ["a", "two"], ["b"], "mul"),
        helper.make_node("Add", ["a", "b"], ["y"], "add"),
    ]
    net = prepare(read(model(nodes, constants, (1, 3, 8, 8))))
    assert [node.op_type for node in net.nodes] == ["Conv", "Mul", "Add"]


def test_equalized_layers_compute_the_same() -> None:
    constants = weights("a", 8, 3, 3, 3) | weights("b", 8, 1, 3, 3) | weights("c", 4, 8, 1, 1)
    constants["a.w"] *= np.geomspace(0.1, 10, 8, dtype=np.float32).reshape(-1, 1, 1, 1)
    nodes = [
        conv("a", "x", "p"),
        helper.make_node("Relu", ["p"], ["q"], "relu"),
        conv("b", "q", "r", group=8),
        conv("c", "r", "y"),
    ]
    net = read(model(nodes, constants, (1, 3, 12, 12)))
    made = equalized(net)
    assert made is not net
    x = {"x": np.random.default_rng(1).normal(size=(1, 3, 12, 12)).astype(np.float32)}
    np.testing.assert_allclose(ours(made.proto(), x), ours(net.proto(), x), rtol=1e-3, atol=1e-4)
    spread = [np.ptp(np.log(np.abs(n.constants["a.w"]).reshape(8, -1).max(1))) for n in (net, made)]
    assert spread[1] < spread[0] / 1.5


# -------------------------------------------------------------------------------------- ranges


def seen(x: Array) -> Seen:
    found = Seen()
    found.add(x.astype(np.float32), x.size)
    return found


def test_rules_cut_what_lies_far_out() -> None:
    x = np.random.default_rng(0).standard_t(5, 100_000)
    ranges = {r.rule: r for r in proposals(seen(x))}
    assert {"min/max", "percentile", "mse"} <= set(ranges)
    whole = ranges.pop("min/max")
    assert np.allclose((whole.low, whole.high), (x.min(), x.max()))
    assert all(r.high - r.low < 0.97 * (whole.high - whole.low) for r in ranges.values())

    def miss(r: Range) -> float:
        return float(np.mean(np.square(r.rounded(x.astype(np.float32)) - x)))

    assert miss(ranges["mse"]) < 0.95 * miss(whole)


def test_ranges_hold_zero_exactly() -> None:
    for low, high in ((-1.0, 3.0), (0.0, 6.0), (-5.0, 0.0), (0.0, 0.0)):
        made = Range(low, high)
        assert made.rounded(np.zeros(1, np.float32)) == 0
        inside = np.linspace(low, high, 1000, dtype=np.float32)
        assert np.abs(made.rounded(inside) - inside).max() <= made.scale * 0.501


# --------------------------------------------------------------------------------- the choice


def test_what_breaks_the_budget_stays_float() -> None:
    """Of three layers one has a channel a thousand times larger than the others."""
    constants = weights("a", 8, 3, 3, 3) | weights("b", 8, 8, 3, 3) | weights("c", 4, 8, 1, 1)
    constants["b.w"][0] *= 3000
    constants["c.w"][:, 0] /= 3000
    nodes = [conv("a", "x", "p"), conv("b", "p", "q"), conv("c", "q", "y")]
    proto = model(nodes, constants, (1, 3, 16, 16))
    net = read(proto)
    x = pictures(6)
    samples = [{"x": x[n : n + 1]} for n in range(len(x))]
    known = calibrate(net, samples)
    ruler = judge(known.outputs)

    made: list[int] = []

    def form(chosen: Any) -> Net:
        made.append(len(chosen))
        return in_integers(net, chosen, known.ranges)

    every = frozenset("abc")
    assert ruler.score(list(run(form(every), samples))) < 0.98
    found = within_budget(form, every, samples, ruler, 0.999)
    assert found.chosen == {"a", "b"} and found.score >= 0.999
    assert max(found.sensitivity, key=lambda name: found.sensitivity[name]) == "c"
    assert made.count(1) >= 3  # each layer alone
    made.clear()
    again = within_budget(form, every, samples, ruler, 0.999, found.sensitivity)
    assert again == found and made.count(1) < 3


def test_what_costs_more_stays_float() -> None:
    net = read(residual())
    data = {layer.data: Range(-1, 1) for layer in net.layers}
    price = {"stem": 50, "first": 10, "second": 10, "head": 12}
    before = Costs({"stem": 20, "first": 40, "second": 40, "head": 10})

    def measure(made: Net) -> Costs:
        ending = ".weights.dequantize"
        chosen = {n.name.removesuffix(ending) for n in made.nodes if n.name.endswith(ending)}
        return Costs({n: price[n] if n in chosen else c for n, c in before.by_node.items()})

    chosen, costs = within_cost(
        net, lambda names: in_integers(net, names, data), measure, before, frozenset(price)
    )
    assert chosen == {"first", "second"} and costs.total == 50


def test_conversions_count_for_the_layer_that_reads() -> None:
    net = read(residual())
    costs = Costs({"x.quantize": 3, "stem.conv2d_requantize": 5, "first": 7, "flat.x": 1})
    assert costs.of_layers(net, {"stem"}) == {"stem": 8, "first": 7, "second": 0, "head": 0}


# ----------------------------------------------------------------------------------- agreement


def test_kinds_of_outputs() -> None:
    assert kind_of([np.array([[0.2, 0.8]], np.float32)]) == "classes"
    assert kind_of([np.array([[0.2, 0.9]], np.float32)]) == "decisions"
    assert kind_of([np.array([[0.2, -3]], np.float32)]) == "numbers"
    assert kind_of([np.array([[2, 3]])]) == "whole"


def test_a_detector_that_sees_nothing_agrees_by_half() -> None:
    right = np.zeros((1, 1, 10, 10), np.float32)
    right[..., 0] = 0.9
    ruler = judge([{"y": right}])
    assert ruler.score([{"y": right}]) == 1
    assert ruler.score([{"y": np.zeros_like(right)}]) == 0.5
    assert ruler.score([{"y": right * np.nan}]) == 0


def test_a_background_does_not_hide_objects() -> None:
    right = np.tile(np.array([0.9, 0.1], np.float32), (1, 100, 1))
    right[:, 90:] = right[:, 90:, ::-1]
    ruler = judge([{"y": right}])
    assert ruler.kinds == {"y": "classes"} and ruler.score([{"y": right}]) == 1
    nothing = np.broadcast_to(right[:, :1], right.shape)
    assert ruler.score([{"y": nothing}]) == 0.5
    balanced = right[:, 80:]
    half_wrong = balanced.copy()
    half_wrong[:, :10] = balanced[:, 10:]
    assert judge([{"y": balanced}]).score([{"y": half_wrong}]) == 0.5


def test_blocks_of_four_bits() -> None:
    w = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
    q, scales = blocks(w, 4)
    assert q.shape == (3, 32, 5) and scales.shape == (3, 5)
    assert q.min() == -8 and q.max() <= 7
    back = (q * scales[:, None]).reshape(96, 5)
    assert np.abs(back[:70] - w).max() <= np.abs(scales).max() * 1.001 and not back[70:].any()
