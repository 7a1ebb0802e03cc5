"""Compares a board's results with the reference.

Floats are right if |error| <= relative * |reference| + of_largest * max|reference|, bounds that
suit a whole model. The largest number along the last axis must also be in the same place, wherever
the reference's is clearly the largest. Integers and booleans are right if they are equal.

Some models move their outputs by more than this when a last digit of their inputs changes. Outputs
beyond the bounds are compared within that movement (`steepness`), too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    `elements` any finite amount. As many as `integers` integers may differ, and dynamic
    extents by as much as `extents`. moves: how far the model itself moves, if this is
    why."""

    within: float | Array = 0.0
    elements: int = 0
    integers: int = 0
    extents: int = 0
    moves: float = 0.0

    def __or__(self, other: Slack) -> Slack:
        """All that either allows."""
        return Slack(
            np.maximum(self.within, other.within),
            max(self.elements, other.elements),
            max(self.integers, other.integers),
            max(self.extents, other.extents),
            max(self.moves, other.moves),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`max_abs_err` is the largest error, `max_rel_err` its share of the largest reference; both
    are nan if a result is nan or infinite and its reference is not.

    `wrong` counts elements outside the tolerance, `misplaced` rows with their maximum elsewhere.
    `worst` is the index of the element furthest outside, with its `expected` and `got`; if none is
    outside, the reference's maximum of the first misplaced row. `stepped` counts elements that are
    outside, but few enough for the slack. `moves` is how far the model itself moves when a last
    digit of its inputs and weights changes, if it is right only within that. `shapes` are the
    result's and the reference's, if they were otherwise at run time.
    """

    max_abs_err: float
    max_rel_err: float
    wrong: int = 0
    misplaced: int = 0
    worst: tuple[int, ...] = ()
    expected: float | int | bool = 0
    got: float | int | bool = 0
    stepped: int = 0
    moves: float = 0.0
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.misplaced


NO_SLACK = Slack()
# An engine rounds at every layer, and the moved model its inputs and weights alone. In twelve
# layers of convolutions and normalizations (tests/driver/test_steep.py), onnxruntime's error is 1.1
# times the movement on average and ours, by Winograd's filtering, 4.8 times; 4 deviations are 20.
STEEP = 32


def compare(
    got: Array, expected: Array, precision: str = "float32", slack: Slack = NO_SLACK
) -> Comparison:
    """Compares two arrays of one dtype and rank. precision: what the model computes in; "float16"
    widens the tolerance of all floats. slack: the error that there may be besides. Where shapes
    differ, since they are known only at run time, nothing says which elements belong together."""
    assert got.ndim == expected.ndim and got.dtype == expected.dtype
    if got.shape != expected.shape:
        apart = max(abs(a - b) for a, b in zip(got.shape, expected.shape, strict=True))
        wrong = 0 if apart <= slack.extents else max(1, abs(got.size - expected.size))
        return Comparison(math.nan, math.nan, wrong, shapes=(got.shape, expected.shape))
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
    allowed = slack.integers if tolerance is None else slack.elements
    few = wrong.sum() + misplaced.sum() <= allowed
    if few and np.isfinite(most):
        return Comparison(most, share, stepped=int(wrong.sum()), moves=slack.moves)
    if not wrong.any() and not misplaced.any():
        return Comparison(most, share, moves=slack.moves)
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


def steepness(right: Array, moved: Sequence[Array], precision: str = "float32") -> Slack:
    """The slack of a model that gives `right`, and `moved` when last digits of its inputs and
    weights change. Each element may differ by a few times what it moves, or what elements move on
    average; and a few times as many may differ further as one of these does from the others."""
    if any(m.shape != right.shape for m in moved):
        apart = (abs(a - b) for m in moved for a, b in zip(m.shape, right.shape, strict=True))
        return Slack(extents=STEEP * max(apart))
    if right.dtype.kind != "f":
        most = max(int((m != right).sum()) for m in moved)
        return Slack(integers=STEEP * most, moves=float(most > 0))
    with np.errstate(invalid="ignore"):
        moves = [np.abs(m.astype(np.float64) - right.astype(np.float64)) for m in moved]
    moves = [np.where(np.isfinite(each), each, 0.0) for each in moves]

    def within(some: Sequence[Array]) -> Array:
        average = np.sqrt(np.mean([np.mean(each * each) for each in some])) if right.size else 0.0
        return np.asarray(STEEP * np.maximum(np.maximum.reduce(some), average))

    further = 0
    for n, one in enumerate(moved):
        others = within([*moves[:n], *moves[n + 1 :]])
        further = max(further, compare(one, right, precision, Slack(others)).wrong)
    most_moved = max(float(each.max(initial=0.0)) for each in moves)
    return Slack(within(moves), STEEP * further, moves=most_moved)


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
