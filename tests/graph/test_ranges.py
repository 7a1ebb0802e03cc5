"""Ranges of a dynamic dimension with kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.deploy import deploy
from mlc_deploy.errors import GraphError
from mlc_deploy.graph import BlockBuilder, CallBranch, Function, const
from mlc_deploy.graph.dims import symbol
from mlc_deploy.graph.ranges import Range, parted
from mlc_rpc import Session
from mlc_rpc.errors import Refused
from tests.sessions import TARGETS, aarch64, local

__all__ = ["aarch64", "local"]  # fixtures

SEVERAL: Mapping[str, int | str] = {"seq": "1,<=16,<=64"}


def texts(batch: int | str = 1) -> Function:
    """Two products over texts, and each text's mean, which a state sums up."""
    draw = np.random.default_rng(0)
    bb = BlockBuilder("texts")
    x = bb.param("x", (batch, "seq", 32))
    h_in = bb.param("h_in", (1, 8))
    w, v = (const(draw.standard_normal(s).astype(np.float32) / 6) for s in ((32, 32), (32, 8)))
    y = bb.emit("matmul", bb.emit("relu", bb.emit("matmul", x, w)), v)
    total = bb.emit("add", h_in, bb.emit("sum", y, axes=(0, 1), keepdims=False))
    return bb.finish([bb.emit("softmax", y, axis=2), total], ["y", "h_out"])


def given(batch: int, length: int) -> dict[str, Any]:
    draw = np.random.default_rng(length)
    return {"x": draw.standard_normal((batch, length, 32)).astype(np.float32),
            "h_in": np.zeros((1, 8), np.float32)}  # fmt: skip


@pytest.mark.parametrize("dims", [SEVERAL, {"batch": "1,<=3", **SEVERAL}], ids=["one", "two"])
def test_a_run_takes_the_body_of_its_length(local: Session, dims: Mapping[str, int | str]) -> None:
    batches = [1] if len(dims) == 1 else [1, 2, 3]
    model = mlc.compile(texts("batch" if len(dims) > 1 else 1), "host", dims=dims, states={})
    loaded = local.load(model)
    for batch in batches:
        for length in (1, 2, 16, 17, 64):
            own = given(batch, length)
            extents = {"seq": np.array(length), "batch": np.array(batch)}
            known = {n: extents[n] for n in dims}
            for name, right in model.evaluate({**own, **known}).items():
                found = loaded.run(own)[name]
                assert found.shape == right.shape
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_a_dimension_with_the_name_of_another(local: Session) -> None:
    bb = BlockBuilder("two")
    x, y = bb.param("x", ("ids", 4)), bb.param("y", ("mask", 4))
    function = bb.finish([bb.emit("relu", x), bb.emit("relu", y)], ["a", "b"])
    dims: dict[str, int | str] = {"mask": "<=8", "ids": "mask"}
    loaded = local.load(mlc.compile(function, "host", dims=dims))
    for n in (1, 3, 8):
        own = {name: np.full((n, 4), k, np.float32) for k, name in enumerate("xy")}
        found = loaded.run(own)
        np.testing.assert_array_equal([found["a"], found["b"]], [own["x"], own["y"]])
    with pytest.raises(Refused, match=r"\[mask, 4\], with mask = 2 by another"):
        loaded.run({"x": np.ones((2, 4), np.float32), "y": np.ones((3, 4), np.float32)})


def test_names_of_dimensions_lead_to_a_number() -> None:
    assert parted({"a": "b", "b": "c", "c": 3})[0] == {"a": 3, "b": 3, "c": 3}
    whole, ranges = parted({"a": "b", "b": "1,<=8"})
    assert whole == {"a": symbol("b"), "b": "<=8"} and list(ranges) == ["b"]
    with pytest.raises(GraphError, match="no number stands for a = b = a"):
        parted({"a": "b", "b": "a"})


def test_states_go_from_one_range_to_another(local: Session) -> None:
    model = mlc.compile(texts(), "host", dims=SEVERAL)
    assert dict(model.reference.states) == {"h_in": "h_out"}
    loaded, total = local.load(model), np.zeros((1, 8), np.float32)
    for length in (1, 40, 1, 7):
        x = given(1, length)["x"]
        loaded.step({"x": x})
        known = {"x": x, "seq": np.array(length), "h_in": total}
        total = model.evaluate(known)["h_out"]
        saved = loaded.save_state()["h_in"]
        np.testing.assert_allclose(saved, total, rtol=1e-4, atol=1e-5)


def test_a_number_of_its_own_costs_what_a_known_one_does(aarch64: Session) -> None:
    def instructions(dims: Mapping[str, int | str], length: int) -> int:
        model = mlc.compile(texts(), TARGETS["aarch64"], dims=dims, states={})
        layers = deploy(model, aarch64, given(1, length)).layers
        return sum(layer.instructions or 0 for layer in layers)

    known, alone = instructions({"seq": 1}, 1), instructions({"seq": "<=64"}, 1)
    chosen = instructions(SEVERAL, 1)
    assert chosen < 1.4 * known + 200 and chosen < 0.7 * alone
    assert instructions(SEVERAL, 64) < 1.05 * instructions({"seq": "<=64"}, 64)


def test_the_bodies_are_branches_in_the_order_of_the_ranges() -> None:
    from mlc_deploy.driver.model_graph import model_graph

    graphs = model_graph(texts(), mlc.Target("aarch64"), dims=SEVERAL, states={})
    (first,) = (b.call for b in graphs.optimized.bindings if isinstance(b.call, CallBranch))
    assert first.then.name == "texts_1"
    (second,) = (b.call for b in first.otherwise.bindings if isinstance(b.call, CallBranch))
    assert second.then.name == "texts_to_16"
    assert not any(isinstance(b.call, CallBranch) for b in graphs.reference.bindings)


def test_what_is_read() -> None:
    whole, ranges = parted({"a": 3, "b": "<=8", "seq": "1, <=64,<=512"})
    assert whole == {"a": 3, "b": "<=8", "seq": "<=512"}
    assert ranges == {"seq": (Range(1, True), Range(64, False))}


def test_refused(golden: Callable[..., None]) -> None:
    texts_of: list[str] = []
    refused: list[tuple[Function, dict[str, int | str]]] = [
        (texts(), {"seq": "<=64,1,<=512"}),
        (texts(), {"seq": "1,64"}),
        (texts(), {"seq": "1,few,<=512"}),
        (texts(), {"seq": "<=64,<=64"}),
        (texts(), {"word": "1,<=64"}),
    ]
    for function, dims in refused:
        with pytest.raises(GraphError) as error:
            mlc.compile(function, "host", dims=dims)
        texts_of.append(f"{dims}\n{error.value}")
    golden("\n\n".join(texts_of), "ranges_refused")
