"""Operators of Python on expressions: each makes an expression or is refused, none has a meaning of
Python's own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc_deploy import ir, te
from mlc_deploy.ir.interp import run

BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.add,
    operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.matmul,
    operator.pow, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor,
    divmod,
)  # fmt: skip
UNARY: tuple[Callable[[Any], Any], ...] = (
    operator.neg, operator.pos, operator.inv, abs, round,
)  # fmt: skip
REFUSED: tuple[Callable[[Any], Any], ...] = (
    bool, operator.not_, int, float, complex, operator.index, len, iter, list,
    lambda x: x and x, lambda x: x or x, lambda x: 1 in x, lambda x: x in (1, 2),
    lambda x: 0 < x < 3, lambda x: "a" if x else "b", lambda x: x == "a",
    lambda x: x != [1], lambda x: round(x, 2),
)  # fmt: skip
DTYPES = ("int32", "float32", "uint8", "bool")


def is_expression(made: object) -> bool:
    return all(isinstance(e, ir.Expr) for e in (made if isinstance(made, tuple) else (made,)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operate", BINARY)
def test_binary(operate: Callable[[Any, Any], Any], dtype: str) -> None:
    """Of two expressions, of an expression and a number on either side, also numpy's, and of an
    axis."""
    x, y, axis = te.var("x", dtype), te.var("y", dtype), te.reduce_axis((0, 4), "k")
    for a, b in (
        (x, y),
        (x, 3),
        (3, x),
        (x, np.int32(3)),
        (np.float32(3), x),
        (axis, 3),
        (3, axis),
    ):
        try:
            made = operate(a, b)
        except TypeError as error:
            assert str(error), "refused without a word"
            continue
        assert is_expression(made), f"{operate.__name__}({a}, {b}) is {made!r}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary(dtype: str) -> None:
    for operate in UNARY:
        try:
            made = operate(te.var("x", dtype))
        except TypeError as error:
            assert dtype in str(error)
            continue
        assert is_expression(made), f"{operate.__name__} is {made!r}"


@pytest.mark.parametrize("asked", REFUSED)
def test_refused(asked: Callable[[Any], Any]) -> None:
    for x in (te.var("x"), te.var("x") == 3, te.reduce_axis((0, 4), "k")):
        with pytest.raises(TypeError):
            asked(x)


def test_identity_has_names() -> None:
    x, y = te.var("x"), te.var("y")
    assert x.same_as(x) and not x.same_as(y)
    assert ir.same_expr(x + 1, x + 1) and not ir.same_expr(x + 1, y + 1)
    assert ir.structural_equal(x + 1, y + 1)
    assert {x: 1}[x] == 1 and len({x, y, x}) == 2
    assert bool(x == x) and not bool(x != x), "known, since the two are one object"


def element(f: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """f of the elements of two arrays and their number, computed by the interpreter."""
    x, y = (te.placeholder(v.shape, str(v.dtype), n) for v, n in ((a, "A"), (b, "B")))
    made = te.compute(a.shape, lambda i: f(x[i], y[i], i), name="C")
    out = np.zeros(a.shape, made.dtype)
    run(te.create_prim_func([x, y, made]), a, b, out)
    return out


choose = te.if_then_else
WHERE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "i == 0": (lambda a, b, i: choose(i == 0, 1, a), lambda a, b, i: np.where(i == 0, 1, a)),
    "0 != i": (lambda a, b, i: te.select(0 != i, a, b), lambda a, b, i: np.where(i != 0, a, b)),
    "a == b": (lambda a, b, i: choose(a == b, i, -1), lambda a, b, i: np.where(a == b, i, -1)),
    "a != 5": (lambda a, b, i: choose(a != 5, a, b), lambda a, b, i: np.where(a != 5, a, b)),
    "~a": (lambda a, b, i: ~a, lambda a, b, i: ~a),
    "~(a == b)": (lambda a, b, i: choose(~(a == b), a, 9), lambda a, b, i: np.where(a != b, a, 9)),
    "a ** 3": (lambda a, b, i: a**3, lambda a, b, i: a**3),
    "both": (
        lambda a, b, i: te.select((a == b) & (i > 1), 1, 0),
        lambda a, b, i: ((a == b) & (i > 1)).astype(np.int32),
    ),
    "either": (
        lambda a, b, i: te.select((a == b) | (i < 1) ^ (a == 2), 1, 0),
        lambda a, b, i: ((a == b) | (i < 1) ^ (a == 2)).astype(np.int32),
    ),
    "divmod": (lambda a, b, i: divmod(a, 3)[0] + divmod(a, 3)[1], lambda a, b, i: a // 3 + a % 3),
    "shifts": (lambda a, b, i: (1 << i) + (64 >> i), lambda a, b, i: (1 << i) + (64 >> i)),
}  # fmt: skip


@pytest.mark.parametrize("name", WHERE)
def test_meaning(name: str) -> None:
    ours, numpys = WHERE[name]
    a = np.array([5, 2, -5, 7, 5, 0], np.int32)
    b = np.array([5, 3, -5, 8, 1, 0], np.int32)
    i = np.arange(6, dtype=np.int32)
    np.testing.assert_array_equal(element(ours, a, b), numpys(a, b, i))


def test_rounding() -> None:
    """round rounds halves away from zero, nearbyint to even."""
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, -0.3, 8388609.0, 1e30], np.float32)
    away = np.array([1, 2, 3, -1, -3, 0, 0, 8388609, 1e30], np.float32)
    np.testing.assert_array_equal(
        element(lambda a, b, i: te.round(a), x, x), np.array(away, np.float32)
    )
    np.testing.assert_array_equal(element(lambda a, b, i: te.nearbyint(a), x, x), np.rint(x))


def test_truth_is_refused_in_words() -> None:
    x = te.var("x")
    with pytest.raises(ir.UnknownValue) as refused:
        te.if_then_else(x == 0 and x < 3, 1, 0)
    assert str(refused.value) == (
        "the truth of 'x == 0' is not known while the program is being built\n"
        "  try: te.if_then_else(condition, a, b) instead of 'if'; te.all(a, b), te.any(a, b)"
        " and te.not_(a) instead of 'and', 'or' and 'not'; a.same_as(b) for the same object"
    )
