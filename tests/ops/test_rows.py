"""Convolutions over one row, as audio models have them: as small as those over images, and right."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.build import build
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.ir import IRModule, statements
from mlc_deploy.lower import lower
from mlc_deploy.ops import evaluate
from tests.ops.operator_calls import Array, OperatorCall, array, close
from tests.ops.test_blocks import in_blocks
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

    from mlc_targets import Target

CHANNELS = 64
ROWS = (49, 100, 500, 1000, 1999, 4000)
SIDES = {49: 7, 100: 10, 500: 22, 1000: 32, 1999: 45, 4000: 63}
TARGETS_HELD = ("armv7", "aarch64", "local")
WINDOWS: dict[str, dict[str, Any]] = {
    "one pixel": {"kernel": 1},
}


def convolution(
    height: int,
    width: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    groups: int = 1,
    channels: int = CHANNELS,
) -> OperatorCall:
    rng = Random(f"{height} {width} {kernel}")
    return OperatorCall(
        "conv2d",
        (
            array(rng, (1, channels, height, width)),
            array(rng, (channels, channels // groups, 1, kernel)),
        ),
        {
            "strides": (1, stride),
            "dilations": (1, dilation),
            "pads": (0, pad, 0, pad),
            "groups": groups,
        },
    )


def with_bias(call: OperatorCall, target: Target) -> tuple[Function, list[Array], Array]:
    """The convolution in the target's blocks and a bias, as one function; arrays, and the result."""
    blocked = in_blocks(call, target)
    lanes = target.lanes("float32")
    bias = array(Random(3), (1, len(call.arrays[1]) // lanes, 1, 1, lanes))
    arrays = [*blocked.arrays, bias]
    builder = BlockBuilder("row")
    x, w, b = (builder.param(f"p{n}", a.shape, str(a.dtype)) for n, a in enumerate(arrays))
    sums = builder.emit("conv2d", x, w, **blocked.attrs)
    function = builder.finish([builder.emit("add", sums, b)])
    (wanted,) = evaluate("conv2d", blocked.arrays, blocked.attrs)
    return function, arrays, wanted + bias


def size(call: OperatorCall, target: Target) -> int:
    """Statements of the flat loops."""
    function, _, _ = with_bias(call, target)
    return sum(1 for _ in statements(lower(lower_fused(function, target, "row")).body))


@pytest.mark.parametrize("board", TARGETS_HELD)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_row_is_no_larger_than_an_image(window: str, board: str) -> None:
    """Twice, since the ends of a row may need code of their own."""
    target = mlc.Target(TARGETS[board])
    for row, side in SIDES.items():
        flat = size(convolution(1, row, **WINDOWS[window]), target)
        assert flat <= 2 * size(convolution(side, side, **WINDOWS[window]), target), row


@pytest.mark.parametrize("board", TARGETS_HELD)
def test_rows_are_right(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    target = mlc.Target(TARGETS[board])
    cases = [
        convolution(1, row, **window, channels=channels)
        for window in WINDOWS.values()
        for row, channels in ((49, 64), (100, 16), (100, 128))
    ]
    made = [with_bias(call, target) for call in cases]
    lowered = [lower_fused(f, target, f"row_{n}") for n, (f, _, _) in enumerate(made)]
    library = build(IRModule({f.name: f for f in lowered}), target=target, name="rows")
    module = session.load(library)
    for call, func, (_, arrays, wanted) in zip(cases, lowered, made, strict=True):
        out = session.tensor(np.zeros_like(wanted))
        module[func.name](*(session.tensor(np.array(a, order="C")) for a in arrays), out)
        assert close(out.numpy(), wanted), str(call)
