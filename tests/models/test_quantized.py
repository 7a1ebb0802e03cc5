"""int8 models of the field: exactly what the integers of the graph say, on every kind of board."""

from __future__ import annotations

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from tests.models.quantized import QUANTIZED, quantized_model
from tests.onnx_models import reference

EMULATED = {"armv7a": "qemu://cortex-a7", "aarch64": "qemu://cortex-a72"}


def holds(name: str, target: str, board: str, activations: str = "s8") -> None:
    model, given = quantized_model(name, activations)
    compiled = mlc.compile(from_onnx(model), target)
    with mlc.connect(board) as session:
        (found,) = session.load(compiled).run(given, timeout=600).values()
    (wanted,) = compiled.evaluate(given).values()
    np.testing.assert_array_equal(found, wanted)
    (floats,) = reference(model, given).values()  # onnxruntime, in floats between QDQ pairs
    assert np.corrcoef(found.ravel(), floats.ravel())[0, 1] > 0.99


@pytest.mark.models
@pytest.mark.parametrize("activations", ["s8", "u8"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_here(name: str, activations: str) -> None:
    holds(name, "host", "local://", activations)


@pytest.mark.models
@pytest.mark.parametrize("target", EMULATED)
def test_on_boards(target: str) -> None:
    holds("mobilenet_v1_int8", target, EMULATED[target])


@pytest.mark.emulated
@pytest.mark.parametrize("name", QUANTIZED[1:])
@pytest.mark.parametrize("target", EMULATED)
def test_the_rest_on_boards(name: str, target: str) -> None:
    holds(name, target, EMULATED[target])
