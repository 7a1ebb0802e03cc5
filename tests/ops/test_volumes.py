"""Convolutions of volumes become convolutions of images."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Constant, Function
from mlc_deploy.graph.evaluate import evaluate
from mlc_deploy.graph.verify import verify
from mlc_deploy.graph.volumes import volumes_as_images
from tests.ops.operator_calls import close
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

ONE: dict[str, Any] = {"strides": (1, 1, 1), "dilations": (1, 1, 1), "pads": (1,) * 6, "groups": 1}


def volume(
    data: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], dtype: str = "float32"
) -> Function:
    """conv_nd of random weights."""
    weights = np.random.default_rng(0).standard_normal(kernel) / np.sqrt(np.prod(kernel[1:]))
    b = BlockBuilder("volume")
    x = b.param("x", data, dtype)
    return b.finish([b.emit("conv_nd", x, Constant(weights.astype(dtype)), **attrs)])


def drawn(rng: Random) -> Function:
    groups = rng.choice((1, 1, 2, 4))
    per_group, filters = rng.choice((1, 2, 3)), groups * rng.choice((1, 2, 4))
    kernel = [rng.choice((1, 2, 3)) for _ in range(3)]
    strides, dilations = ([rng.choice((1, 1, 2)) for _ in range(3)] for _ in range(2))
    pads = tuple(rng.choice((0, 0, 1, 2)) for _ in range(6))
    data = [(k - 1) * d + 1 + rng.choice((0, 1, 4)) for k, d in zip(kernel, dilations, strict=True)]
    attrs = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": pads}
    return volume(
        (rng.choice((1, 2)), per_group * groups, *data),
        (filters, per_group, *kernel),
        {**attrs, "groups": groups},
    )


def data_of(function: Function) -> dict[str, Any]:
    (x,) = function.params
    values = np.random.default_rng(1).standard_normal(x.type.sizes)
    return {x.name: values.astype(x.type.dtype)}


@pytest.mark.parametrize("seed", range(30))
def test_computes_the_same(seed: int) -> None:
    function = drawn(Random(f"volumes {seed}"))
    images = volumes_as_images(function)
    verify(images)
    assert "conv_nd" not in {b.call.op for b in images.bindings if isinstance(b.call, Call)}
    given = data_of(function)
    (wanted,), (found,) = evaluate(function, given).values(), evaluate(images, given).values()
    assert close(found, wanted)


def test_others_stay() -> None:
    b = BlockBuilder("weights")
    x, w = b.param("x", (1, 2, 4, 4, 4), "float32"), b.param("w", (2, 2, 3, 3, 3), "float32")
    of_data = b.finish([b.emit("conv_nd", x, w, **ONE)])
    assert volumes_as_images(of_data) is of_data
    integers = volume((1, 4, 4, 4, 4), (4, 4, 3, 3, 3), ONE, "int8")
    assert volumes_as_images(integers) is integers


@pytest.mark.parametrize("board", ["aarch64", "armv7"])
def test_kernels(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    function = volume((1, 8, 6, 9, 10), (12, 8, 3, 3, 3), ONE)
    given = data_of(function)
    found = session.load(mlc.compile(function, TARGETS[board])).run(given)
    (wanted,) = evaluate(function, given).values()
    (result,) = found.values()
    assert close(result, wanted)


def test_instructions(aarch64: Session) -> None:
    """Fewer than one for four multiply-accumulates, by Winograd's filtering; as conv_nd 4.6."""
    channels, filters, size = 32, 64, (8, 16, 16)
    function = volume((1, channels, *size), (filters, channels, 3, 3, 3), ONE)
    run = aarch64.load(mlc.compile(function, TARGETS["aarch64"])).profile(data_of(function))
    assert run.run.counts is not None
    products = 27 * channels * filters * np.prod(size)
    assert sum(c.total for c in run.run.counts) <= 0.45 * products / 4
