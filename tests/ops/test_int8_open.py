"""Layers of 8 bits on images whose batch, height and width each run decides: kernels against their
definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Constant
from mlc_deploy.ops import evaluate
from tests.ops.test_int8 import LEVELS, Level, level

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["level"]  # a fixture

Array = NDArray[Any]
MOST = {"n": 3, "h": 24, "w": 24}
REDUCED = ("sum", "max", "min")
SIZES = ((1, 24, 24), (3, 5, 5), (2, 7, 18))


def window(k: int, stride: int = 1, groups: int = 1, **more: Any) -> dict[str, Any]:
    attrs = {"strides": (stride, stride), "dilations": (1, 1), "pads": (k // 2,) * 4}
    return {**attrs, "groups": groups, "pad_value": -3, **more}


# Operator, channels of the data, shape of the weights, attributes.
LAYERS: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any]]] = {
    "3x3": ("conv2d", 16, (24, 16, 3, 3), window(3)),
    "every second": ("conv2d", 8, (16, 8, 3, 3), window(3, 2)),
    "pixel by pixel": ("conv2d", 24, (16, 24, 1, 1), window(1)),
    "each second pixel": ("conv2d", 16, (8, 16, 1, 1), window(1, 2)),
    "two groups": ("conv2d", 32, (16, 16, 3, 3), window(3, groups=2)),
    "of colours": ("conv2d", 3, (16, 3, 3, 3), window(3, 2)),
    "depthwise": ("conv2d", 16, (16, 1, 3, 3), window(3, groups=16)),
    "depthwise, every second": ("conv2d", 16, (16, 1, 5, 5), window(5, 2, groups=16)),
    "maxima": (
        "max_pool", 16, (),
        {"kernel": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (1,) * 4,
         "ceil_mode": False},
    ),
}  # fmt: skip


OPENINGS = ("nhw", "hw", "n")
# Each layer on a third of the levels, with all open; the rest are in the group `schedules`.
CASES = [
    pytest.param(
        kind, name, opening,
        marks=() if opening == "nhw" and (k + n) % 3 == 0 else pytest.mark.schedules,
    )
    for k, kind in enumerate(LEVELS)
    for n, name in enumerate(LAYERS)
    for opening in OPENINGS
]  # fmt: skip


@pytest.mark.parametrize(("level", "name", "opening"), CASES, indirect=["level"])
def test_any_size(level: tuple[str, Session], name: str, opening: str) -> None:
    kind, session = level
    of: Level = LEVELS[kind]
    op, channels, shape, attrs = LAYERS[name]
    rng = np.random.default_rng(5)
    weights = [rng.integers(-127, 128, shape).astype(np.int8)] if shape else []
    b = BlockBuilder()
    sizes = SIZES if opening == "nhw" else SIZES[:1]
    known = dict(zip("nhw", sizes[0], strict=True))
    extents = {d: d if d in opening else known[d] for d in "nhw"}
    x = b.param("x", (extents["n"], channels, extents["h"], extents["w"]), "int8")
    y = b.emit(op, x, *(Constant(w, "w") for w in weights), **attrs)
    # The extents of an output have names; (h + 1) // 2 has none.
    over: dict[str, Any] = {"axes": (2, 3), "keepdims": False}
    outputs = {"y": y} if attrs["strides"] == (1, 1) else {r: b.emit(r, y, **over) for r in REDUCED}
    function = b.finish([*outputs.values()], [*outputs])
    dims = {d: f"<={MOST[d]}" for d in opening}
    module = session.load(mlc.compile(function, of.target, dims=dims))
    for n, *area in sizes:
        given: Array = rng.integers(-128, 128, (n, channels, *area)).astype(np.int8)
        (wanted,) = evaluate(op, [given, *weights], attrs)
        for output, found in module.run({"x": given}).items():
            right = wanted if output == "y" else evaluate(output, [wanted], over)[0]
            np.testing.assert_array_equal(found, right, err_msg=f"{output}, {given.shape}")
    module.close()
