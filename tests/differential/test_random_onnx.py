"""Random ONNX graphs, compiled and run on this machine, against onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError, ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from mlc_rpc import Session
from tests.differential.random_control import EVERYWHERE
from tests.differential.random_nodes import NODES
from tests.differential.random_onnx import OPEN, RandomModel, random_models
from tests.onnx_models import Array
from tests.sessions import TARGETS, aarch64, armv7, board_named

__all__ = ["aarch64", "armv7"]  # fixtures

SLOW = int(os.environ.get("MLC_GRAPHS", "5000"))
EMULATED = SLOW // 20  # of each of two kinds, on each of two boards
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FUZZ = settings(
    deadline=None,
    suppress_health_check=[*QUIET, HealthCheck.function_scoped_fixture],
    phases=(Phase.generate, Phase.shrink),
    database=None,
)


def check(
    case: RandomModel, board: Session, target: str = "host", dims: Mapping[str, str] | None = None
) -> None:
    """Compiled code and the evaluator both answer as onnxruntime does."""
    function = from_onnx(case.model, dims=dims or {})
    model = mlc.compile(function, target)
    with closing(board.load(model)) as loaded:
        for inputs, right in ((case.inputs, case.expected), *case.smaller):
            evaluated, found = evaluate(function, inputs), loaded.run(inputs)
            for name, expected in right.items():
                for answer in (evaluated[name], found[name]):
                    assert answer.shape == expected.shape and answer.dtype == expected.dtype, name
                    assert_close(answer, expected, name)


def assert_close(found: Array, expected: Array, name: str) -> None:
    """Integers exactly; floats as the outputs of whole models."""
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, name)
        return
    limit = 1e-3 * np.abs(expected) + 2e-4 * np.abs(expected).max(initial=1e-3)
    assert (np.abs(found - expected) <= limit).all(), (name, found, expected)


@settings(FUZZ, max_examples=60, derandomize=True)
@given(random_models(NODES))
def test_some_random_graphs(local: Session, case: RandomModel) -> None:
    check(case, local)


@pytest.mark.differential
@settings(FUZZ, max_examples=SLOW)
@given(random_models(NODES))
def test_many_random_graphs(local: Session, case: RandomModel) -> None:
    check(case, local)


@settings(FUZZ, max_examples=30, derandomize=True)
@given(random_models(EVERYWHERE))
def test_some_random_programs(local: Session, case: RandomModel) -> None:
    check(case, local)


def check_open(case: RandomModel, board: Session, target: str = "host") -> None:
    """As above, with a dynamic dimension, where an input has one. Refused is what needs
    to know it."""
    inputs = [info.type.tensor_type.shape for info in case.model.graph.input]
    is_open = any(dim.dim_param for shape in inputs for dim in shape.dim)
    try:
        check(case, board, target, {"n": f"<={OPEN}"} if is_open else None)
    except (ImporterError, GraphError) as error:
        event(f"refused: {str(error).splitlines()[0]}")


@settings(FUZZ, max_examples=30, derandomize=True)
@given(random_models(EVERYWHERE, open_dim=True))
def test_some_open_programs(local: Session, case: RandomModel) -> None:
    check_open(case, local)


@pytest.mark.differential
@settings(FUZZ, max_examples=SLOW)
@given(random_models(EVERYWHERE, open_dim=True))
def test_many_open_programs(local: Session, case: RandomModel) -> None:
    check_open(case, local)


@pytest.mark.differential
@settings(FUZZ, max_examples=SLOW)
@given(random_models(EVERYWHERE))
def test_many_random_programs(local: Session, case: RandomModel) -> None:
    check(case, local)


@pytest.mark.differential
@pytest.mark.parametrize("board", ["aarch64", "armv7"])
@settings(FUZZ, max_examples=EMULATED)
@given(case=random_models(EVERYWHERE))
def test_emulated_programs(board: str, case: RandomModel, request: pytest.FixtureRequest) -> None:
    check(case, board_named(request, board), TARGETS[board])


@pytest.mark.differential
@pytest.mark.parametrize("board", ["aarch64", "armv7"])
@settings(FUZZ, max_examples=EMULATED)
@given(case=random_models(EVERYWHERE, open_dim=True))
def test_emulated_open_programs(
    board: str, case: RandomModel, request: pytest.FixtureRequest
) -> None:
    check_open(case, board_named(request, board), TARGETS[board])
