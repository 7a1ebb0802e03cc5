"""The models of the field, compiled and run: onnxruntime says what is right.

The light models of the onnx package have random weights here (tests/onnx_models.py); the others are
ours (architectures.py). On this machine all of them run in the group "models", with two on emulated
boards; the rest run there in the group "emulated".
"""

from __future__ import annotations

import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.compare import compare
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph.count import multiply_accumulates
from tests.models.architectures import NAMES, model_and_inputs
from tests.onnx_models import reference

ON_BOARDS = ("light_squeezenet", "light_shufflenet")  # small ones, of many kinds of layers
SECONDS = 1200  # vgg19 takes minutes under QEMU
EMULATED = {"armv7a": "qemu://cortex-a7", "aarch64": "qemu://cortex-a72"}
CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"
FLOAT16 = {  # boards that compute with float16, or only store it
    "qemu://cortex-a76": CORTEX_A76,
    "qemu://cortex-a72": "aarch64",
    "qemu://cortex-a7": "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7 -device=arm_cpu",
}


def holds(name: str, target: str, board: str, precision: str = "float32") -> None:
    model, given = model_and_inputs(name)
    expected = reference(model, given)
    compiled = mlc.compile(from_onnx(model), target, precision=precision)
    with mlc.connect(board) as session:
        found = session.load(compiled).run(given, timeout=SECONDS)
    assert list(found) == list(expected)
    for output, array in found.items():
        check = compare(array, expected[output], precision)
        assert check.ok, (output, check)


@pytest.mark.models
@pytest.mark.parametrize("name", NAMES)
def test_here(name: str) -> None:
    holds(name, "host", "local://")


@pytest.mark.models
@pytest.mark.parametrize("name", ON_BOARDS)
@pytest.mark.parametrize("target", EMULATED)
def test_on_boards(name: str, target: str) -> None:
    holds(name, target, EMULATED[target])


@pytest.mark.emulated
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ON_BOARDS])
@pytest.mark.parametrize("target", EMULATED)
def test_the_rest_on_boards(name: str, target: str) -> None:
    holds(name, target, EMULATED[target])


@pytest.mark.emulated
@pytest.mark.parametrize("board", FLOAT16)
def test_mobilenet_in_float16(board: str) -> None:
    holds("mobilenet_v1", FLOAT16[board], board, "float16")


@pytest.mark.emulated
def test_instructions_of_mobilenet_in_float16() -> None:
    """At most 1.25 per multiply-accumulate of eight numbers."""
    model, given = model_and_inputs("mobilenet_v1")
    compiled = mlc.compile(from_onnx(model), CORTEX_A76, precision="float16")
    with mlc.connect("qemu://cortex-a76") as session:
        if not session.counting:
            pytest.skip("this QEMU takes no plugins, so nothing is counted")
        done = mlc.deploy(compiled, session, given)
    assert done.ok and done.instructions is not None
    assert (
        done.instructions <= 1.25 * sum(map(multiply_accumulates, compiled.reference.bindings)) / 8
    )
