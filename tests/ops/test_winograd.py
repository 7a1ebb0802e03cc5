"""Winograd convolutions: the transforms, the definitions, kernels against direct convolution, and
the rule that chooses them. Those of int8 are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.ir import Const, Expr, IRModule, const
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import TensorType, compute, evaluate, infer_types
from mlc_deploy.ops.convolution import conv_shape
from mlc_deploy.ops.kernels.winograd import MOST_CHANNELS, MOST_GROWTH, best_strips, decide, planned
from mlc_deploy.ops.layout import pack
from mlc_deploy.ops.plan import NARROW, SMALL, known_of_weights
from mlc_deploy.ops.winograd import (
    KERNEL,
    TILES,
    WHOLE_TILE,
    data_matrix,
    data_transform,
    filter_transform,
    growth,
    result_matrix,
    result_transform,
    scales,
    transformed_weights,
    weights_matrix,
)
from mlc_deploy.te import create_prim_func, placeholder
from mlc_targets import Target
from tests.ops.operator_calls import Array, OperatorCall, array, close
from tests.ops.planned import laid_out, types_of
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

PLAIN = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
PADS = ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (0, 1, 2, 0), (1, 0, 0, 1))
SIZES = (3, 4, 5, 6, 7, 8, 11, 13, 17, 19)
CALLS_PER_BATCH = 5
CORTEX_A76 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu")


@pytest.fixture(scope="module")
def cortex_a76() -> Iterator[Session]:
    with mlc.connect("qemu://cortex-a76") as board:
        yield board


def exactly(transform: Callable[[list[Expr]], list[Expr]], numbers: Array) -> Array:
    """A transform of numbers, whose arithmetic the expressions fold."""
    folded = transform([const(float(n), "float64") for n in numbers])
    return np.array([n.value for n in folded if isinstance(n, Const)], np.float64)


@pytest.mark.parametrize("tile", TILES)
def test_transforms_are_their_matrices(tile: int) -> None:
    """And a filter's products at the points, transformed back, are its convolution."""
    size = tile + KERNEL - 1
    for transform, matrix in (
        (data_transform, data_matrix(tile)),
        (result_transform, result_matrix(tile)),
    ):
        columns = [exactly(transform, unit) for unit in np.eye(size)]
        np.testing.assert_allclose(np.array(columns).T, matrix, rtol=1e-14, atol=1e-14)
    rng = np.random.default_rng(tile)
    filters, data = rng.standard_normal(KERNEL), rng.standard_normal(size)
    row = exactly(lambda g: filter_transform(g, tile), filters)
    row = row * np.array(scales(tile), np.float64)
    np.testing.assert_allclose(row, weights_matrix(tile) @ filters, rtol=1e-12, atol=1e-12)
    points = (weights_matrix(tile) @ filters) * (data_matrix(tile) @ data)
    wanted = np.correlate(data, filters, "valid")
    np.testing.assert_allclose(result_matrix(tile) @ points, wanted, rtol=1e-11, atol=1e-11)


def winograd(
    x: Array, w: Array, tile: int, pads: tuple[int, ...], border: int = 0, rows: bool = True
) -> OperatorCall:
    attrs = {"tile": tile, "pads": pads, "pad_value": border}
    return OperatorCall("winograd_conv2d", (x, transformed_weights(w, tile, rows=rows)), attrs)


@dataclass(frozen=True)
class Layer:
    """A convolution of plain data and weights, the tile that it is done by, and whether rows of
    filters are transformed in the run."""

    x: Array
    w: Array
    tile: int
    pads: tuple[int, ...]
    border: int = 0
    in_run: bool = False

    def in_blocks(self, target: Target) -> OperatorCall:
        """By the target's plan."""
        types = types_of((self.x, self.w))
        attrs = {**PLAIN, "pads": self.pads, "pad_value": self.border}
        conv = conv_shape(types, attrs)
        assert conv is not None
        strips = best_strips(conv, self.tile, target, self.in_run)
        plan = planned(types, attrs, target, strips)
        return OperatorCall(plan.op, laid_out(plan, (self.x, self.w)), plan.attrs, plan=plan)


def direct(x: Array, w: Array, pads: tuple[int, ...], border: int = 0) -> Array:
    """The convolution in float64; of int8 as int32."""
    dtype = x.dtype if x.dtype == np.int8 else np.float64
    wide = [x.astype(dtype), w.astype(dtype)]
    (result,) = evaluate("conv2d", wide, {**PLAIN, "pads": pads, "pad_value": border})
    return result


def whole(rng: Random, *shape: int) -> Array:
    """Any int8, and often the least and the largest."""
    found = np.random.default_rng(rng.getrandbits(32)).integers(-160, 160, shape)
    return np.clip(found, -128, 127).astype(np.int8)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.booleans(),
    tile=st.sampled_from(TILES),
    pads=st.sampled_from(PADS),
    channels=st.integers(1, 5),
    filters=st.integers(1, 5),
    size=st.tuples(st.integers(3, 14), st.integers(3, 14)),
    seed=st.integers(0, 1 << 16),
)
def test_the_definition_is_convolution(
    rows: bool,
    tile: int,
    pads: tuple[int, ...],
    channels: int,
    filters: int,
    size: tuple[int, int],
    seed: int,
) -> None:
    """In numpy, in float64 but for the weights, which are rounded to float32."""
    rng = Random(seed)
    x, w = array(rng, (2, channels, *size)), array(rng, (filters, channels, 3, 3))
    call = winograd(x, w, tile, pads, rows=rows)
    (result,) = call.expected()
    assert close(result, direct(x, w, pads))
    types = [TensorType(a.shape, "float32") for a in call.arrays]
    assert infer_types(call.op, types, call.attrs) == (TensorType(result.shape, "float32"),)


@settings(max_examples=30, deadline=None)
@given(
    pads=st.sampled_from(PADS),
    border=st.integers(-128, 127),
    channels=st.integers(1, 40),
    size=st.tuples(st.integers(3, 11), st.integers(3, 11)),
    seed=st.integers(0, 1 << 16),
)
def test_the_definition_is_exact_on_whole_numbers(
    pads: tuple[int, ...], border: int, channels: int, size: tuple[int, int], seed: int
) -> None:
    """Of up to 40 channels, with which sums at the points would not fit int32."""
    rng = Random(seed)
    x, w = whole(rng, 2, channels, *size), whole(rng, 3, channels, 3, 3)
    (result,) = winograd(x, w, WHOLE_TILE, pads, border).expected()
    assert result.dtype == np.int32
    assert np.array_equal(result, direct(x, w, pads, border))


def test_the_definition_of_whole_numbers_in_te() -> None:
    """Sums wrap: these data and weights are the largest that there are at the points."""
    data = np.resize(np.array([-128, 127], np.int8), (1, 8, 7, 5))
    for x in (np.full((1, 8, 7, 5), -128, np.int8), data):
        w = np.full((8, 8, 3, 3), -127, np.int8)
        call = Layer(x, w, WHOLE_TILE, (1, 0, 0, 1), 3).in_blocks(Target("aarch64"))
        inputs = [placeholder(a.shape, str(a.dtype), f"p{n}") for n, a in enumerate(call.arrays)]
        (wanted,) = call.expected()
        computed = np.empty_like(wanted)
        stated = create_prim_func([*inputs, *compute(call.op, inputs, call.attrs)])
        run(stated, *call.arrays, computed)
        assert np.array_equal(computed, wanted)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("blocks", [False, True])
def test_the_definition_in_te(tile: int, blocks: bool) -> None:
    rng = Random(tile)
    x, w = array(rng, (1, 4, 5, 4)), array(rng, (4, 4, 3, 3))
    pads = (1, 0, 0, 1)
    call = winograd(x, w, tile, pads)
    if blocks:
        call = Layer(x, w, tile, pads).in_blocks(Target("aarch64"))
    inputs = [placeholder(a.shape, "float32", f"p{n}") for n, a in enumerate(call.arrays)]
    (wanted,) = call.expected()
    computed = np.empty_like(wanted)
    run(create_prim_func([*inputs, *compute(call.op, inputs, call.attrs)]), *call.arrays, computed)
    assert close(computed, wanted)


def test_refusals() -> None:
    x, w = TensorType((1, 4, 5, 5), "float32"), TensorType((4, 4, 6, 6), "float32")
    for types, attrs, message in (
        ([x, w], {"tile": 7}, "winograd_conv2d: tiles of 7, not one of (2, 3, 4, 5, 6)"),
        ([x, w], {"tile": 2}, "winograd_conv2d: 4 channels, weights [4, 4, 6, 6], tile 2"),
        (
            [TensorType((1, 4, 2, 5), "float32"), w],
            {"tile": 4},
            "winograd_conv2d: pads [0, 0, 0, 0] of data [1, 4, 2, 5]",
        ),
        (
            [TensorType((1, 4, 5, 5), "int8"), w],
            {"tile": 4},
            "winograd_conv2d: data is int8, weights are float32",
        ),
        (
            [TensorType((1, 4, 5, 5), "int8"), TensorType((4, 4, 8, 8), "int16")],
            {"tile": 6},
            "winograd_conv2d: tiles of 6, not one of (4,)",
        ),
    ):
        with pytest.raises(ValueError, match="winograd") as raised:
            infer_types("winograd_conv2d", types, {"pads": (0, 0, 0, 0), **attrs})
        assert str(raised.value) == message


# ------------------------------------------------------------------------------------- kernels


def drawn(rng: Random, lanes: int) -> Layer:
    channels, filters = (rng.choice((1, 2, 3, 5)) * lanes for _ in range(2))
    pads, tile = rng.choice(PADS), rng.choice(TILES)
    x = array(rng, (rng.choice((1, 1, 2)), channels, rng.choice(SIZES), rng.choice(SIZES)))
    w = array(rng, (filters, channels, 3, 3))
    return Layer(x, w, tile, pads, in_run=rng.random() < 0.5)


def check(session: Session, layers: list[Layer], target: Target) -> None:
    """All calls in one object, in blocks; the wrong ones are listed together."""
    blocked = [layer.in_blocks(target) for layer in layers]
    lowered = [call.lowered(target, f"call_{n}") for n, call in enumerate(blocked)]
    module = session.load(build(IRModule({f.name: f for f, _ in lowered}), target=target, name="w"))
    wrong: list[str] = []
    for call, of, (func, arrays) in zip(blocked, layers, lowered, strict=True):
        plain = direct(of.x, of.w, of.pads, of.border)
        wanted = pack(plain, "NCHW", call.attrs["out_layout"])
        exact = wanted.dtype == np.int32
        wanted = wanted if exact else wanted.astype(of.x.dtype)
        out = session.tensor(np.zeros_like(wanted))
        module[func.name](*(session.tensor(np.array(a, order="C")) for a in arrays), out)
        if not (np.array_equal(out.numpy(), wanted) if exact else close(out.numpy(), wanted)):
            wrong.append(f"{call}: {np.max(np.abs(out.numpy() - wanted))}")
    module.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("batch", range(1))
def test_kernels(batch: int, local: Session) -> None:
    target = Target(TARGETS["local"])
    lanes = target.lanes("float32")
    calls = [drawn(Random(f"{batch} {n}"), lanes) for n in range(CALLS_PER_BATCH)]
    check(local, calls, target)


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
def test_kernels_on_arm(board: str, request: pytest.FixtureRequest) -> None:
    """Drawn ones, and one of every size of tile where it has the most channels allowed."""
    target = Target(TARGETS[board])
    calls = [drawn(Random(f"{board} {n}"), 4) for n in range(2)]
    rng = Random(board)
    for tile in TILES[3:]:
        channels = MOST_CHANNELS[tile]
        x, w = array(rng, (1, channels, 9, 13)), array(rng, (16, channels, 3, 3))
        calls += [Layer(x, w, tile, (1, 1, 1, 1), in_run=in_run) for in_run in (False, True)]
    check(board_named(request, board), calls, target)


def test_kernels_of_halves(cortex_a76: Session) -> None:
    """Of few channels, of parts, and of parts that do not divide them."""
    layers, rng = [], Random(16)
    for channels, filters, size in ((8, 8, (5, 5)), (64, 16, (8, 9)), (136, 24, (7, 12))):
        x = array(rng, (rng.choice((1, 2)), channels, *size), "float16")
        w = array(rng, (filters, channels, 3, 3), "float16")
        layers.append(Layer(x, w, 2, rng.choice(PADS)))
    check(cortex_a76, layers, CORTEX_A76)


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
def test_whole_numbers_on_arm(board: str, request: pytest.FixtureRequest) -> None:
    """Drawn ones, and the largest sums that are taken."""
    target, rng = Target(TARGETS[board]), Random(board)
    layers = []
    for channels, filters in ((8, 16), (24, 8), (40, 24)):
        size = rng.choice(SIZES), rng.choice(SIZES)
        x, w = whole(rng, rng.choice((1, 2)), channels, *size), whole(rng, filters, channels, 3, 3)
        layers.append(Layer(x, w, WHOLE_TILE, rng.choice(PADS), rng.randint(-128, 127)))
    w = np.full((8, 224, 3, 3), 127, np.int8)
    w[::2] = -127
    assert known_of_weights(w)[SMALL]
    layers.append(Layer(np.full((1, 224, 6, 6), -128, np.int8), w, WHOLE_TILE, (1, 1, 1, 1), -128))
    check(board_named(request, board), layers, target)


# ------------------------------------------------------------------------------------ the rule


def layer(
    data: tuple[int, ...] = (1, 64, 56, 56),
    weights: tuple[int, ...] = (64, 64, 3, 3),
    dtype: str = "float32",
    **attrs: object,
) -> tuple[list[TensorType], dict[str, object]]:
    types = [TensorType(data, dtype), TensorType(weights, dtype)]
    return types, {**PLAIN, "pads": (1, 1, 1, 1), **attrs}


REASONS = {
    "it is larger than 3 x 3": (
        layer(weights=(64, 64, 5, 5)),
        "its kernel is 5 x 5, not 3 x 3",
    ),
    "it has a stride": (layer(strides=(2, 2)), "its stride or dilation is not 1"),
    "it has groups": (
        layer(weights=(64, 32, 3, 3), groups=2),
        "it has groups",
    ),
    "it is of halves": (layer(dtype="float16"), "the target has no vectors of float16"),
    "it is of doubles": (
        layer(dtype="float64"),
        "its data is float64, neither float32, float16 nor int8",
    ),
    "its sums may be large": (
        layer(dtype="int8"),
        "its sums may be larger than Winograd's filtering has exactly",
    ),
    "its channels are odd": (
        layer((1, 3, 56, 56), (64, 3, 3, 3)),
        "its channels do not divide into blocks of 4",
    ),
    "it has few channels": (
        layer((1, 4, 56, 56), (4, 4, 3, 3)),
        "F(4 x 4, 3 x 3) costs 1.08 of what direct convolution does",
    ),
    "it is packed": (
        layer(data_layout="NCHW4c"),
        "its shape is not known, or its layout is not plain",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_is_computed_directly_and_why(case: str) -> None:
    (types, attrs), reason = REASONS[case]
    decision = decide(types, attrs, Target("aarch64"))
    assert decision.strips is None
    assert decision.reason == reason


def test_whole_numbers_are_filtered_where_no_instruction_sums_up_products() -> None:
    types, attrs = layer(dtype="int8", small_sums=True, pad_value=-3)
    for name in ("aarch64", "armv7a"):
        decision = decide(types, attrs, Target(name))
        assert decision.strips is not None
        assert decision.strips.tile == WHOLE_TILE
    for name in ("raspberry-pi/5", "host", TARGETS["armv7_scalar"]):
        decision = decide(types, attrs, Target(name))
        assert decision.strips is None
        assert decision.reason == "the target has no vectors, or sums up products of int8 by itself"


@settings(max_examples=12, deadline=None)
@given(tile=st.sampled_from(TILES), seed=st.integers(0, 1 << 16))
def test_errors_grow_as_the_matrices_say(tile: int, seed: int) -> None:
    """Where what is at the points is rounded to float16, and all else is exact: of a result, that
    of the worst one, times two roundings."""
    rng = np.random.default_rng(seed)
    a, b, g = result_matrix(tile), data_matrix(tile), weights_matrix(tile)
    size, many = tile + KERNEL - 1, 400
    x, w = rng.standard_normal((many, size, size)), rng.standard_normal((many, 3, 3))
    data, filters = b @ x @ b.T, g @ w @ g.T
    errors = a @ (_halved(data) * _halved(filters) - data * filters) @ a.T
    direct_errors = np.sum(
        [
            _halved(x[:, i : i + tile, j : j + tile]) * _halved(w[:, i, j])[:, None, None]
            - x[:, i : i + tile, j : j + tile] * w[:, i, j][:, None, None]
            for i in range(KERNEL)
            for j in range(KERNEL)
        ],
        axis=0,
    )
    ratio = np.sqrt((errors**2).mean(0).max() / (direct_errors**2).mean())
    assert 0.6 * growth(tile) < ratio < 1.6 * growth(tile)


def _halved(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def test_halves_are_filtered_where_errors_are_about_those_of_direct_convolution() -> None:
    types, attrs = layer(dtype="float16")
    decision = decide(types, attrs, CORTEX_A76)
    assert decision.strips is not None
    assert decision.strips.tile == 2
    assert [tile for tile in TILES if growth(tile) <= MOST_GROWTH] == [2]


def test_what_is_known_of_weights() -> None:
    """Sums below 2^25 are 128 times weights below 2^18, of one output."""
    w = np.full((2, 230, 3, 3), 127, np.int8)
    assert known_of_weights(w) == {NARROW: True}
    w[:, 229] = 0  # 2^18 - 127 * 9 * 229 are 397
    assert known_of_weights(w) == {NARROW: True, SMALL: True}
    w[1, 229, 0] = 127
    w[1, 229, 1, 0] = 15
    assert known_of_weights(w) == {NARROW: True, SMALL: True}
    w[1, 229, 1, 0] = -16
    assert known_of_weights(w) == {NARROW: True}
    assert known_of_weights(w[:, :1].astype(np.float32)) == {}


def test_tiles_follow_size_and_channels() -> None:
    """Large images take large tiles, small ones those that waste least, many channels only those
    that are exact enough."""
    target = Target("aarch64")
    chosen = {}
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7), (512, 56)):
        types, attrs = layer((1, channels, size, size), (channels, channels, 3, 3))
        decision = decide(types, attrs, target)
        assert decision.strips is not None
        assert channels <= MOST_CHANNELS[decision.strips.tile]
        assert decision.reason.startswith(
            f"F({decision.strips.tile} x {decision.strips.tile}, 3 x 3)"
        )
        chosen[channels, size] = decision.strips.tile
    assert chosen == {(64, 56): 6, (128, 28): 5, (256, 14): 5, (512, 7): 4, (512, 56): 4}
    scalar = decide(*layer(), Target(TARGETS["armv7_scalar"]))
    assert scalar.strips is None
    assert scalar.reason == "the target has no vectors"


def test_there_is_work_for_threads() -> None:
    """Where there are few strips, output channels are cut into groups."""
    layers = (64, 56), (256, 14), (512, 7)  # the last is direct on x86-64, by its weights
    for target, most in (("aarch64", 3), ("armv7a", 3), ("host", 2)):
        for channels, size in layers[:most]:
            types, attrs = layer((1, channels, size, size), (channels, channels, 3, 3))
            plan = decide(types, attrs, Target(target)).strips
            assert plan is not None
            strips = -(-size // plan.tile) // plan.rows
            assert plan.tasks == strips * plan.groups >= 4


LIMITS = {  # instructions per multiply-accumulate of four lanes
    ("aarch64", "float32"): 0.44,
    ("armv7", "float32"): 0.56,
    ("aarch64", "int8"): 0.40,
    ("armv7", "int8"): 0.46,
}


@pytest.mark.parametrize(("board", "dtype"), LIMITS)
def test_instructions(board: str, dtype: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    if not session.counting:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    target = Target(TARGETS[board])
    rng = Random(1)
    if dtype == "int8":
        x, w = whole(rng, 1, 64, 24, 24), whole(rng, 64, 64, 3, 3)
        call = Layer(x, w, WHOLE_TILE, (1, 1, 1, 1)).in_blocks(target)
    else:
        x, w = array(rng, (1, 64, 24, 24)), array(rng, (64, 64, 3, 3))
        call = Layer(x, w, 6, (1, 1, 1, 1)).in_blocks(target)
    func, arrays = call.lowered(target, "counted")
    module = session.load(build(func, target=target))
    wanted = pack(direct(x, w, (1, 1, 1, 1)), "NCHW", call.attrs["out_layout"])
    out = session.tensor(np.zeros(wanted.shape, "int32" if dtype == "int8" else "float32"))
    counted = module["counted"].profile(*(session.tensor(a) for a in arrays), out)
    assert close(out.numpy(), wanted)
    assert counted.counts is not None
    assert counted.counts[0].total <= LIMITS[board, dtype] * wanted.size * 64 * 9 / 4
