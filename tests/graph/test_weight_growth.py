"""How much weights grow for speed: which layers may, and that models stay within the limit."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.model_graph import optimized_graph
from mlc_deploy.errors import GraphError, PassError
from mlc_deploy.graph import BlockBuilder, Constant, Function, Value, lower_graph
from mlc_deploy.graph.weight_growth import Offer, taken, weights_of
from mlc_deploy.passes.context import MEMORY, OPTIONS, options
from mlc_targets import Target

CORTEX_A72 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -device=arm_cpu")
LAYER: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
SIDE, CHANNELS = 12, (64, 128, 256, 128)


def convolutions() -> Function:
    """Of 3 x 3, with weights of several sizes."""
    rng = np.random.default_rng(0)
    builder = BlockBuilder("convolutions")
    y: Value = builder.param("x", (1, CHANNELS[0], SIDE, SIDE), "float32")
    for number, (inputs, outputs) in enumerate(pairwise(CHANNELS)):
        w = rng.standard_normal((outputs, inputs, 3, 3)).astype(np.float32) / inputs
        y = builder.emit("conv2d", y, Constant(w, f"w{number}"), **LAYER)
        y = builder.emit("relu", y)
    return builder.finish([y], ["y"])


def packed(memory: str) -> tuple[int, float]:
    """Bytes of the weights, and what the plans say that their layers cost."""
    with options({"graph.memory": memory}):
        function = optimized_graph(convolutions(), CORTEX_A72)
    program = lower_graph(function)
    calls = [c for b in function.bindings for c in program_calls(b.call)]
    return len(program.weights), sum(calls)


def program_calls(call: object) -> list[float]:
    """Costs of the plans in a call, and in the function that it fuses."""
    found = [plan.cost] if (plan := getattr(call, "plan", None)) is not None else []
    inner = getattr(call, "function", None)
    bindings = inner.bindings if isinstance(inner, Function) else ()
    return found + [cost for b in bindings for cost in program_calls(b.call)]


def test_what_saves_most_per_byte_is_taken_first() -> None:
    layers = [[Offer(10, 100), Offer(30, 400)], [Offer(50, 100)], []]
    assert taken(layers, 0) == [None, None, None]
    assert taken(layers, 100) == [None, 0, None]
    assert taken(layers, 200) == [0, 0, None]
    assert taken(layers, 499) == [0, 0, None]
    assert taken(layers, 500) == [1, 0, None]


def test_a_step_that_does_not_fit_leaves_room_for_others() -> None:
    assert taken([[Offer(90, 100)], [Offer(8, 10)]], 50) == [None, 0]


def test_offers_are_nearly_as_good_as_the_best_choice() -> None:
    """No worse than the best choice less the largest single offer, which is greed's bound."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        layers = [
            [Offer(float(rng.integers(1, 50)), int(rng.integers(1, 40))) for _ in range(2)]
            for _ in range(4)
        ]
        most = int(rng.integers(1, 90))
        choices = product(*[[None, *range(len(offers))] for offers in layers])
        best = max(saved for c in choices if (saved := _saved(layers, c, most)) is not None)
        found = _saved(layers, tuple(taken(layers, most)), most)
        assert found is not None
        assert found >= best - max(o.saved for offers in layers for o in offers)


def _saved(layers: list[list[Offer]], choice: tuple[int | None, ...], most: int) -> float | None:
    """What a choice saves; None where it takes too many bytes."""
    own = [offers[n] for offers, n in zip(layers, choice, strict=True) if n is not None]
    return sum(o.saved for o in own) if sum(o.bytes for o in own) <= most else None


def test_weights_stay_within_the_limit_and_cost_less_where_it_is_wider() -> None:
    plain = weights_of(convolutions())
    sizes, costs = zip(*map(packed, MEMORY), strict=True)
    for memory, size in zip(MEMORY, sizes, strict=True):
        assert size <= plain + MEMORY[memory].most(plain) + 4096, memory
    assert sizes[0] < sizes[1] < sizes[2]
    assert costs[0] > costs[1] > costs[2]
    assert sizes[2] > 3 * plain


def test_growth_that_is_little_on_any_board_is_spared_by_default() -> None:
    balanced, kilobyte, megabyte = MEMORY[OPTIONS["graph.memory"]], 1 << 10, 1 << 20
    assert balanced.most(100 * kilobyte) == megabyte
    assert balanced.most(100 * megabyte) == 50 * megabyte
    assert MEMORY["small"].most(100 * kilobyte) == 10 * kilobyte


@pytest.mark.parametrize("memory", ["small", "balanced"])
def test_outputs_are_the_same(memory: str) -> None:
    x = np.random.default_rng(1).standard_normal((1, CHANNELS[0], SIDE, SIDE)).astype(np.float32)
    model = mlc.compile(convolutions(), "host", memory=memory)
    with mlc.connect("local://") as board:
        done = mlc.deploy(model, board, {"x": x})
    assert done.ok


def test_a_name_that_is_none() -> None:
    with pytest.raises(GraphError) as refused:
        mlc.compile(convolutions(), "host", memory="tiny")
    assert str(refused.value) == "unknown memory 'tiny'\n  try: small or balanced or fast"
    with pytest.raises(PassError) as wrong, options({"graph.memory": "tiny"}):
        pass
    assert str(wrong.value) == (
        "config: option 'graph.memory' is 'tiny'\n  try: small or balanced or fast"
    )
