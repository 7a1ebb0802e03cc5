"""What these examples share: a board to run on, and numpy to hold results against."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import mlc_deploy as mlc
from mlc_deploy.board.connect import target_of
from mlc_rpc import Session

Board = str | Session  # "local://", "qemu://cortex-a72" …, or a session with one


@contextmanager
def connected(board: Board) -> Iterator[Session]:
    if isinstance(board, Session):
        yield board
    else:
        with mlc.connect(board) as session:
            yield session


def check(
    board: Board,
    build: Callable[[Any], mlc.Library],
    inputs: Sequence[np.ndarray],
    *expected: np.ndarray,
    rtol: float = 1e-5,
) -> None:
    """Builds for the board's target, runs it there, and compares what follows the inputs."""
    with connected(board) as session:
        library = build(target_of(session.device))
        results = [session.empty(e.shape, str(e.dtype)) for e in expected]
        function = session.load(library)[next(iter(library.signatures))]
        function(*(session.tensor(x) for x in inputs), *results)
        for result, right in zip(results, expected, strict=True):
            np.testing.assert_allclose(result.numpy(), right, rtol=rtol, atol=1e-5)


def data(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Whole numbers from -4 to 4, so that sums are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def command(main: Callable[..., None]) -> None:
    """Runs an example: python EXAMPLE.py [BOARD]."""
    main(*sys.argv[1:2])
