"""Strided loads of a block become loads of its rows, and transposition in registers.

Some runs of stores read n neighbouring columns of n rows, each as a vector: n * n loads of
elements. Loading the rows takes n loads of vectors. Where the rows lie one after another, or the
results are stored so, loads and stores that (de)interleave transpose for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...arith import Known, Linear, linear
from ...ir import (
    Buffer,
    Const,
    Expr,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    const,
    contents,
    is_const,
    with_lanes,
)
from ...passes.context import optional
from ..bodies import with_body, with_runs
from .guards import NO_GUARDS, Guards, guarded, rewriting
from .lanes import neighbours, runs_of
from .target import target_of

INTERLEAVED = 4  # rows that machines interleave, at most

# The buffer, the index without its constant, the stride, n, and the guards.
Key = tuple[Buffer, Linear, Linear, int, Guards]


@optional(level=1)
def transpose_loads(func: PrimFunc) -> PrimFunc:
    """… A[Ramp(e, s, n)] … A[Ramp(e + 1, s, n)] … A[Ramp(e + n - 1, s, n)] …
    =>   … the columns of A[Ramp(e, 1, n)], A[Ramp(e + s, 1, n)], … A[Ramp(e + (n - 1) * s, 1, n)]

    in runs of stores, for all n of a power of two; no element is read that was not read before.
    """
    if target_of(func) is None or not contents(func.body).strided:
        return func
    return with_body(func, with_runs(func.body, _in_run))


def _in_run(m: Seq) -> Seq:
    stores = [x for x in m.stmts if isinstance(x, Store)]
    written = {x.buffer for x in stores}
    columns: dict[Key, set[int]] = {}
    known = Known()
    for n, guards in guarded([x.value for x in stores], known):
        found = _column(n, guards)
        if found is not None and found[0][0] not in written:
            columns.setdefault(found[0], set()).add(found[1])
    blocks = {key: runs_of(offsets, 1, key[3]) for key, offsets in columns.items()}
    if not any(blocks.values()):
        return m

    def transposed_load(n: Any, guards: Guards) -> Expr | None:
        found = _column(n, guards)
        if found is None or found[1] not in blocks.get(found[0], {}):
            return None
        key, offset = found
        start = blocks[key][offset]
        return _columns(key, start)[offset - start]

    inside = rewriting(transposed_load, known)
    done = tuple(inside(x) if isinstance(x, Store) else x for x in m.stmts)
    return Seq(_interleaved(m.stmts, done, blocks))


def _column(n: Any, guards: Guards = NO_GUARDS) -> tuple[Key, int] | None:
    """The place of a strided vector load, and the constant of its index; None for others."""
    match n:
        case Load(buffer, (Ramp(base, stride, lanes),)) if not _is_near(stride, lanes):
            if lanes > 1 and lanes & (lanes - 1) == 0 and buffer.scope != "local":
                form, step = linear(base, {}), linear(stride, {})
                return (buffer, Linear(0, form.terms), step, lanes, guards), form.constant
    return None


def _is_near(stride: Expr, lanes: int) -> bool:
    return isinstance(stride, Const) and int(stride) < lanes


def _columns(key: Key, start: int) -> list[Expr]:
    """The columns of a block, as vectors."""
    buffer, moving, stride, count, _ = key
    if stride == Linear(count, {}) and count <= INTERLEAVED:
        whole = _row(buffer, moving, start, count * count)
        dtype = with_lanes(buffer.dtype, count)
        steps = range(0, count * count, count)
        return [Shuffle((whole,), tuple(c + k for k in steps), dtype) for c in range(count)]
    return transposed([_row(buffer, moving.plus(stride, k), start, count) for k in range(count)])


def transposed(rows: Sequence[Expr]) -> list[Expr]:
    """The columns of a matrix of 2^k rows: squares of 2^n are swapped across its diagonal, for all
    n < k."""
    vectors, count = list(rows), len(rows)
    apart = 1
    while apart < count:
        lanes = range(count)
        low = tuple(n if n & apart == 0 else count + n - apart for n in lanes)
        high = tuple(n + apart if n & apart == 0 else count + n for n in lanes)
        for n in (n for n in range(count) if n & apart == 0):
            a, b = vectors[n], vectors[n + apart]
            vectors[n] = Shuffle((a, b), low, a.dtype)
            vectors[n + apart] = Shuffle((a, b), high, a.dtype)
        apart *= 2
    return vectors


def _interleaved(
    given: Sequence[Stmt], done: Sequence[Stmt], blocks: Mapping[Key, Mapping[int, int]]
) -> tuple[Stmt, ...]:
    """`done`, but one interleaving store of a block's rows replaces the stores of its columns one
    after another. given: the statements before rewriting."""
    made: list[Stmt] = []
    at = 0
    while at < len(given):
        whole = _as_one(given[at : at + INTERLEAVED], blocks)
        made.append(whole or done[at])
        at += INTERLEAVED if whole else 1
    return tuple(made)


def _as_one(columns: Sequence[Stmt], blocks: Mapping[Key, Mapping[int, int]]) -> Store | None:
    """One store in the place of INTERLEAVED neighbouring stores of a block's columns; None for
    others."""
    first, count = columns[0], INTERLEAVED
    found = _column(first.value) if isinstance(first, Store) else None
    if found is None or not isinstance(first, Store) or not isinstance(first.indices[0], Ramp):
        return None
    (buffer, moving, stride, lanes, _), start = found
    if (
        lanes != count
        or stride == Linear(count, {})
        or blocks.get(found[0], {}).get(start) != start
    ):
        return None
    to = linear(first.indices[0].base, {})
    for n, s in enumerate(columns):
        wanted = (found[0], start + n), first.buffer, to.plus(Linear(n * count, {}))
        if not isinstance(s, Store) or not isinstance(s.indices[0], Ramp):
            return None
        index = s.indices[0]
        if not is_const(index.stride, 1):
            return None
        if (_column(s.value), s.buffer, linear(index.base, {})) != wanted:
            return None
    if len(columns) < count:
        return None
    rows = [_row(buffer, moving.plus(stride, k), start, count) for k in range(count)]
    both, whole = (with_lanes(buffer.dtype, n * count) for n in (2, count))
    halves = tuple(
        Shuffle(pair, tuple(range(2 * count)), both)
        for pair in ((rows[0], rows[1]), (rows[2], rows[3]))
    )
    places = tuple(k * count + c for c in range(count) for k in range(count))
    index = Ramp(first.indices[0].base, const(1), count * count, with_lanes("int32", count * count))
    return Store(first.buffer, (index,), Shuffle(halves, places, whole))


def _row(buffer: Buffer, moving: Linear, start: int, lanes: int) -> Load:
    return Load(buffer, (neighbours(moving, start, lanes),), with_lanes(buffer.dtype, lanes))
