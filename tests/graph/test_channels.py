"""int8 layers whose channels are no whole blocks: filled up, and exact, on every kind of board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Function, evaluate, optimize
from mlc_deploy.graph.channels import fill_channels
from mlc_targets import Target
from tests.graph.small_graphs import ops
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]
Layer = tuple[int, int, int]  # outputs, size of the kernel, groups
FEW = st.sampled_from((1, 2, 3, 5, 7, 8, 9, 12, 17))


def network(
    inputs: int, layers: list[Layer], size: int = 5, columns: int = 0, residual: bool = False
) -> Function:
    """Convolutions of int8, each with a bias and a requantization by channel; where wanted the
    data are added to their result; then dense."""
    rng = np.random.default_rng(3)
    b = BlockBuilder("network")
    x = b.param("x", (1, inputs, size, size), "int8")

    def requantized(sums: Any, channels: int, along: tuple[int, ...]) -> Any:
        bias = rng.integers(-200, 200, (channels, *along)).astype(np.int32)
        scale = (rng.random((channels, *along)) / 200).astype(np.float32)
        return b.emit("requantize", b.emit("add", sums, bias), scale, np.array(-3, np.int8))

    y = x
    for outputs, kernel, groups in layers:
        w = rng.integers(-128, 128, (outputs, inputs // groups, kernel, kernel)).astype(np.int8)
        pads = (kernel // 2,) * 4
        attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": pads}
        y = requantized(
            b.emit("conv2d", y, w, groups=groups, pad_value=5, **attrs), outputs, (1, 1)
        )
        inputs = outputs
    if residual:
        y = b.emit("maximum", y, x)
    if columns:
        flat = b.emit("reshape", y, shape=(size * size, inputs))
        w = rng.integers(-128, 128, (inputs, columns)).astype(np.int8)
        y = requantized(b.emit("dense", flat, w, transpose_b=False), columns, ())
    return b.finish([y])


def numbers(function: Function) -> Any:
    rng = np.random.default_rng(4)
    return rng.integers(-128, 128, function.params[0].type.sizes).astype(np.int8)


@given(
    inputs=FEW,
    channels=st.lists(FEW, min_size=1, max_size=3),
    kernel=st.sampled_from((1, 3)),
    columns=st.sampled_from((0, 1, 5, 8, 9)),
)
@settings(max_examples=30, deadline=None)
def test_filled_is_the_same(inputs: int, channels: list[int], kernel: int, columns: int) -> None:
    function = network(inputs, [(n, kernel, 1) for n in channels], columns=columns)
    result = optimize(function, (fill_channels(Target("aarch64")),))
    data = numbers(function)
    (before,), (after,) = (evaluate(f, [data]).values() for f in (function, result))
    np.testing.assert_array_equal(after, before)
    for binding in result.bindings:
        call = binding.call
        if isinstance(call, Call) and call.op == "conv2d":
            assert call.args[1].type.sizes[0] % 8 == 0


def test_layers_hand_filled_channels_on() -> None:
    function = network(16, [(9, 3, 1), (9, 3, 9), (17, 1, 1)])
    result = optimize(function, (fill_channels(Target("aarch64")),))
    assert ops(result) == " ".join(["conv2d add requantize"] * 3) + " slice"


@pytest.mark.parametrize(
    "groups, inputs, outputs", [(4, 4, 4), (8, 2, 1), (3, 6, 10), (2, 12, 4), (4, 17, 9)]
)
def test_groups_of_few_channels(groups: int, inputs: int, outputs: int) -> None:
    """inputs and outputs: of a group."""
    function = network(groups * inputs, [(groups * outputs, 3, groups)])
    result = optimize(function, (fill_channels(Target("aarch64")),))
    assert result is not function
    data = numbers(function)
    (before,), (after,) = (evaluate(f, [data]).values() for f in (function, result))
    np.testing.assert_array_equal(after, before)


def test_groups_that_are_filled_up_hand_channels_on() -> None:
    """Each group by itself, and what is added to the result is filled up as well."""
    function = network(4 * 34, [(4 * 34, 1, 4), (4 * 34, 1, 4)], residual=True)
    result = optimize(function, (fill_channels(Target("aarch64")),))
    calls = [b.call for b in result.bindings if isinstance(b.call, Call)]
    convs = [c.args[1].type.sizes for c in calls if c.op == "conv2d"]
    assert convs == [(4 * 40, 40, 1, 1)] * 2
    assert [c.op for c in calls].count("slice") == 1
    data = numbers(function)
    (before,), (after,) = (evaluate(f, [data]).values() for f in (function, result))
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    layers = [(9, 3, 1), (9, 3, 9), (24, 1, 3), (24, 3, 6), (40, 1, 1), (72, 3, 1), (17, 1, 1)]
    function = network(5, layers, columns=7)
    compiled = mlc.compile(function, TARGETS[board])
    data = numbers(function)
    (found,) = session.load(compiled).run({"x": data}).values()
    (wanted,) = evaluate(function, [data]).values()
    np.testing.assert_array_equal(found, wanted)


def test_one_channel_that_broadcasts_stays_one() -> None:
    """It may be cut from a whole block of them."""
    graph = BlockBuilder("main")
    x, y = graph.param("x", (1, 8), "float32"), graph.param("y", (1, 8), "float32")
    one = graph.emit("slice", y, begin=(0, 0), step=(1, 1), shape=(1, 1))
    function = graph.finish([graph.emit("divide", x, one)], ["z"])
    given = [np.arange(8, dtype=np.float32)[None], np.arange(2, 10, dtype=np.float32)[None]]
    filled = fill_channels(Target("aarch64"))(function)
    np.testing.assert_array_equal(evaluate(filled, given)["z"], evaluate(function, given)["z"])
