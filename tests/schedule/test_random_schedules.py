"""Any sequence of primitives is refused or keeps what the program computes.

`scripts/test --only schedules` draws 20,000; the default run some hundreds. A failure prints the
seed: drawn_schedule(seed) makes it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mlc_deploy as mlc
from tests.schedule.compiled import check_on_board
from tests.schedule.draws import DRAWS, Drawn, check_interpreted, drawn_schedule
from tests.schedule.programs import PROGRAMS
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

BATCH = 25
DEFAULT_BATCHES = 16
SLOW_BATCHES = 800


def batch(number: int) -> list[Drawn]:
    return [drawn_schedule(seed) for seed in range(number * BATCH, (number + 1) * BATCH)]


def check(number: int, local: Session) -> None:
    drawn = batch(number)
    for d in drawn:
        check_interpreted(d)
    check_on_board(local, drawn, mlc.Target(TARGETS["local"]))


@pytest.mark.parametrize("number", range(DEFAULT_BATCHES))
def test_schedules_keep_the_result(number: int, local: Session) -> None:
    check(number, local)


@pytest.mark.schedules
@pytest.mark.parametrize("number", range(DEFAULT_BATCHES, SLOW_BATCHES))
def test_many_schedules_keep_the_result(number: int, local: Session) -> None:
    check(number, local)


@pytest.mark.parametrize("board", ["armv7", "armv7_scalar", "aarch64"])
def test_schedules_keep_the_result_on_arm(board: str, request: pytest.FixtureRequest) -> None:
    check_on_board(board_named(request, board), batch(0) + batch(1), mlc.Target(TARGETS[board]))


def test_the_draws_reach_every_primitive_and_program() -> None:
    """A generator that stopped making legal steps would prove nothing."""
    drawn = [d for number in range(DEFAULT_BATCHES) for d in batch(number)]
    legal = {name for d in drawn for name, _ in d.steps}
    assert legal == set(DRAWS)
    assert sum(len(d.steps) for d in drawn) > 3 * len(drawn)
    assert len(PROGRAMS) == 13


def test_a_seed_draws_the_same_schedule_again() -> None:
    assert str(drawn_schedule(7)) == str(drawn_schedule(7))
