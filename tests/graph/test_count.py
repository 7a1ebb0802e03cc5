"""Counting multiply-accumulates, parameters and operators."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.count import multiply_accumulates, operators, parameters
from mlc_deploy.graph.fuse import fuse_operators
from mlc_deploy.graph.layouts import choose_plans
from mlc_targets import Target
from tests.graph.small_graphs import Build, built, drawn, emit
from tests.graph.test_graph import CONV

ND: dict[str, Any] = {"strides": (1,), "pads": (1, 1), "dilations": (1,), "groups": 2}
DEPTHWISE: dict[str, Any] = {**CONV, "groups": 4}

CASES: dict[str, tuple[Build, tuple[int, ...], int]] = {
    "conv2d": (emit("conv2d", "x", drawn(6, 4, 3, 3), **CONV), (2, 4, 5, 5), 2 * 6 * 25 * 4 * 9),
    "depthwise": (emit("conv2d", "x", drawn(4, 1, 3, 3), **DEPTHWISE), (1, 4, 5, 5), 4 * 25 * 9),
    "conv_nd": (emit("conv_nd", "x", drawn(6, 2, 3), **ND), (1, 4, 7), 6 * 7 * 2 * 3),
    "dense": (emit("dense", "x", drawn(3, 8), transpose_b=True), (5, 8), 5 * 3 * 8),
    "matmul": (emit("matmul", "x", drawn(2, 8, 3)), (2, 5, 8), 2 * 5 * 3 * 8),
    "nothing": (emit("exp", "x"), (5, 8), 0),
}


def total(function: Function) -> int:
    return sum(map(multiply_accumulates, function.bindings))


@pytest.mark.parametrize("name", CASES)
def test_multiply_accumulates(name: str) -> None:
    """By hand, and the same of packed weights and within kernels."""
    build, shape, expected = CASES[name]
    function = built(build, shape)
    assert total(function) == expected
    packed = choose_plans(Target("aarch64"))(function)
    assert total(packed) == expected
    assert total(fuse_operators(packed)) == expected


def test_operators_and_parameters() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        w = drawn(8, 8)
        y = b.emit("relu", b.emit("dense", x, w, transpose_b=True))
        return b.emit("relu", b.emit("add", b.emit("dense", y, w, transpose_b=True), drawn(8)))

    function = built(build, (2, 8))
    for graph in (function, fuse_operators(function)):
        assert operators(graph) == {"dense": 2, "relu": 2, "add": 1}
        assert parameters(graph) == 64 + 8  # weights that are read twice count once
