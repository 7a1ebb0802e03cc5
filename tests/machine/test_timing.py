"""Timing on a whole kernel: its counters, its core, its rights."""

from __future__ import annotations

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_rpc import Refused, RemoteFunction, RemoteTensor, Session
from tests.machine.machine import Machine

pytestmark = pytest.mark.boards


def doubling(session: Session) -> tuple[RemoteFunction, tuple[RemoteTensor, RemoteTensor]]:
    """A kernel on the board, and what it takes."""
    x = te.placeholder((1, 4096), name="x")
    y = te.compute((1, 4096), lambda i, j: x[i, j] + x[i, j], name="y")
    library = mlc.build([x, y], target="aarch64", name="double")
    args = session.tensor(np.ones((1, 4096), np.float32)), session.empty((1, 4096))
    return session.load(library)["double"], args


def test_the_cpu_counts_for_a_worker_without_rights(board: Machine) -> None:
    """Root's worker runs as nobody, who may not count: the counters are opened before. Under QEMU's
    own CPU a cycle is a nanosecond or so, and neither is a board's."""
    with mlc.connect(board.url) as session:
        double, args = doubling(session)
        timing = double.time_evaluator(number=50, repeat=4)(*args)
        twice = double.time_evaluator(number=100, repeat=4)(*args)
    assert timing.conditions is not None
    cycles, again = timing.per_run("cycles"), twice.per_run("cycles")
    assert cycles and again and 0.2 < again / cycles < 5
    # What QEMU counts depends on -icount: without, it may tell cycles only.
    instructions = timing.per_run("instructions")
    assert instructions is None or 4096 / 16 < instructions < 4096 * 16
    assert timing.conditions.cores == tuple(range(session.device.cores))
    assert all(n is not None and n >= 0 for n in timing.conditions.after["involuntary_switches"])


@pytest.mark.parametrize("core", [0, 1])
def test_it_stays_on_the_core_that_was_named(board: Machine, core: int) -> None:
    with mlc.connect(board.url) as session:
        double, args = doubling(session)
        now = double.time_evaluator(repeat=5, min_repeat_ms=20, cores=str(core))(*args).conditions
        assert now and now.cores == (core,) and now.cluster == "cortex-a72"
        assert {*now.before["core"], *now.after["core"]} == {core}
        with pytest.raises(Refused, match=r"core 2 is not here, (?s:.*)try: of 0-1"):
            double(*args, cores="1-2")
        with pytest.raises(Refused, match="the board has no slow cores"):
            double(*args, cores="slow")
