"""Simplification: each rule on the smallest graph that it applies to, and next to its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc_deploy.graph import BlockBuilder, Constant, Function
from mlc_deploy.graph.simplify import simplify_expressions
from tests.graph.small_graphs import Build, built, check, drawn, emit, number, ops
from tests.graph.test_graph import CONV

WINDOW: dict[str, Any] = {
    "kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0),
    "ceil_mode": False,
}  # fmt: skip


def then(*steps: tuple[Any, ...]) -> Build:
    """Calls one after another; a step is an operator, its further arguments, its attributes."""

    def build(b: BlockBuilder, x: Any) -> Any:
        for op, *rest in steps:
            attrs = rest.pop() if rest and isinstance(rest[-1], dict) else {}
            x = b.emit(op, x, *rest, **attrs)
        return x

    return build


def clip(low: float | None, high: float | None) -> tuple[str, dict[str, Any]]:
    return "clip", {"min": low, "max": high}


def padded(value: float, *pads: int) -> tuple[str, dict[str, Any]]:
    top, left, bottom, right = pads
    sides = (0, 0, top, left, 0, 0, bottom, right)
    return "pad", {"pads": sides, "mode": "constant", "value": value}


def over(*axes: int, keepdims: bool = True) -> dict[str, Any]:
    return {"axes": axes, "keepdims": keepdims}


W = drawn(2, 4, 3, 3)
NHWC, NCHW = {"axes": (0, 2, 3, 1)}, {"axes": (0, 3, 1, 2)}
SHAPE = (1, 4, 5, 5)
AVG = {**WINDOW, "count_include_pad": False}

# name: (the calls, the operators that are left)
CASES: dict[str, tuple[Build, str]] = {
    "add 0": (emit("add", "x", number(0)), ""),
    "0 +": (emit("add", number(0, shape=(4, 1, 1)), "x"), ""),
    "subtract 0": (emit("subtract", "x", number(0)), ""),
    "multiply 1": (emit("multiply", "x", number(1)), ""),
    "divide by 1": (emit("divide", "x", number(1)), ""),
    "power 1": (emit("power", "x", number(1)), ""),
    "0 - x stays": (emit("subtract", number(0), "x"), "subtract"),
    "add 0 that widens": (emit("add", "x", number(0, shape=(2, 4, 5, 5))), "add"),
    "subtract a constant": (emit("subtract", "x", drawn(4, 1, 1)), "add"),
    "divide by 8": (emit("divide", "x", number(8)), "multiply"),
    "divide by 3 stays": (emit("divide", "x", number(3)), "divide"),
    "two additions": (then(("add", drawn(4, 1, 1)), ("add", number(2))), "add"),
    "two factors": (then(("multiply", number(3)), ("multiply", drawn(4, 1, 1))), "multiply"),
    "factors that would grow": (
        then(("multiply", drawn(4, 1, 1)), ("multiply", drawn(5))),
        "multiply multiply",
    ),
    "power 2": (emit("power", "x", number(2)), "multiply"),
    "power -1": (emit("power", "x", number(-1)), "reciprocal"),
    "power 3 stays": (emit("power", "x", number(3)), "power"),
    "negative twice": (then(("negative",), ("negative",)), ""),
    "relu twice": (then(("relu",), ("relu",)), "relu"),
    "relu of abs": (then(("abs",), ("relu",)), "abs"),
    "relu of tanh stays": (then(("tanh",), ("relu",)), "tanh relu"),
    "clip of clip": (then(clip(-2, 1), clip(-1, 3)), "clip"),
    "clip of relu": (then(("relu",), clip(None, 6)), "clip"),
    "clips apart stay": (then(clip(2, 3), clip(0, 1)), "clip clip"),
    "clip without bounds": (then(clip(None, None)), ""),
    "clip at 0": (then(clip(0.0, None)), "relu"),
    "max and min": (then(("maximum", number(-1)), ("minimum", number(1))), "clip"),
    "max with a tensor stays": (emit("maximum", "x", drawn(4, 1, 1)), "maximum"),
    "where true": (emit("where", number(True, "bool"), "x", number(3)), ""),
    "where of equals": (emit("where", Constant(np.arange(5) > 2), "x", "x"), ""),
    "cast to itself": (then(("cast", {"dtype": "float32"})), ""),
    "cast there and back": (
        then(("cast", {"dtype": "float64"}), ("cast", {"dtype": "float32"})),
        "",
    ),
    "cast that loses stays": (
        then(("cast", {"dtype": "int8"}), ("cast", {"dtype": "float32"})),
        "cast cast",
    ),
    "casts meet behind a reshape": (
        then(
            ("cast", {"dtype": "float64"}),
            ("reshape", {"shape": (4, 25)}),
            ("cast", {"dtype": "float32"}),
        ),
        "reshape",
    ),
    "reshape to the same": (then(("reshape", {"shape": SHAPE})), ""),
    "reshape of reshape": (
        then(("reshape", {"shape": (100,)}), ("reshape", {"shape": (10, 10)})),
        "reshape",
    ),
    "transpose there and back": (then(("transpose", NHWC), ("transpose", NCHW)), ""),
    "transpose of transpose": (then(("transpose", NHWC), ("transpose", NHWC)), "transpose"),
    "transpose that is a reshape": (
        then(("slice", {"begin": (0,) * 4, "step": (1,) * 4, "shape": (1, 1, 5, 5)}),
             ("transpose", NHWC)),
        "slice reshape",
    ),
    "slice of everything": (
        then(("slice", {"begin": (0,) * 4, "step": (1,) * 4, "shape": SHAPE})),
        "",
    ),
    "reversal stays": (
        then(("slice", {"begin": (0, 3, 0, 0), "step": (1, -1, 1, 1), "shape": SHAPE})),
        "slice",
    ),
    "slice of slice": (
        then(
            ("slice", {"begin": (0, 3, 1, 0), "step": (1, -1, 2, 1), "shape": (1, 4, 2, 5)}),
            ("slice", {"begin": (0, 1, 1, 4), "step": (1, 2, 1, -2), "shape": (1, 2, 1, 3)}),
        ),
        "slice",
    ),
    "pad by nothing": (then(padded(0, 0, 0, 0, 0)), ""),
    "concatenate one": (then(("concatenate", {"axis": 1})), ""),
    "gather one": (emit("gather", "x", number(-1, "int64"), axis=1), "slice reshape"),
    "gather a range": (emit("gather", "x", Constant(np.arange(3, 0, -1)), axis=2), "slice"),
    "gather in no order stays": (
        emit("gather", "x", Constant(np.array([0, 3, 1])), axis=1),
        "gather",
    ),
    "gather beyond the end": (emit("gather", "x", Constant(np.array([3, 4, 5])), axis=1), "gather"),
    "pad into conv2d": (then(padded(0, 1, 2, 0, 1), ("conv2d", W, CONV)), "conv2d"),
    "pad of ones stays": (then(padded(1, 1, 1, 1, 1), ("conv2d", W, CONV)), "pad conv2d"),
    "pad cut off stays": (then(padded(0, -1, 0, 0, 0), ("conv2d", W, CONV)), "pad conv2d"),
    "pad into max_pool": (then(padded(-np.inf, 1, 1, 1, 0), ("max_pool", WINDOW)), "max_pool"),
    "zeros before max_pool stay": (
        then(padded(0, 1, 1, 1, 0), ("max_pool", WINDOW)),
        "pad max_pool",
    ),
    "pad into avg_pool": (then(padded(0, 1, 1, 0, 1), ("avg_pool", AVG)), "avg_pool"),
    "pad as wide as the window stays": (
        then(padded(0, 2, 1, 0, 1), ("avg_pool", AVG)),
        "pad avg_pool",
    ),
    "average of everything": (then(("avg_pool", {**AVG, "kernel": (5, 5)})), "mean"),
    "maximum of everything": (then(("max_pool", {**WINDOW, "kernel": (5, 5)})), "max"),
    "mean of mean": (
        then(("mean", over(3, keepdims=False)), ("mean", over(2, keepdims=False))),
        "mean",
    ),
    "max of mean stays": (
        then(("mean", over(3)), ("max", over(2))),
        "mean max",
    ),
    "matmul with one matrix": (emit("matmul", "x", drawn(5, 3)), "reshape dense reshape"),
    "matmul with several stays": (emit("matmul", "x", drawn(4, 5, 3)), "matmul"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    build, left = CASES[name]
    assert ops(check(built(build), simplify_expressions)) == left


def test_nothing_to_do() -> None:
    function = built(lambda b, x: b.emit("tanh", b.emit("exp", x)))
    assert simplify_expressions(function) is function


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_integers_stay_exact(dtype: str) -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("subtract", x, number(7, dtype))
        y = b.emit("multiply", b.emit("multiply", y, number(3, dtype)), number(5, dtype))
        return b.emit("add", b.emit("add", y, number(9, dtype)), number(1, dtype))

    assert ops(check(built(build, (40,), dtype), simplify_expressions)) == "add multiply add"


def test_integers_are_not_multiplied_by_inverses() -> None:
    function = built(emit("divide", "x", number(4, "int32")), (40,), "int32")
    assert simplify_expressions(function) is function


@pytest.mark.parametrize("source, between", [("int64", "float64"), ("int32", "float32")])
def test_casts_of_large_integers_stay(source: str, between: str) -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return b.emit("cast", b.emit("cast", x, dtype=between), dtype="int8")

    function = built(build, (3,), source)
    assert simplify_expressions(function) is function


def test_slice_of_concatenation() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("concatenate", b.emit("exp", x), x, b.emit("tanh", x), axis=-1)
        part: dict[str, Any] = {"begin": (0, 6), "step": (1, 1), "shape": (3, 3)}
        across: dict[str, Any] = {"begin": (0, 3), "step": (1, 1), "shape": (3, 3)}
        return [b.emit("slice", y, **part), b.emit("slice", y, **across)]

    result = check(built(build, (3, 5)), simplify_expressions)
    assert ops(result) == "exp tanh concatenate slice slice"


def test_concatenations_are_one_unless_read_elsewhere() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        inner = b.emit("concatenate", x, b.emit("exp", x), axis=0)
        other = b.emit("concatenate", x, x, axis=0)
        return [b.emit("concatenate", inner, x, other, axis=-2), other]

    result = check(built(build, (3, 5)), simplify_expressions)
    assert ops(result) == "exp concatenate concatenate"
    assert len(result.bindings[-1].call.args) == 4


def test_broadcasting_happens_in_the_call_itself() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        row = b.emit("broadcast_to", b.emit("mean", x, axes=[0], keepdims=True), shape=(3, 5))
        wide = b.emit("broadcast_to", b.emit("mean", x, axes=[0], keepdims=True), shape=(2, 3, 5))
        return [b.emit("add", x, row), b.emit("add", x, wide)]

    result = check(built(build, (3, 5)), simplify_expressions)
    assert ops(result) == "mean mean broadcast_to add add"


def test_transposed_weights() -> None:
    """Of a product with a computed matrix, as of attention."""

    def build(b: BlockBuilder, x: Any) -> Any:
        w = b.emit("transpose", b.emit("exp", x), axes=(1, 0))
        return b.emit("dense", x, w, transpose_b=False)

    result = check(built(build, (3, 5)), simplify_expressions)
    assert ops(result) == "exp dense"


def test_names_and_layers_stay() -> None:
    """A result keeps its name, whatever computes it; calls keep the layer they come from."""
    b = BlockBuilder()
    x = b.param("x", (3, 5))
    y = b.emit("divide", x, number(4), name="scaled", source="layer1")
    result: Function = simplify_expressions(b.finish([b.emit("tanh", y)]))
    first = result.bindings[0]
    assert (first.outputs[0].name, first.source) == ("scaled", "layer1")
