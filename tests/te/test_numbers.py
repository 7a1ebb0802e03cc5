"""Python numbers beside expressions, and dtypes beside each other: no number wraps unseen."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.ir import Const, Expr, numpy_dtype, same_expr
from mlc_deploy.ir.build import common
from mlc_deploy.ir.interp import run
from mlc_deploy.script import from_script

NUMBERS = (-70000, -300, -200, -129, -128, -1, 0, 1, 3, 127, 128, 200, 255, 256, 300, 70000)
EXACT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "min": (te.min, min),
    "max": (te.max, max),
    "&": (operator.and_, operator.and_),
    "|": (operator.or_, operator.or_),
    "^": (operator.xor, operator.xor),
    "<": (operator.lt, operator.lt),
    ">=": (operator.ge, operator.ge),
    "==": (operator.eq, operator.eq),
    "select": (lambda x, n: te.select(x > 0, x, n), lambda x, n: x if x > 0 else n),
}  # fmt: skip


def values(f: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    a = te.placeholder(x.shape, str(x.dtype), "A")
    made = te.compute(x.shape, lambda i: f(a[i]).astype("int64"), name="B")
    out = np.zeros(x.shape, np.int64)
    run(te.create_prim_func([a, made]), x, out)
    return out


def as_int32(n: int) -> int:
    """A product of 16 bits and 17 wraps in int32, as in TVM."""
    return (n + (1 << 31)) % (1 << 32) - (1 << 31)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("name", EXACT)
def test_small_integers_are_exact(name: str, dtype: str) -> None:
    """Every small number beside every Python number, on either side: what the integers give."""
    ours, exact = EXACT[name]
    info = np.iinfo(dtype)
    x = np.unique(np.linspace(info.min, info.max, 256).astype(dtype))
    for number in NUMBERS:
        wanted = [as_int32(exact(int(e), number)) for e in x]
        actual = values(partial(lambda n, e: ours(e, n), number), x)
        np.testing.assert_array_equal(actual, wanted, str(number))
        if name != "select":
            wanted = [as_int32(exact(number, int(e))) for e in x]
            actual = values(partial(ours, number), x)
            np.testing.assert_array_equal(actual, wanted, str(number))


WIDENED = {
    "int8 * 200": ("int8", lambda x: x * 200, "int32"),
    "uint8 - 128": ("uint8", lambda x: x - 128, "int32"),
    "int32 < 2**31": ("int32", lambda x: te.if_then_else(x < 2**31, x, x), "int32"),
    "int32 + 2**31": ("int32", lambda x: x + 2**31, "int64"),
    "uint32 + 1": ("uint32", lambda x: x + 1, "uint32"),
    "uint32 + 2**31": ("uint32", lambda x: x + 2**31, "int64"),
    "uint64 + 2**63": ("uint64", lambda x: x + (2**64 - 1), "uint64"),
    "float16 * 100000.0": ("float16", lambda x: x * 100000.0, "float32"),
    "float16 * 2.0": ("float16", lambda x: x * 2.0, "float16"),
    "float32 * 1e300": ("float32", lambda x: x * 1e300, "float64"),
    "int32 * 0.5": ("int32", lambda x: x * 0.5, "float32"),
    "bool + 1": ("bool", lambda x: x + 1, "int32"),
    "-int8": ("int8", lambda x: -x, "int8"),
}


@pytest.mark.parametrize("name", WIDENED)
def test_dtype_beside_a_number(name: str) -> None:
    dtype, f, wanted = WIDENED[name]
    assert f(te.var("x", dtype)).dtype == wanted


def test_comparisons_hold_at_the_edges() -> None:
    x = np.array([-(2**31), -1, 0, 2**31 - 1], np.int32)
    np.testing.assert_array_equal(values(lambda e: te.select(e < 2**31, 1, 0), x), [1] * 4)
    unsigned = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(values(lambda e: te.select(e > -1, 1, 0), unsigned), [1] * 256)


def test_refused() -> None:
    refusals = {
        lambda: te.const(200, "int8"): "200 is no int8: those go from -128 to 127",
        lambda: te.const(-1, "uint64"): "-1 is no uint64: those go from 0 to 18446744073709551615",
        lambda: te.const(0.5, "int32"): "0.5 is no int32: those go from -2147483648 to 2147483647",
        lambda: te.var("x", "uint32") - (-1): "-1 is no uint32: those go from 0 to 4294967295",
        lambda: (
            te.var("x") * 2**70
        ): f"{2**70} is no int64: those go from {-(2**63)} to {2**63 - 1}",
    }
    for make, what in refusals.items():
        with pytest.raises(ValueError) as refused:
            make()
        mend = "  try: a wider dtype, or .astype on an expression"
        assert str(refused.value) == f"{what}\n{mend}"


@pytest.mark.parametrize("a", ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("b", ["uint8", "int32", "uint32", "int64", "float16", "float32"])
def test_dtypes_beside_each_other(a: str, b: str) -> None:
    """Both sides in the common dtype, which is the same from both sides, and numpy's casts."""
    assert common(a, b) == common(b, a)
    x, y = np.array([0, 1, 1, 0]).astype(a), np.array([1, 5, 100, 255]).astype(b)
    p, q = te.placeholder((4,), a, "A"), te.placeholder((4,), b, "B")
    made = te.compute((4,), lambda i: p[i] + q[i], name="C")
    assert made.dtype == common(a, b)
    out = np.zeros(4, made.dtype)
    run(te.create_prim_func([p, q, made]), x, y, out)
    whole = numpy_dtype(made.dtype)
    np.testing.assert_array_equal(out, x.astype(whole) + y.astype(whole))


def test_scripts_have_the_same_numbers() -> None:
    func = from_script("""
@T.prim_func
def main(A: T.Buffer((256,), "uint8"), B: T.Buffer((256,), "int32")):
    for i in range(256):
        with T.block("B"):
            v = T.axis.spatial(256, i)
            B[v] = (A[v] - 128) * 3 + T.min(A[v], -5)
""")
    a, out = np.arange(256, dtype=np.uint8), np.zeros(256, np.int32)
    run(func, a, out)  # type: ignore[arg-type]
    np.testing.assert_array_equal(out, (a.astype(np.int32) - 128) * 3 - 5)


def test_a_number_that_fits_keeps_the_dtype_where_the_value_is_the_same() -> None:
    x = te.var("x", "int8")
    made = te.max(x, 3)
    assert made.dtype == "int8"
    assert same_expr(made, te.max(x, te.const(3, "int8")))
    assert isinstance(te.const(3), Const) and isinstance(made, Expr)
