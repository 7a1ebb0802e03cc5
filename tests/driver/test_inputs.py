"""Inputs that are drawn: what each dtype gets, and that indices are in range."""

from __future__ import annotations

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.inputs import draw
from mlc_deploy.graph import BlockBuilder, const
from mlc_deploy.graph.indices import index_extent, index_extents


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float16", -1, 1),
        ("float32", -1, 1),
        ("float64", -1, 1),
        ("int8", -16, 15),
        ("int64", -16, 15),
        ("uint8", 0, 15),
        ("bool", 0, 1),
    ],
)
def test_values_fit_the_dtype(dtype: str, low: int, high: int) -> None:
    drawn = draw("x", (64, 4), dtype)
    assert drawn.dtype == dtype and drawn.shape == (64, 4)
    values = drawn.astype(np.float64)
    assert low <= values.min() < low + 0.2 * (high - low)
    assert high - 0.2 * (high - low) < values.max() <= high


def test_the_seed_and_the_name_decide() -> None:
    np.testing.assert_array_equal(draw("x", (8,), "float32"), draw("x", (8,), "float32"))
    assert (draw("x", (8,), "float32") != draw("y", (8,), "float32")).any()
    assert (draw("x", (8,), "float32") != draw("x", (8,), "float32", seed=1)).any()


def test_indices_are_in_range() -> None:
    builder = BlockBuilder("main")
    table = builder.param("table", (5, 100), "float32")
    tokens = builder.param("tokens", (300,), "int64")
    narrow = builder.emit("cast", tokens, dtype="int32")
    picked = builder.emit("gather", table, narrow, axis=0)
    function = builder.finish([picked], ["y"])
    assert index_extent(function, function.params[0]) is None
    assert index_extent(function, function.params[1]) == 5
    assert index_extents(function) == {"tokens": 5}
    assert set(draw("tokens", (300,), "int64", 5).tolist()) == set(range(5))


def test_indices_reach_rows_elements_and_tuples() -> None:
    """As the edges of a graph do: their ends are rows of one input, and name nodes."""
    builder = BlockBuilder("main")
    nodes = builder.param("nodes", (7, 4), "float32")
    edges = builder.param("edges", (2, 9), "int64")
    first, last = (
        builder.emit("gather", edges, const(np.array([n])), axis=0) for n in range(2)
    )  # fmt: skip
    negative = builder.emit("less", last, const(np.array(0)))
    wrapped = builder.emit("where", negative, builder.emit("add", last, const(np.array(7))), last)
    rows = builder.emit(
        "gather_nd", nodes, builder.emit("reshape", first, shape=(9, 1)), batch_dims=0
    )
    at = builder.emit("broadcast_to", builder.emit("reshape", wrapped, shape=(9, 1)), shape=(9, 4))
    added = builder.emit("scatter_elements", nodes, at, rows, axis=0, reduction="add")
    assert index_extents(builder.finish([added], ["y"])) == {"edges": 7}


def test_indices_of_an_open_extent_are_below_the_most_that_it_is() -> None:
    builder = BlockBuilder("main")
    rows, places = (
        builder.param("rows", ("n", 4), "float32"),
        builder.param("places", (3,), "int64"),
    )
    picked = builder.emit("gather", rows, places, axis=0)
    model = mlc.compile(builder.finish([picked], ["y"]), "host", dims={"n": "<=6"})
    assert model.index_extents == {"places": 6}
