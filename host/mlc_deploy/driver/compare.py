"""Compares a board's results with the reference.

Floats are right if |error| <= relative * |reference| + of_largest * max|reference|, bounds that
suit a whole model. The largest number along the last axis must also be in the same place, wherever
the reference's is clearly the largest. Integers and booleans are right if they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Shares of the element's reference, and of the largest reference of the tensor."""

    relative: float
    of_largest: float


TOLERANCES = {
    "float16": Tolerance(5e-3, 2e-3),
    "float32": Tolerance(1e-3, 2e-4),
    "float64": Tolerance(1e-3, 2e-4),
}


@dataclass(frozen=True, slots=True)
class Slack:
    """The error that floats may have besides tolerances: each one `within`, and as many as
    `elements` any finite amount."""

    within: float = 0.0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """`max_abs_err` is the largest error, `max_rel_err` its share of the largest reference; both
    are nan if a result is nan or infinite and its reference is not.

    `wrong` counts elements outside the tolerance, `misplaced` rows with their maximum elsewhere.
    `worst` is the index of the element furthest outside, with its `expected` and `got`; if none is
    outside, the reference's maximum of the first misplaced row. `stepped` counts elements that are
    outside, but few enough for the slack.
    """

    max_abs_err: float
    max_rel_err: float
    wrong: int = 0
    misplaced: int = 0
    worst: tuple[int, ...] = ()
    expected: float | int | bool = 0
    got: float | int | bool = 0
    stepped: int = 0

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.misplaced


NO_SLACK = Slack()


def compare(
    got: Array, expected: Array, precision: str = "float32", slack: Slack = NO_SLACK
) -> Comparison:
    """Compares two arrays of one shape and dtype. precision: what the model computes in; "float16"
    widens the tolerance of all floats. slack: the error that floats may have besides."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if not got.size:
        return Comparison(0.0, 0.0)
    tolerance = TOLERANCES.get(expected.dtype.name)
    if tolerance is not None and precision == "float16":
        tolerance = TOLERANCES[precision]
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (got == expected) | (np.isnan(a) & np.isnan(b))  # got, not a: int64 has more digits
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if tolerance is None:
        bound, misplaced = np.zeros_like(b), np.zeros(b.shape[:-1], bool)
    else:
        bound = tolerance.relative * np.abs(b) + tolerance.of_largest * largest + slack.within
        misplaced = _misplaced(a, b, bound)
    wrong = ~same & ~((error <= bound) & np.isfinite(b) & (tolerance is not None))
    most = float(error.max()) if np.isfinite(error).all() else float("nan")
    share = 0.0 if most == 0 else most / largest if largest else float("nan")
    few = tolerance is not None and wrong.sum() + misplaced.sum() <= slack.elements
    if few and np.isfinite(most):
        return Comparison(most, share, stepped=int(wrong.sum()))
    if not wrong.any() and not misplaced.any():
        return Comparison(most, share)
    worst = _furthest(error, bound, wrong) if wrong.any() else _first_maximum(b, misplaced)
    return Comparison(
        most,
        share,
        int(wrong.sum()),
        int(misplaced.sum()),
        worst,
        expected[worst].item(),
        got[worst].item(),
    )


def _furthest(error: Array, bound: Array, wrong: Array) -> tuple[int, ...]:
    """The index of the wrong element furthest beyond its bound; nan is the furthest."""
    with np.errstate(invalid="ignore"):
        excess = np.nan_to_num(error - bound, nan=np.inf, posinf=np.inf)
    ranked = np.where(wrong, excess, -np.inf)
    return tuple(int(i) for i in np.unravel_index(ranked.argmax(), wrong.shape))


def _first_maximum(reference: Array, rows: Array) -> tuple[int, ...]:
    row = tuple(int(i) for i in np.argwhere(rows)[0])
    return (*row, int(reference[row].argmax()))


def _misplaced(a: Array, b: Array, bound: Array) -> NDArray[np.bool_]:
    """Rows (along the last axis) whose maximum is elsewhere, though the reference's is clear."""
    if b.ndim == 0 or b.shape[-1] < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.zeros(b.shape[:-1], bool)
    top = b.argmax(-1)[..., None]
    second = np.partition(b, -2, axis=-1)[..., -2]
    margin = np.take_along_axis(b, top, -1)[..., 0] - second
    clear = margin > np.take_along_axis(bound, top, -1)[..., 0]
    moved: NDArray[np.bool_] = clear & (a.argmax(-1) != top[..., 0])
    return moved
