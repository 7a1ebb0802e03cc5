"""The layout passes: where blocks of channels begin and end, and that answers stay the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from mlc_deploy.graph import BlockBuilder, Call, Constant, Function, Var, evaluate, optimize
from mlc_deploy.graph.layouts import choose_plans
from mlc_deploy.graph.passes import fold_constants
from mlc_deploy.passes.context import PassContext
from mlc_targets import Target

TARGET = Target("aarch64")
LANES = 4
POOL: dict[str, Any] = {"dilations": (1, 1), "ceil_mode": False}


def weights(*shape: int) -> Constant:
    rng = np.random.default_rng(sum(shape))
    return Constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def conv(b: BlockBuilder, x: Var, filters: int, kernel: int = 3, **attrs: Any) -> Var:
    groups = attrs.pop("groups", 1)
    w = weights(filters, int(x.type.shape[1]) // groups, kernel, kernel)  # type: ignore[arg-type]
    how = {"strides": (1, 1), "dilations": (1, 1), "pads": (kernel // 2,) * 4, **attrs}
    out: Var = b.emit("conv2d", x, w, groups=groups, **how)
    return out


def layer(b: BlockBuilder, x: Var, filters: int, kernel: int = 3, **attrs: Any) -> Var:
    """A convolution with bias and relu."""
    y = conv(b, x, filters, kernel, **attrs)
    out: Var = b.emit("relu", b.emit("add", y, weights(filters, 1, 1)))
    return out


def chosen(function: Function) -> Function:
    """The function in its layouts, weights folded; it must compute the same."""
    result = optimize(function, [choose_plans(TARGET), fold_constants])
    rng = np.random.default_rng(0)
    inputs = {
        p.name: rng.standard_normal(p.type.shape).astype(p.type.dtype)  # type: ignore[arg-type]
        for p in function.params
    }
    before, after = evaluate(function, inputs), evaluate(result, inputs)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-4)
    return result


def ops(function: Function) -> list[str]:
    return [b.call.op for b in function.bindings if isinstance(b.call, Call)]


def transforms(function: Function) -> int:
    return ops(function).count("layout_transform")


def build(body: Callable[[BlockBuilder, Any], Any], channels: int = 3, size: int = 12) -> Function:
    b = BlockBuilder()
    made = body(b, b.param("x", (1, channels, size, size)))
    return b.finish(made if isinstance(made, list) else [made])


def test_printed(golden: Callable[..., None]) -> None:
    def body(b: BlockBuilder, x: Var) -> Var:
        y = layer(b, x, 8, strides=(2, 2))
        y = layer(b, y, 8, groups=8)
        y = b.emit("max_pool", y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), **POOL)
        y = b.emit("mean", y, axes=(2, 3), keepdims=False)
        return b.emit("dense", y, weights(5, 8), transpose_b=True)  # type: ignore[no-any-return]

    golden(str(chosen(build(body))), "graph_layouts")


def test_network_with_residuals_takes_no_transform() -> None:
    """Planes in, blocks all the way, and the flattened mean is a view."""

    def body(b: BlockBuilder, x: Var) -> Var:
        y = layer(b, x, 16, strides=(2, 2))
        for _ in range(2):
            y = b.emit("relu", b.emit("add", y, conv(b, layer(b, y, 8, 1), 16)))
        gate = b.emit("mean", y, axes=(2, 3), keepdims=True)
        gate = b.emit("sigmoid", conv(b, layer(b, gate, 4, 1), 16, 1))
        y = b.emit("multiply", y, gate)
        y = b.emit("mean", y, axes=(-1, -2), keepdims=True)
        return b.emit("reshape", y, shape=(1, 16))  # type: ignore[no-any-return]

    result = chosen(build(body))
    assert transforms(result) == 0
    assert all("out_layout" in c.attrs for c in calls(result, "conv2d"))


def calls(function: Function, op: str) -> list[Call]:
    found = (b.call for b in function.bindings)
    return [c for c in found if isinstance(c, Call) and c.op == op]


def test_image_result_takes_one_transform() -> None:
    result = chosen(build(lambda b, x: layer(b, layer(b, x, 8), 8)))
    assert transforms(result) == 1 and ops(result)[-1] == "layout_transform"


def test_data_of_many_channels_takes_one_at_entry() -> None:
    def body(b: BlockBuilder, x: Var) -> Var:
        y = b.emit("add", layer(b, x, 8), conv(b, x, 8, 1))
        return b.emit("mean", y, axes=(2, 3), keepdims=False)  # type: ignore[no-any-return]

    result = chosen(build(body, channels=8))
    assert transforms(result) == 1 and ops(result)[0] == "layout_transform"


def test_concatenation_slices_and_padding_stay_in_blocks() -> None:
    def body(b: BlockBuilder, x: Var) -> Var:
        y = layer(b, x, 16)
        both = b.emit("concatenate", layer(b, y, 8, 1), y, axis=1)
        begin, step = (0, 8, 1, 0), (1, 1, 2, 1)
        part = b.emit("slice", both, begin=begin, step=step, shape=(1, 12, 5, 12))
        part = b.emit("pad", part, pads=(0, 0, 1, 0, 0, 0, 0, 2), mode="constant", value=0.5)
        return b.emit("mean", conv(b, part, 4), axes=(2, 3), keepdims=False)  # type: ignore[no-any-return]

    result = chosen(build(body))
    assert transforms(result) == 0
    assert calls(result, "concatenate")[0].attrs == {"axis": 1}


def along(b: BlockBuilder, x: Any, axis: int, rng: Random) -> list[Any]:
    """x resized along an axis: its elements repeated, chosen, and interpolated."""
    extent = x.type.shape[axis]
    places = np.array([rng.randrange(extent) for _ in range(extent)])
    taps = np.stack([places, np.minimum(places + 1, extent - 1)], 1).astype(np.int32)
    weights = np.linspace(0, 1, taps.size, dtype=np.float32).reshape(taps.shape)
    return [
        b.emit("repeat", x, axis=axis, times=2),
        b.emit("gather", x, Constant(places), axis=axis),
        b.emit("resample", x, Constant(taps), Constant(weights), axis=axis, inside=True),
    ]


def test_resizing_stays_in_blocks() -> None:
    def body(b: BlockBuilder, x: Var) -> Any:
        y = layer(b, x, 8)
        for axis in (-1, 2):
            doubled, chosen_, between = along(b, y, axis, Random(1))
            y = layer(b, b.emit("add", chosen_, between), 8)
            y = b.emit("concatenate", doubled, doubled, axis=1) if axis == 2 else y
        y = b.emit("depth_to_space", y, block=(1, 2))
        return b.emit("mean", conv(b, y, 4), axes=(2, 3), keepdims=False)

    assert transforms(chosen(build(body))) == 0


def test_what_parts_blocks_gets_planes() -> None:
    """A slice within a block, a shuffle of channels, and channels that are no blocks."""

    def body(b: BlockBuilder, x: Var) -> list[Var]:
        y = layer(b, x, 8)
        part = b.emit("slice", y, begin=(0, 2, 0, 0), step=(1, 1, 1, 1), shape=(1, 4, 12, 12))
        mixed = b.emit("reshape", y, shape=(1, 2, 4, 144))
        mixed = b.emit("transpose", mixed, axes=(0, 2, 1, 3))
        return [part, b.emit("reshape", mixed, shape=(1, 8, 12, 12)), layer(b, y, 6), y]

    result = chosen(build(body))
    assert transforms(result) == 1  # all read the same planes
    assert ["out_layout" in c.attrs for c in calls(result, "conv2d")] == [True, False]


def test_operands_that_broadcast() -> None:
    def body(b: BlockBuilder, x: Var) -> Var:
        y = layer(b, x, 8)
        for shape in ((), (1,), (8, 1, 1), (1, 8, 1, 1), (12,), (1, 1, 12, 1), (1, 8, 12, 12)):
            y = b.emit("add", y, weights(*shape) if shape else Constant(np.ones((), np.float32)))
        one = b.emit("mean", x, axes=(1,), keepdims=True)
        y = b.emit("multiply", one, y)
        return b.emit("mean", y, axes=(2, 3), keepdims=False)  # type: ignore[no-any-return]

    assert transforms(chosen(build(body))) == 0


def test_computed_weights_stay() -> None:
    """The kernel packs them itself."""
    b = BlockBuilder()
    x, w = b.param("x", (1, 8, 5, 5)), b.param("w", (8, 8, 1, 1))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "groups": 1}
    function = b.finish([b.emit("conv2d", x, w, **attrs)])
    (binding,) = choose_plans(TARGET)(function).bindings
    assert isinstance(binding.call, Call)
    assert binding.call.args == function.params
    assert binding.call.plan is not None
    assert binding.call.plan.packing is None


def test_pooling_alone_is_not_worth_a_transform() -> None:
    pool: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4, **POOL}
    function = build(lambda b, x: b.emit("max_pool", x, **pool), channels=8)
    assert choose_plans(TARGET)(function) is function


def test_scalar_machines_keep_planes() -> None:
    function = build(lambda b, x: layer(b, x, 8))
    target = Target("llvm -mtriple=armv7a-linux-gnueabihf -device=arm_cpu")
    result = choose_plans(target)(function)
    assert transforms(result) == 0
    assert all("out_layout" not in call.attrs for call in calls(result, "conv2d"))


def test_a_pass_that_may_be_left_out() -> None:
    function = build(lambda b, x: layer(b, x, 8))
    with PassContext(disabled_pass=["choose_layouts"]):
        result = optimize(function, [choose_plans(TARGET)])
    (call,) = calls(result, "conv2d")
    assert "out_layout" not in call.attrs and "kernel_layout" in call.attrs


@pytest.mark.parametrize("seed", range(30))
def test_random_networks(seed: int) -> None:
    """Values of several sizes, some with channels that are no blocks, combined at random."""
    rng = Random(seed)
    b = BlockBuilder()
    values: list[Any] = [b.param("x", (rng.choice((1, 2)), rng.choice((3, 4, 8)), 9, 9))]
    for _ in range(12):
        x = rng.choice(values)
        same = [v for v in values if v.type == x.type]
        channels = x.type.shape[1]
        match rng.choice(
            ("layer", "layer", "group", "pool", "mean", "two", "concat", "cut", "pad", "along")
        ):
            case "layer":
                values.append(layer(b, x, rng.choice((4, 6, 8, 12)), rng.choice((1, 3))))
            case "group":
                values.append(layer(b, x, channels, groups=rng.choice((channels, 1))))
            case "pool":
                how = {"kernel": (3, 3), "strides": (1, 1), "pads": (1,) * 4, **POOL}
                values.append(b.emit("max_pool", x, **how))
            case "mean":
                gate = b.emit("mean", x, axes=(2, 3), keepdims=True)
                values.append(b.emit("multiply", x, b.emit("sigmoid", gate)))
            case "two":
                values.append(b.emit(rng.choice(("add", "maximum")), x, rng.choice(same)))
            case "concat":
                other = rng.choice([v for v in values if v.type.shape[2:] == x.type.shape[2:]])
                values.append(b.emit("concatenate", x, other, axis=1))
            case "cut":
                first = rng.choice(range(0, channels, 2))
                shape = (*x.type.shape[:1], channels - first, *x.type.shape[2:])
                begin, step = (0, first, 0, 0), (1,) * 4
                values.append(b.emit("slice", x, begin=begin, step=step, shape=shape))
            case "along":
                resized = along(b, x, rng.choice((1, 2, 3)), rng)
                values.append(rng.choice([v for v in resized if v.type == x.type]))
            case "pad":
                pads = (0, rng.choice((0, 0, 4)), 0, 0, 0, 0, 0, 0)
                values.append(b.emit("pad", x, pads=pads, mode="constant", value=1.0))
    last = b.emit("reshape", values[-1], shape=(values[-1].type.elements,))
    function = b.finish([last, rng.choice(values)])
    result = chosen(function)
    again = optimize(result, [choose_plans(TARGET), fold_constants])
    assert transforms(again) == transforms(result), "the pass undoes what it has done"
