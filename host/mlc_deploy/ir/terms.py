"""A function that adds a buffer's elements becomes one that may leave them out.

    B[i] = max(A[i] + C[i], 0)   =>   if added >= 1: B[i] = max(A[i] + C[i], 0)
                                      else: B[i] = max(A[i], 0)

Two kernels share it: one gives C and added = 1, the other has no C and added = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .build import compare
from .nodes import (
    LEFT_OUT,
    MOST,
    SCALARS,
    Binary,
    Buffer,
    Expr,
    If,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
)
from .rewrite import once, rebuild, walk, with_fields

ADDED = "added"


def with_choice(func: PrimFunc, term: Buffer, adds: Sequence[int] = (1, 0)) -> PrimFunc | None:
    """A scheduled function that adds elements of its parameter `term`, with an integer parameter in
    front. adds: its value for each kernel that shares the function: 1, or 0 for a kernel that has
    no such elements. None where the function does more with them than to add them."""
    added = Var(ADDED)

    @once
    def without(n: Any) -> Any:
        match n:
            case Binary("+", kept, Load(buffer)) if buffer is term:
                return without(kept)
            case Binary("+", Load(buffer), kept) if buffer is term:
                return without(kept)
        return rebuild(n, without)

    def chosen(n: Any) -> Any:
        match n:
            case Store():
                other = without(n)
                return n if other is n else If(compare(">=", added, 1), n, other)
            case Expr():
                return n
        return rebuild(n, chosen)

    if any(isinstance(n, Load) and n.buffer is term for n in walk(without(func.body))):
        return None
    body: Stmt = chosen(func.body)
    attrs = {
        **func.attrs,
        MOST: {ADDED: 1},
        SCALARS: tuple({ADDED: value} for value in adds),
        LEFT_OUT: tuple(() if value else (term.name,) for value in adds),
    }
    return with_fields(func, params=(added, *func.params), body=body, attrs=attrs)
