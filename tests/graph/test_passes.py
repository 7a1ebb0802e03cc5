"""Graph passes: what each rewrites, what it must leave, and that answers stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc_deploy.graph import BlockBuilder, Call, Constant, Function, evaluate, optimize, verify
from mlc_deploy.graph.passes import (
    PASSES,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_constants,
    fold_scale,
    simplify_inference,
)
from mlc_deploy.passes.context import LEVEL, LEVELS
from tests.graph.test_graph import CONV, constant, network

Pass = Callable[[Function], Function]


def ops(function: Function) -> list[str]:
    return [b.call.op for b in function.bindings if isinstance(b.call, Call)]


def check(function: Function, *passes: Pass) -> Function:
    """The function after the passes, which must compute the same."""
    result = optimize(function, passes)
    inputs = {
        p.name: np.random.default_rng(0).normal(size=p.type.shape).astype(p.type.dtype)  # type: ignore[arg-type]
        for p in function.params
    }
    before, after = evaluate(function, inputs), evaluate(result, inputs)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-5)
    return result


def layer(build: Callable[[BlockBuilder, Any], Any], dense: bool = False) -> Function:
    """conv2d (or dense) of 4 channels, and what build makes of it."""
    b = BlockBuilder()
    x = b.param("x", (2, 6) if dense else (2, 3, 5, 5))
    if dense:
        y = b.emit("dense", x, constant((4, 6)), transpose_b=True)
    else:
        y = b.emit("conv2d", x, constant((4, 3, 3, 3)), **CONV)
    made = build(b, y)
    return b.finish(made if isinstance(made, list) else [made])


C41 = (4, 1, 1)


def test_whole_list(golden: Callable[..., None]) -> None:
    golden(str(check(network(), *PASSES)), "graph_network_optimized")


def test_watch_sees_every_pass() -> None:
    seen: list[tuple[str, bool]] = []
    optimize(network(), watch=lambda name, _, changed: seen.append((name, changed)))
    assert [name for name, _ in seen] == [p.__name__ for p in PASSES if LEVELS[p.__name__] <= LEVEL]
    assert ("simplify_inference", True) in seen and ("fold_constants", False) in seen


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.__name__)
def test_nothing_to_do_gives_the_same_object(step: Pass) -> None:
    b = BlockBuilder()
    function = b.finish([b.emit("relu", b.param("x", (2, 3)))])
    assert step(function) is function


def test_batch_norm_with_computed_parameters_stays() -> None:
    b = BlockBuilder()
    x, scale = b.param("x", (1, 4, 2, 2)), b.param("scale", (4,))
    rest = [constant((4,), seed=n) for n in range(3)]
    function = b.finish([b.emit("batch_norm", x, scale, *rest, epsilon=1e-5)])
    assert simplify_inference(function) is function


def test_constants_fold() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    w = b.emit("transpose", constant((3, 2)), axes=(1, 0))
    result = check(b.finish([b.emit("add", x, b.emit("exp", w))]), fold_constants)
    assert ops(result) == ["add"]


def test_large_constants_do_not_fold() -> None:
    b = BlockBuilder()
    big = b.emit("broadcast_to", constant((1,)), shape=(1 << 29,))
    function = b.finish([b.emit("slice", big, begin=(0,), step=(1,), shape=(2,))])
    assert fold_constants(function) is function


@pytest.mark.parametrize("dense", [False, True])
def test_scale_folds_into_weights(dense: bool) -> None:
    shape = (4,) if dense else C41
    function = layer(lambda b, y: b.emit("multiply", y, constant(shape, seed=1)), dense)
    assert ops(check(function, fold_scale)) == ["dense" if dense else "conv2d"]


def test_scale_folds_into_untransposed_weights() -> None:
    b = BlockBuilder()
    y = b.emit("dense", b.param("x", (2, 6)), constant((6, 4)), transpose_b=False)
    function = b.finish([b.emit("multiply", constant((1, 4), seed=1), y)])
    assert ops(check(function, fold_scale)) == ["dense"]


def test_scale_on_top_of_a_bias() -> None:
    def build(b: BlockBuilder, y: Any) -> Any:
        y = b.emit("add", y, constant(C41, seed=1))
        y = b.emit("multiply", y, constant(C41, seed=2))
        return b.emit("add", y, constant((), seed=3))

    assert ops(check(layer(build), fold_scale)) == ["conv2d", "add"]


@pytest.mark.parametrize("shape", [(5,), (2, 4, 5, 5), (2, 1, 1, 1)])
def test_scale_that_is_not_per_channel_stays(shape: tuple[int, ...]) -> None:
    function = layer(lambda b, y: b.emit("multiply", y, constant(shape)))
    assert fold_scale(function) is function


def test_layer_that_is_read_twice_keeps_its_weights() -> None:
    def build(b: BlockBuilder, y: Any) -> Any:
        return [b.emit("multiply", y, constant(C41)), b.emit("relu", y)]

    function = layer(build)
    assert fold_scale(function) is function


def test_scaled_layer_that_is_read_twice() -> None:
    """The second multiplication must not reach the weights that the relu's input has."""

    def build(b: BlockBuilder, y: Any) -> Any:
        y = b.emit("multiply", y, constant(C41, seed=1))
        return [b.emit("multiply", y, constant(C41, seed=2)), b.emit("relu", y)]

    assert ops(check(layer(build), fold_scale)) == ["conv2d", "multiply", "relu"]


def test_scale_that_widens_stays() -> None:
    b = BlockBuilder()
    y = b.emit("conv2d", b.param("x", (1, 3, 5, 5)), constant((1, 3, 3, 3)), **CONV)
    function = b.finish([b.emit("multiply", y, constant(C41))])
    assert fold_scale(function) is function


def test_common_subexpressions() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    one, again = (Constant(np.ones((), np.float32)) for _ in range(2))
    y = b.emit("add", b.emit("multiply", x, one), b.emit("multiply", x, again))
    other = b.emit("clip", x, min=0.0, max=1.0), b.emit("clip", x, min=0.0, max=2.0)
    result = check(b.finish([y, *other]), eliminate_common_subexpressions)
    assert ops(result) == ["multiply", "add", "clip", "clip"]


def test_dead_code() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    b.emit("exp", b.emit("exp", x))
    result = check(b.finish([b.emit("relu", x)]), eliminate_dead_code)
    assert ops(result) == ["relu"]
    verify(result)


def test_a_constant_that_doubles_itself_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result with as many elements as its operands may be large; copies of one may not."""
    monkeypatch.setattr("mlc_deploy.graph.rewrite.GROWN_LIMIT", 1 << 9)
    one, other = (Constant(np.full(64, n, np.float32)) for n in range(2))
    for pair, folds in (((one, other), True), ((one, one), True), ((one,) * 3, False)):
        made = optimize(concatenation(pair), (fold_constants, eliminate_dead_code))
        assert ops(made) == ([] if folds else ["concatenate"]) + ["add"]


def concatenation(parts: tuple[Constant, ...]) -> Function:
    b = BlockBuilder()
    joined = b.emit("concatenate", *parts, axis=0)
    return b.finish([b.emit("add", b.param("x", (1,)), joined)])
