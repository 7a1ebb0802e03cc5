"""Functions and loops whose body a pass rewrites, and runs of stores in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..ir import Expr, For, PrimFunc, Seq, Stmt, Store, rebuild, with_fields

N = TypeVar("N", PrimFunc, For)


def with_body(n: N, body: Stmt) -> N:
    """n with another body; n itself where the body is the same."""
    return n if body is n.body else with_fields(n, body=body)


def with_runs(s: Stmt, rewrite: Callable[[Seq], Seq]) -> Stmt:
    """s with its sequences of several stores rewritten."""

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, Seq) and sum(isinstance(x, Store) for x in m.stmts) > 1:
            m = rewrite(m)
        return rebuild(m, visit)

    done: Stmt = visit(s)
    return done
