"""Fusion: which calls become one kernel, and that what they compute stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, CallFused, Function, Value, const, evaluate
from mlc_deploy.graph.fuse import MOST_CALLS, fuse_operators
from mlc_deploy.graph.lower import kernel_source
from mlc_deploy.graph.verify import verify
from mlc_deploy.passes.context import PassContext
from mlc_targets.object_format import MAX_OPERANDS
from tests.graph.test_graph import constant

CONV: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
POOL: dict[str, Any] = {
    "kernel": (2, 2),
    "strides": (2, 2),
    "pads": (0, 0, 0, 0),
    "dilations": (1, 1),
}


def kernels(b: BlockBuilder, *outputs: Value) -> list[str]:
    """The names of what fusion makes of a function, which it must not change."""
    before = b.finish(outputs)
    after = fuse_operators(before)
    verify(after)
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.normal(size=p.type.shape).astype(p.type.dtype) for p in before.params}  # type: ignore[arg-type]
    expected = evaluate(before, inputs)
    for name, found in evaluate(after, inputs).items():
        np.testing.assert_array_equal(found, expected[name])
    return names(after)


def names(function: Function) -> list[str]:
    return [
        b.call.function.name if isinstance(b.call, CallFused) else str(b.call)
        for b in function.bindings
    ]


def conv(b: BlockBuilder, x: Value, channels: int = 4) -> Any:
    return b.emit("conv2d", x, constant((channels, int(x.type.shape[1]), 3, 3)), **CONV)  # type: ignore[arg-type]


def test_bias_and_activation_join_a_convolution() -> None:
    b = BlockBuilder()
    y = b.emit("add", conv(b, b.param("x", (1, 3, 6, 6))), constant((4, 1, 1)))
    y = b.emit("multiply", y, b.emit("sigmoid", y))
    assert kernels(b, y) == ["conv2d_add_sigmoid_multiply"]


def test_a_bias_may_stand_within_a_sum() -> None:
    b = BlockBuilder()
    x = b.param("x", (1, 3, 6, 6))
    short, long = conv(b, x), conv(b, b.emit("relu", conv(b, x)))
    y = b.emit("relu", b.emit("add", short, b.emit("add", long, constant((4, 1, 1)))))
    assert kernels(b, y) == ["conv2d", "conv2d_relu", "conv2d_add_add_relu"]


@pytest.mark.parametrize("shortcut_first", [False, True])
def test_a_sum_goes_to_the_longer_of_two_ways(shortcut_first: bool) -> None:
    """So that blocks end in kernels alike, whether or not a convolution is on their shortcut."""
    b = BlockBuilder()
    x = b.param("x", (1, 4, 6, 6))
    early = conv(b, x) if shortcut_first else x
    long = conv(b, b.emit("relu", conv(b, x)))
    short = early if shortcut_first else conv(b, x)
    y = b.emit("relu", b.emit("add", long, short))
    found = kernels(b, b.emit("relu", b.emit("add", conv(b, b.emit("relu", conv(b, y))), y)))
    assert sorted(found) == sorted(["conv2d", *["conv2d_relu", "conv2d_add_relu"] * 2])


def test_what_is_needed_elsewhere_stays() -> None:
    b = BlockBuilder()
    y = conv(b, b.param("x", (1, 3, 6, 6)))
    z = b.emit("relu", y)
    assert kernels(b, z, y) == ["conv2d", "relu"]


def test_other_shapes_do_not_join_an_anchor() -> None:
    b = BlockBuilder()
    y = conv(b, b.param("x", (1, 3, 6, 6)), 1)
    assert kernels(b, b.emit("add", y, constant((4, 1, 1)))) == ["conv2d", "add"]
    b = BlockBuilder()
    y = conv(b, b.param("x", (1, 3, 6, 6)))
    y = b.emit("relu", b.emit("transpose", y, axes=(0, 2, 3, 1)))
    assert kernels(b, y) == ["conv2d", "transpose_relu"]


def test_a_side_branch_joins_what_follows_an_anchor() -> None:
    b = BlockBuilder()
    x = b.param("x", (1, 4, 6, 6))
    y = b.emit("add", conv(b, x), b.emit("tanh", x))
    assert kernels(b, y) == ["conv2d_tanh_add"]
    b = BlockBuilder()
    x = b.emit("relu", b.param("x", (1, 4, 6, 6)))
    assert kernels(b, b.emit("add", conv(b, x), x)) == ["relu", "conv2d_add"]


def test_reductions() -> None:
    """Work per element joins the reduction behind it, unless that would do it again and again."""
    b = BlockBuilder()
    x = b.param("x", (4, 6))
    y = b.emit("sqrt", b.emit("mean", b.emit("multiply", x, x), axes=(1,), keepdims=True))
    assert kernels(b, y) == ["multiply_mean_sqrt"]
    b = BlockBuilder()
    y = b.emit("max_pool", b.emit("sigmoid", b.param("x", (1, 2, 6, 6))), **POOL, ceil_mode=False)
    assert kernels(b, y) == ["sigmoid", "max_pool"]
    b = BlockBuilder()
    y = b.emit("exp", b.param("x", (4, 6)))
    y = b.emit("divide", y, b.emit("sum", y, axes=(1,), keepdims=True))
    assert kernels(b, y) == ["exp", "sum", "divide"]


def test_a_transposed_matrix_joins_the_product_that_alone_reads_it() -> None:
    def product(*axes: tuple[int, ...] | None, end: str = "matmul") -> list[str]:
        b = BlockBuilder()
        matrices = []
        for name, turned in zip("xy", axes, strict=True):
            m: Any = b.param(name, (4, 4, 4))
            matrices.append(m if turned is None else b.emit("transpose", m, axes=turned))
        return kernels(b, b.emit("softmax", b.emit(end, *matrices), axis=-1))

    assert product((0, 2, 1), None) == ["transpose_matmul", "softmax"]
    assert product(None, (0, 2, 1)) == ["transpose_matmul", "softmax"]
    assert product((0, 2, 1), (0, 2, 1)) == ["transpose_transpose_matmul", "softmax"]
    assert product((1, 0, 2), None) == ["transpose", "matmul", "softmax"]  # of batches
    assert product((0, 2, 1), None, end="add") == ["transpose_add", "softmax"]
    b = BlockBuilder()
    x = b.param("x", (4, 4))
    turned = b.emit("transpose", x, axes=(1, 0))
    y = b.emit("relu", b.emit("dense", turned, x, transpose_b=False))
    assert kernels(b, b.emit("sum", y, axes=(1,), keepdims=False)) == [
        "transpose_dense_relu",
        "sum",
    ]
    b = BlockBuilder()
    turned = b.emit("transpose", b.param("x", (4, 4)), axes=(1, 0))
    assert kernels(b, b.emit("dense", turned, turned, transpose_b=False)) == ["transpose", "dense"]
    b = BlockBuilder()
    turned = b.emit("transpose", b.emit("exp", b.param("x", (4, 4))), axes=(1, 0))
    y = b.emit("dense", turned, constant((4, 4)), transpose_b=False)
    assert kernels(b, y) == ["exp_transpose", "dense"]


def test_views_are_no_kernels() -> None:
    b = BlockBuilder()
    y = b.emit("reshape", b.emit("relu", b.param("x", (4, 6))), shape=(24,))
    assert kernels(b, b.emit("tanh", y))[::2] == ["relu", "tanh"]


def test_scalars_become_part_of_the_kernel() -> None:
    b = BlockBuilder()
    y = b.emit("multiply", b.param("x", (4, 6)), constant(()))
    (binding,) = fuse_operators(b.finish([b.emit("add", y, constant((1, 1)))])).bindings
    assert isinstance(binding.call, CallFused) and len(binding.call.args) == 1


def test_long_chains_are_several_kernels_with_short_names() -> None:
    b = BlockBuilder()
    y = b.param("x", (4,))
    for _ in range(MOST_CALLS + 2):
        y = b.emit("negative", y)
    found = kernels(b, y)
    assert found == [
        f"negative_negative_negative_negative_{MOST_CALLS - 4}_more",
        "negative_negative",
    ]


def test_the_pass_can_be_switched_off() -> None:
    b = BlockBuilder()
    y = b.emit("relu", b.emit("relu", b.param("x", (4,))))
    function = b.finish([y])
    with PassContext(disabled_pass=["fuse_operators"]):
        assert not PassContext.current().runs("fuse_operators")
    assert names(fuse_operators(function)) == ["relu_relu"]


def test_values_may_be_called_like_a_kernel_s_parameters() -> None:
    b = BlockBuilder()
    y = b.emit("add", b.param("p1", (4, 4)), constant((4, 4)), name="p0")
    assert kernels(b, b.emit("relu", y, name="p2")) == ["add_relu"]


def test_a_digest_does_not_know_names() -> None:
    def digest(name: str, slope: float = 0.5) -> bytes:
        b = BlockBuilder()
        y = b.emit("leaky_relu", b.param(name, (4,)), alpha=slope, name=f"{name}_y")
        (binding,) = fuse_operators(b.finish([b.emit("exp", y, source=name)])).bindings
        return kernel_source(binding).digest

    assert digest("a") == digest("b")
    assert digest("a") != digest("a", 0.25)


# Each entry makes one more value of those there are.
OPERATORS = (
    "add",
    "multiply",
    "relu",
    "sigmoid",
    "transpose",
    "dense",
    "sum",
    "softmax",
    "reshape",
)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0), st.integers(0)), max_size=14))
def test_any_graph_keeps_its_meaning(steps: list[tuple[str, int, int]]) -> None:
    b = BlockBuilder()
    values: list[Value] = [b.param("x", (4, 4)), constant((4, 4)), constant((1, 4)), constant(())]
    for op, one, other in steps:
        square = [v for v in values if v.type.shape == (4, 4)]
        x, y = square[one % len(square)], values[other % len(values)]
        match op:
            case "add" | "multiply":
                values.append(b.emit(op, x, y))
            case "transpose":
                values.append(b.emit(op, x, axes=(1, 0)))
            case "dense":
                values.append(b.emit(op, x, square[other % len(square)], transpose_b=True))
            case "sum":
                values.append(b.emit(op, x, axes=(0,), keepdims=True))
            case "softmax":
                values.append(b.emit(op, x, axis=1))
            case "reshape":
                flat = b.emit(op, x, shape=(16,))
                values.append(b.emit(op, flat, shape=(4, 4)))
            case _:
                values.append(b.emit(op, x))
    kernels(b, values[-1], values[len(values) // 2])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("parts", ["alike", "computed"])
def test_more_operands_than_a_kernel_takes(parts: str, axis: int) -> None:
    """They are several kernels, which give the same."""
    bb = BlockBuilder("main")
    params = [bb.param(f"x{n}", (1, 10)) for n in range(5)]
    values: list[Value] = [params[n % 5] for n in range(150)]
    if parts == "computed":
        factors = np.arange(1500, dtype=np.float32).reshape(150, 1, 10)
        values = [bb.emit("multiply", v, const(f)) for v, f in zip(values, factors, strict=True)]
        total = values[0]
        for value in values[1:]:
            total = bb.emit("add", total, value)
        values.append(total)
    function = bb.finish([bb.emit("concatenate", *values, axis=axis)], ["y"])
    model = mlc.compile(function, "host")
    assert max(len(call.args) for call in model.program.calls) <= MAX_OPERANDS
    inputs = {p.name: np.full((1, 10), n, np.float32) for n, p in enumerate(function.params)}
    with mlc.connect("local://") as board:
        found = board.load(model).run(inputs)["y"]
    np.testing.assert_allclose(found, evaluate(function, inputs)["y"], rtol=1e-5)
