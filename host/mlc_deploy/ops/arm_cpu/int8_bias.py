"""A bias as what sums of int8 begin with, rather than an addition after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ir import (
    Binary,
    Block,
    Buffer,
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
from ...schedule.tree import refreshed, replace, vars_in
from .int8 import BLOCK, TILE, VECTORS, Level


def begin_with_bias(
    func: PrimFunc, result: str, level: Level, channels: Mapping[int, str]
) -> PrimFunc:
    """sums = 0 + products; result = f(sums + bias)   =>   sums = bias + products; result = f(sums)

    for a bias that depends on the output channel alone. channels: by number, the iterations of
    block `result` that are "block", "lane" (the block of output channels, and which of it) or
    "channel" (both in one). int32 wraps, so the order of additions does not matter. Sums that are
    kept in parts begin with zeros: a bias in one of the parts costs as much as adding it.
    """
    blocks = {s.name: s for s in statements(func.body) if isinstance(s, Block)}
    last, tile = blocks[result], blocks[TILE]
    if level.form == "parts" or not isinstance(last.body, Store):
        return func
    assert isinstance(tile.init, Store)
    spatial = [i.var for i in tile.iters if i.kind == "spatial"]
    inner = 4 if level.form == "squares" else 3
    block = spatial[1] if len(spatial) - inner > 1 else spatial[0]
    lane: Expr = spatial[-3] * 2 + spatial[-1] if level.form == "squares" else spatial[-1]
    is_what: dict[str, Expr] = {"block": block, "lane": lane, "channel": block * BLOCK + lane}
    given = {last.iters[n].var: is_what[what] for n, what in channels.items()}
    sums = (blocks[VECTORS] if level.vectors else tile).writes[0].buffer
    bias = _bias(last.body.value, sums, set(given))
    if bias is None:
        return func
    value = _without(last.body.value, sums, bias)
    if sum(load.buffer is sums for load in loads(value)) != 1:
        return func
    init = with_fields(tile.init, value=substitute(bias, given))
    func = replace(func, tile, refreshed(with_fields(tile, init=init)))
    return replace(
        func, last, refreshed(with_fields(last, body=with_fields(last.body, value=value)))
    )


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
