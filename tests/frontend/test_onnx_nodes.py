"""ONNX's one-node models, one test each: those that onnx_node_suite.txt lists must pass."""

from __future__ import annotations

import pytest

from tests.frontend.onnx_node_suite import PASSING, cases, run

NAMES = PASSING.read_text().split()


@pytest.mark.parametrize("name", NAMES)
def test_node(name: str) -> None:
    run(cases()[name])


def test_list_is_of_this_suite() -> None:
    assert len(NAMES) >= 1000 and set(NAMES) <= set(cases())
