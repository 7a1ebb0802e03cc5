"""Statements of operators that write serial loops of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir import Buffer, Dim, Expr, ExprLike, For, If, Stmt, Store, Var, expr, seq

LEVELS = 30  # most doublings up to an index: indices are int32


def levels_of(extent: Dim) -> int:
    """How often 1 doubles until it exceeds an extent."""
    return max(extent, 1).bit_length() if isinstance(extent, int) else LEVELS


def each(name: str, extent: ExprLike, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name)
    return For(var, expr(extent), "serial", body(var))


def put(buffer: Buffer, index: Sequence[ExprLike], value: ExprLike) -> Stmt:
    return Store(buffer, tuple(map(expr, index)), expr(value).astype(buffer.dtype))


def where(condition: Expr, *then: Stmt) -> Stmt:
    return If(condition, seq(then))


def number(buffer: Buffer, *index: ExprLike) -> Expr:
    """An element of integers, as an int32 index."""
    return buffer[index].astype("int32")


def nest(
    extents: Sequence[ExprLike], body: Callable[[tuple[Var, ...]], Stmt], name: str = "n"
) -> Stmt:
    """Loops around body(variables); `name` and a number name each variable."""

    def level(index: tuple[Var, ...]) -> Stmt:
        if len(index) == len(extents):
            return body(index)
        return each(f"{name}{len(index)}", extents[len(index)], lambda i: level((*index, i)))

    return level(())
