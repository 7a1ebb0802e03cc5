"""Vector statements as loops over their lanes, for a language without vectors."""

from __future__ import annotations

from typing import Any

from ...ir import (
    Buffer,
    Expr,
    For,
    Let,
    Load,
    PrimFunc,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    rebuild,
    seq,
    walk,
)
from ...ir.lanes import Parts, at_lane
from ...ir.structural import content
from ...passes.context import required
from ..bodies import with_body


@required
def split_vectors(func: PrimFunc) -> PrimFunc:
    """C[Ramp(i, 1, 4)] = A[Ramp(j, 1, 4)] * Broadcast(x, 4)
    =>   for lane in range(4): C[i + lane] = A[j + lane] * x

    A value that picks lanes by number, or reads other elements of the buffer that it is stored to,
    is computed for all lanes before any is stored:

    C[Ramp(i, 1, 2)] = Shuffle(v, (1, 0))   =>   let a = v[1]: let b = v[0]: C[i] = a; C[i + 1] = b
    """
    lane = Var("lane")
    parts: dict[Var, tuple[Var, ...]] = {}

    def visit(m: Any) -> Any:
        match m:
            case Expr():
                return m
            case Store(buffer, (index,), value) if _lanes(index) > 1:
                if not _needs_all(value, buffer, index, parts):
                    one = Store(buffer, (at_lane(index, lane),), at_lane(value, lane))
                    return For(lane, const(_lanes(index)), "serial", one)
                each = [const(n) for n in range(_lanes(index))]
                values = tuple(Var(f"lane_{n.value}", buffer.dtype) for n in each)
                stores = seq(
                    Store(buffer, (at_lane(index, n, parts),), v)
                    for n, v in zip(each, values, strict=True)
                )
                return _let_all(values, value, stores, parts)
            case Let(var, value, body) if _lanes(value) > 1:
                scalar = dtype_of(value.dtype).scalar
                names = tuple(Var(f"{var.name}_{n}", scalar) for n in range(_lanes(value)))
                outside = dict(parts)
                parts[var] = names
                return _let_all(names, value, visit(body), outside)
        return rebuild(m, visit)

    body = visit(func.body)
    return with_body(func, body)


def _lanes(e: Expr) -> int:
    return dtype_of(e.dtype).lanes


def _needs_all(value: Expr, buffer: Buffer, index: Expr, parts: Parts) -> bool:
    """Whether no lane may be stored before every lane is computed."""

    def by_number(n: Any) -> bool:
        match n:
            case Load(read, (where,)) if read is buffer:
                return content(where) != here
        return isinstance(n, Shuffle) or n in parts

    here = content(index)
    return any(by_number(n) for n in walk(value))


def _let_all(names: tuple[Var, ...], value: Expr, body: Stmt, parts: Parts) -> Stmt:
    for n, name in reversed(tuple(enumerate(names))):
        body = Let(name, at_lane(value, const(n), parts), body)
    return body
