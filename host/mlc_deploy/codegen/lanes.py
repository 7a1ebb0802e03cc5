"""Neighbouring scalars that are broadcast become lanes of one vector.

ARM multiplies a vector by a lane of another in one instruction, so four neighbours loaded at once
save three loads and four broadcasts. LLVM does not find this by itself.
"""

from __future__ import annotations

from typing import Any

from ..arith import Linear, linear, to_expr
from ..ir import (
    Broadcast,
    Buffer,
    Expr,
    Load,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    const,
    dtype_of,
    rebuild,
    walk,
    with_lanes,
)

Key = tuple[Buffer, Linear]  # a buffer, and the part of an index that is no constant


def broadcast_lanes(s: Stmt, register_bits: int) -> Stmt:
    """… Broadcast(A[e + c], n) …, for all c of one vector of A
    =>   … Shuffle(A[Ramp(e + c0, 1, m)], (c - c0,) * n) …

    in runs of stores, when every element of the vector is wanted in the run: then no element is
    read that was not read before. Equal vector loads are left to LLVM to merge.
    """

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, Seq) and sum(isinstance(x, Store) for x in m.stmts) > 1:
            m = _run(m, register_bits)
        return rebuild(m, visit)

    done: Stmt = visit(s)
    return done


def _run(s: Seq, register_bits: int) -> Seq:
    offsets: dict[Key, set[int]] = {}
    written = {x.buffer for x in s.stmts if isinstance(x, Store)}
    for x in s.stmts:
        if isinstance(x, Store):
            for n in walk(x.value):
                if isinstance(n, Broadcast) and isinstance(n.value, Load):
                    key, offset = _place(n.value)
                    offsets.setdefault(key, set()).add(offset)
    chunks: dict[Key, dict[int, int]] = {
        key: _chunks(found, register_bits // dtype_of(key[0].dtype).bits)
        for key, found in offsets.items()
        if key[0] not in written
    }

    def visit(m: Any) -> Any:
        if isinstance(m, Broadcast) and isinstance(m.value, Load):
            key, offset = _place(m.value)
            start = chunks.get(key, {}).get(offset)
            if start is not None:
                return _lane(m, key, start, offset, register_bits)
        return rebuild(m, visit)

    return Seq(tuple(visit(x) if isinstance(x, Store) else x for x in s.stmts))


def _place(load: Load) -> tuple[Key, int]:
    form = linear(load.indices[0], {})
    return (load.buffer, Linear(0, form.terms)), form.constant


def _chunks(found: set[int], lanes: int) -> dict[int, int]:
    """offset -> where its vector begins, for offsets in a whole run of `lanes` neighbours."""
    starts: dict[int, int] = {}
    at = None
    for offset in sorted(found):
        if at is not None and offset < at + lanes:
            continue
        at = None
        if all(offset + n in found for n in range(lanes)):
            at = offset
            starts.update({offset + n: offset for n in range(lanes)})
    return starts


def _lane(m: Broadcast, key: Key, start: int, offset: int, register_bits: int) -> Expr:
    buffer, moving = key
    lanes = register_bits // dtype_of(buffer.dtype).bits
    base = to_expr(moving.plus(Linear(start, {})), "int32")
    index = Ramp(base, const(1), lanes, with_lanes("int32", lanes))
    vector = Load(buffer, (index,), with_lanes(buffer.dtype, lanes))
    return Shuffle((vector,), (offset - start,) * m.lanes, m.dtype)
