"""Normalizations: their expressions, interpreted, against numpy and what they say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_deploy.ops import TensorType, evaluate, infer_types
from tests.ops.test_definitions import check, few, numbers

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@few
@given(st.data(), shapes, st.integers(0, 1000))
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_definition(op: str, data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(tuple))
    check(op, [numbers(shape, seed=seed)], axes=axes, epsilon=1e-2)


def test_statistics_of_a_result() -> None:
    x = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    (found,) = evaluate("layer_norm", [x], {"axes": (-1,), "epsilon": 0.0})
    np.testing.assert_allclose(found.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(1), 1, rtol=1e-5)
    (found,) = evaluate("rms_norm", [x], {"axes": (-1,), "epsilon": 0.0})
    np.testing.assert_allclose(np.sqrt((found**2).mean(1)), 1, rtol=1e-5)


def test_small_variance_on_a_large_mean() -> None:
    """The mean of squares less the square of the mean would cancel here."""
    x = np.float32(1000) + np.arange(8, dtype=np.float32)
    (found,) = evaluate("layer_norm", [x], {"axes": (0,), "epsilon": 0.0})
    np.testing.assert_allclose(found, (np.arange(8) - 3.5) / np.sqrt(5.25), rtol=1e-5)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    "dtype, axes, message",
    [
        ("int32", (0,), "does not take int32"),
        ("float32", (2,), "axis 2 of a tensor with 2"),
        ("float32", (), "axes []"),
        ("float32", (1, -1), "axes [1, -1]"),
    ],
)
def test_refused(op: str, dtype: str, axes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        infer_types(op, [TensorType((2, 3), dtype)], {"axes": axes, "epsilon": 1e-5})
    assert str(caught.value).startswith(op) and message in str(caught.value)
