"""Local response normalization: its kernels on boards, their loops, and numbers at the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops import evaluate
from mlc_targets import Target
from tests.ops.test_definitions import Array, numbers
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

ATTRS: dict[str, Any] = {"size": 5, "alpha": 0.1, "beta": 0.75, "bias": 1.0}
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "image": ((1, 12, 9, 9), {}),
    "two images": ((2, 7, 4, 16), {"size": 4}),
    "no image": ((3, 37), {"size": 3}),
    "more than there are channels": ((1, 3, 5, 5), {"size": 11}),
    "no product of roots": ((1, 12, 9, 9), {"beta": 0.8}),
    "negative power": ((1, 12, 9, 9), {"beta": -0.75}),
}


def normalized(shape: tuple[int, ...], attrs: dict[str, Any], dtype: str = "float32") -> Function:
    builder = BlockBuilder("main")
    x = builder.param("x", shape, dtype)
    return builder.finish([builder.emit("lrn", x, **attrs)], ["y"])


def scheduled(beta: float, target: str) -> PrimFunc:
    function = normalized((1, 64, 28, 28), ATTRS | {"beta": beta})
    return lower_fused(function, Target(target), "lrn")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_kernels(case: str, name: str, request: pytest.FixtureRequest) -> None:
    board: Session = board_named(request, name)
    shape, attrs = CASES[case]
    attrs = ATTRS | attrs
    x = numbers(shape)
    model = mlc.compile(normalized(shape, attrs), TARGETS[name])
    found = board.load(model).run({"x": x})["y"]
    (wanted,) = evaluate("lrn", [x], attrs)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("float64", 1e-14)])
def test_other_floats(dtype: str, error: float, local: Session) -> None:
    """float16 is rounded once, at the end."""
    for beta in (0.75, 0.8):
        attrs, x = ATTRS | {"beta": beta}, numbers((1, 12, 9, 9), dtype)
        model = mlc.compile(normalized(x.shape, attrs, dtype), "host")
        found = local.load(model).run({"x": x})["y"]
        (wanted,) = evaluate("lrn", [x], attrs)
        assert found.dtype == wanted.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=error, atol=error)


def test_numbers_at_the_limits(local: Session) -> None:
    """Without a bias zeros are divided by zero; squares that overflow leave nothing, in float32
    alone."""
    for beta in (0.75, 0.8):
        attrs = ATTRS | {"size": 1, "beta": beta, "bias": 0.0}
        x = np.array([[0.0, 1.0, -3e-3, 1e30, np.inf, np.nan]], np.float32)
        model = mlc.compile(normalized(x.shape, attrs), "host")
        found: Array = local.load(model).run({"x": x})["y"]
        with np.errstate(all="ignore"):
            (exact,) = evaluate("lrn", [x], attrs)
        assert exact[0, 3] == pytest.approx(1e30 * (0.1 * 1e60) ** -beta)
        wanted = np.where(np.arange(6) == 3, 0, exact)
        np.testing.assert_allclose(found, wanted, rtol=2e-6)


@pytest.mark.parametrize("target", ["armv7a", "aarch64", "x86-64"])
@pytest.mark.parametrize("beta", [0.75, 0.8])
def test_one_loop_without_calls(beta: float, target: str) -> None:
    """One parallel loop, also over a single image; no power of the C library, no padded copy."""
    text = str(scheduled(beta, target))
    assert text.count("T.parallel(") == 1 and "T.parallel(1)" not in text
    assert "T.vectorized(" in text and "T.pow(" not in text and "pad" not in text
