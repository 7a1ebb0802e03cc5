"""The architectures are those of the papers, and our front ends and evaluator agree on them."""

from __future__ import annotations

import numpy as np
import pytest

from mlc_deploy.driver.compare import compare
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.models.architectures import ARCHITECTURES, inputs, onnx_model
from tests.models.layers import parameters
from tests.onnx_models import reference


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_as_many_parameters_as_published(name: str) -> None:
    architecture = ARCHITECTURES[name]
    assert parameters(architecture.network()) == architecture.parameters


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "bert_tiny"])
def test_evaluator_against_onnxruntime(name: str) -> None:
    model, given = onnx_model(name), inputs(name)
    expected = reference(model, given)["scores"]
    check = compare(evaluate(from_onnx(model), given)["scores"], expected)
    assert check.ok and check.max_rel_err < 1e-5, check


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "bert_tiny"])
def test_answers_by_their_input(name: str) -> None:
    """Else they would prove nothing."""
    graph, given = from_onnx(onnx_model(name)), inputs(name)
    others = {key: np.abs(array - 1) for key, array in given.items()}
    one, other = (evaluate(graph, x)["scores"] for x in (given, others))
    assert np.abs(one - other).max() > 0.1 * np.abs(one).max()


def test_masked_words_say_nothing() -> None:
    graph, given = from_onnx(onnx_model("bert_tiny")), inputs("bert_tiny")
    changed = given | {"words": np.where(given["mask"] == 0, 7, given["words"])}
    one, other = (evaluate(graph, x)["scores"] for x in (given, changed))
    np.testing.assert_allclose(one, other, rtol=1e-5)
