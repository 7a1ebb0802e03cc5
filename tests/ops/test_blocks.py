"""Convolution and pooling in blocks of channels: definitions, and kernels against them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import TensorType, compute, evaluate, infer_types
from mlc_deploy.ops.layout import layout, pack, plain_sizes
from mlc_deploy.te import create_prim_func, placeholder
from mlc_targets import Target
from tests.ops.operator_calls import OperatorCall, array, close
from tests.ops.planned import laid_out, plan_for, types_of
from tests.ops.test_strategies import check
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

CALLS_PER_BATCH = 8
BATCHES = 3


def convolution(rng: Random, lanes: int) -> OperatorCall:
    """In blocks of `lanes`, or with few channels, as planes."""
    blocks = rng.choice((1, 2, 3, 5))
    groups = rng.choice((1, 1, 1, 2, 3))
    per_group, filters = blocks * lanes, rng.choice((1, 2, 3, 4, 7)) * lanes * groups
    channels = per_group * groups
    kind = rng.choice(("blocks", "blocks", "planes", "depthwise", "depthwise"))
    if kind == "planes":
        groups, channels = 1, rng.choice((1, 3))
        per_group = channels
    if kind == "depthwise":
        groups = filters = channels
        per_group = 1
    kernel = rng.choice(((1, 1), (1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (2, 2), (7, 1), (7, 7)))
    strides = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2), (3, 3)))
    dilations = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2)))
    pads = rng.choice(((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 2, 0), (2, 2, 2, 2), (9, 0, 0, 9)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    data = [r + rng.choice((0, 1, 2, 4, 6, 9, 12, 17)) for r in reach]
    return OperatorCall(
        "conv2d",
        (
            array(rng, (rng.choice((1, 1, 2)), channels, *data)),
            array(rng, (filters, per_group, *kernel)),
        ),
        {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups},
    )


def pooling(rng: Random, lanes: int) -> OperatorCall:
    kernel = rng.choice(((2, 2), (3, 3), (1, 3), (3, 2), (5, 5)))
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "strides": rng.choice(((1, 1), (2, 2), (2, 1), (3, 3))),
        "dilations": rng.choice(((1, 1), (1, 1), (2, 1))),
        "pads": rng.choice(((0, 0, 0, 0), tuple(k // 2 for k in (*kernel, *kernel)))),
        "ceil_mode": rng.random() < 0.3,
    }
    op = rng.choice(("max_pool", "avg_pool"))
    if op == "avg_pool":
        attrs["count_include_pad"] = rng.random() < 0.5
    shape = (rng.choice((1, 2)), lanes * rng.randint(1, 3), rng.randint(9, 17), rng.randint(9, 17))
    return OperatorCall(op, (array(rng, shape),), attrs)


CALLS = {"convolution": convolution, "pooling": pooling}


def in_blocks(call: OperatorCall, target: Target) -> OperatorCall:
    """The same with data, weights and attributes as the target wants them."""
    plan = plan_for(call.op, types_of(call.arrays), call.attrs, target)
    assert plan is not None and plan.result, f"{call}"
    return OperatorCall(call.op, laid_out(plan, call.arrays), plan.attrs, plan=plan)


def drawn(kind: str, batch: int, target: Target) -> list[OperatorCall]:
    lanes = target.lanes("float32")
    calls = [CALLS[kind](Random(f"{kind} {batch} {n}"), lanes) for n in range(CALLS_PER_BATCH)]
    return [in_blocks(call, target) for call in calls]


@pytest.mark.parametrize("kind", CALLS)
def test_definitions(kind: str) -> None:
    """What is computed in blocks is what is computed of planes; TE and numpy agree."""
    target = Target("aarch64")
    for n in range(10):
        plain = CALLS[kind](Random(f"definition {kind} {n}"), 4)
        call = in_blocks(plain, target)
        out = str(call.attrs.get("out_layout", call.attrs.get("layout")))
        (wanted,), (result,) = plain.expected(), call.expected()
        np.testing.assert_array_equal(result, pack(wanted, "NCHW", out))
        types = [TensorType(a.shape, str(a.dtype)) for a in call.arrays]
        assert infer_types(call.op, types, call.attrs)[0].shape == result.shape
        inputs = [placeholder(t.shape, t.dtype, f"p{n}") for n, t in enumerate(types)]
        if result.size < 2000:  # the interpreter takes its time
            func = create_prim_func([*inputs, *compute(call.op, inputs, call.attrs)])
            computed = np.empty_like(result)
            run(func, *call.arrays, computed)
            assert close(computed, result), str(call)


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", CALLS)
def test_kernels(kind: str, batch: int, local: Session) -> None:
    target = TARGETS["local"]
    check(local, drawn(kind, batch, mlc.Target(target)), target)


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
@pytest.mark.parametrize("kind", CALLS)
def test_kernels_on_arm(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    target = TARGETS[board]
    check(board_named(request, board), drawn(kind, 0, mlc.Target(target)), target)


def test_channels_that_do_not_divide_stay_plain() -> None:
    target = Target("aarch64")
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}

    def in_any_blocks(types: list[TensorType], target: Target) -> bool:
        plan = plan_for("conv2d", types, attrs, target)
        return plan is not None and plan.result != ""

    for channels, filters in ((6, 8), (8, 6)):
        types = [
            TensorType((1, channels, 5, 5), "float32"),
            TensorType((filters, channels, 1, 1), "float32"),
        ]
        assert not in_any_blocks(types, target)
    scalar = Target(TARGETS["armv7_scalar"])
    types = [TensorType((1, 8, 5, 5), "float32"), TensorType((8, 8, 1, 1), "float32")]
    assert in_any_blocks(types, target)
    assert not in_any_blocks(types, scalar)


@pytest.mark.parametrize("source", ["NCHW", "NCHW4c", "NCHW2c4c", "NHWC"])
@pytest.mark.parametrize("to", ["NCHW", "NCHW4c", "NHWC", "NCHW2c"])
def test_layout_transform(source: str, to: str) -> None:
    """From any layout to any other, in TE and numpy; back again nothing is lost."""
    x = pack(array(Random(1), (2, 16, 3, 5)), "NCHW", source)
    attrs = {"source": source, "to": to}
    (wanted,) = evaluate("layout_transform", [x], attrs)
    p = placeholder(x.shape, "float32", "x")
    result = np.empty_like(wanted)
    run(create_prim_func([p, *compute("layout_transform", [p], attrs)]), x, result)
    np.testing.assert_array_equal(result, wanted)
    (back,) = evaluate("layout_transform", [wanted], {"source": to, "to": source})
    np.testing.assert_array_equal(back, x)
    assert plain_sizes(layout(source), x.shape) == {"N": 2, "C": 16, "H": 3, "W": 5} or source == (
        "NHWC"
    )


# What a kernel may take, as instructions per multiply-accumulate of four lanes. The layers of
# scripts/bench/kernels.py, smaller.
LIMITS = {
    ("3x3", "aarch64"): 1.2,
    ("3x3", "armv7"): 1.42,
    ("1x1", "aarch64"): 1.25,
    ("1x1", "armv7"): 1.55,
    ("depthwise", "aarch64"): 1.8,
    ("depthwise", "armv7"): 2.4,
}
SHAPES = {
    "3x3": ((1, 32, 16, 16), (32, 32, 3, 3), 1),
    "1x1": ((1, 64, 14, 14), (64, 64, 1, 1), 1),
    "depthwise": ((1, 64, 24, 24), (64, 1, 3, 3), 64),
}


@pytest.mark.parametrize(("kind", "board"), LIMITS)
def test_instructions(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    if not session.counting:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    data, weights, groups = SHAPES[kind]
    pad = weights[2] // 2
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (pad,) * 4, "groups": groups}
    plain = OperatorCall("conv2d", (array(Random(1), data), array(Random(2), weights)), attrs)
    target = mlc.Target(TARGETS[board])
    call = in_blocks(plain, target)
    func, arrays = call.lowered(target, "counted")
    module = session.load(mlc.build(func, target=target))
    (wanted,) = call.expected()
    out = session.tensor(np.zeros_like(wanted))
    counted = module["counted"].profile(*(session.tensor(a) for a in arrays), out)
    assert close(out.numpy(), wanted) and counted.counts is not None
    macs = wanted.size * weights[1] * weights[2] * weights[3]
    assert counted.counts[0].total <= LIMITS[kind, board] * macs / 4
