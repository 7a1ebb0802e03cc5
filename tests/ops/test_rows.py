"""Convolutions over one row, as audio models have them: right, and as small as over images."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
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
MOST_STATEMENTS = 4000  # the largest of these has 3,000
SIDES = {100: 10, 1999: 45}  # of an image of about so many pixels
TARGETS_HELD = ("armv7", "aarch64", "local")
WINDOWS: dict[str, dict[str, Any]] = {
    "one pixel": {"kernel": 1},
    "three": {"kernel": 3, "pad": 1},
    "three apart": {"kernel": 3, "dilation": 9, "pad": 9},
    "every second": {"kernel": 3, "stride": 2, "pad": 1},
    "in groups": {"kernel": 3, "pad": 1, "groups": 4},
    "wide": {"kernel": 255, "pad": 127},
    "depthwise": {"kernel": 3, "pad": 1, "groups": CHANNELS},
    "wide depthwise": {"kernel": 255, "pad": 127, "groups": CHANNELS},
}


def convolution(
    height: int,
    width: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    groups: int = 1,
) -> OperatorCall:
    rng = Random(f"{height} {width} {kernel}")
    return OperatorCall(
        "conv2d",
        (
            array(rng, (1, CHANNELS, height, width)),
            array(rng, (CHANNELS, CHANNELS // groups, 1, kernel)),
        ),
        {
            "strides": (1, stride),
            "dilations": (1, dilation),
            "pads": (0, pad, 0, pad),
            "groups": groups,
        },
    )


def with_bias(call: OperatorCall, target: Target) -> tuple[Function, list[Array], Array]:
    """The convolution in the target's blocks and a bias, in one function; arrays; the result."""
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
def test_rows_are_no_larger_than_images(window: str, board: str) -> None:
    """In statements. Twice, since small images need less code for the ends of their rows."""
    target, attrs = mlc.Target(TARGETS[board]), WINDOWS[window]
    rows = [size(convolution(1, row, **attrs), target) for row in SIDES]
    images = [size(convolution(side, side, **attrs), target) for side in SIDES.values()]
    assert max(rows) <= 2 * max(images), (rows, images)
    assert max(rows) <= MOST_STATEMENTS


@pytest.mark.parametrize("board", TARGETS_HELD)
def test_rows_are_right(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    target = mlc.Target(TARGETS[board])
    cases = [convolution(1, 100, **window) for window in WINDOWS.values()]
    made = [with_bias(call, target) for call in cases]
    lowered = [lower_fused(f, target, f"row_{n}") for n, (f, _, _) in enumerate(made)]
    library = build(IRModule({f.name: f for f in lowered}), target=target, name="rows")
    module = session.load(library)
    for call, func, (_, arrays, wanted) in zip(cases, lowered, made, strict=True):
        out = session.tensor(np.zeros_like(wanted))
        module[func.name](*(session.tensor(np.array(a, order="C")) for a in arrays), out)
        assert close(out.numpy(), wanted), str(call)
