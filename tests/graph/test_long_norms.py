"""Normalizations of long rows: their definitions, and what float32 loses of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function, evaluate, verify
from mlc_deploy.graph.long_norms import LONG, split_long_norms
from mlc_rpc import Session
from tests.sessions import local

__all__ = ["local"]  # a fixture


def norm(op: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Function:
    b = BlockBuilder("main")
    x = b.param("x", shape, dtype)
    return b.finish([b.emit(op, x, axes=axes, epsilon=1e-5)], ["y"])


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("axes", [(2,), (1, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_definition(
    op: str, axes: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlc_deploy.graph.long_norms.LONG", 8)
    function = norm(op, (2, 3, 20), axes, dtype)
    split = split_long_norms(function)
    verify(split)
    assert f"R.{op}" not in str(split)
    x: dict[str, Any] = {"x": np.random.default_rng(0).normal(3, 2, (2, 3, 20)).astype(dtype)}
    found, right = (evaluate(f, x)["y"] for f in (split, function))
    assert found.dtype == right.dtype
    np.testing.assert_allclose(found, right, rtol=1e-5 if dtype == "float32" else 2e-3, atol=1e-3)


def test_short_rows_stay() -> None:
    function = norm("layer_norm", (4, LONG), (1,), "float32")
    assert split_long_norms(function) is function


def test_a_row_of_a_million(local: Session) -> None:
    function = norm("layer_norm", (1, 1 << 20), (1,), "float32")
    x = np.random.default_rng(0).random((1, 1 << 20), np.float32)
    found = local.load(mlc.compile(function, "host")).run({"x": x})["y"]
    exact = x.astype(np.float64)
    right = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5)
    assert np.abs(found - right).max() < 2e-5 * np.abs(right).max()
