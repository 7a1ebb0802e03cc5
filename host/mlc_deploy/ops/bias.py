"""A bias as what sums begin with, rather than an addition after them."""

from __future__ import annotations

from collections.abc import Mapping
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
    loads,
    rebuild,
    same_expr,
    statements,
    substitute,
    with_fields,
)
from ..schedule.tree import refreshed, replace, vars_in


def begin_with_bias(func: PrimFunc, tile: str, result: str) -> PrimFunc:
    """sums = 0 + products; result = f(sums + bias)   =>   sums = bias + products; result = f(sums)

    for the sums that block `tile` makes, and a bias that needs only those dimensions of them that
    block `result` takes as they are: not what is cut off, nor what it addresses otherwise. The
    same function where there is no such bias. Sums of floats are rounded in that order.
    """
    blocks = {s.name: s for s in statements(func.body) if isinstance(s, Block)}
    last, sums = blocks[result], blocks[tile]
    if not isinstance(last.body, Store) or not _adds_up(sums):
        return func
    assert isinstance(sums.init, Store)
    read = [n for n in loads(last.body.value) if n.buffer is sums.writes[0].buffer]
    if len(read) != 1:
        return func
    wanted = {i.var: i.extent for i in last.iters}
    made = {i.var: i.extent for i in sums.iters}
    at: dict[Var, Expr] = {
        i: v
        for i, v in zip(read[0].indices, sums.init.indices, strict=True)
        if isinstance(i, Var) and isinstance(v, Var) and same_expr(wanted[i], made[v])
    }
    return moved_into(func, sums, last, read[0].buffer, at)


def moved_into(
    func: PrimFunc, tile: Block, last: Block, sums: Buffer, at: Mapping[Var, Expr]
) -> PrimFunc:
    """The function with a bias, that block `last` adds to what it reads of `sums`, moved to where
    block `tile` begins its sums; unchanged where there is none. at: what iterations of `last` are
    in `tile`, of those that a bias may depend on."""
    assert isinstance(last.body, Store) and isinstance(tile.init, Store)
    bias = _bias(last.body.value, sums, set(at))
    if bias is None:
        return func
    value = _without(last.body.value, sums, bias)
    if sum(load.buffer is sums for load in loads(value)) != 1:
        return func
    init = with_fields(tile.init, value=substitute(bias, at))
    func = replace(func, tile, refreshed(with_fields(tile, init=init)))
    return replace(
        func, last, refreshed(with_fields(last, body=with_fields(last.body, value=value)))
    )


def _adds_up(tile: Block) -> bool:
    """Whether a block sums up, beginning with zeros; others take the largest, say."""
    (store,) = (s for s in statements(tile.body) if isinstance(s, Store))
    begin = tile.init.value if isinstance(tile.init, Store) else None
    match store.value:
        case Binary("+") | Call("if_then_else", (_, Binary("+"), _)):
            return isinstance(begin, Const) and begin.value == 0
    return False


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

    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and vars_in(terms[1]) <= channel:
            found.append(terms[1])
        return rebuild(e, visit)

    visit(value)
    return found[0] if found else None


def _without(value: Expr, sums: Buffer, bias: Load) -> Expr:
    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and same_expr(terms[1], bias):
            return terms[0]
        return rebuild(e, visit)

    done: Expr = visit(value)
    return done
