"""Boards that the tests of generated code share, one session of each per worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import mlc_deploy as mlc
from mlc_targets import Target

if TYPE_CHECKING:
    from mlc_rpc import Session

# What each board is compiled for, by the name of its fixture.
TARGETS = {
    "local": "host",
    "armv7": "armv7a",
    "armv7_scalar": "llvm -mtriple=armv7a-linux-gnueabihf -device=arm_cpu",
    "aarch64": "aarch64",
}


@pytest.fixture(scope="session")
def local() -> Iterator[Session]:
    """This machine."""
    with mlc.connect("local://") as board:
        yield board


@pytest.fixture(scope="session")
def armv7() -> Iterator[Session]:
    """An emulated 32-bit board with NEON."""
    with mlc.connect("qemu://cortex-a7") as board:
        yield board


@pytest.fixture(scope="session")
def armv7_scalar(armv7: Session) -> Session:
    """The same, for code that must not use NEON."""
    return armv7


@pytest.fixture(scope="session")
def aarch64() -> Iterator[Session]:
    """An emulated 64-bit board."""
    with mlc.connect("qemu://cortex-a72") as board:
        yield board


def board_named(request: pytest.FixtureRequest, name: str) -> Session:
    """The session of a board by the name of its fixture."""
    session: Session = request.getfixturevalue(name)
    return session


def boards_in_turn(cases: Iterable[Any]) -> list[Any]:
    """Each case and a board's name: this machine, and one of the ARM boards, which take turns. The
    other one is in the group `emulated`: of a whole graph, the third board seldom proves more."""
    made = []
    for number, case in enumerate(cases):
        for board in ("local", "aarch64", "armv7"):
            left_out = board == ("aarch64", "armv7")[number % 2]
            made.append(pytest.param(case, board, marks=pytest.mark.emulated if left_out else ()))
    return made


def skip_unless_runs(board: Session, target: Target) -> None:
    """Skips a test whose code this board, that is this machine, has not the instructions for."""
    device = board.device
    if device.machine != target.arch:
        pytest.skip(f"code for {target.arch}, this machine is {device.machine}")
    if lacks := set(target.required_features) - device.features:
        pytest.skip(f"this CPU lacks {', '.join(sorted(lacks))}")
