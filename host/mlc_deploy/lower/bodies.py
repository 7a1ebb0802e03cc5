"""Functions and loops whose body a pass rewrites."""

from __future__ import annotations

from typing import TypeVar

from ..ir import For, PrimFunc, Stmt, with_fields

N = TypeVar("N", PrimFunc, For)


def with_body(n: N, body: Stmt) -> N:
    """n with another body; n itself where the body is the same."""
    return n if body is n.body else with_fields(n, body=body)
