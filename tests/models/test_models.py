"""The models of the field, compiled and run: onnxruntime says what is right.

The light models of the onnx package have random weights here (tests/onnx_models.py); the others are
ours (architectures.py). On this machine all of them run in the group "models", with two on emulated
boards; the rest run there in the group "emulated".
"""

from __future__ import annotations

import pytest

import mlc_deploy as mlc
from mlc_deploy.compare import compare
from mlc_deploy.frontend import from_onnx
from tests.models.architectures import NAMES, model_and_inputs
from tests.onnx_models import reference

ON_BOARDS = ("light_squeezenet", "light_shufflenet")  # small ones, of many kinds of layers
SECONDS = 1200  # vgg19 takes minutes under QEMU
EMULATED = {"armv7a": "qemu://cortex-a7", "aarch64": "qemu://cortex-a72"}


def holds(name: str, target: str, board: str) -> None:
    model, given = model_and_inputs(name)
    expected = reference(model, given)
    compiled = mlc.compile(from_onnx(model), target)
    with mlc.connect(board) as session:
        found = session.load(compiled).run(given, timeout=SECONDS)
    assert list(found) == list(expected)
    for output, array in found.items():
        check = compare(array, expected[output])
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
