"""Named functions of expressions: those of tensor expressions and of Python's operators."""

from __future__ import annotations

from collections.abc import Callable

from .build import binary, broadcast, call, const, expr, not_, promoted, select
from .dtypes import dtype_of, value_range
from .nodes import Const, Expr, ExprLike

# An integer to a larger power is not a product of so few factors.
MOST_FACTORS = 64


def scalar(name: str, x: ExprLike) -> Expr:
    """A call of a function of one float."""
    value = expr(x)
    if dtype_of(value.dtype).kind != "float":
        raise TypeError(f"{name} of '{value}', which is {value.dtype}\n  try: .astype(\"float32\")")
    return call(name, value.dtype, value)


def power(x: ExprLike, y: ExprLike) -> Expr:
    """x to the power y. Of integers, y is a number that is not negative: the result is a product,
    as is a square of floats."""
    a, b = promoted(x, y, "*")
    number = b.value if isinstance(b, Const) else None
    if dtype_of(a.dtype).kind == "float":
        return a * a if number == 2 else call("pow", a.dtype, a, b)
    if not dtype_of(a.dtype).is_integer or not isinstance(number, int):
        raise TypeError(
            f"'{a} ** {b}' of {a.dtype}\n"
            '  try: a number as exponent, or .astype("float32") of both'
        )
    if not 0 <= number <= MOST_FACTORS:
        raise TypeError(
            f"'{a} ** {b}' of integers: the exponent is not from 0 to {MOST_FACTORS}\n"
            '  try: .astype("float32") of both'
        )
    result: Expr = const(1, a.dtype)
    for _ in range(number):
        result = result * a
    return result


def nearbyint(x: ExprLike) -> Expr:
    """To the nearest integer, half to even."""
    return scalar("nearbyint", x)


def rounded(x: ExprLike, digits: None = None) -> Expr:
    """To the nearest integer, half away from zero."""
    if digits is not None:
        raise TypeError(f"round to {digits} digits\n  try: te.round(x * 10.0) / 10.0")
    whole = scalar("trunc", x)
    value = expr(x)
    kind = dtype_of(value.dtype)
    minus, plus = (broadcast(const(n, kind.scalar), kind.lanes) for n in (-1, 1))
    step = select(value < 0, minus, plus)
    return select(absolute(value - whole) >= 0.5, whole + step, whole)


def negated(x: ExprLike) -> Expr:
    value = expr(x)
    return binary("-", const(0, dtype_of(value.dtype).scalar), value)


def absolute(x: ExprLike) -> Expr:
    value = expr(x)
    kind = dtype_of(value.dtype)
    if kind.kind in ("uint", "bool"):
        return value
    if kind.kind == "int":
        return select(value < 0, -value, value)
    return call("abs", value.dtype, value)


def inverted(x: ExprLike) -> Expr:
    """Every bit inverted; of a condition, its opposite."""
    value = expr(x)
    kind = dtype_of(value.dtype)
    if kind.kind == "bool":
        return not_(value)
    if not kind.is_integer:
        raise TypeError(f"'~' of '{value}', which is {value.dtype}\n  try: -x, or .astype")
    ones = -1 if kind.kind == "int" else value_range(value.dtype)[1]
    return binary("^", value, const(ones, kind.scalar))


# Python's operators that are functions here; "+" and "-" are those of one operand.
OPERATORS: dict[str, Callable[..., Expr]] = {
    "+": expr,
    "-": negated,
    "~": inverted,
    "abs": absolute,
    "pow": power,
    "round": rounded,
}


def function(name: str, *args: ExprLike | None) -> Expr:
    """What an operator of Python makes."""
    return OPERATORS[name](*args)
