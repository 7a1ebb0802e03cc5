"""fuse_reduction_epilogue: a bias as what sums begin with, rather than an addition after them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    PrimFunc,
    Store,
    Var,
    children,
    loads,
    once,
    rebuild,
    same_expr,
    statements,
    substitute,
    walk,
    with_fields,
)
from .tree import block_at, find_block, refreshed, replace, vars_in


def fuse_reduction_epilogue(
    func: PrimFunc,
    reduction: str,
    epilogue: str,
    read: str | None = None,
    at: Sequence[Sequence[int]] | None = None,
) -> PrimFunc:
    """sums = 0 + products; result = f(sums + bias)   =>   sums = bias + products; result = f(sums)

    for the sums that block `reduction` makes, and a bias that needs only those dimensions of them
    that block `epilogue` takes as they are: not what is cut off, nor what it addresses otherwise.
    The same function where there is no such bias. Sums of floats are rounded in that order.

    Where blocks in between put the sums elsewhere, `read` is the last of those, and `at` says which
    sums an iteration of the epilogue takes: (its number, a number of the reduction's iterations,
    the factor that this counts for, another, its factor, ...). That is taken at its word.
    """
    primitive = "fuse_reduction_epilogue"
    last, sums, made = (
        block_at(find_block(func, name, primitive))
        for name in (epilogue, reduction, read or reduction)
    )
    if not isinstance(last.body, Store) or not _adds_up(sums):
        return func
    buffer = made.writes[0].buffer
    if _readers(last.body.value, buffer) != 1:
        return func
    places = _as_they_are(sums, last, buffer) if at is None else _combined(sums, last, at)
    bias = _bias(last.body.value, buffer, set(places))
    if bias is None:
        return func
    value = _without(last.body.value, buffer, bias)
    if _readers(value, buffer) != 1:
        return func
    assert isinstance(sums.init, Store)
    init = with_fields(sums.init, value=substitute(bias, places))
    func = replace(func, sums, refreshed(with_fields(sums, init=init)))
    return replace(
        func, last, refreshed(with_fields(last, body=with_fields(last.body, value=value)))
    )


def _as_they_are(sums: Block, last: Block, buffer: Buffer) -> dict[Var, Expr]:
    """What iterations of `last` are in `sums`, of those that index what both share."""
    assert isinstance(last.body, Store) and isinstance(sums.init, Store)
    (read,) = (n for n in loads(last.body.value) if n.buffer is buffer)
    wanted = {i.var: i.extent for i in last.iters}
    made = {i.var: i.extent for i in sums.iters}
    return {
        i: v
        for i, v in zip(read.indices, sums.init.indices, strict=True)
        if isinstance(i, Var) and isinstance(v, Var) and same_expr(wanted[i], made[v])
    }


def _combined(sums: Block, last: Block, at: Sequence[Sequence[int]]) -> dict[Var, Expr]:
    def of(iteration: int, factor: int) -> Expr:
        var = sums.iters[iteration].var
        return var if factor == 1 else var * factor

    found: dict[Var, Expr] = {}
    for number, *terms in at:
        parts = [of(i, f) for i, f in zip(terms[::2], terms[1::2], strict=True)]
        found[last.iters[number].var] = reduce(add, parts)
    return found


def _adds_up(tile: Block) -> bool:
    """Whether a block sums up, beginning with zeros; others take the largest, say."""
    (store,) = (s for s in statements(tile.body) if isinstance(s, Store))
    begin = tile.init.value if isinstance(tile.init, Store) else None
    match store.value:
        case Binary("+") | Call("if_then_else", (_, Binary("+"), _)):
            return isinstance(begin, Const) and begin.value == 0
    return False


def _readers(value: Expr, buffer: Buffer) -> int:
    """In how many places a load of the buffer stands, in all of value."""
    places = [value, *(c for n in walk(value) for c in children(n))]
    return sum(isinstance(c, Load) and c.buffer is buffer for c in places)


def _terms(e: Any, sums: Buffer) -> tuple[Load, Load] | None:
    """(sums, bias) where e is their sum, of loads."""
    match e:
        case Binary("+", Load() as a, Load() as b):
            for x, y in ((a, b), (b, a)):
                if x.buffer is sums and y.buffer is not sums:
                    return x, y
    return None


def _bias(value: Expr, sums: Buffer, channel: set[Var]) -> Load | None:
    found: list[Load] = []

    @once
    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and vars_in(terms[1]) <= channel:
            found.append(terms[1])
        return rebuild(e, visit)

    visit(value)
    return found[0] if found else None


def _without(value: Expr, sums: Buffer, bias: Load) -> Expr:
    @once
    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and same_expr(terms[1], bias):
            return terms[0]
        return rebuild(e, visit)

    done: Expr = visit(value)
    return done
