"""Sequences of primitives on programs whose iterations overlap: refused, or the same result.

`scripts/test --only schedules` makes many; the default run a hundred. drawn_overlapping(seed) makes
one again.
"""

from __future__ import annotations

import pytest

from tests.schedule.draws import Drawn, check_interpreted, drawn_schedule
from tests.schedule.overlapping import KINDS, overlapping_program

BATCH = 25
DEFAULT_BATCHES = 4
SLOW_BATCHES = 400


def drawn_overlapping(seed: int) -> Drawn:
    return drawn_schedule(seed, overlapping_program)


def check(number: int) -> int:
    """How many primitives were legal."""
    drawn = [drawn_overlapping(seed) for seed in range(number * BATCH, (number + 1) * BATCH)]
    for d in drawn:
        check_interpreted(d)
    return sum(len(d.steps) for d in drawn)


@pytest.mark.parametrize("number", range(DEFAULT_BATCHES))
def test_schedules_keep_the_result(number: int) -> None:
    assert check(number) > BATCH


@pytest.mark.schedules
@pytest.mark.parametrize("number", range(DEFAULT_BATCHES, SLOW_BATCHES))
def test_many_schedules_keep_the_result(number: int) -> None:
    check(number)


def test_every_kind_of_program_is_made() -> None:
    names = {str(drawn_overlapping(seed).program).count("\n") for seed in range(40)}
    assert len(names) >= len(KINDS) - 2
