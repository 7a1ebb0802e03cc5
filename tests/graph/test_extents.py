"""Dimensions known at run time: on boards, in text, in the reference, and where they cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError
from mlc_deploy.graph import BlockBuilder, Function, evaluate
from mlc_deploy.graph.bind import static
from mlc_deploy.graph.nodes import const
from mlc_deploy.graph.verify import verify
from mlc_deploy.script import from_script
from mlc_rpc import Crashed, Refused
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
rng = np.random.default_rng(5)
WEIGHTS = rng.standard_normal((16, 8)).astype(np.float32)


def texts() -> Function:
    """Of n rows: a layer, its softmax, both joined, what they sum up to, and a vector of n."""
    b = BlockBuilder("texts")
    x = b.param("x", ("n", 16))
    y = b.emit("relu", b.emit("matmul", x, const(WEIGHTS)))
    z = b.emit("concatenate", b.emit("softmax", y, axis=1), y, axis=0)
    mean = b.emit("mean", x, axes=(1,), keepdims=False)
    return b.finish([y, b.emit("sum", z, axes=(0,), keepdims=False), mean], ["y", "total", "mean"])


def compiled(target: str, most: int = 40) -> Any:
    return mlc.compile(texts(), target, dims={"n": f"<={most}"})


def same(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
def test_any_length(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    model = compiled(TARGETS[board])
    module = session.load(model)
    for n in (40, 0, 1, 7, 23):
        x = rng.standard_normal((n, 16)).astype(np.float32)
        same(module.run({"x": x}), model.evaluate({"x": x}))
    module.close()


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
def test_products_of_any_number_of_rows(board: str, request: pytest.FixtureRequest) -> None:
    """In whole tiles and in what is left of one, with what follows in the same kernel."""
    session: Session = board_named(request, board)
    b = BlockBuilder("layers")
    x = b.param("x", (1, "n", 64))
    w = const(rng.standard_normal((64, 72)).astype(np.float32))
    n = x.type.shape[1]
    rows = b.emit("dense", b.emit("reshape", x, shape=(n, 64)), w, transpose_b=False)
    y = b.emit("add", b.emit("reshape", rows, shape=(1, n, 72)), const(np.ones(72, np.float32)))
    model = mlc.compile(b.finish([b.emit("relu", y)], ["y"]), TARGETS[board], dims={"n": "<=33"})
    assert [call.kernel for call in model.program.calls] == ["dense_add_relu"]
    module = session.load(model)
    for rows_now in (33, 1, 5, 7, 8, 16, 0):
        x_now = rng.standard_normal((1, rows_now, 64)).astype(np.float32)
        same(module.run({"x": x_now}), model.evaluate({"x": x_now}))
    module.close()


def test_steps_of_any_length(local: Session) -> None:
    """Of two inputs one may stay as it was; the other must still be as long."""
    b = BlockBuilder("joined")
    left, right = b.param("x", ("n", 3)), b.param("y", ("n", 3))
    outputs = [b.emit("add", left, right), b.emit("sum", left, axes=(0,), keepdims=False)]
    model = mlc.compile(b.finish(outputs), "host", dims={"n": "<=9"})
    with local.load(model).stream() as stream:
        for n in (4, 9, 0, 2):
            x, y = rng.standard_normal((2, n, 3)).astype(np.float32)
            same(stream.step({"x": x, "y": y}), model.evaluate({"x": x, "y": y}))
            same(stream.step({"x": y}), model.evaluate({"x": y, "y": y}))
        with pytest.raises(ValueError, match="with n = 3 by another input"):
            stream.step({"x": np.ones((3, 3), np.float32)})
        with pytest.raises(Refused) as caught:
            stream.step({"x": y, "n": np.array(2)})
        assert caught.value.attempt == "inputs x: float32[n, 3], y: float32[n, 3]"


def test_arrays_that_do_not_fit_are_refused(local: Session) -> None:
    module = local.load(compiled("host"))
    with pytest.raises(Refused) as longer:
        module.run({"x": np.zeros((41, 16), np.float32)})
    assert longer.value.what == (
        "input 'x' is [41, 16], the model takes float32[n, 16], with n <= 40"
    )
    with pytest.raises(ValueError, match="the array float32"):
        module.run({"x": np.zeros((4, 15), np.float32)})
    module.close()


def test_a_board_holds_extents_to_their_bounds(local: Session) -> None:
    """Whoever calls the model by hand may say anything."""
    module = local.load(compiled("host"))
    described = module.model
    tensors = [local.empty([int(n) for n in p.shape], p.dtype) for p in described.inputs]
    results = [local.empty([int(n) for n in p.shape], p.dtype) for p in described.outputs]
    for n in (41, -1, 1 << 40):
        tensors[1].write(np.array(n, np.int64))
        with pytest.raises(Crashed, match="a dimension is negative, or more than it may be"):
            module.entry(*tensors, *results)
    module.close()


def decided() -> Function:
    """Of the numbers that are not zero, as many as the data have: their places and their sum."""
    b = BlockBuilder("decided")
    x = b.param("x", (4, 9))
    places, count = b.emit("nonzero", x)
    number = b.emit("extent", count, extent=mlc.graph.dims.symbol("found"))
    rows = b.emit("first", places, number, extent=mlc.graph.dims.symbol("found"))
    total = b.emit("sum", b.emit("gather_nd", x, rows, batch_dims=0), axes=(0,), keepdims=False)
    function = b.finish([rows, total, number], ["rows", "total", "found"])
    return mlc.graph.Function(**{**_fields(function), "extents": (("found", 36),)})


def _fields(function: Function) -> dict[str, Any]:
    return {name: getattr(function, name) for name in Function.__slots__}


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
def test_results_of_any_number(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    model = mlc.compile(decided(), TARGETS[board])
    module = session.load(model)
    for kept in (0.0, 0.3, 1.0):
        x = rng.standard_normal((4, 9)).astype(np.float32)
        x[rng.random((4, 9)) >= kept] = 0
        found = module.run({"x": x})
        np.testing.assert_array_equal(found["rows"], np.argwhere(x))
        np.testing.assert_allclose(found["total"], x.sum(), rtol=1e-4, atol=1e-5)
        assert "found" not in found
    module.close()


def test_text_is_read_back() -> None:
    for function in (decided(), static(texts(), dims={"n": "<=40"})):
        again = from_script(str(function), constants={"constant": WEIGHTS})
        assert isinstance(again, Function)
        verify(again)
        assert str(again) == str(function) and again.extents == function.extents


def test_the_reference_finds_extents_in_inputs() -> None:
    function = static(texts(), dims={"n": "<=40"})
    assert [p.name for p in function.params] == ["x", "n"]
    x = rng.standard_normal((3, 16)).astype(np.float32)
    assert evaluate(function, {"x": x})["y"].shape == (3, 8)


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"m": "<=4"}, "'texts' has no dimension 'm'\n  try: n"),
        (
            {"n": "4"},
            "n cannot be '4'\n  try: n=128, n<=128, or the name of another dimension that has a "
            "number",
        ),
        ({"n": "<=0"}, "n cannot be '<=0': numbers are from 1 to 2147483647\n  try: n<=128"),
        ({}, "'texts' has dimensions that are not known: n\n  try: dims={'n': 1}"),
    ],
)
def test_dims_that_cannot_be(dims: dict[str, str], complaint: str) -> None:
    with pytest.raises(GraphError) as refusal:
        static(texts(), dims=dims)
    assert str(refusal.value) == complaint
