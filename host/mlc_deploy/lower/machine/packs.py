"""Bytes of neighbouring vectors are stored together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...arith import linear
from ...ir import (
    IN_PLACE,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    dtype_of,
    is_const,
    walk,
    with_lanes,
)
from ...passes.context import optional
from ..bodies import with_body, with_runs
from .target import target_of


@optional(level=1)
def join_packed_stores(func: PrimFunc) -> PrimFunc:
    """A[Ramp(e, 1, 8)] = saturated(x); A[Ramp(e + 8, 1, 8)] = saturated(y)
    =>   A[Ramp(e, 1, 16)] = saturated((x, y))

    for four neighbours, else for two, each of one register, where floats become bytes. Narrowing
    two registers takes as many instructions as narrowing one. A function whose outputs may
    overwrite its inputs stays as it is.
    """
    target = target_of(func)
    if (
        target is None
        or target.arch != "x86_64"
        or not target.has("avx2")
        or IN_PLACE in func.attrs
    ):
        return func
    registers = (8, 16) if target.has("avx512bw") else (8,)  # lanes of 32 bits
    return with_body(func, with_runs(func.body, partial(_in_run, registers)))


def _in_run(registers: Sequence[int], m: Seq) -> Seq:
    made: list[Stmt] = []
    at = 0
    while at < len(m.stmts):
        runs = (m.stmts[at : at + n] for n in (4, 2))
        run = next(
            (r for r in runs if len(r) in (2, 4) and _neighbours(r, registers)),
            m.stmts[at : at + 1],
        )
        made.append(_as_one(run) if len(run) > 1 else run[0])
        at += len(run)
    return m if len(made) == len(m.stmts) else Seq(tuple(made))


def _neighbours(run: Sequence[Stmt], registers: Sequence[int]) -> bool:
    """Whether they store bytes made of floats, one vector after the other, each with as many lanes
    as one of the registers."""
    first = run[0]
    if len(run) < 2 or not isinstance(first, Store) or not first.indices:
        return False
    place = first.indices[0]
    if not isinstance(place, Ramp):
        return False
    start, each = linear(place.base, {}), place.lanes
    if each not in registers:
        return False
    for n, s in enumerate(run):
        match s:
            case Store(buffer, (Ramp(base, stride, lanes),), Cast() as value) if (
                buffer is first.buffer and is_const(stride, 1) and lanes == each
            ):
                apart = linear(base, {}).plus(start, -1)
                if not apart.is_constant or apart.constant != n * each:
                    return False
                if dtype_of(value.dtype).bits != 8 or not _is_float(value.a):
                    return False
                if any(isinstance(x, Load) and x.buffer is buffer for x in walk(value)):
                    return False
            case _:
                return False
    return True


def _is_float(e: Expr) -> bool:
    return dtype_of(e.dtype).scalar == "float32"


def _as_one(run: Sequence[Stmt]) -> Store:
    stores = [s for s in run if isinstance(s, Store)]
    first = stores[0].indices[0]
    assert isinstance(first, Ramp)
    lanes = len(run) * first.lanes
    index = Ramp(first.base, first.stride, lanes, with_lanes(dtype_of(first.dtype).scalar, lanes))
    return Store(stores[0].buffer, (index,), _joined([s.value for s in stores]))


def _joined(vectors: Sequence[Expr]) -> Expr:
    """Vectors end to end; an operation that all of them share is done after joining."""
    first, lanes = vectors[0], len(vectors) * dtype_of(vectors[0].dtype).lanes
    dtype = with_lanes(dtype_of(first.dtype).scalar, lanes)
    match first:
        case Cast():
            of = [v.a for v in vectors if isinstance(v, Cast) and _is_float(v.a)]
            if len(of) == len(vectors):
                return Cast(dtype, _joined(of))
        case Call("nearbyint"):
            args = [v.args[0] for v in vectors if isinstance(v, Call) and v.name == "nearbyint"]
            if len(args) == len(vectors):
                return Call("nearbyint", (_joined(args),), dtype)
        case Binary(op, _, Broadcast(Const(value) as same)):
            a = [
                v.a
                for v in vectors
                if isinstance(v, Binary) and v.op == op and _is_same(v.b, value)
            ]
            if len(a) == len(vectors):
                return Binary(op, _joined(a), Broadcast(same, lanes, dtype), dtype)
    middle = len(vectors) // 2
    halves = tuple(map(_end_to_end, (vectors[:middle], vectors[middle:])))
    return Shuffle(halves, tuple(range(lanes)), dtype)


def _is_same(e: Expr, value: Any) -> bool:
    return isinstance(e, Broadcast) and isinstance(e.value, Const) and e.value.value == value


def _end_to_end(vectors: Sequence[Expr]) -> Expr:
    if len(vectors) == 1:
        return vectors[0]
    kind = dtype_of(vectors[0].dtype)
    lanes = len(vectors) * kind.lanes
    return Shuffle(tuple(vectors), tuple(range(lanes)), with_lanes(kind.scalar, lanes))
