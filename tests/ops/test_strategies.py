"""Operators as the strategies schedule them, compiled, against their numpy definitions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.ir import IRModule
from tests.ops.operator_calls import CALLS, OperatorCall, array, close
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

CALLS_PER_BATCH = 20
BATCHES = 3


def drawn(kind: str, batch: int) -> list[OperatorCall]:
    return [CALLS[kind](Random(f"{kind} {batch} {n}")) for n in range(CALLS_PER_BATCH)]


def check(session: Session, calls: list[OperatorCall], target: str) -> None:
    """All calls in one object; the wrong ones are listed together."""
    lowered = [c.lowered(mlc.Target(target), f"call_{n}") for n, c in enumerate(calls)]
    library = build(IRModule({f.name: f for f, _ in lowered}), target=target, name="calls")
    stored = session.put(library.object_bytes)
    module = session.load(library)
    wrong: list[str] = []
    for call, (func, arrays) in zip(calls, lowered, strict=True):
        expected = call.expected()
        outs = [session.tensor(np.zeros_like(e)) for e in expected]
        module[func.name](*(session.tensor(np.array(a, order="C")) for a in arrays), *outs)
        for out, wanted in zip(outs, expected, strict=True):
            if not close(out.numpy(), wanted):
                wrong.append(f"{call}\n{out.numpy()}\n{wanted}")
    module.close()
    session.forget(stored)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", CALLS)
def test_operators(kind: str, batch: int, local: Session) -> None:
    check(local, drawn(kind, batch), TARGETS["local"])


@pytest.mark.parametrize("board", ["armv7", "armv7_scalar", "aarch64"])
@pytest.mark.parametrize("kind", CALLS)
def test_operators_on_arm(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    check(board_named(request, board), drawn(kind, 0), TARGETS[board])


LARGE = {
    "dense": OperatorCall(
        "dense",
        (array(Random(1), (16, 128)), array(Random(2), (64, 128))),
        {"transpose_b": True},
        weights=True,
    ),
    "conv2d": OperatorCall(
        "conv2d",
        (array(Random(1), (1, 16, 16, 16)), array(Random(2), (32, 16, 3, 3))),
        {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1},
        weights=True,
    ),
}
MACS = {"dense": 16 * 128 * 64, "conv2d": 16 * 16 * 16 * 32 * 9}


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
@pytest.mark.parametrize("kind", LARGE)
def test_multiplies_are_vectors(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    """No scalar inner loop: a quarter of the multiply-accumulates in instructions, and few others
    beside them."""
    session = board_named(request, board)
    if not session.counting:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    call, target = LARGE[kind], TARGETS[board]
    func, arrays = call.lowered(mlc.Target(target), f"{kind}_large")
    module = session.load(build(func, target=target))
    (wanted,) = call.expected()
    out = session.tensor(np.zeros_like(wanted))
    run = module[func.name].profile(*(session.tensor(a) for a in arrays), out)
    assert close(out.numpy(), wanted)
    assert run.counts is not None
    (counts,) = run.counts
    macs = counts.by_class["mac"]
    assert MACS[kind] / 4 <= macs <= 1.15 * MACS[kind] / 4
    assert counts.total <= 3 * macs


def test_rows_in_panels(request: pytest.FixtureRequest) -> None:
    """On AArch64, dense of many rows: also where tiles divide neither rows nor columns."""
    rng = Random(3)
    calls = [
        OperatorCall(
            "dense", (array(rng, (m, k)), array(rng, (n, k))), {"transpose_b": True}, weights=True
        )
        for m, k, n in ((16, 12, 64), (17, 64, 70), (33, 16, 65))
    ]
    target = TARGETS["aarch64"]
    lowered, _ = calls[1].lowered(mlc.Target(target), "panels")
    assert "panel" in str(lowered)
    check(board_named(request, "aarch64"), calls, target)
