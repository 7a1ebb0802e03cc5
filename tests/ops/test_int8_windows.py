"""Depthwise convolution and pooling of 8-bit blocks: kernels against their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Constant, evaluate
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.nn import plain_weights, without_filling
from mlc_deploy.ops.strategy import best_plan
from mlc_targets import Target
from tests.ops.operator_calls import OperatorCall
from tests.ops.test_blocks import in_blocks
from tests.ops.test_strategies import check
from tests.sessions import TARGETS, board_named, skip_unless_runs

if TYPE_CHECKING:
    from mlc_rpc import Session

CALLS = 8
DOTPROD = "dotprod"
X86 = {  # this machine's, by what the plainest CPU with it is called
    "avx2": "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3",
    "avxvnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake",
    "avx512vnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake",
}
KERNEL_TARGETS = {
    **X86,
    **{board: TARGETS[board] for board in ("local", "armv7", "aarch64")},
    DOTPROD: "llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod -device=arm_cpu",
}


@pytest.fixture(scope="module")
def dotprod() -> Iterator[Session]:
    """An emulated 64-bit board that sums up products of four bytes."""
    with mlc.connect("qemu://cortex-a76") as board:
        yield board


def integers(rng: Random, shape: tuple[int, ...], dtype: str, low: int | None = None) -> Any:
    """Numbers of which many are the extreme ones."""
    limits = np.iinfo(dtype)
    least = limits.min if low is None else low
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    drawn = numbers.integers(least, limits.max + 1, shape)
    ends = np.where(numbers.random(shape) < 0.5, least, limits.max)
    return np.where(numbers.random(shape) < 0.3, ends, drawn).astype(dtype)


def depthwise(rng: Random) -> OperatorCall:
    channels = 8 * rng.choice((1, 2, 3))
    kernel = rng.choice(((3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (2, 4), (1, 1)))
    dilations = rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (2, 3)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [r + rng.choice((0, 1, 2, 4, 6, 11, 17)) for r in reach]
    x, w, low = rng.choice(
        (("int8", "int8", -127), ("int8", "int8", -128), ("uint8", "int8", -127),
         ("int8", "uint8", 0), ("uint8", "uint8", 0))
    )  # fmt: skip
    attrs: dict[str, Any] = {
        "strides": rng.choice(((1, 1), (1, 1), (2, 2), (3, 3), (1, 2), (2, 1))),
        "dilations": dilations,
        "pads": rng.choice(((0,) * 4, (1, 1, 1, 1), tuple(k // 2 for k in (*kernel, *kernel)),
                            (0, 1, 2, 0), (3, 0, 0, 5))),
        "groups": channels,
        "pad_value": rng.choice((0, 7, np.iinfo(x).max, np.iinfo(x).min)),
    }  # fmt: skip
    attrs["pad_value"] = int(attrs["pad_value"])
    data = integers(rng, (rng.choice((1, 1, 2)), channels, *size), x)
    weights = integers(rng, (channels, 1, *kernel), w, low)
    if low == -127 and w == "int8":
        attrs["narrow_weights"] = True
    return OperatorCall("conv2d", (data, weights), attrs)


def pooling(rng: Random) -> OperatorCall:
    kernel = rng.choice(((2, 2), (3, 3), (1, 3), (5, 5)))
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "strides": rng.choice(((1, 1), (2, 2), (2, 1), (3, 3))),
        "dilations": rng.choice(((1, 1), (1, 1), (2, 1))),
        "pads": rng.choice(((0,) * 4, tuple(k // 2 for k in (*kernel, *kernel)))),
        "ceil_mode": rng.random() < 0.4,
    }
    shape = (rng.choice((1, 2)), 8 * rng.randint(1, 3), rng.randint(9, 21), rng.randint(9, 21))
    return OperatorCall("max_pool", (integers(rng, shape, rng.choice(("int8", "uint8"))),), attrs)


KINDS = {"depthwise": depthwise, "pooling": pooling}
OWN = (
    "conv2d_int8_taps",
    "conv2d_int8_interleaved_rows",
    "conv2d_depthwise_blocks",
    "max_pool_blocks",
)


@pytest.mark.parametrize("board", KERNEL_TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    target = Target(KERNEL_TARGETS[board])
    session = board_named(request, "local" if board in X86 else board)
    if board in X86:
        skip_unless_runs(session, target)
    batches = 3 if board in ("local", *X86) else 1
    calls = [KINDS[kind](Random(f"{kind} {n}")) for n in range(CALLS * batches)]
    blocked = [in_blocks(call, target) for call in calls]
    for call in blocked:
        assert call.plan is not None and call.plan.name in OWN, call
    check(session, blocked, KERNEL_TARGETS[board])


def test_other_channels_stay_plain() -> None:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "groups": 12}
    types = [TensorType((1, 12, 5, 5), "int8"), TensorType((12, 1, 3, 3), "int8")]
    assert best_plan("conv2d", types, attrs, Target("aarch64")) is None
    scalar = Target(TARGETS["armv7_scalar"])
    types = [TensorType((1, 16, 5, 5), "int8"), TensorType((16, 1, 3, 3), "int8")]
    assert best_plan("conv2d", types, {**attrs, "groups": 16}, scalar) is None


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("cpu", ["x86-64-v3", "cascadelake"])
def test_rows_of_taps_at_several_shifts(cpu: str, strides: tuple[int, int]) -> None:
    """What filters are laid out as, and what they were."""
    attrs = {"strides": strides, "dilations": (1, 1), "pads": (2,) * 4, "groups": 16}
    types = [TensorType((1, 16, 14, 14), "int8"), TensorType((16, 1, 5, 5), "int8")]
    plan = best_plan("conv2d", types, attrs, Target(f"x86_64 -mcpu={cpu}"))
    assert plan is not None and plan.packing is not None and "row_shifts" in plan.attrs
    weights = integers(Random(0), (16, 1, 5, 5), "int8")
    packed = plan.packing(weights)
    assert (packed.shape, str(packed.dtype)) == (plan.arguments[1].shape, "int8")
    np.testing.assert_array_equal(plain_weights(packed, plan.attrs), weights)
    filled = np.where(packed == 0, 1, packed)
    kept = plain_weights(filled, plan.attrs)
    np.testing.assert_array_equal(without_filling(filled, plan.attrs), plan.packing(kept))


# Instructions per multiply-accumulate of four, requantization included: 128 channels of 56x56.
LIMITS = {
    ("aarch64", 1): 1.85,
    ("aarch64", 2): 2.06,
    ("armv7", 1): 2.28,
    ("armv7", 2): 2.79,
    (DOTPROD, 1): 1.36,
    (DOTPROD, 2): 1.91,
}


@pytest.mark.parametrize(("board", "stride"), LIMITS)
def test_instructions(board: str, stride: int, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    if not session.counting:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    target = Target(KERNEL_TARGETS[board])
    rng = Random(1)
    attrs: dict[str, Any] = {"strides": (stride,) * 2, "dilations": (1, 1), "pads": (1,) * 4}
    attrs |= {"groups": 128, "pad_value": -128, "narrow_weights": True}
    arrays = integers(rng, (1, 128, 56, 56), "int8"), integers(rng, (128, 1, 3, 3), "int8", -127)
    call = in_blocks(OperatorCall("conv2d", arrays, attrs), target)
    x, w = call.arrays
    numbers = np.random.default_rng(1)
    bias = numbers.integers(-3000, 3000, (1, 16, 1, 1, 8)).astype(np.int32)
    multiplier = numbers.uniform(0.0005, 0.003, (1, 16, 1, 1, 8)).astype(np.float32)
    given = {"x": x, "w": w, "bias": bias, "multiplier": multiplier}
    b = BlockBuilder("layer")
    p = {name: b.param(name, a.shape, str(a.dtype)) for name, a in given.items()}
    sums = b.emit("add", b.emit(Call("conv2d", (p["x"], p["w"]), call.attrs, call.plan)), p["bias"])
    zero = Constant(np.asarray(-128, np.int8))
    function = b.finish([b.emit("requantize", sums, p["multiplier"], zero)])
    (wanted,) = evaluate(function, given).values()
    library = mlc.build(lower_fused(function, target, "layer"), target=target)
    module = session.load(library)
    out = session.tensor(np.zeros_like(wanted))
    run = module["layer"].profile(*(session.tensor(a) for a in given.values()), out)
    np.testing.assert_array_equal(out.numpy(), wanted)
    assert run.counts is not None
    assert run.counts[0].total <= LIMITS[board, stride] * wanted.size * 9 / 4
