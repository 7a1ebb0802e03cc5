"""Layers that become one, dead and common calls, fast math; and what must stay as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, CallPacked, TensorType, optimize
from mlc_deploy.graph.approximate import fast_math
from mlc_deploy.graph.combine import combine_parallel_layers
from mlc_deploy.graph.passes import (
    PASSES,
    eliminate_common_subexpressions,
    eliminate_dead_code,
)
from mlc_deploy.graph.views import IN_PLACE, concatenate_in_place
from tests.graph.small_graphs import built, check, drawn, emit, number, ops
from tests.graph.test_graph import CONV


def used(b: BlockBuilder, parts: list[Any]) -> list[Any]:
    """What a model makes of parts, which it does not give as they are."""
    return [b.emit("sum", part, axes=(0,), keepdims=True) for part in parts]


@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_one_input(transpose_b: bool) -> None:
    """As query, key and value of attention."""

    def build(b: BlockBuilder, x: Any) -> Any:
        made = []
        for seed, n in enumerate((16, 16, 48)):
            w = drawn(n, 6, seed=seed) if transpose_b else drawn(6, n, seed=seed)
            y = b.emit("dense", x, w, transpose_b=transpose_b)
            made.append(b.emit("add", y, drawn(n, seed=seed + 9)))
        return [b.emit("matmul", b.emit("transpose", y, axes=(1, 0)), y) for y in made]

    result = check(built(build, (1, 6)), combine_parallel_layers, error=1e-3)
    assert ops(result).startswith("dense add slice slice slice transpose")


def test_layers_that_are_written_into_one_value_stay_apart() -> None:
    """They lie in one piece of it already."""

    def build(b: BlockBuilder, x: Any) -> Any:
        parts = [b.emit("dense", x, drawn(6, 16, seed=n), transpose_b=False) for n in range(2)]
        joined = b.emit("concatenate", *parts, axis=1)
        return b.emit("sum", joined, axes=(0,), keepdims=True)

    function = concatenate_in_place(built(build, (1, 6)))
    assert any(getattr(b.call, "attrs", {}).get(IN_PLACE) for b in function.bindings)
    assert combine_parallel_layers(function) is function


def test_activations_that_differ_keep_layers_apart() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        layers = [b.emit("dense", x, drawn(3, 6, seed=n), transpose_b=True) for n in range(2)]
        return [b.emit(op, y) for op, y in zip(("tanh", "exp"), layers, strict=True)]

    function = built(build, (2, 6))
    assert combine_parallel_layers(function) is function


def test_convolutions_with_biases_and_activations() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        made = []
        for seed, n in enumerate((16, 32)):
            y = b.emit("conv2d", x, drawn(n, 4, 3, 3, seed=seed), **CONV)
            y = b.emit("add", drawn(n, 1, 1, seed=seed), y)
            made.append(b.emit("clip", y, min=0.0, max=6.0))
        return used(b, made)

    result = check(built(build), combine_parallel_layers, error=1e-4)
    assert ops(result) == "conv2d add clip slice slice sum sum"


def test_matrix_products() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return used(b, [b.emit("matmul", x, drawn(5, n, seed=n)) for n in (16, 32)])

    result = check(built(build, (1, 1, 5)), combine_parallel_layers, error=1e-4)
    assert ops(result) == "matmul slice slice sum sum"


def test_what_differs_stays_apart() -> None:
    """Another stride, another input, a bias that is no bias, weights that are computed."""

    def build(b: BlockBuilder, x: Any) -> Any:
        one = b.emit("conv2d", x, drawn(16, 4, 3, 3), **CONV)
        strided = b.emit("conv2d", x, drawn(16, 4, 3, 3), **{**CONV, "strides": (2, 2)})
        other = b.emit("conv2d", b.emit("relu", x), drawn(16, 4, 3, 3), **CONV)
        image = b.emit("conv2d", x, drawn(16, 4, 3, 3), **CONV)
        computed = b.emit("conv2d", x, b.emit("reshape", x, shape=(5, 4, 5, 1)), **CONV)
        return used(b, [one, strided, other, b.emit("add", image, drawn(5, 5)), computed])

    function = built(build)
    # `one` and `image` are alike: what is added behind is no part of the layer.
    result = check(function, combine_parallel_layers, error=1e-4)
    assert ops(result).count("conv2d") == ops(function).count("conv2d") - 1


def test_outputs_that_would_be_copied_apart_stay_apart() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        parts = [b.emit("dense", x, drawn(64, 2, seed=n), transpose_b=True) for n in range(2)]
        return used(b, parts)

    def images(b: BlockBuilder, x: Any) -> Any:
        return used(b, [b.emit("conv2d", x, drawn(4, 1, 3, 3, seed=n), **CONV) for n in range(2)])

    def given(b: BlockBuilder, x: Any) -> Any:
        parts = [b.emit("dense", x, drawn(64, 2, seed=n), transpose_b=True) for n in range(2)]
        return [parts[0], b.emit("reshape", parts[1], shape=(8, 8))]

    combine = (combine_parallel_layers,)
    with mlc.PassContext(opt_level=3):
        several = built(build, (2, 2))
        assert optimize(several, combine) is several
        assert ops(optimize(built(build, (1, 2)), combine)) == "dense slice slice sum sum"
        assert ops(optimize(built(images, (1, 1, 128, 128)), combine)).startswith("conv2d slice")
        outputs = built(given, (1, 2))
        assert optimize(outputs, combine) is outputs


@pytest.mark.parametrize("target", ["armv7a", "aarch64"])
@pytest.mark.parametrize(("rows", "kernels"), [(1, 1), (4, 3)])
def test_no_kernel_copies_parts(rows: int, kernels: int, target: str) -> None:
    """Of layers that are combined, and of layers that stay apart."""

    def build(b: BlockBuilder, x: Any) -> Any:
        made = [b.emit("dense", x, drawn(32, 6, seed=n), transpose_b=True) for n in range(3)]
        x, y, z = (b.emit("relu", y) for y in made)
        return b.emit("add", b.emit("add", x, y), z)

    with mlc.PassContext(opt_level=3):
        calls = mlc.compile(built(build, (rows, 6)), target).program.calls
    assert [c.kernel for c in calls if "dense" not in c.kernel] == ["add_add"][: kernels == 1]
    assert len([c for c in calls if "dense" in c.kernel]) == kernels


def test_default_level_leaves_layers_apart() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        parts = [b.emit("dense", x, drawn(16, 6, seed=n), transpose_b=True) for n in range(2)]
        return used(b, parts)

    function = built(build, (1, 6))
    assert ops(optimize(function)).startswith("dense dense")
    with mlc.PassContext(required_pass=["combine_parallel_layers"]):
        assert ops(optimize(function)).startswith("dense slice slice")


# ------------------------------------------------------------------------------------ fast math


def test_fast_math_is_off_by_default() -> None:
    function = built(emit("divide", "x", number(3)))
    assert ops(optimize(function)) == "divide"
    with mlc.PassContext(opt_level=4):
        assert ops(optimize(function)) == "multiply"


def test_divisions() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        row = b.emit("exp", b.emit("mean", x, axes=[3], keepdims=True))
        return [b.emit("divide", x, row), b.emit("divide", row, row)]

    result = check(built(build), fast_math)
    assert ops(result) == "mean fast_exp reciprocal multiply divide"


def test_powers_and_gelu() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("add", b.emit("abs", x), number(0.5))
        return [b.emit("power", y, number(p)) for p in (3, 4, -0.5)]

    result = check(built(build), fast_math)
    assert ops(result).split()[2:] == ["multiply"] * 4 + ["sqrt", "reciprocal"]
    gelu = check(built(emit("gelu", "x", approximate="none")), fast_math, error=2e-5)
    assert '"fast"' in str(gelu)


def test_functions() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return [b.emit(op, x) for op in ("exp", "tanh", "erf")] + [b.emit("softmax", x, axis=1)]

    result = check(built(build), fast_math, error=5e-5)
    assert ops(result) == "fast_exp fast_tanh fast_erf fast_softmax"


def test_doubles_stay_exact() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 3), "float64")
    assert ops(fast_math(b.finish([b.emit("exp", x)]))) == "exp"


# --------------------------------------------------------------------------------------- purity


def external(b: BlockBuilder, x: Any, pure: bool) -> Any:
    call = CallPacked("test.external", (x,), (TensorType((2, 3), "float32"),), pure)
    return b.emit(call)


@pytest.mark.parametrize("passes", [PASSES, (eliminate_dead_code, eliminate_common_subexpressions)])
def test_calls_with_effects_stay_in_their_order(passes: Any) -> None:
    """Neither dropped, nor merged, nor moved, whatever happens around them."""
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    first = external(b, b.emit("add", x, number(0)), False)
    external(b, x, False)
    second = external(b, b.emit("multiply", x, number(1)), False)
    y = b.emit("relu", b.emit("relu", first))
    function = b.finish([y])
    with mlc.PassContext(opt_level=4):
        result = optimize(function, passes)
    kept = [v.outputs[0].name for v in result.bindings if isinstance(v.call, CallPacked)]
    names = [v.outputs[0].name for v in function.bindings if isinstance(v.call, CallPacked)]
    assert kept == names and second.name in kept


def test_calls_without_effects_are_merged_and_dropped() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    y = b.emit("add", external(b, x, True), external(b, x, True))
    external(b, y, True)
    result = optimize(b.finish([y]), (eliminate_common_subexpressions, eliminate_dead_code))
    assert len(result.bindings) == 2


def test_other_values_do_not_pass_for_equal() -> None:
    """Zeros of two signs, and one number of two dtypes."""
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    values = [b.emit("divide", x, number(v)) for v in (0.0, -0.0)]
    values += [b.emit("cast", x, dtype=dtype) for dtype in ("int32", "int64")]
    function = b.finish(values)
    assert eliminate_common_subexpressions(function) is function
    assert np.signbit(np.float32(-0.0))
