"""Convolutions whose weights are data: packed in each run, then computed in tiles."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function
from tests.ops.operator_calls import OperatorCall, array, close
from tests.sessions import TARGETS, board_named

KERNEL = (3, 3)


def model(channels: int, filters: int, size: int, stride: int) -> tuple[Function, OperatorCall]:
    moves: dict[str, Any] = {
        "strides": (stride, stride),
        "dilations": (1, 1),
        "pads": (1, 1, 1, 1),
        "groups": 1,
    }
    rng = Random(5)
    x = array(rng, (1, channels, size, size), "float32")
    w = array(rng, (filters, channels, *KERNEL), "float32")
    graph = BlockBuilder("main")
    given = [graph.param(name, a.shape, "float32") for name, a in (("x", x), ("w", w))]
    function = graph.finish([graph.emit("conv2d", *given, **moves)])
    return function, OperatorCall("conv2d", (x, w), moves)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_a_convolution_of_data(board: str, stride: int, request: pytest.FixtureRequest) -> None:
    """Filters that fill the last vector, and that do not; on ARM, about an instruction of two
    products."""
    session = board_named(request, board)
    for channels, filters in ((16, 32), (5, 21)):
        function, call = model(channels, filters, 20, stride)
        module = session.load(mlc.compile(function, TARGETS[board]))
        run = module.profile(dict(zip("xw", call.arrays, strict=True)))
        (found,) = run.outputs.values()
        (wanted,) = call.expected()
        assert close(found, wanted)
        if board == "aarch64":
            assert run.run.counts is not None
            total = sum(c.total for c in run.run.counts)
            products = wanted.size * channels * np.prod(KERNEL)
            assert total < products / 2, (total, products)
        module.close()
