"""Tables of 8-bit numbers: what becomes one, that it is exact, lookups on every kind of board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Constant, Function, evaluate, optimize
from mlc_deploy.graph.passes import canonicalize_quantized
from mlc_deploy.graph.tabulate import tabulate
from tests.graph.small_graphs import ops
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]
ACTIVATIONS = ("sigmoid", "tanh", "erf", "exp", "hard_swish", "relu", "negative", "abs", "sqrt")


def scalar(value: Any, dtype: str = "float32") -> Constant:
    return Constant(np.asarray(value, dtype))


def real(b: BlockBuilder, q: Any, scale: float = 0.05, zero: int = 3) -> Any:
    return b.emit("dequantize", q, scalar(scale), scalar(zero, q.type.dtype))


def stored(b: BlockBuilder, x: Any, scale: float = 0.02, zero: int = 7, dtype: str = "int8") -> Any:
    return b.emit("quantize", x, scalar(scale), scalar(zero, dtype))


def swish(b: BlockBuilder, q: Any) -> Any:
    """x * sigmoid(x), both stored in between."""
    gate = real(b, stored(b, b.emit("sigmoid", real(b, q))), 0.02, 7)
    return stored(b, b.emit("multiply", real(b, q), gate))


def every(dtype: str) -> NDArray[Any]:
    return np.arange(256, dtype=np.uint8).view(dtype)


def table_of(build: Any, shape: tuple[int, ...], dtype: str = "int8") -> tuple[Function, Function]:
    """A function of one 8-bit tensor, and what tabulate makes of it."""
    b = BlockBuilder("chain")
    function = b.finish([build(b, b.param("q", shape, dtype))])
    return function, optimize(function, (tabulate,))


def same(function: Function, result: Function) -> None:
    (q,) = function.params
    data = np.resize(every(q.type.dtype), q.type.sizes)
    (before,), (after,) = (evaluate(f, [data]).values() for f in (function, result))
    np.testing.assert_array_equal(after, before)


@given(
    steps=st.lists(st.sampled_from(ACTIVATIONS), min_size=1, max_size=4),
    stored_between=st.booleans(),
    dtypes=st.tuples(*[st.sampled_from(("int8", "uint8"))] * 2),
    scale=st.floats(1e-3, 0.5),
)
@settings(max_examples=40, deadline=None)
def test_chains_are_one_table(
    steps: list[str], stored_between: bool, dtypes: tuple[str, str], scale: float
) -> None:
    def build(b: BlockBuilder, q: Any) -> Any:
        x = real(b, q, scale)
        for step in steps:
            x = b.emit(step, x)
            x = real(b, stored(b, x, scale), scale, 7) if stored_between else x
        return stored(b, x, scale, 5, dtypes[1])

    function, result = table_of(build, (2, 128), dtypes[0])
    assert ops(result) == "lookup"
    same(function, result)


def test_what_meets_again_is_one_table() -> None:
    function, result = table_of(swish, (16, 16))
    assert ops(result) == "lookup"
    same(function, result)


def test_constants_that_stay_quantized() -> None:
    def build(b: BlockBuilder, q: Any) -> Any:
        one = b.emit("dequantize", scalar(20, "int8"), scalar(0.05), scalar(0, "int8"))
        return stored(b, b.emit("add", real(b, q), one))

    function, result = table_of(build, (256,))
    assert ops(result).split()[-1] == "lookup"
    same(function, result)


@pytest.mark.parametrize("kind", ["two tensors", "per channel", "broadcast", "integers alone"])
def test_what_is_no_table(kind: str) -> None:
    b = BlockBuilder("chain")
    p, q = b.param("p", (4, 8), "int8"), b.param("q", (4, 8), "int8")
    row = b.param("row", (1, 8), "int8")
    match kind:
        case "two tensors":
            y = stored(b, b.emit("add", real(b, p), real(b, q)))
        case "per channel":
            factors = Constant(np.linspace(0, 1, 8, dtype=np.float32))
            y = stored(b, b.emit("multiply", real(b, q), factors))
        case "broadcast":
            y = stored(b, b.emit("add", real(b, q), real(b, row)))
        case _:
            y = b.emit("maximum", q, scalar(3, "int8"))
    function = b.finish([y])
    assert optimize(function, (tabulate,)) is function


SHAPES = ((1, 16, 9, 8), (3, 5), (1, 8, 7, 7), (1, 9, 5, 5), (2, 48), (1, 24, 1, 1))


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_lookups_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    """In vectors, in rows of them, and one by one; of either sign."""
    session: Session = board_named(request, board)
    b = BlockBuilder("lookups")
    outputs, data = [], {}
    for n, shape in enumerate(SHAPES):
        dtype = ("int8", "uint8")[n % 2]
        data[f"q{n}"] = np.resize(every(dtype), shape)
        x = b.emit("tanh", real(b, b.param(f"q{n}", shape, dtype)))
        outputs.append(stored(b, x, 0.01, 9, ("int8", "uint8")[n % 3 == 0]))
    function = b.finish(outputs)
    compiled = mlc.compile(function, TARGETS[board])
    found = session.load(compiled).run(data)
    wanted = evaluate(optimize(function, (canonicalize_quantized,)), list(data.values()))
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


def test_lookups_are_in_place() -> None:
    """Of what nothing else reads: a model needs no more memory for them."""
    b = BlockBuilder("chain")
    p, q, r = (b.param(name, (64, 16), "int8") for name in "pqr")
    sums = stored(b, b.emit("add", real(b, p), real(b, q)))
    y = stored(b, b.emit("sigmoid", real(b, sums)))
    compiled = mlc.compile(b.finish([stored(b, b.emit("add", real(b, y), real(b, r)))]), "aarch64")
    assert compiled.program.arena == 64 * 16
