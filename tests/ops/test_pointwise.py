"""Expressions as data: the same on arrays as in loops, and refused where they are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import compute, evaluate
from mlc_deploy.ops.pointwise import BINARIES, CALLS, COMPARES

X = np.asarray([[-3.5, -0.0, 0.25], [1.0, 2.5, 8.0]], np.float32)
Y = np.asarray([0.5, 2.0, 3.0], np.float32)
INTEGERS = tuple(
    np.asarray(a, np.int32) for a in ([[-7, -1, 0], [3, 8, 9]], [[3, 2, 1], [2, 3, 1]])
)
FLOAT = ("+", "-", "*", "/", "min", "max")
LOGIC = ("and", "or")

STEPS: dict[str, tuple[list[np.ndarray], Any]] = {
    **{op: ([X, Y], ((op, 0, 1),)) for op in (*FLOAT, *COMPARES)},
    **{
        f"{op} of integers": ([*INTEGERS], ((op, 0, 1),))
        for op in BINARIES
        if op not in ("/", *LOGIC)
    },
    **{op: ([X, Y], (("<", 0, 1), (">", 0, 1), (op, 2, 3))) for op in LOGIC},
    **{
        f"{name}()": ([np.abs(X) + 1, Y], (("call", name, "float32", *range(count)),))
        for name, (count, _) in CALLS.items()
        if count < 3
    },
    "fma": ([X, Y], (("call", "fma", "float32", 0, 1, 1),)),
    "if_then_else": ([X, Y], (("<", 0, 1), ("call", "if_then_else", "float32", 2, 0, 1))),
    "select": ([X, Y], (("<", 0, 1), ("not", 2), ("select", 3, 0, 1))),
    "cast": ([X], (("cast", "int32", 0), ("const", "int32", "2"), ("*", 1, 2))),
    "const": ([X], (("const", "float32", "-inf"), ("max", 0, 1))),
}


@pytest.mark.parametrize("name", STEPS)
def test_on_arrays_as_in_loops(name: str) -> None:
    arrays, steps = STEPS[name]
    attrs = {"function": "f", "steps": steps}
    inputs = [te.placeholder(a.shape, str(a.dtype), f"p{n}") for n, a in enumerate(arrays)]
    (out,) = compute("pointwise", inputs, attrs)
    (expected,) = evaluate("pointwise", arrays, attrs)
    found = np.empty_like(expected)
    run(te.create_prim_func([*inputs, out], "f"), *arrays, found)
    assert (expected.shape, str(expected.dtype)) == (out.shape, out.dtype)
    np.testing.assert_allclose(expected, found, rtol=1e-6)


REFUSED: dict[str, tuple[Any, str]] = {
    "none": ((), "pointwise: there are no steps"),
    "number": (3, "pointwise: there are no steps"),
    "word": ((("plus", 0, 1),), "pointwise: ('plus', 0, 1) is not a step"),
    "text": (("+",), "pointwise: '+' is not a step"),
    "call": (
        (("call", "malloc", "int32", 0),),
        "pointwise: ('call', 'malloc', 'int32', 0) is not a step",
    ),
    "count": ((("call", "exp", "float32"),), "pointwise: ('call', 'exp', 'float32') is not a step"),
    "later": ((("+", 0, 2),), "pointwise: ('+', 0, 2) reads what is not there before it"),
    "before": ((("+", 0, -1),), "pointwise: ('+', 0, -1) reads what is not there before it"),
    "bool": ((("+", 0, True),), "pointwise: ('+', 0, True) reads what is not there before it"),
    "dtypes": (
        (("const", "int32", "1"), ("+", 0, 2)),
        "pointwise: ('+', 0, 2) is of float32 and int32",
    ),
    "condition": ((("select", 0, 0, 1),), "pointwise: ('select', 0, 0, 1) asks for no condition"),
    "constant": (
        (("const", "int32", "1.5"), ("cast", "float32", 2)),
        "pointwise: '1.5' is not of type int32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    steps, message = REFUSED[name]
    inputs = [te.placeholder((2, 3), "float32", f"p{n}") for n in range(2)]
    with pytest.raises(ValueError) as error:
        compute("pointwise", inputs, {"function": "f", "steps": steps})
    assert str(error.value) == message
