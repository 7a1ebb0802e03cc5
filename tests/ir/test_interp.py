"""The reference interpreter against numpy: every operator, index checks, arguments, symbols."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import (
    Buffer,
    Expr,
    For,
    PrimFunc,
    Ramp,
    Shuffle,
    Store,
    Var,
    binary,
    cast,
    compare,
    const,
    load,
)
from mlc_deploy.ir.interp import run
from tests.codegen.operators import DTYPES, FLOATS, INTEGERS, Array, castable, division, pair, shift

NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "tmod": np.fmod,
    "min": np.minimum,
    "max": np.maximum,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "<<": np.left_shift,
    ">>": np.right_shift,
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
ARITHMETIC = ("+", "-", "*", "min", "max")
BITS = ("&", "|", "^")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def elementwise(f: Callable[..., Expr], *arrays: NDArray[Any]) -> NDArray[Any]:
    sources = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
    out = te.compute(arrays[0].shape, lambda *i: f(*(x[i] for x in sources)), name="out")
    result = np.zeros(arrays[0].shape, out.dtype)
    run(te.create_prim_func([*sources, out]), *(a.copy() for a in arrays), result)
    return result


def check(op: str, operands: list[Array]) -> None:
    make = compare if op in COMPARISONS else binary
    with np.errstate(all="ignore"):
        wanted = NUMPY[op](*operands)
    np.testing.assert_array_equal(elementwise(lambda a, b: make(op, a, b), *operands), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(dtype: str) -> None:
    if dtype == "bool":
        for op in (*BITS, "==", "!="):
            check(op, pair(dtype))
        return
    for op in (*ARITHMETIC, *COMPARISONS, *(("/",) if dtype in FLOATS else BITS)):
        check(op, pair(dtype))
    if dtype in INTEGERS:
        for op in ("//", "%", "tmod"):
            check(op, division(dtype))
        for op in ("<<", ">>"):
            check(op, shift(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_towards_zero(dtype: str) -> None:
    a, b = division(dtype)
    quotient = elementwise(lambda x, y: binary("tdiv", x, y), a, b)
    rest = elementwise(lambda x, y: binary("tmod", x, y), a, b)
    for x, y, q, r in zip(*(v.tolist() for v in (a, b, quotient, rest)), strict=True):
        assert q * y + r == x and abs(r) < abs(y)
        assert r == 0 or (r < 0) == (x < 0)


@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: str) -> None:
    for to in DTYPES:
        if to != source:
            (values,) = castable(source, to)
            with np.errstate(all="ignore"):
                wanted = values.astype(to)
            np.testing.assert_array_equal(elementwise(lambda x, to=to: cast(to, x), values), wanted)


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "nearbyint": np.rint,
    "trunc": np.trunc,
    "abs": np.abs,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(name: str, dtype: str) -> None:
    """Rounded once, from float64."""
    x = pair(dtype)[0]
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](x.astype(np.float64)).astype(dtype)
    np.testing.assert_array_equal(elementwise(getattr(te, name), x), wanted)


def test_if_then_else_evaluates_one_side() -> None:
    x = te.placeholder((4,), name="x")
    out = te.compute((8,), lambda i: te.if_then_else(i < 4, x[i], -1), name="out")
    result = np.zeros(8, np.float32)
    run(te.create_prim_func([x, out]), np.arange(4, dtype=np.float32), result)
    np.testing.assert_array_equal(result, [0, 1, 2, 3, -1, -1, -1, -1])


@pytest.mark.parametrize(("index", "shown"), [(8, "8"), (-1, "-1")])
def test_an_access_outside_is_an_error(index: int, shown: str) -> None:
    a = Buffer("A", (8,))
    func = PrimFunc("main", (a,), Store(a, (const(index),), const(0.0)))
    with pytest.raises(IndexError, match=re.escape(f"index {shown} is outside [0, 8)")):
        run(func, np.zeros(8, np.float32))


def test_vectors_are_checked_lane_by_lane() -> None:
    a = Buffer("A", (8,))
    lanes = Ramp(const(5), const(1), 4, "int32x4")
    func = PrimFunc("main", (a,), Store(a, (lanes,), load(a, (lanes,))))
    with pytest.raises(IndexError, match="outside"):
        run(func, np.zeros(8, np.float32))


def test_vectors() -> None:
    a, b = Buffer("A", (8,)), Buffer("B", (8,))
    low, high = (Ramp(const(n), const(1), 4, "int32x4") for n in (0, 4))
    back = Shuffle((load(a, (low,)), load(a, (high,))), (7, 6, 5, 4, 3, 2, 1, 0), "float32x8")
    whole = Ramp(const(0), const(1), 8, "int32x8")
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run(PrimFunc("main", (a, b), Store(b, (whole,), back)), x, y)
    np.testing.assert_array_equal(y, x[::-1])


def test_fresh_memory_shows() -> None:
    """A scratch buffer that is read before it is written gives no number."""
    x = te.placeholder((4,), name="x")
    t = te.compute((4,), lambda i: x[i] + 1, name="t")
    func = te.create_prim_func([x, te.compute((4,), lambda i: t[i] * 2, name="y")])
    last = func.body.body.stmts[1]  # type: ignore[attr-defined]
    assert isinstance(last, For)
    result = np.zeros(4, np.float32)
    run(PrimFunc("main", func.params, last), np.ones(4, np.float32), result)
    assert np.isnan(result).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([np.zeros(4, np.float32)], "main takes 2 arguments, 1 given"),
        ([np.zeros(4, np.int32), np.zeros(4, np.float32)], "'x' is float32, given int32"),
        ([np.zeros(5, np.float32), np.zeros(4, np.float32)], "'x' has shape (4,), given (5,)"),
        (
            [np.zeros(4, np.float32), np.zeros((2, 4), np.float32)[:, :2]],
            "'y' must be contiguous",
        ),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[Array], message: str) -> None:
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i], name="y")])
    with pytest.raises(ValueError, match=re.escape(message)):
        run(func, *arguments)


def test_symbolic_shapes_come_from_the_arrays() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="x")
    k = te.reduce_axis(m, "k")
    func = te.create_prim_func([x, te.compute((n,), lambda i: te.sum(x[i, k], k), name="y")])
    for shape in ((3, 5), (1, 1), (7, 2)):
        data, result = (
            np.arange(np.prod(shape), dtype=np.float32).reshape(shape),
            np.zeros(shape[0], np.float32),
        )
        run(func, data, result)
        np.testing.assert_array_equal(result, data.sum(1))


def test_a_dimension_that_two_arrays_disagree_on() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    func = te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])
    with pytest.raises(ValueError, match=re.escape("'y' has shape (3,), given (4,)")):
        run(func, np.zeros(3, np.float32), np.zeros(4, np.float32))


def test_integer_parameters() -> None:
    a, n = Buffer("A", (8,), "int32"), Var("n")
    i = Var("i")
    func = PrimFunc("main", (a, n), For(i, n, "serial", Store(a, (i,), i * n)))
    result = np.full(8, -1, np.int32)
    run(func, result, 3)
    np.testing.assert_array_equal(result, [0, 3, 6, -1, -1, -1, -1, -1])
