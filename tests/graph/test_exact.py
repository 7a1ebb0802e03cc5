"""Convolutions of int8 whose sums floats hold exactly: equal numbers, and only where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Function, evaluate, optimize
from mlc_deploy.graph.exact import EXACT, SPAN, exact_floats
from mlc_targets import Target
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]
POINTS = st.integers(-128, 127)


def network(
    channels: int, weights: Any, groups: int, stride: int, zero: int, point: int | None = None
) -> Function:
    """One convolution, its sums the output; of float data that are quantized to zero point `point`
    where that is given."""
    b = BlockBuilder("network")
    x = b.param("x", (1, channels, 7, 7), "int8" if point is None else "float32")
    q = x
    if point is not None:
        q = b.emit("quantize", x, np.array(0.03, np.float32), np.array(point, np.int8))
    pads = (weights.shape[2] // 2,) * 4
    attrs: dict[str, Any] = {"strides": (stride, stride), "dilations": (1, 1), "pads": pads}
    return b.finish([b.emit("conv2d", q, weights, groups=groups, pad_value=zero, **attrs)])


def random_weights(outputs: int, inputs: int, kernel: int) -> Any:
    shape = (outputs, inputs, kernel, kernel)
    return np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)


def numbers(function: Function) -> Any:
    (x,) = function.params
    rng = np.random.default_rng(6)
    if x.type.dtype == "float32":
        found = (3 * rng.standard_normal(x.type.sizes)).astype(np.float32)
        found.flat[:6] = 0.015, 0.045, -0.015, 100, -100, 0  # halves, and more than int8 holds
        return found
    return rng.integers(-128, 128, x.type.sizes).astype(np.int8)


def layers(function: Function) -> list[str]:
    """The dtypes of the data of convolutions."""
    calls = [b.call for b in function.bindings if isinstance(b.call, Call)]
    return [c.args[0].type.dtype for c in calls if c.op == "conv2d"]


@given(
    groups=st.sampled_from((1, 2, 8)),
    inputs=st.sampled_from((1, 2, 3, 4)),
    outputs=st.sampled_from((4, 8, 12)),
    kernel=st.sampled_from((1, 3, 5)),
    stride=st.sampled_from((1, 2)),
    zero=POINTS,
    point=st.none() | POINTS,
)
@settings(max_examples=40, deadline=None)
def test_floats_give_the_same_sums(
    groups: int, inputs: int, outputs: int, kernel: int, stride: int, zero: int, point: int | None
) -> None:
    weights = random_weights(groups * outputs, inputs, kernel)
    function = network(groups * inputs, weights, groups, stride, zero, point)
    result = optimize(function, (exact_floats(Target("aarch64")),))
    data = numbers(function)
    (before,), (after,) = (evaluate(f, [data]).values() for f in (function, result))
    assert before.dtype == after.dtype == np.int32
    np.testing.assert_array_equal(after, before)


def test_first_layers_and_groups_of_few_channels_are_floats() -> None:
    for channels, weights, groups in (
        (3, random_weights(16, 3, 3), 1),
        (32, random_weights(32, 4, 3), 8),
    ):
        function = network(channels, weights, groups, 2, 0)
        assert layers(optimize(function, (exact_floats(Target("aarch64")),))) == ["float32"]


@pytest.mark.parametrize(
    "channels, outputs, groups, kernel", [(64, 64, 1, 1), (32, 32, 1, 3), (16, 16, 16, 3)]
)
def test_other_layers_stay_integers(channels: int, outputs: int, groups: int, kernel: int) -> None:
    weights = random_weights(outputs, channels // groups, kernel)
    function = network(channels, weights, groups, 1, 0)
    assert optimize(function, (exact_floats(Target("aarch64")),)) is function


def test_sums_that_floats_would_round_stay_integers() -> None:
    largest = EXACT // SPAN // 127  # weights of 127 whose sums are exact
    for kernel, kind in ((11, "float32"), (13, "int8")):
        weights = np.full((32, 4, kernel, kernel), 127, np.int8)
        assert (kernel * kernel * 4 <= largest) == (kind == "float32")
        function = network(32, weights, 8, 1, 0)
        assert layers(optimize(function, (exact_floats(Target("aarch64")),))) == [kind]


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    for function in (
        network(3, random_weights(16, 3, 3), 1, 2, -7, point=-7),
        network(32, random_weights(32, 4, 3), 8, 1, 3),
    ):
        compiled = mlc.compile(function, TARGETS[board])
        data = numbers(function)
        (found,) = session.load(compiled).run({"x": data}).values()
        (wanted,) = evaluate(function, [data]).values()
        np.testing.assert_array_equal(found, wanted)
