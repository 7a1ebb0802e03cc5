"""Reductions without steps: their inits run, too, as an empty sum is 0."""

from __future__ import annotations

from collections.abc import Iterator

from .build import all_of, conjuncts, seq
from .nodes import Block, Expr, For, If, Let, Seq, Stmt, Var
from .rewrite import substitute, walk, with_fields


def inits_of_none(loop: For) -> Stmt | None:
    """What runs where the loop has no iterations: the inits of the blocks whose reductions it
    steps, for all points of their spatial iterations. None if there are none."""
    found = list(_inits(loop.body, loop.var))
    return seq(found) if found else None


def _inits(s: Stmt, step: Var) -> Iterator[Stmt]:
    match s:
        case Block(init=Stmt() as init):
            stepped = [i for i in s.iters if i.kind == "reduce"]
            spatial = [i for i in s.iters if i.kind != "reduce"]
            if not any(_uses(i.binding, step) for i in stepped):
                return
            if any(_uses(i.binding, step) for i in spatial):
                return
            steps = {n for i in stepped for n in walk(i.binding) if isinstance(n, Var)}
            fixed = [c for c in conjuncts(s.predicate) if steps.isdisjoint(walk(c))]
            body = substitute(init, {i.var: i.binding for i in spatial})
            yield If(all_of(*fixed), body) if fixed else body
        case Block():
            for body in _inits(s.body, step):
                yield substitute(body, {i.var: i.binding for i in s.iters})
        case For():
            for body in _inits(s.body, step):
                yield with_fields(s, body=body) if _uses(body, s.var) else body
        case Let():
            for body in _inits(s.body, step):
                yield with_fields(s, body=body) if _uses(body, s.var) else body
        case If(condition, then) if not _uses(condition, step):
            for body in _inits(then, step):
                yield If(condition, body)
        case Seq(stmts):
            for each in stmts:
                yield from _inits(each, step)


def _uses(n: Expr | Stmt, var: Var) -> bool:
    return any(m is var for m in walk(n))
