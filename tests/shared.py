"""Expressions whose parts stand in more places than a walk could visit, and deep ones."""

from __future__ import annotations

from collections.abc import Callable

from mlc_deploy import PrimFunc, te
from mlc_deploy.ir import Expr

LEVELS = 60  # 2^60 places
DEPTH = 1_000
SIZE = 8  # of a tensor


def doubled(e: Expr) -> Expr:
    """2^LEVELS * e."""
    for _ in range(LEVELS):
        e = e + e
    return e


def deep(e: Expr) -> Expr:
    """DEPTH additions below each other, no part of which stands twice."""
    total = e
    for n in range(DEPTH):
        total = total + e * (n % 7)
    return total


def function(make: Callable[[Expr], Expr], dtype: str = "float32") -> PrimFunc:
    """y[i] = make(x[i])."""
    x = te.placeholder((SIZE,), dtype, "x")
    return te.create_prim_func([x, te.compute((SIZE,), lambda i: make(x[i]), "y")], "shared")


def squared(e: Expr) -> Expr:
    """e^(2^LEVELS)."""
    for _ in range(LEVELS):
        e = e * e
    return e


def largest(e: Expr) -> Expr:
    for n in range(LEVELS):
        e = te.maximum(e, e - n)
    return e


def gated(e: Expr) -> Expr:
    for _ in range(LEVELS):
        e = e * te.sigmoid(e)
    return e


def guarded(e: Expr) -> Expr:
    """Of which a part is computed under a condition only."""
    return te.if_then_else(e > 0, doubled(e), e) + te.if_then_else(e < 1, doubled(e * 3), e)


CASES: dict[str, tuple[Callable[[Expr], Expr], str]] = {
    "doubled float32": (doubled, "float32"),
    "doubled int32": (doubled, "int32"),
    "doubled int64": (doubled, "int64"),
    "doubled int8": (doubled, "int8"),
    "squared int64": (squared, "int64"),
    "largest int32": (largest, "int32"),
    "largest float32": (largest, "float32"),
    "gated float32": (gated, "float32"),
    "guarded float32": (guarded, "float32"),
    "deep float32": (deep, "float32"),
    "deep int32": (deep, "int32"),
    "deep int64": (deep, "int64"),
}
