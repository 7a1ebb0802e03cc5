"""`mlc.deploy`, and the target that a board is."""

from __future__ import annotations

import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mlc_deploy as mlc
from mlc_deploy.board.connect import target_of
from mlc_deploy.driver.deploy import fitting
from mlc_deploy.driver.deployment import arena_bytes, compiled_record
from mlc_deploy.graph import BlockBuilder
from mlc_rpc.session import Cpu, Device
from mlc_targets.object_format import Param
from tests.onnx_models import image, light_model, reference

BOARDS = {"host": "local://", "aarch64": "qemu://cortex-a53", "armv7a": "qemu://cortex-a7"}

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)


def relu_sum() -> mlc.CompiledModel:
    """y = relu(a + b), int32 z = c + c."""
    builder = BlockBuilder("main")
    a, b = (builder.param(name, (2, 3), "float32") for name in "ab")
    c = builder.param("c", (4,), "int32")
    y = builder.emit("relu", builder.emit("add", a, b))
    z = builder.emit("add", c, c)
    return mlc.compile(builder.finish([y, z], ["y", "z"]), "host")


def test_given_and_drawn_inputs() -> None:
    a = np.full((2, 3), 0.5, np.float32)
    stages: list[str] = []

    def stage(name: str) -> AbstractContextManager[None]:
        stages.append(name)
        return nullcontext()

    with mlc.connect("local://") as board:
        done = mlc.deploy(relu_sum(), board, {"a": a}, stage=stage)
    assert done.ok and done.drawn == {"b", "c"} and done.reference == "evaluate"
    np.testing.assert_array_equal(done.outputs["y"], np.maximum(a + done.inputs["b"], 0))
    np.testing.assert_array_equal(done.outputs["z"], 2 * done.inputs["c"])
    assert stages == ["reference", "upload", "run", "timing"]


def test_expected_and_wrong_outputs() -> None:
    zeros = {name: np.zeros((2, 3), np.float32) for name in "ab"}
    right = np.zeros((2, 3), np.float32)
    wrong = right.copy()
    wrong[1, 2] = 3
    with mlc.connect("local://") as board:
        assert mlc.deploy(relu_sum(), board, zeros, expect={"y": right}).ok
        done = mlc.deploy(relu_sum(), board, zeros, expect={"y": wrong})
    assert not done.ok and done.checks["z"].ok and done.reference == "evaluate, given"
    check = done.checks["y"]
    assert (check.worst, check.expected, check.got) == ((1, 2), 3, 0)
    assert [output["ok"] for output in done.record()["outputs"]] == [False, True]
    assert done.record()["ok"] is False


def test_labels_go_with_the_output_that_has_a_row_for_each() -> None:
    zeros = {name: np.zeros((2, 3), np.float32) for name in "ab"}
    zeros["a"][0, 1] = zeros["b"][1, 2] = 1
    with mlc.connect("local://") as board:
        done = mlc.deploy(relu_sum(), board, zeros, labels=np.array([1, 0]))
        assert done.predictions and done.predictions.output == "y"
        assert done.predictions.predicted.tolist() == [1, 2]
        assert (done.predictions.correct, done.predictions.accuracy) == (1, 0.5)
        assert mlc.deploy(relu_sum(), board, labels=np.array([1, 0, 1])).predictions is None


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"d": np.zeros(4, np.int32)}, "the model has no input 'd'\n  try: a, b, c"),
        ({"c": np.zeros(4, np.int64)}, "input 'c' is int32[4], and the array given is int64[4]"),
        ({"c": np.zeros(3, np.int32)}, "input 'c' is int32[4], and the array given is int32[3]"),
        ({"c": [1.0, 2.0]}, "input 'c' is int32[4], and the array given is float64[2]"),
    ],
)
def test_inputs_that_do_not_fit(given: dict[str, Any], what: str) -> None:
    with mlc.connect("local://") as board, pytest.raises(mlc.InputError) as caught:
        mlc.deploy(relu_sum(), board, given)
    assert str(caught.value).startswith(what)


@needs_qemu
def test_a_board_that_cannot_run_it() -> None:
    model = mlc.compile(relu_sum().reference, "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")
    with mlc.connect("qemu://cortex-a72") as board, pytest.raises(mlc.DeployError) as caught:
        mlc.deploy(model, board)
    assert caught.value.what.startswith("the board lacks dotprod, ")


def test_records_have_the_same_fields_run_or_not() -> None:
    model = relu_sum()
    with mlc.connect("local://") as board:
        record = mlc.deploy(model, board).record("sum")
    compiled = compiled_record(model, "sum")
    assert set(record) == set(compiled) and record["model"] == compiled["model"] == "sum"
    assert [set(layer) for layer in record["layers"]] == [
        set(layer) for layer in compiled["layers"]
    ]
    assert mlc.Target(record["target"]) == model.target
    assert record["arena_bytes"] == arena_bytes(model) >= model.program.arena


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("squeezenet") / "squeezenet.onnx"
    onnx.save(light_model("squeezenet"), path)
    return path


@pytest.mark.parametrize(
    "target", ["host", "aarch64", pytest.param("armv7a", marks=pytest.mark.emulated)]
)
def test_squeezenet_equals_onnxruntime(target: str, squeezenet: Path) -> None:
    if BOARDS[target].startswith("qemu") and not shutil.which("qemu-arm"):
        pytest.skip("no QEMU here: apt install qemu-user")
    inputs = {"data_0": image()}
    expected = reference(squeezenet, inputs)
    began = time.process_time()
    model = mlc.compile(squeezenet, target)
    assert time.process_time() - began < 20
    with mlc.connect(BOARDS[target]) as board:
        done = mlc.deploy(model, board, inputs)
    assert done.ok and set(done.outputs) == set(expected)
    for name, right in expected.items():
        got = done.outputs[name]
        assert got.argmax() == right.argmax()
        bound = 1e-3 * np.abs(right) + 2e-4 * np.abs(right).max()
        assert (np.abs(got - right) <= bound).all()


# ---- The target that a board is ----

ARMV7 = "v7 vfp2 vfp3d16 vfp3 d32 neon"
CASES = {
    "a CPU that is known": ("aarch64", "neon fp-armv8 crc", ["cortex-a72"], "-mcpu=cortex-a72"),
    "a CPU that is not": ("aarch64", "neon fp-armv8", ["arm:0x00:0x051"], "-mcpu=generic"),
    "what an unknown one has": (
        "aarch64", "neon fp-armv8 dotprod i8mm", [""], "-mcpu=generic -mattr=+dotprod,+i8mm",
    ),
    "two kinds of cores": (
        "aarch64", "neon fp-armv8", ["cortex-a53", "cortex-a53", "cortex-a72"], "-mcpu=cortex-a72",
    ),
    "what its kernel hides": (
        "aarch64", "neon fp-armv8 dotprod rdm", ["cortex-a76"], "-mcpu=cortex-a76 -mattr=-fullfp16",
    ),
    "a Cortex-A9 without NEON": ("arm", "v7 vfp2 vfp3d16", [""], "-mcpu=generic"),
    "an ARMv7 with NEON": ("arm", ARMV7, [""], "-mcpu=generic -mattr=+neon"),
    "a 32-bit system on a 64-bit chip": (
        "arm", f"{ARMV7} v8 vfp4 vfp4d16 fp-armv8 hwdiv hwdiv-arm", ["cortex-a72"],
        "-mcpu=cortex-a72",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_target_of_a_board(case: str) -> None:
    machine, features, cpus, attributes = CASES[case]
    triple = {"aarch64": "aarch64-linux-gnu", "arm": "armv7a-linux-gnueabihf"}[machine]
    device = Device(
        "0", machine, 1, frozenset(features.split()), "6.1", len(cpus), len(cpus), 1 << 30, 4096,
        tuple(Cpu(cpu) for cpu in cpus),
    )  # fmt: skip
    target = target_of(device)
    assert target == mlc.Target(f"llvm -mtriple={triple} {attributes}")
    assert set(target.required_features) <= device.features


@needs_qemu
@pytest.mark.parametrize("cpu", ["cortex-a7", "cortex-a9", "cortex-a72", "cortex-a76", "max"])
def test_a_board_runs_the_target_that_it_is(cpu: str) -> None:
    with mlc.connect(f"qemu://{cpu}") as board:
        target = target_of(board.device)
        assert mlc.deploy(mlc.compile(relu_sum().reference, target), board).ok


@pytest.mark.parametrize(
    ("shape", "mend"),
    [
        ((5, 3), 'at most 4 for n, or compile with --bind "n<=5"'),
        ((4, 2), "array.astype(...) or array.reshape(...)"),
        ((5,), "array.astype(...) or array.reshape(...)"),
    ],
)
def test_an_array_larger_than_an_open_dimension_is_told_the_bound(
    shape: tuple[int, ...], mend: str
) -> None:
    params = {"image": Param("image", "float32", (4, 3), open=("n", ""))}
    with pytest.raises(mlc.InputError) as caught:
        fitting("input", {"image": np.zeros(shape, np.float32)}, params)
    assert str(caught.value) == (
        f"input 'image' is float32[n, 3] with n <= 4, and the array given is float32{list(shape)}\n"
        f"  try: {mend}"
    )
