"""Functions whose body a pass rewrites."""

from __future__ import annotations

from ..ir import PrimFunc, Stmt, with_fields


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """The function with another body; the same function where the body is the same."""
    return func if body is func.body else with_fields(func, body=body)
