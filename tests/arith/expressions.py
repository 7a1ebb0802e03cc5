"""Random integer expressions over small boxes, and what they are worth at each point."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from mlc_deploy.ir import (
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    Not,
    Select,
    Var,
    binary,
    compare,
    const,
    select,
)

Box = Mapping[Var, tuple[int, int]]
Point = Mapping[Var, int]

VARIABLES = tuple(Var(name) for name in "ijk")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def value(e: Expr, at: Point) -> int | bool:
    match e:
        case Const():
            return int(e.value)
        case Var():
            return at[e]
        case Binary(op, a, b) | Compare(op, a, b):
            found: int | bool = OPERATORS[op](value(a, at), value(b, at))
            return found
        case Not(a):
            return not value(a, at)
        case Select(c, a, b) | Call("if_then_else", (c, a, b)):
            return value(a if value(c, at) else b, at)
    raise TypeError(e)


def points(box: Box) -> Iterator[Point]:
    spans = [range(low, high + 1) for low, high in box.values()]
    for values in itertools.product(*spans):
        yield dict(zip(box, values, strict=True))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    box: dict[Var, tuple[int, int]] = {}
    for v in VARIABLES:
        low = draw(st.sampled_from((0, 0, 0, 0, -3, 2, -7, 5)))
        box[v] = low, low + draw(st.integers(0, 7))
    return box


leaves = st.one_of(st.sampled_from(VARIABLES), st.integers(-9, 17).map(const))
positive = st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 12, 16))


def _composed(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(binary, st.sampled_from("+-"), inner, inner),
        st.builds(binary, st.sampled_from(("min", "max")), inner, inner),
        st.builds(binary, st.just("*"), inner, st.integers(-8, 16)),
        st.builds(binary, st.just("*"), inner, inner),
        st.builds(binary, st.sampled_from(("//", "%")), inner, positive),
        st.builds(
            select,
            st.builds(compare, st.sampled_from(COMPARISONS), inner, inner),
            inner,
            inner,
        ),
    )


integers = st.recursive(leaves, _composed, max_leaves=8)
# What indices look like: sums, products and divisions by constants of the variables.
indices = st.recursive(
    st.sampled_from(VARIABLES),
    lambda inner: st.one_of(
        st.builds(binary, st.sampled_from("+-"), inner, inner),
        st.builds(binary, st.just("+"), inner, st.integers(-9, 17)),
        st.builds(binary, st.just("*"), inner, st.sampled_from((2, 3, 4, 8, -1, 16))),
        st.builds(binary, st.sampled_from(("//", "%")), inner, positive),
    ),
    max_leaves=6,
)
