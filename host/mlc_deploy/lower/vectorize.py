"""Vectorized loops become vector expressions, or serial loops where that is impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..arith import Linear, linear, to_expr, turn_range
from ..arith.linear import Atom, Product
from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    expr,
    if_then_else,
    is_address,
    load,
    once,
    rebuild,
    select,
    seq,
    substitute,
    walk,
    with_fields,
    with_lanes,
)
from ..ir.build import broadcast, cast
from ..passes.context import optional
from .bodies import with_body
from .lanes import Ranges, holding_lanes, in_all_lanes, safe, split_uniform, uses, using, within


class _Scalar(Exception):
    """This statement has no vector form."""


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The vectorized loop: its variable, the number of lanes, the ranges of the variables around,
    and the buffers of this thread alone."""

    var: Var
    count: int
    ranges: Ranges
    scratch: frozenset[Buffer]

    def known(self) -> Ranges:
        return {**self.ranges, self.var: (0, self.count - 1)}


@optional(level=1)
def vectorize_loops(func: PrimFunc) -> PrimFunc:
    """for i in vectorized(n): B[c + i] = A[d + i] + x
    =>   B[Ramp(c, 1, n)] = A[Ramp(d, 1, n)] + Broadcast(x, n)

    A guard that holds in a constant range of lanes makes a shorter vector. Where everything may be
    evaluated in every lane, all lanes are computed and selected:

    for i in vectorized(n): if m(i): T[i] = x   =>   T[Ramp] = select(m(Ramp), x, T[Ramp])

    This is for scratch buffers only: the neighbours of an output's element may be another
    thread's. A guard that is linear in the lane is tested once for all lanes; where it fails, the
    lanes run one by one. All other statements run lane by lane, in a serial loop.
    """
    root = func.body
    assert isinstance(root, Block)
    scratch = frozenset(root.allocs)

    def visit(m: Any, ranges: Ranges) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For):
            inside: Ranges = {**ranges, m.var: turn_range(m.extent, ranges)}
            if m.kind == "vectorized":
                count = int(m.extent)  # type: ignore[call-overload]
                return _vectorized(_Lanes(m.var, count, ranges, scratch), visit(m.body, inside))
            return with_body(m, visit(m.body, inside))
        return rebuild(m, lambda child: visit(child, ranges))

    return with_body(func, visit(func.body, {}))


def _vectorized(v: _Lanes, body: Stmt) -> Stmt:
    if v.count == 1:
        return substitute(body, {v.var: const(0, v.var.dtype)})
    match body:
        case Seq(stmts):
            return seq(_vectorized(v, s) for s in stmts)
        case For() if not uses(body.extent, v.var) and body.kind != "vectorized":
            known = {**v.ranges, body.var: turn_range(body.extent, v.ranges)}
            return with_fields(body, body=_vectorized(replace(v, ranges=known), body.body))
        case If(condition, then, otherwise) if not uses(condition, v.var):
            other = None if otherwise is None else _vectorized(v, otherwise)
            return If(condition, _vectorized(v, then), other)
        case If(condition, then, None):
            uniform, differing = split_uniform(condition, v.var)
            inner = _guarded(v, differing, then)
            return inner if isinstance(uniform, Const) else If(uniform, inner)
        case Let(var, value, inner) if not uses(value, v.var):
            return Let(var, value, _vectorized(v, inner))
        case Store():
            return _store(v, body)
    return _one_by_one(v, body)


def _some_lanes(v: _Lanes, first: int, end: int, body: Stmt) -> Stmt:
    """The body for lanes [first, end)."""
    if first >= end:
        return Seq(())
    shifted = substitute(body, {v.var: v.var + first}) if first else body
    return _vectorized(replace(v, count=end - first), shifted)


def _one_by_one(v: _Lanes, body: Stmt) -> Stmt:
    return For(v.var, const(v.count), "serial", body)


def _guarded(v: _Lanes, condition: Expr, then: Stmt) -> Stmt:
    """`if condition: then` for all lanes. Every part of the condition differs from lane to lane."""
    held = holding_lanes(condition, v.var, v.count)
    if held is not None:
        return _some_lanes(v, *held, then)
    try:
        return _masked(v, condition, then)
    except _Scalar:
        pass
    whole = in_all_lanes(condition, v.var, v.count)
    each = _one_by_one(v, If(condition, then))
    return each if whole is None else If(whole, _vectorized(v, then), each)


def _masked(v: _Lanes, condition: Expr, s: Stmt) -> Stmt:
    """Computes every lane; a lane where the condition fails keeps what the buffer holds."""
    if isinstance(s, Seq):
        return seq(_masked(v, condition, each) for each in s.stmts)
    known = v.known()
    if (
        not isinstance(s, Store)
        or s.buffer not in v.scratch
        or not within(s.buffer, s.indices[0], known)
        or not safe(condition, known)
        or not safe(s.value, known)
    ):
        raise _Scalar
    kept = load(s.buffer, s.indices)
    chosen = if_then_else(condition, s.value, kept)
    return _plain_store(v, Store(s.buffer, s.indices, chosen))


def _store(v: _Lanes, s: Store) -> Stmt:
    """A store for all lanes; a choice in its value that differs from lane to lane is made
    outside."""
    try:
        return _plain_store(v, s)
    except _Scalar:
        pass
    for choice in _choices(s.value, v.var):
        condition, a, b = choice.args
        uniform, differing = split_uniform(condition, v.var)
        whole = in_all_lanes(differing, v.var, v.count)
        if whole is None or any(isinstance(n, Load) for n in walk(condition)):
            continue
        taken, other = _with(s, choice, a), _with(s, choice, b)
        if not isinstance(uniform, Const):
            cut = _store(v, _with(s, choice, if_then_else(differing, a, b)))
            return If(uniform, cut, _store(v, other))
        held = holding_lanes(differing, v.var, v.count)
        if held is None:
            return If(whole, _store(v, taken), _one_by_one(v, s))
        first, end = held
        parts = ((0, first, other), (first, end, taken), (end, v.count, other))
        return seq(_some_lanes(v, *part) for part in parts)
    return _one_by_one(v, s)


def _choices(e: Expr, lane: Var) -> Iterator[Call]:
    """The if_then_else in e whose conditions differ from lane to lane, the outermost first."""
    for n in walk(e):
        if isinstance(n, Call) and n.name == "if_then_else" and uses(n.args[0], lane):
            yield n


def _with(s: Store, choice: Call, value: Expr) -> Store:
    """s with a value in the place of the choice."""

    @once
    def visit(m: Any) -> Any:
        return value if m is choice else rebuild(m, visit)

    return Store(s.buffer, s.indices, visit(s.value))


def _plain_store(v: _Lanes, s: Store) -> Store:
    """One store of a vector; _Scalar where there is none."""
    if not uses(s.indices[0], v.var):
        raise _Scalar  # every lane writes the same element
    index = _index(v, s.indices[0])
    return Store(s.buffer, (index,), broadcast(_widened(v, s.value), v.count))


def _index(v: _Lanes, e: Expr) -> Expr:
    """base + step * lane as a Ramp."""
    if not uses(e, v.var):
        return e
    form = linear(e, {})
    step, rest = Linear(0, {}), Linear(form.constant, {})
    for atom, count in form.terms.items():
        moved = _moved(atom, v.var)
        if moved is None:
            rest = rest.plus(Linear(0, {atom: count}))
        else:
            step = step.plus(moved, count)
    base, by = to_expr(rest, e.dtype), to_expr(step, e.dtype)
    if uses(base, v.var) or uses(by, v.var):
        raise _Scalar
    return Ramp(base, by, v.count, with_lanes(e.dtype, v.count))


def _loaded(v: _Lanes, buffer: Buffer, index: Expr) -> Expr:
    """The load of all lanes: neighbours, or the same few neighbours again and again."""
    try:
        return load(buffer, (_index(v, index),))
    except _Scalar:
        pass
    place = Var("place", v.var.dtype)
    period = 0

    @once
    def visit(m: Any) -> Any:
        nonlocal period
        match m:
            case Binary("%", a, Const(by)) if (
                a is v.var and v.count % int(by) == 0 and period in (0, by)
            ):
                period = int(by)
                return place
        return rebuild(m, visit)

    index = visit(index)
    if not period or uses(index, v.var):
        raise _Scalar
    few = load(buffer, (_index(replace(v, var=place, count=period), index),))
    lanes = (*range(period),) * (v.count // period)
    return Shuffle((few,), lanes, with_lanes(buffer.dtype, v.count))


def _moved(atom: Atom, var: Var) -> Linear | None:
    """By how much an atom grows per step of the variable; None where the variable is not a
    factor."""
    if atom is var:
        return Linear(1, {})
    if isinstance(atom, Product) and any(f is var for f in atom.factors):
        at = next(n for n, f in enumerate(atom.factors) if f is var)
        others = [*atom.factors[:at], *atom.factors[at + 1 :]]
        return Linear(0, {others[0] if len(others) == 1 else Product(tuple(others)): 1})
    return None


def _widened(v: _Lanes, e: Expr) -> Expr:
    """e for all lanes at once; itself where it does not depend on the lane."""
    moving = using(e, v.var)

    @once
    def visit(m: Any) -> Any:
        if m not in moving:
            return m
        match m:
            case Var():
                zero, one = const(0, m.dtype), const(1, m.dtype)
                return Ramp(zero, one, v.count, with_lanes(m.dtype, v.count))
            case Load(buffer, (index,)):
                return _loaded(v, buffer, index)
            case Call("if_then_else", (condition, a, b)):
                if condition not in moving:
                    taken = tuple(broadcast(visit(x), v.count) for x in (a, b))
                    return Call("if_then_else", (condition, *taken), taken[0].dtype)
                if not all(safe(part, v.known()) for part in m.args):
                    raise _Scalar
                return select(*(broadcast(visit(x), v.count) for x in m.args))
            case Call() if is_address(m):
                raise _Scalar
            case Call(name, args):
                wide = tuple(broadcast(visit(a), v.count) for a in args)
                return Call(name, wide, with_lanes(m.dtype, v.count))
            case Cast(dtype, a):
                return cast(dtype_of(dtype).scalar, visit(a))
        return rebuild(m, visit)

    return expr(visit(e))
