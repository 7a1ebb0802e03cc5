"""No-op removal: statements without effect are dropped."""

from __future__ import annotations

from typing import Any

from ..ir import (
    Block,
    Buffer,
    Call,
    Evaluate,
    Expr,
    Let,
    Load,
    PrimFunc,
    Seq,
    Store,
    contents,
    rebuild,
    same_expr,
    walk,
    with_fields,
)
from ..passes.context import optional
from .lanes import uses


@optional(level=1)
def remove_no_ops(func: PrimFunc) -> PrimFunc:
    """B[i] = B[i]; scratch[j] = x (never read); let v = x: S (without v)   =>   S

    Scratch buffers that are then unused are not allocated. LLVM cannot drop a dead store to the
    workspace, since the caller might read it.
    """
    while True:
        root = func.body
        assert isinstance(root, Block)
        read = contents(root).loaded
        dead = {b for b in root.allocs if b not in read}
        body = _without(root.body, dead)
        allocs = tuple(b for b in root.allocs if b in read)
        if body is root.body and len(allocs) == len(root.allocs):
            return func
        func = with_fields(func, body=with_fields(root, body=body, allocs=allocs))


def _without(s: Any, dead: set[Buffer]) -> Any:
    def visit(m: Any) -> Any:
        match m:
            case Expr():
                return m
            case Store(buffer) if buffer in dead:
                return Seq(())
            case Store(buffer, (index,), Load(read, (where,))) if buffer is read:
                return Seq(()) if same_expr(index, where) else m
            case Let(var, _, body) if not uses(body, var):
                return visit(body)
            case Evaluate(value) if not any(isinstance(n, Call) for n in walk(value)):
                return Seq(())
        return rebuild(m, visit)

    return visit(s)
