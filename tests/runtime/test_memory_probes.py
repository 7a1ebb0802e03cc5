"""What a kernel can do to memory that is not its own: nothing (memory_probes.py)."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import numpy as np
import pytest

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import connect, errors
from mlc_rpc.local import local_machine
from tests.runtime.memory_probes import MODES, PROBES, Attacked, Probe, gadget

LONG = 60  # seconds that a thread writes over the answers; mostly one of the first runs shows it

pytestmark = pytest.mark.skipif(local_machine() not in ("x86_64", "aarch64"), reason="no probes")


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    with connect("local://", runtime_file) as session:
        yield Attacked(session, local_machine())


def named(probe: Probe) -> str:
    return probe.name


@pytest.mark.parametrize("probe", PROBES, ids=named)
def test_a_kernel_that_calls_the_system(attacked: Attacked, probe: Probe) -> None:
    for _ in range(2):
        attacked.attack(probe, where=attacked.where(probe))
        attacked.check(probe)


@pytest.mark.parametrize("probe", [p for p in PROBES if p.knowing is not None], ids=named)
def test_a_kernel_that_calls_the_system_as_the_runtime_does(
    attacked: Attacked, probe: Probe
) -> None:
    attacked.attack(probe, knowing=True, where=attacked.where(probe))
    attacked.check(probe, knowing=True)


def test_a_thread_that_changes_answers_after_they_were_sent(attacked: Attacked) -> None:
    """It was begun by the runtime's own instructions, and goes on while others run."""
    probe = next(probe for probe in PROBES if probe.name == "a thread that flips the answer")
    where, end = attacked.where(probe), monotonic() + LONG
    with pytest.raises(errors.Crashed, match="the worker's memory is damaged: its reply is none"):
        attacked.run((probe.number, gadget(attacked.machine), *where))
        while monotonic() < end:
            np.testing.assert_array_equal(attacked.compute(), attacked.right)
    attacked.check(probe)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("probe", MODES, ids=named)
def test_modes_that_a_kernel_leaves(attacked: Attacked, probe: Probe, threads: int) -> None:
    """The next kernel of the same run computes as ever, and so do those of the next runs."""
    for _ in range(2):
        result = attacked.attack(probe, threads=threads)
        assert result is not None
        np.testing.assert_array_equal(result, attacked.right)
        attacked.check(probe)


@pytest.mark.skipif(local_machine() != "x86_64", reason="other modes have other effects")
@pytest.mark.parametrize("probe", MODES[:5], ids=named)
def test_what_is_computed_depends_on_the_modes(attacked: Attacked, probe: Probe) -> None:
    """Else the test above could not fail. A kernel that computes twice sees what it has changed."""
    try:
        attacked.run((probe.number + 100, 0, 0, 0))
    except errors.Crashed as error:
        assert probe.name in ("direction of strings", "unmasked exceptions"), error
    else:
        assert attacked.said.numpy()[0] > 0
