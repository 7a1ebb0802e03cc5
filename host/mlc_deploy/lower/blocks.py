"""From blocks to plain statements: inits, predicates and iteration variables become code."""

from __future__ import annotations

from typing import Any

from ..ir import (
    Block,
    Buffer,
    Expr,
    For,
    If,
    PrimFunc,
    Stmt,
    Var,
    all_of,
    loads,
    rebuild,
    seq,
    substitute,
    symbols_of,
    walk,
    with_fields,
)
from ..ir.build import compare, conjuncts, is_const, is_root
from ..ir.nodes import TRUE
from ..ir.reductions import inits_of_none
from ..passes.context import required
from .scratch import ASKED, asked_of


@required
def lower_blocks(func: PrimFunc) -> PrimFunc:
    """block(v = e) where p: init; S   =>   if p: { if reduction begins: init[v := e]; S[v := e] }

    A reduction begins where all its loops are at 0:
    for k in range(n): S with init   =>   if n <= 0: init; for k in range(n): S

    The root block stays: it holds the allocated buffers. An attribute keeps what blocks ask of
    these buffers.
    """
    sizes = {v for b in func.buffers for v in symbols_of(b)}
    sizes.update(p for p in func.params if isinstance(p, Var))
    allocs: list[Buffer] = []
    asked: dict[str, Any] = {}

    def is_open(extent: Expr) -> bool:
        """Whether only the sizes of a call decide; others are 0 with the loops around them."""
        used = {n for n in walk(extent) if isinstance(n, Var)}
        return bool(used) and used <= sizes

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and is_open(m.extent) and (none := inits_of_none(m)) is not None:
            return seq([If(compare("<=", m.extent, 0), visit(none)), rebuild(m, visit)])
        if not isinstance(m, Block):
            return rebuild(m, visit)
        allocs.extend(m.allocs)
        asked.update(asked_of(m))
        if is_root(m):
            return visit(m.body)
        values: dict[Var, Expr] = {i.var: i.binding for i in m.iters}
        body: Stmt = substitute(visit(m.body), values)
        if m.init is not None:
            begins = [compare("==", i.binding, 0) for i in m.iters if i.kind == "reduce"]
            init = substitute(visit(m.init), values)
            start = all_of(*begins)
            body = seq([init if is_const(start, True) else If(start, init), body])
        parts = conjuncts(m.predicate)
        reading = {c for c in parts if any(True for _ in loads(c))}
        if not reading:
            return body if is_const(m.predicate, True) else If(m.predicate, body)
        body = If(all_of(*(c for c in parts if c in reading)), body)
        plain = all_of(*(c for c in parts if c not in reading))  # it says where they may read
        return body if is_const(plain, True) else If(plain, body)

    body = visit(func.body)
    root = Block("root", (), (), (), body, None, TRUE, tuple(allocs))
    attrs = {**func.attrs, ASKED: asked} if asked else func.attrs
    return with_fields(func, body=root, attrs=attrs)
