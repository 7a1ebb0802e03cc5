"""conv2d with strides, of copied strips: kernels against the definition."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, const
from mlc_deploy.ops import TensorType, evaluate
from mlc_deploy.ops.convolution import Phases
from mlc_deploy.ops.kernels.contraction import Tile, Work, best_tile, cost
from mlc_deploy.ops.kernels.conv2d_strips import plan_strided, planned
from mlc_deploy.ops.kernels.intrinsics.microkernels import of_floats
from mlc_deploy.ops.kernels.strips import L2, TASKS
from mlc_targets import Target
from tests.ops.operator_calls import OperatorCall, array
from tests.ops.planned import laid_out, types_of
from tests.ops.test_strategies import check
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

AARCH64 = Target(TARGETS["aarch64"])
CALLS = 12


def drawn(rng: Random) -> OperatorCall:
    """A convolution that has a plan, of any kernel, strides, dilations and pads."""
    kernel = rng.choice(((1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (1, 4)))
    strides = rng.choice(((2, 2), (2, 2), (1, 2), (3, 3), (2, 3), (4, 4)))
    dilations = rng.choice(((1, 1), (1, 1), (2, 2), (1, 3)))
    pads = rng.choice(((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (2, 3, 1, 0), (4, 5, 6, 7)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    data = [r + rng.choice((0, 1, 4, 7, 12, 13, 18)) for r in reach]
    channels, filters = 4 * rng.choice((1, 2, 3, 4)), 4 * rng.choice((1, 2, 3, 4, 8))
    return OperatorCall(
        "conv2d",
        (
            array(rng, (rng.choice((1, 1, 2)), channels, *data)),
            array(rng, (filters, channels, *kernel)),
        ),
        {"strides": strides, "dilations": dilations, "pads": pads, "groups": 1},
    )


@pytest.mark.parametrize("batch", range(3))
def test_kernels(batch: int, request: pytest.FixtureRequest) -> None:
    calls = []
    for n in range(CALLS):
        plain = drawn(Random(f"strided {batch} {n}"))
        plan = planned(types_of(plain.arrays), plain.attrs, AARCH64)
        assert plan is not None
        arrays = laid_out(plan, plain.arrays)
        calls.append(OperatorCall(plain.op, arrays, plan.attrs, plan=plan))
    session: Session = board_named(request, "aarch64")
    check(session, calls, TARGETS["aarch64"])


def layer(
    channels: int, filters: int, size: int, dtype: str = "float32", kernel: int = 3
) -> tuple[list[TensorType], dict[str, Any]]:
    shapes = (1, channels, size, size), (filters, channels, kernel, kernel)
    pads = (kernel // 2,) * 4
    attrs = {"strides": (2, 2), "dilations": (1, 1), "pads": pads, "groups": 1}
    return [TensorType(shape, dtype) for shape in shapes], attrs


@pytest.mark.parametrize("kernel", [1, 3])
def test_is_taken_where_copying_pays(kernel: int) -> None:
    assert plan_strided(*layer(256, 512, 14, kernel=kernel), AARCH64) is not None
    assert plan_strided(*layer(16, 8, 320, kernel=kernel), AARCH64) is None


def test_strips_give_four_threads_work_and_fit_in_the_cache() -> None:
    for channels, filters, size in ((64, 128, 56), (128, 256, 28), (256, 512, 14), (64, 64, 160)):
        plan = plan_strided(*layer(channels, filters, size), AARCH64)
        assert plan is not None and plan.strips.tasks >= TASKS
        _, phases, elements = Phases(plan.conv).shape
        read = 2 * plan.strips.rows + 1
        assert channels * read * phases * elements * 4 <= L2


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("board", ["aarch64", "armv7", "local"])
def test_groups_have_strips_of_their_own(
    board: str, groups: int, request: pytest.FixtureRequest
) -> None:
    """A row whose length each run decides, of so many channels that four tasks share it."""
    draw, channels = np.random.default_rng(groups), 384
    weights = draw.standard_normal((channels, channels // groups, 1, 1), np.float32)
    bb = BlockBuilder("row")
    x = bb.param("x", (1, channels, 1, "length"))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4}
    attrs["groups"] = groups
    function = bb.finish([bb.emit("conv2d", x, const(weights), **attrs)], ["y"])
    session: Session = board_named(request, board)
    module = session.load(mlc.compile(function, TARGETS[board], dims={"length": "<=40"}))
    for length in (1, 24, 40):
        row = draw.standard_normal((1, channels, 1, length), np.float32)
        (right,) = evaluate("conv2d", [row, weights], attrs)
        np.testing.assert_allclose(module.run({"x": row})["y"], right, rtol=1e-4, atol=1e-3)
    module.close()


def test_is_for_cpus_that_load_several_vectors_at_once() -> None:
    for target in ("armv7a", "x86_64"):
        assert planned(*layer(64, 128, 56), Target(target)) is None


def test_sums_of_several_parts_read_data_in_their_place() -> None:
    target = Target("aarch64 -mcpu=cortex-a76")
    assert planned(*layer(64, 128, 56, "float16"), target) is not None
    assert planned(*layer(128, 128, 56, "float16"), target) is None


def test_of_tiles_that_cost_nearly_as_much_one_divides_the_rows() -> None:
    work = Work(28, 32, unrolled=8)
    tile = best_tile(of_floats(AARCH64, 4, 4), work, AARCH64)
    assert 28 % tile.rows == 0
    assert cost(of_floats(AARCH64, 4, 4), Tile(8, 2), work) < cost(
        of_floats(AARCH64, 4, 4), tile, work
    )
