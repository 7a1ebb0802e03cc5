"""ONNX's backend suite: the tests that onnx_suite.txt lists must pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlc_deploy import backend
from tests.frontend import onnx_suite
from tests.frontend.onnx_scoreboard import counted, every, passes
from tests.frontend.onnx_suite import (
    cases,
    check_compiled,
    check_evaluated,
    outcome,
    passing,
    spread,
)

NAMES = passing()
BOARDS = ("qemu://cortex-a7", "qemu://cortex-a72")
# Operators of the models that do not pass, in the groups of whole models; and one model whose
# input has no elements, so that its output is known.
REFUSED = {"StringNormalizer", "Gradient"}
KNOWN = "simple/test_sequence_model8"


@pytest.mark.parametrize("name", NAMES)
def test_evaluated(name: str) -> None:
    check_evaluated(cases()[name])


@pytest.mark.parametrize("name", spread(NAMES, 60))
def test_compiled_sample(name: str) -> None:
    check_compiled(cases()[name], "CPU")


@pytest.mark.onnx
@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str) -> None:
    check_compiled(cases()[name], "CPU")


@pytest.mark.onnx
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", spread(NAMES, 150))
def test_on_emulated_boards(name: str, board: str) -> None:
    check_compiled(cases()[name], board)


def test_list_is_of_this_suite() -> None:
    """1,884 node tests are in onnx 1.23."""
    of_nodes = [n for n in NAMES if n.startswith("node/")]
    assert len(of_nodes) >= 1725 and set(NAMES) <= set(cases())
    for name in {n for n, c in cases().items() if c.group != "node"} - set(NAMES):
        operators = {node.op_type for node in cases()[name].model.graph.node}
        assert operators & REFUSED or name == KNOWN


def test_scoreboard_is_of_its_suite() -> None:
    """1,914 tests are in onnx 1.22, and a few of those that pass there run here."""
    version, count, failing = counted()
    assert (version, count) == ("1.22.0", 1914) and count - len(failing) >= 1813
    names = [test.id().rpartition(".")[2] for test in every("test_(det|not)_")]
    assert len(names) == 5 and not {name.removesuffix("_cpu") for name in names} & set(failing)
    assert all(map(passes, every("test_(det|not)_")))


@pytest.mark.onnx
def test_list_is_complete() -> None:
    """What passes and is not listed should be: python -m tests.frontend.onnx_suite."""
    others = [c for n, c in cases().items() if n not in set(NAMES)]
    assert not [c.name for c in others if outcome(c, onnx_suite.both) == "ok"]


@pytest.mark.onnx
def test_document_is_of_these_sources() -> None:
    """Else: python scripts/onnx_support.py."""
    script = Path(__file__).parents[2] / "scripts" / "onnx_support.py"
    subprocess.run([sys.executable, script, "--check"], check=True)


def test_a_constant_test_does_not_count() -> None:
    """One whose outputs are known once the values that decide about shapes are."""
    assert outcome(cases()["node/test_range_int32_type_negative_delta"], check_evaluated) == (
        "constant"
    )


def test_interface() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("qemu://cortex-a7")
    assert not backend.supports_device("CUDA")
    case = cases()["node/test_reshape_reordered_all_dims"]
    ((inputs, expected),) = case.data_sets()
    (output,) = backend.run_model(case.model, inputs)
    assert output.shape == expected[0].shape
    prepared = backend.prepare(case.model)
    assert prepared.bound == frozenset()
    prepared.run(inputs)
    assert prepared.bound == {"shape"}
    first = prepared.compiled
    prepared.run(inputs)
    assert prepared.compiled is first
    prepared.run([inputs[0], inputs[1][::-1].copy()])  # another shape: compiled again
    assert prepared.compiled is not first
    prepared.close()
