"""Layers whose channels are no whole blocks: filled up, and exact where they are of int8, on every
kind of board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Function, evaluate, optimize
from mlc_deploy.graph.channels import fill_channels
from mlc_deploy.ir import same_shape
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


# ------------------------------------------------------------------------------------------ floats

WIDE = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")  # 16 floats in a vector


def float_network(inputs: int, layers: list[Layer], after: str = "relu") -> Function:
    """Convolutions of floats, each with a bias and `after`; the data are added to their result
    where they have as many channels."""
    rng = np.random.default_rng(5)
    b = BlockBuilder("network")
    x = y = b.param("x", (1, inputs, 9, 9), "float32")
    for outputs, kernel, groups in layers:
        shape = (outputs, inputs // groups, kernel, kernel)
        w = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": groups}
        y = b.emit("conv2d", y, w, pads=(kernel // 2,) * 4, **attrs)
        y = b.emit(after, b.emit("add", y, rng.random((outputs, 1, 1)).astype(np.float32)))
        inputs = outputs
    if same_shape(x.type.shape, y.type.shape):
        y = b.emit("add", y, x)
    return b.finish([y], ["y"])


def filled_and_plain(function: Function) -> tuple[Function, Any, Any]:
    """The function filled up, and what it and the function give."""
    filled = fill_channels(WIDE)(function)
    data = np.random.default_rng(6).standard_normal(function.params[0].type.sizes)
    given = [data.astype(np.float32)]
    return filled, evaluate(filled, given)["y"], evaluate(function, given)["y"]


@given(
    inputs=st.sampled_from((8, 16, 24)),
    channels=st.lists(st.sampled_from((5, 8, 16, 24, 40)), min_size=1, max_size=3),
    kernel=st.sampled_from((1, 3)),
    after=st.sampled_from(("relu", "sigmoid", "exp", "log", "sqrt")),
)
@settings(max_examples=30, deadline=None)
def test_floats_filled_are_the_same(
    inputs: int, channels: list[int], kernel: int, after: str
) -> None:
    """Whatever stands in channels that are too many, no layer that reads them meets an infinity."""
    with np.errstate(all="ignore"):
        _, after_, before = filled_and_plain(
            float_network(inputs, [(n, kernel, 1) for n in channels], after)
        )
    np.testing.assert_allclose(after_, before, rtol=1e-4, atol=1e-4)


def sizes_of_layers(function: Function) -> list[tuple[int, ...]]:
    calls = [b.call for b in function.bindings if isinstance(b.call, Call)]
    return [c.args[1].type.sizes for c in calls if c.op == "conv2d"]


def test_floats_are_filled_where_it_costs_less() -> None:
    """Layers hand on what they filled up, a filter for each channel, too; vectors of four have no
    use for it."""
    layers = [(24, 1, 1), (24, 3, 24), (144, 1, 1)]
    function = float_network(96, layers)
    filled, after, before = filled_and_plain(function)
    assert sizes_of_layers(filled) == [(32, 96, 1, 1), (32, 1, 3, 3), (144, 32, 1, 1)]
    ops = {b.call.op for b in filled.bindings if isinstance(b.call, Call)}
    assert "conv2d" in ops and not ops & {"pad", "slice"}
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    assert fill_channels(Target("aarch64"))(function) is function


def test_what_may_be_infinite_is_cut_off() -> None:
    """log(0) of a channel that is too many times a weight of 0 would be no number."""
    filled, after, before = filled_and_plain(float_network(96, [(24, 1, 1), (144, 1, 1)], "log"))
    ops = [b.call.op for b in filled.bindings if isinstance(b.call, Call)]
    assert ops.count("slice") == 1
    assert ops.count("pad") == 1
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_channels_of_a_models_own_slice_are_no_filling() -> None:
    """The others hold what the model put there."""
    b = BlockBuilder("main")
    x = b.param("x", (1, 32, 9, 9), "float32")
    some = b.emit("slice", x, begin=(0, 0, 0, 0), step=(1, 1, 1, 1), shape=(1, 24, 9, 9))
    w = np.ones((16, 24, 1, 1), np.float32)
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    y = b.emit("conv2d", some, w, pads=(0, 0, 0, 0), **attrs)
    function = b.finish([y], ["y"])
    data = np.ones((1, 32, 9, 9), np.float32)
    data[:, 24:] = np.inf
    filled = fill_channels(WIDE)(function)
    np.testing.assert_array_equal(evaluate(filled, [data])["y"], evaluate(function, [data])["y"])


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_floats_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    layers = [(24, 1, 1), (24, 3, 24), (144, 1, 1), (18, 3, 1), (24, 1, 1)]
    function = float_network(24, layers)
    data = np.random.default_rng(7).standard_normal((1, 24, 9, 9)).astype(np.float32)
    (found,) = session.load(mlc.compile(function, TARGETS[board])).run({"x": data}).values()
    wanted = evaluate(function, [data])["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
