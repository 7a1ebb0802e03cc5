"""The error that fast exp, tanh and erf cost, and what they save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import Expr
from mlc_deploy.ops import fast
from mlc_rpc import Session
from tests.sessions import TARGETS, board_named

Array = NDArray[Any]
COUNT = 1 << 14
# function -> (fast, exact, its arguments' bounds, the largest relative error that is promised)
FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Any, float, float]] = {
    "exp": (fast.fast_exp, np.exp, 87.0, 1.5e-5),
    "tanh": (fast.fast_tanh, np.tanh, 20.0, 2e-5),
    "erf": (fast.fast_erf, np.vectorize(math.erf), 10.0, 8e-6),
}


def kernel(function: Callable[[Expr], Expr], target: str) -> mlc.Library:
    x = te.placeholder((COUNT,), name="x")
    y = te.compute((COUNT,), lambda i: function(x[i]), name="y")
    return mlc.build([x, y], target=target)


def arguments(bound: float) -> Array:
    """Even steps, and small numbers of both signs."""
    half = COUNT // 2
    small = np.geomspace(1e-30, bound, half // 2)
    return np.concatenate([np.linspace(-bound, bound, half), small, -small]).astype(np.float32)


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error(name: str, board: str, request: pytest.FixtureRequest) -> None:
    """The promised error holds, and little more is promised than is needed."""
    function, exact, bound, most = FUNCTIONS[name]
    session: Session = board_named(request, board)
    x = arguments(bound)
    y = session.empty((COUNT,))
    session.load(kernel(function, TARGETS[board]))["main"](session.tensor(x), y)
    right = exact(x.astype(np.float64))
    error = float((np.abs(y.numpy() - right) / np.abs(right)).max())
    assert error <= most, f"{name}: {error:.3g}"
    arrays = getattr(fast, f"fast_{name}_array")(x)
    np.testing.assert_allclose(arrays, y.numpy(), rtol=1.2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_number_stays_so_and_bounds_hold(name: str, local: Session) -> None:
    function = FUNCTIONS[name][0]
    x = np.zeros(COUNT, np.float32)
    x[:4] = np.nan, np.inf, -np.inf, 0.0
    y = local.empty((COUNT,))
    local.load(kernel(function, "host"))["main"](local.tensor(x), y)
    found = y.numpy()
    assert np.isnan(found[0])
    largest = math.exp(fast.MOST) if name == "exp" else 1.0
    np.testing.assert_allclose(found[1], largest, rtol=2e-5)
    np.testing.assert_allclose(found[2], 0.0 if name == "exp" else -1.0, rtol=2e-5, atol=2e-38)
    assert abs(found[3] - (1.0 if name == "exp" else 0.0)) < 1e-6


@pytest.mark.parametrize(("board", "most"), [("armv7", 0.8), ("aarch64", 0.9)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fewer_instructions(
    name: str, board: str, most: float, request: pytest.FixtureRequest
) -> None:
    """Per element, of those of the exact function."""
    session: Session = board_named(request, board)
    x = session.tensor(arguments(FUNCTIONS[name][2]))
    y = session.empty((COUNT,))
    counts = []
    for function in (FUNCTIONS[name][0], getattr(te, name)):
        run = session.load(kernel(function, TARGETS[board]))["main"].profile(x, y)
        assert run.counts is not None
        counts.append(sum(c.total for c in run.counts))
    assert counts[0] <= most * counts[1], counts
