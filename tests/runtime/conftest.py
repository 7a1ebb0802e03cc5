"""A board on this machine for the tests of the device runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.board import Board


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as b:
        yield b
