"""What a client does with a board while something happens to one of them: steps, each checked.

python -m tests.machine.work URL WORK       the same in a process that can be killed
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_rpc import Session, errors
from tests.runtime.board import BYTES, X, module_of

BLOB_BYTES = 2 << 20

Steps = Iterator[None]


def upload(session: Session) -> Steps:
    """The same blobs each time, so that what was sent before need not be sent again."""
    chance = np.random.default_rng(7)
    while True:
        blob = chance.bytes(BLOB_BYTES)
        name = session.put(blob)
        assert session.get(name) == blob
        yield


def load(session: Session) -> Steps:
    code = module_of("add", machine="aarch64")
    while True:
        session.load(code).close()
        yield


def run(session: Session) -> Steps:
    """Two kernels in turn: one that is quick, and one that is at work most of the time."""
    add = session.load(module_of("add", machine="aarch64"))["add"]
    spin = session.load(module_of("spin", machine="aarch64"))["spin"]
    a, total, scratch = session.tensor(X), session.empty((64,)), session.tensor(BYTES)
    while True:
        add(a, a, total)
        np.testing.assert_array_equal(total.numpy(), 2 * X)
        with pytest.raises(errors.Timeout, match="still at work"):
            spin(scratch, timeout=1)
        yield


def timing(session: Session) -> Steps:
    add = session.load(module_of("add", machine="aarch64"))["add"]
    a, total = session.tensor(X), session.empty((64,))
    while True:
        timed = add.time_evaluator(number=1, repeat=20, min_repeat_ms=50)(a, a, total)
        assert len(timed.samples) == 20 and min(timed.samples) > 0
        np.testing.assert_array_equal(total.numpy(), 2 * X)
        yield


WORK: dict[str, Callable[[Session], Steps]] = {
    "upload": upload,
    "load": load,
    "run": run,
    "timing": timing,
}
# The methods that are under way in it.
METHODS = {
    "upload": {"blob.has", "blob.put", "blob.get"},
    "load": {"blob.has", "blob.put", "module.load", "module.free"},
    "run": {"run", "tensor.read"},
    "timing": {"time", "tensor.read"},
}

if __name__ == "__main__":
    with mlc.connect(sys.argv[1]) as board:
        for _ in WORK[sys.argv[2]](board):
            print("a step", flush=True)
