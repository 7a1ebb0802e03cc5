"""Vectorized loops become vector expressions; what cannot becomes a serial loop."""

from __future__ import annotations

from typing import Any

from ..arith import Linear, linear, to_expr
from ..ir import (
    Call,
    Cast,
    Expr,
    For,
    If,
    Let,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    expr,
    load,
    rebuild,
    seq,
    walk,
    with_fields,
    with_lanes,
)
from ..ir.build import broadcast, cast


MOST_WRITTEN_OUT = 16  # lanes; written out, the guards of each are decided on their own


class _Scalar(Exception):
    """This statement has no vector form."""


def vectorize_loops(func: PrimFunc) -> PrimFunc:
    """for i in vectorized(n): B[c + i] = A[d + i] + x
    =>   B[Ramp(c, 1, n)] = A[Ramp(d, 1, n)] + Broadcast(x, n)

    Statements whose guards or indices differ from lane to lane in other ways than by a constant
    step run lane by lane.
    """

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and m.kind == "vectorized":
            return _vectorized(m.var, int(m.extent), visit(m.body))  # type: ignore[call-overload]
        return rebuild(m, visit)

    return with_fields(func, body=visit(func.body))


def _vectorized(lane: Var, lanes: int, body: Stmt) -> Stmt:
    match body:
        case Seq(stmts):
            return seq(_vectorized(lane, lanes, s) for s in stmts)
        case For() if not _uses(body.extent, lane) and body.kind != "vectorized":
            return with_fields(body, body=_vectorized(lane, lanes, body.body))
        case If(condition, then, otherwise) if not _uses(condition, lane):
            other = None if otherwise is None else _vectorized(lane, lanes, otherwise)
            return If(condition, _vectorized(lane, lanes, then), other)
        case Let(var, value, inner) if not _uses(value, lane):
            return Let(var, value, _vectorized(lane, lanes, inner))
        case Store():
            try:
                return _store(lane, lanes, body)
            except _Scalar:
                pass
    return For(lane, const(lanes), "unrolled" if lanes <= MOST_WRITTEN_OUT else "serial", body)


def _uses(e: Expr, lane: Var) -> bool:
    return any(n is lane for n in walk(e))


def _store(lane: Var, lanes: int, s: Store) -> Stmt:
    if not _uses(s.indices[0], lane):
        raise _Scalar  # every lane writes the same element
    index = _index(lane, lanes, s.indices[0])
    return Store(s.buffer, (index,), broadcast(_widened(lane, lanes, s.value), lanes))


def _index(lane: Var, lanes: int, e: Expr) -> Expr:
    """base + step * lane as a Ramp."""
    if not _uses(e, lane):
        return e
    form = linear(e, {})
    step = form.terms.get(lane)
    rest = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not lane})
    base = to_expr(rest, e.dtype)
    if step is None or _uses(base, lane):
        raise _Scalar
    return Ramp(base, const(step, e.dtype), lanes, with_lanes(e.dtype, lanes))


def _widened(lane: Var, lanes: int, e: Expr) -> Expr:
    """e for all lanes at once; itself where it does not depend on the lane."""
    if not _uses(e, lane):
        return e

    def visit(m: Any) -> Any:
        if not _uses(m, lane):
            return m
        match m:
            case Var():
                return Ramp(const(0, m.dtype), const(1, m.dtype), lanes, with_lanes(m.dtype, lanes))
            case Load(buffer, indices):
                return load(buffer, (_index(lane, lanes, indices[0]),))
            case Call("if_then_else", (condition, a, b)):
                if _uses(condition, lane):
                    raise _Scalar
                taken = tuple(broadcast(visit(x), lanes) for x in (a, b))
                return Call("if_then_else", (condition, *taken), taken[0].dtype)
            case Call(name, args):
                wide = tuple(broadcast(visit(a), lanes) for a in args)
                return Call(name, wide, with_lanes(m.dtype, lanes))
            case Cast(dtype, a):
                return cast(dtype_of(dtype).scalar, visit(a))
        return rebuild(m, visit)

    return expr(visit(e))
