"""Loops that neighbouring tasks share (annotations.py, KEPT) compute the same in each of them."""

from __future__ import annotations

from typing import Any

from ..arith import simplify
from ..ir import (
    Block,
    Expr,
    For,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    const,
    free_vars,
    rebuild,
    substitute,
    walk,
    with_fields,
)
from ..passes.context import required
from .annotations import KEPT
from .bodies import with_body


@required
def check_kept(func: PrimFunc) -> PrimFunc:
    """for t in parallel(n): for i in range(m, annotations={KEPT: k}): A[i] = B[i, t % 2]   =>
    for t in parallel(n): for i in range(m): A[i] = B[i, t % 2]

    A loop stays KEPT where it is proven to depend on t // k alone, and nothing else in the task
    writes what it reads or writes. Otherwise each task runs it.
    """

    def visit(m: Any, task: For | None) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and KEPT in m.annotations and not (task and _is_shared(m, task)):
            m = with_fields(m, annotations={k: v for k, v in m.annotations.items() if k != KEPT})
        if not isinstance(m, (Block, Seq)):  # in other statements it is not once for each task
            task = m if isinstance(m, For) and m.kind == "parallel" else None
        return rebuild(m, lambda child: visit(child, task))

    body: Stmt = visit(func.body, None)
    return func if body is func.body else with_body(func, body)


def _is_shared(loop: For, task: For) -> bool:
    """Whether `loop` does the same in k neighbouring tasks: for t = q * k + r it needs no r."""
    shared, dtype = loop.annotations[KEPT], task.var.dtype
    if not isinstance(shared, int) or shared < 1:
        return False
    own = {m.buffer for m in walk(loop) if isinstance(m, (Load, Store))}
    if any(isinstance(m, Store) and m.buffer in own for m in walk(task, {loop})):
        return False
    q, r = Var("q", dtype), Var("r", dtype)
    turn = substitute(loop, {task.var: q * shared + r})
    turns = For(q, task.extent, "serial", For(r, const(shared, dtype), "serial", turn))
    inner: Stmt = simplify(turns)
    while isinstance(inner, For) and KEPT not in inner.annotations:
        inner = inner.body
    return r not in free_vars(inner)
