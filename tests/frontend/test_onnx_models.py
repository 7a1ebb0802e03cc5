"""Whole models: our evaluator, before and after the graph passes, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate, optimize
from tests.onnx_models import LIGHT_NAMES, Array, image, light_model, reference

DIGITS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models"


def compare(model: ModelProto | Path, inputs: dict[str, Array]) -> None:
    """Whole models may differ by 1e-3 of a value and 2e-4 of the largest."""
    function = from_onnx(model)
    expected = reference(model, inputs)
    for graph in (function, optimize(function)):
        found = evaluate(graph, inputs)
        assert list(found) == list(expected)
        for name, theirs in expected.items():
            assert found[name].dtype == theirs.dtype
            limit = 1e-3 * np.abs(theirs) + 2e-4 * np.abs(theirs).max()
            assert (np.abs(found[name] - theirs) <= limit).all(), name
            rows = (len(theirs), -1)
            classes = theirs.reshape(rows).argmax(1)
            np.testing.assert_array_equal(found[name].reshape(rows).argmax(1), classes)


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_digits(name: str) -> None:
    with np.load(DIGITS / "digits.npz") as digits:
        compare(DIGITS / f"{name}.onnx", {"image": digits["image"]})


HUGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 240 to 570 MB of weights
QUICK = ("inception_v1", "shufflenet", "squeezenet")


def light_models() -> list[Any]:
    """What is quick; others, in the group of the field's models."""
    others = [n for n in LIGHT_NAMES if n not in (*HUGE, *QUICK)]
    return [*QUICK, *(pytest.param(name, marks=pytest.mark.models) for name in others)]


@pytest.mark.parametrize("name", light_models())
def test_light_models(name: str) -> None:
    model = light_model(name)
    (data,) = [i.name for i in model.graph.input]
    compare(model, {data: image()})


def test_light_models_answer_by_their_input() -> None:
    """Else they would prove nothing."""
    function = from_onnx(light_model("squeezenet"))
    answers = []
    for data in (image(), np.abs(image())):
        answer, _ = evaluate(function, [data]).values()
        answers.append(answer)
    assert np.abs(answers[0] - answers[1]).max() > 0.1 * np.abs(answers[0]).max()
