"""Neighbouring loads become one: broadcast scalars become lanes of a vector, vectors become a pair.

ARM multiplies a vector by a lane of another in one instruction, so four neighbours loaded at once
save three loads and four broadcasts. LLVM does not find this by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...arith import Known, Linear, linear, to_expr
from ...ir import (
    Broadcast,
    Buffer,
    Call,
    Cast,
    Expr,
    For,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    contents,
    dtype_of,
    is_const,
    rebuild,
    statements,
    walk,
    with_lanes,
)
from ...passes.context import optional
from ..bodies import with_body, with_runs
from .guards import Guards, guarded, rewriting
from .target import target_of

# A buffer, the part of an index that is not constant, the dtype that uses have, and the guards.
Key = tuple[Buffer, Linear, str, Guards]
Found = tuple[Load, str]  # a load, and the dtype that its use has

QUAD = 4  # bytes per lane of a dot product


@optional(level=1)
def broadcast_lanes(func: PrimFunc) -> PrimFunc:
    """… Broadcast(A[e + c], n) …, for all c of one vector of A
    =>   … Shuffle(A[Ramp(e + c0, 1, m)], (c - c0,) * n) …

    in a run of stores that uses every element of the vector, so that no element is read that was
    not read before. LLVM merges equal vector loads. Cast(A[e + c]) is treated alike: the vector is
    cast. A cast to integers of twice the bits comes after the Shuffle, since instructions that
    multiply by a lane widen both factors.
    """

    def wanted(n: Any) -> Found | None:
        match n:
            case Broadcast(Load() as load) | Broadcast(Cast(_, Load() as load)):
                return load, n.value.dtype
        return None

    def rewritten(n: Any, vector: Load, lane: int) -> Expr:
        chosen = (lane,) * n.lanes
        if not isinstance(n.value, Cast):
            return Shuffle((vector,), chosen, n.dtype)
        narrow = vector.buffer.dtype
        if _doubles(narrow, n.value.dtype):
            return Cast(n.dtype, Shuffle((vector,), chosen, with_lanes(narrow, n.lanes)))
        wide = Cast(with_lanes(n.value.dtype, dtype_of(vector.dtype).lanes), vector)
        return Shuffle((wide,), chosen, n.dtype)

    bits = _register_bits(func)
    if Broadcast not in contents(func.body).kinds:
        return func
    body = _in_runs(func.body, wanted, rewritten, lambda lanes: (1, lanes), bits)
    return with_body(func, body)


@optional(level=1)
def halve_loads(func: PrimFunc) -> PrimFunc:
    """… Cast(A[Ramp(e, 1, m)]) * b … Cast(A[Ramp(e + m, 1, m)]) * c …
    =>   … halves of A[Ramp(e, 1, 2*m)] …

    where m elements fill half a register, and are cast to twice their bits. This is for runs of
    stores in an innermost loop, and for loads that move with it: other factors are in registers
    already. Both ARM machines multiply halves of registers.
    """
    register_bits = _register_bits(func)
    if not register_bits or Cast not in contents(func.body).kinds:
        return func

    def visit(m: Any) -> Any:
        if isinstance(m, Expr):
            return m
        if isinstance(m, For) and not any(isinstance(x, For) for x in statements(m.body)):
            moving = partial(wanted, m.var)
            body = _in_runs(m.body, moving, rewritten, lambda n: (n // 2, 2), register_bits)
            return with_body(m, body)
        return rebuild(m, visit)

    def wanted(moving: Var, n: Any) -> Found | None:
        match n:
            case Cast(dtype, Load(buffer, (Ramp(base, stride, lanes),)) as load):
                half = _doubles(buffer.dtype, dtype) and is_const(stride, 1)
                half = half and lanes * dtype_of(dtype).bits == register_bits
                if half and any(v is moving for v in walk(base)):
                    return load, buffer.dtype
        return None

    def rewritten(n: Any, vector: Load, lane: int) -> Expr:
        half = tuple(range(lane, lane + dtype_of(n.a.dtype).lanes))
        return Cast(n.dtype, Shuffle((vector,), half, n.a.dtype))

    return with_body(func, visit(func.body))


def _doubles(narrow: str, wide: str) -> bool:
    """Whether a cast makes integers of twice the bits."""
    a, b = dtype_of(narrow), dtype_of(wide)
    return a.is_integer and b.is_integer and b.bits == 2 * a.bits


@optional(level=1)
def pair_loads(func: PrimFunc) -> PrimFunc:
    """… A[Ramp(e, 1, m)] … A[Ramp(e + m, 1, m)] …
    =>   … halves of A[Ramp(e, 1, 2*m)] …

    in runs of stores, where m elements fill a register. 32-bit ARM loads two registers in one
    instruction. It has no loads at an offset, so each load saved also saves an addition.
    """
    register_bits = _register_bits(func, ("arm",))

    def wanted(n: Any) -> Found | None:
        if isinstance(n, Load) and n.indices and isinstance(n.indices[0], Ramp):
            ramp = n.indices[0]
            full = ramp.lanes * dtype_of(n.buffer.dtype).bits == register_bits
            return (n, n.buffer.dtype) if full and is_const(ramp.stride, 1) else None
        return None

    def rewritten(n: Any, vector: Load, lane: int) -> Expr:
        half = range(lane, lane + dtype_of(n.dtype).lanes)
        return Shuffle((vector,), tuple(half), n.dtype)

    body = _in_runs(func.body, wanted, rewritten, lambda lanes: (lanes, 2), register_bits)
    return with_body(func, body)


@optional(level=1)
def share_quads(func: PrimFunc) -> PrimFunc:
    """… four bytes of A[Ramp(e, 1, 16)] in all lanes … four bytes of A[Ramp(e + 8, 1, 16)] …
    =>   … lanes of A[Ramp(e, 1, 16)] … lanes of A[Ramp(e + 16, 1, 16)] …

    for all groups of four bytes of a vector of A, in runs of stores. Taps of a convolution read
    overlapping vectors. Instructions that take four bytes by lane need each byte in a register
    only once.
    """

    def wanted(n: Any) -> Found | None:
        match n:
            case Shuffle((Call("reinterpret", (Load(buffer, (Ramp(base, stride, 16),)),)),), lanes):
                if is_const(stride, 1) and dtype_of(buffer.dtype).bits == 8 and _quad(n):
                    return Load(buffer, (base + QUAD * lanes[0],), buffer.dtype), buffer.dtype
        return None

    def rewritten(n: Any, vector: Load, lane: int) -> Expr:
        (words,) = n.vectors
        words = Call("reinterpret", (vector,), words.dtype)
        return Shuffle((words,), (lane // QUAD,) * len(n.lanes), n.dtype)

    bits = _register_bits(func, ("aarch64",))
    if "reinterpret" not in contents(func.body).calls:
        return func
    body = _in_runs(func.body, wanted, rewritten, lambda lanes: (QUAD, lanes // QUAD), bits)
    return with_body(func, body)


def _quad(n: Shuffle) -> bool:
    """Whether all its lanes are the same lane of four bytes."""
    (words,) = n.vectors
    return dtype_of(words.dtype).bits == 8 * QUAD and len(set(n.lanes)) == 1


def _register_bits(func: PrimFunc, machines: tuple[str, ...] = ("arm", "aarch64")) -> int:
    """The size of a vector register of the function's machine; 0 for other machines."""
    target = target_of(func)
    return target.register_bits if target is not None and target.arch in machines else 0


def _in_runs(
    s: Stmt,
    wanted: Callable[[Any], Found | None],
    rewritten: Callable[[Any, Load, int], Expr],
    cut: Callable[[int], tuple[int, int]],
    register_bits: int,
) -> Stmt:
    """s with wanted loads rewritten where there are enough neighbours; s itself where register_bits
    is 0.

    cut(elements of a register): (elements from one neighbour to the next, number of neighbours).
    rewritten(expression, load of all neighbours, lane): the replacement of a wanted expression,
    whose own elements begin at that lane.
    """
    if not register_bits:
        return s
    known = Known()

    def run(m: Seq) -> Seq:
        stores = [x for x in m.stmts if isinstance(x, Store)]
        written = {x.buffer for x in stores}
        offsets: dict[Key, set[int]] = {}
        places: dict[tuple[Any, Guards], tuple[Key, int]] = {}
        for n, guards in guarded([x.value for x in stores], known):
            found = wanted(n)
            if found is not None and found[0].buffer not in written:
                key, offset = places[n, guards] = _place(*found, guards, known)
                offsets.setdefault(key, set()).add(offset)
        starts: dict[Key, dict[int, int]] = {}
        for key, apart in offsets.items():
            lanes = register_bits // dtype_of(key[2]).bits
            starts[key] = runs_of(apart, *cut(lanes))
        if not any(starts.values()):
            return m
        indices: dict[tuple[Key, int], Ramp] = {}  # one node for equal vectors' indices

        def merged(n: Any, guards: Guards) -> Expr | None:
            found = places.get((n, guards))
            if found is None:
                return None
            key, offset = found
            start = starts[key].get(offset)
            if start is None:
                return None
            step, count = cut(register_bits // dtype_of(key[2]).bits)
            index = indices.get((key, start))
            if index is None:
                index = indices[key, start] = neighbours(key[1], start, step * count)
            load = Load(key[0], (index,), with_lanes(key[0].dtype, step * count))
            return rewritten(n, load, offset - start)

        inside = rewriting(merged, known)
        return Seq(tuple(inside(x) if isinstance(x, Store) else x for x in m.stmts))

    return with_runs(s, run)


def _place(load: Load, dtype: str, guards: Guards, known: Known) -> tuple[Key, int]:
    index = load.indices[0]
    form = linear(index.base if isinstance(index, Ramp) else index, known)
    return (load.buffer, Linear(0, form.terms), dtype, guards), form.constant


def runs_of(offsets: set[int], step: int, count: int) -> dict[int, int]:
    """offset -> the first of its run, for offsets in a whole run of `count` at that step."""
    starts: dict[int, int] = {}
    for offset in sorted(offsets):
        run = [offset + n * step for n in range(count)]
        if offset not in starts and all(o in offsets and o not in starts for o in run):
            starts.update(dict.fromkeys(run, offset))
    return starts


def neighbours(moving: Linear, start: int, lanes: int) -> Ramp:
    """The index of `lanes` neighbours from offset `start` of a place."""
    base = to_expr(moving.plus(Linear(start, {})), "int32")
    return Ramp(base, const(1), lanes, with_lanes("int32", lanes))
