"""float32 to float16: what is cast, what stays, and that a graph computes the same within it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.driver.compare import compare
from mlc_deploy.errors import GraphError
from mlc_deploy.graph import BlockBuilder, Constant, Function, evaluate, optimize, verify
from mlc_deploy.graph.passes import PASSES
from mlc_deploy.graph.precision import known_precision, to_float16
from mlc_targets import Target, TargetError
from tests.graph.drawn_graphs import graph
from tests.graph.small_graphs import inputs_of

Golden = Callable[..., None]


def constant(*shape: int, scale: float = 1.0) -> Constant:
    return Constant((np.random.default_rng(1).standard_normal(shape) * scale).astype(np.float32))


def network() -> Function:
    """Two layers with an exponential between them, and a mask that float16 does not hold."""
    b = BlockBuilder("network")
    x, keep = b.param("x", (1, 4, 6, 6)), b.param("keep", (1, 8), "bool")
    y = b.emit("conv2d", x, constant(4, 4, 3, 3), strides=(1, 1), dilations=(1, 1),
               pads=(1, 1, 1, 1), groups=1)  # fmt: skip
    y = b.emit("relu", b.emit("add", y, constant(4, 1, 1)))
    y = b.emit("add", y, x)  # x is cast once
    y = b.emit("max_pool", y, kernel=(2, 2), strides=(2, 2), dilations=(1, 1), pads=(0, 0, 0, 0),
               ceil_mode=False)  # fmt: skip
    y = b.emit("exp", b.emit("multiply", y, constant(1, scale=0.01)))
    y = b.emit("mean", y, axes=(2, 3), keepdims=False)
    y = b.emit("dense", y, constant(8, 4), transpose_b=True)
    masked = b.emit("where", keep, y, Constant(np.array(-1e9, np.float32)))
    scores = b.emit("softmax", masked, axis=1)
    return b.finish([scores, y], ["scores", "logits"])


def test_network(golden: Golden) -> None:
    function = network()
    result = to_float16(function)
    verify(result)
    golden(str(result), "precision_network")
    assert [(p.name, p.type) for p in result.params] == [(p.name, p.type) for p in function.params]
    assert to_float16(result) is result


def test_nothing_to_gain_gives_the_same_object() -> None:
    b = BlockBuilder("elementwise")
    x = b.param("x", (8,))
    function = b.finish([b.emit("relu", b.emit("add", x, x))])
    assert to_float16(function) is function


@pytest.mark.parametrize(
    ("scale", "half"), [(1.0, True), (1e5, False), (1e-3, True), (1e-6, False), (0.0, True)]
)
def test_weights_that_do_not_fit(scale: float, half: bool) -> None:
    b = BlockBuilder("layer")
    x = b.param("x", (2, 8))
    function = b.finish([b.emit("dense", x, constant(3, 8, scale=scale), transpose_b=True)])
    assert (to_float16(function) is not function) == half


def test_infinity_fits() -> None:
    b = BlockBuilder("masked")
    x, keep = b.param("x", (2, 8)), b.param("keep", (2, 3), "bool")
    y = b.emit("dense", x, constant(3, 8), transpose_b=True)
    y = b.emit("where", keep, y, Constant(np.array(-np.inf, np.float32)))
    function = b.finish([b.emit("softmax", y, axis=1)])
    assert str(to_float16(function)).count("cast(") == 2  # of the parameter and of the output


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 24))
def test_drawn_graphs(seed: int) -> None:
    """Parameters, outputs and their types stay; what is computed differs as float16 does, where
    nothing that is drawn is large, or has steps, as what comparisons decide."""
    function = optimize(graph(seed), PASSES)
    result = to_float16(function)
    verify(result)
    assert [v.type for v in result.outputs] == [v.type for v in function.outputs]
    inputs = inputs_of(function, seed)
    expected, found = evaluate(function, inputs), evaluate(result, inputs)
    steps = any(v.type.dtype == "bool" for b in function.bindings for v in b.outputs)
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0) if wanted.size else 0
        if wanted.dtype.kind == "f" and largest < 1000 and not steps:
            scale = max(1.0, float(largest))
            np.testing.assert_allclose(found[name], wanted, rtol=3e-2, atol=3e-2 * scale)


def test_refusals(golden: Golden) -> None:
    texts = []
    for precision, target in (
        ("float61", "aarch64"),
        ("int8", "aarch64"),
        ("float16", "armv7a"),
        ("float16", "llvm -mtriple=x86_64-linux-gnu"),
        ("float16", "c -mtriple=aarch64-linux-gnu"),
    ):
        with pytest.raises((GraphError, TargetError)) as error:
            known_precision(precision, Target(target))
        texts.append(str(error.value))
    with pytest.raises(GraphError) as error:
        mlc.compile(network(), "aarch64", precision="half")
    golden("\n\n".join([*texts, str(error.value)]), "precision_refusals")


def test_compiled() -> None:
    """The reference stays the model of float32; the record says the precision."""
    compiled = mlc.compile(network(), "host", precision="float16")
    assert compiled.precision == "float16"
    assert {v.type.dtype for b in compiled.reference.bindings for v in b.outputs} == {"float32"}
    given = {"x": constant(1, 4, 6, 6).value, "keep": np.ones((1, 8), bool)}
    with mlc.connect("local://") as board:
        done = mlc.deploy(compiled, board, given)
        assert done.ok and done.record()["precision"] == "float16"
        exact = compiled.evaluate(given)
        error = compare(done.outputs["logits"], exact["logits"]).max_rel_err
        assert 1e-5 < error < 2e-3  # float32's is below
