"""What counts as right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlc_deploy.driver.compare import compare

ROW = np.array([[0.0, 1.0, 4.0, -10.0]])


@pytest.mark.parametrize(
    ("dtype", "relative", "of_largest"),
    [("float16", 5e-3, 2e-3), ("float32", 1e-3, 2e-4), ("float64", 1e-3, 2e-4)],
)
def test_tolerance_is_of_the_element_and_of_the_largest(
    dtype: str, relative: float, of_largest: float
) -> None:
    expected = ROW.astype(dtype)
    bound = relative * np.abs(ROW) + of_largest * 10
    for share, ok in ((0.7, True), (1.3, False)):
        for column in range(4):
            got = expected.copy()
            got[0, column] += bound[0, column] * share
            found = compare(got, expected)
            assert found.ok is ok, (dtype, share, column)
            assert found.wrong == (not ok)
            if not ok:
                assert found.worst == (0, column)
                assert (found.expected, found.got) == (expected[0, column], got[0, column])


def test_errors_are_the_largest_and_its_share() -> None:
    expected = np.array([[3, -4], [1, 2]], np.float32)
    found = compare(expected + np.array([[0, 0], [0, -0.5]], np.float32), expected)
    assert (found.max_abs_err, found.max_rel_err) == (0.5, 0.125)
    assert compare(expected, expected).max_rel_err == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_integers_are_equal_or_wrong(dtype: str) -> None:
    expected = np.array([1, 0, 1, 1], dtype)
    assert compare(expected.copy(), expected).ok
    got = expected.copy()
    got[2] = 0
    found = compare(got, expected)
    assert (found.wrong, found.worst, found.expected, found.got) == (1, (2,), 1, 0)


def test_integers_that_no_float64_tells_apart() -> None:
    expected = np.array([2**60, 5])
    assert compare(expected + np.array([1, 0]), expected).wrong == 1


def test_nan_and_infinity_belong_where_the_reference_has_them() -> None:
    expected = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert compare(expected.copy(), expected).ok
    for column, value in ((0, 1), (1, -np.inf), (1, 5), (3, np.nan), (3, np.inf)):
        got = expected.copy()
        got[column] = value
        found = compare(got, expected)
        assert found.wrong == 1 and found.worst == (column,) and math.isnan(found.max_abs_err)


def test_the_largest_number_stays_where_the_reference_is_clear() -> None:
    # Of both rows every element is within tolerance (0.22 of the first, at 100 and a largest of
    # 600); the first row's margin is above that, the second's is not.
    expected = np.array([[100, 99.77, 600], [600, 599.5, 0]], np.float32)
    expected[0, 2] = -600
    moved = expected.copy()
    moved[0] += np.array([-0.13, 0.13, 0], np.float32)
    found = compare(moved, expected)
    assert (found.wrong, found.misplaced, found.worst) == (0, 1, (0, 0))
    moved = expected.copy()
    moved[1] += np.array([-0.3, 0.3, 0], np.float32)
    assert compare(moved, expected).ok


def test_nothing_and_scalars() -> None:
    assert compare(np.zeros((0, 3)), np.zeros((0, 3))).ok
    assert compare(np.array(1.5), np.array(1.5)).ok
    assert compare(np.array(2.5), np.array(1.5)).worst == ()
    assert compare(np.array(2.5), np.array(1.5)).wrong == 1
