"""Statements that operators write as loops of their own, which run in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir import Buffer, Dim, Expr, ExprLike, For, If, Stmt, Store, Var, expr, seq

LEVELS = 30  # of what doubles from one to the next: indices are int32


def levels_of(extent: Dim) -> int:
    """How often 1 doubles before it is more than an extent."""
    return max(extent, 1).bit_length() if isinstance(extent, int) else LEVELS


def each(name: str, extent: ExprLike, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name)
    return For(var, expr(extent), "serial", body(var))


def put(buffer: Buffer, index: Sequence[ExprLike], value: ExprLike) -> Stmt:
    return Store(buffer, tuple(map(expr, index)), expr(value).astype(buffer.dtype))


def where(condition: Expr, *then: Stmt) -> Stmt:
    return If(condition, seq(then))


def number(buffer: Buffer, *index: ExprLike) -> Expr:
    """An element of integers, as indices are."""
    return buffer[index].astype("int32")


def nest(
    extents: Sequence[ExprLike], body: Callable[[tuple[Var, ...]], Stmt], name: str = "n"
) -> Stmt:
    """Loops around a body, which gets their variables, called by `name` and numbers."""

    def level(index: tuple[Var, ...]) -> Stmt:
        if len(index) == len(extents):
            return body(index)
        return each(f"{name}{len(index)}", extents[len(index)], lambda i: level((*index, i)))

    return level(())
