"""A cost model's view of a scheduled function: numbers, most of them logarithms.

Per innermost block: how often it runs and what it computes; how its loops are vectors, unrolled,
parallel; and per buffer what an access costs: elements side by side or apart, loads per iteration
of the unrolled loops, bytes touched by ever more of the loops around, and from that what a first
and a second level cache of common sizes have to fetch. After Ansor's features per store (Zheng et
al., OSDI 2020, appendix B), with fewer that only matter on GPUs.

A function's features are those of the most costly block, by a rough count of instructions, those of
the next one, and sums over all. Nothing is lowered for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_targets import Target

from ..ir import (
    Binary,
    Block,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    For,
    Load,
    PrimFunc,
    Select,
    Store,
    Var,
    dtype_of,
    is_const,
    once,
    walk,
)
from ..ir.build import strides_of
from ..schedule.tree import bound_to
from .postproc import nests, turns

LINE = 64  # bytes of a cache line
CACHES = (32 << 10, 512 << 10)  # bytes, as common cores have them
SLOTS = 4  # described accesses of a block: its write, and the most costly reads
CURVE = 6  # places between the innermost loop and the outermost
BLOCKS = 2
INSTRUCTIONS = 1  # the place of the rough count, its logarithm

Vector = NDArray[np.float32]
Steps = Mapping[Var, float]


@dataclass(frozen=True, slots=True)
class Access:
    """One buffer's part in a block: by how many elements each dimension moves per iteration of each
    loop, and the distance between neighbours of each dimension."""

    dims: tuple[Steps, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: int

    def step(self, loop: Var) -> float:
        """Elements that an iteration of the loop moves on in memory."""
        return sum(d.get(loop, 0.0) * s for d, s in zip(self.dims, self.strides, strict=True))

    def moves(self, loop: Var) -> bool:
        return any(loop in d for d in self.dims)


def features(func: PrimFunc, target: Target) -> Vector:
    """A vector of the same length for every function."""
    rows = [_block_features(loops, block, target) for loops, block in nests(func)]
    rows.sort(key=lambda row: -row[1])
    parts = [row[0] for row in rows[:BLOCKS]]
    parts += [[0.0] * LENGTH] * (BLOCKS - len(parts))
    assert all(len(part) == LENGTH for part in parts)
    instructions = [row[1] for row in rows]
    fetched = [[row[2][n] for row in rows] for n in range(len(CACHES))]
    cycles = sum(row[3] for row in rows)
    sums = [len(rows), _log(sum(instructions)), *(_log(sum(f)) for f in fetched), _log(cycles)]
    return np.array([*sums, *(number for part in parts for number in part)], np.float32)


Row = tuple[list[float], float, list[float], float]


def _block_features(loops: Sequence[For], block: Block, target: Target) -> Row:
    """(features, instructions, bytes that each cache fetches, cycles), the last three by rule of
    thumb."""
    loops = [o for o in loops if turns(o) > 1]
    accesses = _accesses(block)
    reduced = bound_to(block, "reduce")
    lanes = prod(turns(o) for o in loops if o.kind == "vectorized")
    width = max((target.lanes(w.buffer.dtype) for w in block.writes), default=1)
    chunks = ceil(lanes / width)
    unrolled = [o for o in loops if o.kind == "unrolled"]
    serial = [o for o in loops if o.kind == "serial"]
    parallel = [o for o in loops if o.kind == "parallel"]
    copies = prod(map(turns, unrolled))
    sums = prod(turns(o) for o in unrolled if o.var not in reduced) * chunks
    times = prod(map(turns, (*serial, *parallel)))
    counts = _operations(block)
    work = sum(counts) * copies * chunks
    loads, unit, apart = 0.0, 0, 0
    slots: list[list[float]] = []
    inner = serial[-1] if serial else None
    lane = next((o for o in loops if o.kind == "vectorized"), None)
    for access in accesses:
        each = float(prod(turns(o) for o in unrolled if access.moves(o.var)))
        step = abs(access.step(lane.var)) if lane is not None else 0.0
        unit += step == 1
        apart += step > 1
        each *= chunks if step == 1 else lanes if step > 1 else 1
        if step == 0:  # neighbours that are read one after the other come in one load
            side = [turns(o) for o in unrolled if abs(access.step(o.var)) == 1]
            each /= min(max(side, default=1), width)
        kept = inner is None or not access.moves(inner.var)  # the iteration before has loaded it
        loads += each * (0.25 if kept else 1.0)
        slots.append([_log(each), step == 1, step == 0, kept, _inner_step(access, inner)])
    touched = _touched(loops, accesses)
    fetched = [_fetched(loops, accesses, touched, size) for size in CACHES]
    for slot, access, number in zip(slots, accesses, range(len(slots)), strict=True):
        slot += [_log(touched[-1][number]), _log(touched[len(touched) // 2][number])]
        slot += [_log(fetched[n][number]) for n in range(len(CACHES))]
        slot.append(access.bytes)
    heavy = sorted(slots[1:], key=lambda slot: -slot[0])
    slots = (slots[:1] + heavy)[:SLOTS]
    slots += [[0.0] * SLOT] * (SLOTS - len(slots))
    guarded = not is_const(block.predicate, True)
    turn = work + loads + 4.0
    instructions = times * turn
    misses = [sum(f) for f in fetched]
    spilt = max(0.0, sums - (target.vector_registers or 16))
    cycles = times * (max(work, loads) / 2 + 2.0 + spilt) + misses[0] / 32 + misses[1] / 8
    flops = max(sum(counts[:4]), 1) * times * copies * lanes
    total = [sum(t) for t in touched]
    curve = [_log(flops / total[int(n * (len(total) - 1) / (CURVE - 1))]) for n in range(CURVE)]
    depth = [_log(turns(o)) for o in reversed(serial)][:4]
    numbers = [
        _log(times * copies * lanes),
        *(_log(c * times * copies * chunks) for c in counts),
        _log(lanes),
        unit,
        apart,
        _log(copies),
        _log(sums),
        _log(copies * chunks / sums),
        spilt,
        _log(prod(map(turns, parallel))),
        len(parallel),
        len(serial),
        *depth,
        *[0.0] * (4 - len(depth)),
        guarded,
        block.init is not None,
        _log(turn),
        _log(loads),
        work / turn,
        work / max(loads, 1.0),
        _log(instructions),
        _log(cycles),
        *curve,
        *(_log(m) for m in misses),
    ]
    return [*numbers, *(x for slot in slots for x in slot)], instructions, misses, cycles


SLOT = 10  # numbers for one buffer
LENGTH = 37 + SLOTS * SLOT


def _log(x: float) -> float:
    return log2(1.0 + x)


def _inner_step(access: Access, inner: For | None) -> float:
    """The step per iteration of the innermost serial loop, in bytes."""
    return _log(abs(access.step(inner.var)) * access.bytes) if inner is not None else 0.0


def _operations(block: Block) -> list[int]:
    """Per run: multiplications, additions, divisions, comparisons and choices, conversions, calls.
    Only of values: lowering removes most arithmetic of indices."""
    found = [0] * 6
    pending: list[Any] = [n.value for n in walk(block.body) if isinstance(n, Store)]
    seen: set[Any] = set()
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        match n:
            case Load():
                continue
            case Binary(op, a, b):
                found[{"*": 0, "+": 1, "-": 1, "/": 2, "//": 2, "%": 2}.get(op, 3)] += 1
                pending += (a, b)
            case Compare(_, a, b):
                found[3] += 1
                pending += (a, b)
            case Select(c, a, b):
                found[3] += 1
                pending += (c, a, b)
            case Cast(_, a):
                found[4] += 1
                pending.append(a)
            case Call(_, args):
                found[5] += 1
                pending += args
    if found[0] and found[1]:  # multiply-accumulates are one instruction
        found[1] = max(found[1] - found[0], 0)
    return found


def _accesses(block: Block) -> list[Access]:
    """What the block writes, then what it reads."""
    bindings = {i.var: _steps(i.binding, {}) for i in block.iters}
    found: list[Access] = []
    for r in (*block.writes, *block.reads):
        sizes = [int(n) if isinstance(n, int) else 1 << 10 for n in r.buffer.shape]
        strides = [int(s) if isinstance(s, int) else 1 << 10 for s in strides_of(r.buffer)]
        dims = tuple(_steps(low, bindings) for low in r.minimum)
        found.append(Access(dims, tuple(sizes), tuple(strides), dtype_of(r.buffer.dtype).bytes))
    return found


def _steps(e: Expr, bindings: Mapping[Var, Steps]) -> dict[Var, float]:
    """By how much e grows per step of each variable, on the average; of bound variables, per step
    of the variables they are bound to."""

    @once
    def steps(e: Expr) -> dict[Var, float]:
        match e:
            case Var():
                return dict(bindings.get(e, {e: 1.0}))
            case Binary("+" | "-" as op, a, b):
                found = dict(steps(a))
                for v, c in steps(b).items():
                    found[v] = found.get(v, 0.0) + (c if op == "+" else -c)
                return found
            case Binary("*", a, Const(value)) | Binary("*", Const(value), a):
                return {v: c * value for v, c in steps(a).items()}
            case Binary("//", a, Const(value)):
                return {v: c / value for v, c in steps(a).items()}
            case Binary("%", a, Const(value)):
                return {v: c for v, c in steps(a).items() if abs(c) < value}
            case Const():
                return {}
        return {v: 1.0 for n in walk(e) if isinstance(n, Var) for v in bindings.get(n, {n: 1.0})}

    found: dict[Var, float] = steps(e)
    return found


def _touched(loops: Sequence[For], accesses: Sequence[Access]) -> list[list[float]]:
    """Bytes of whole cache lines that each access touches, by one run of the block, then by all of
    the innermost loop, and so on outwards."""
    reach = [[1.0] * len(a.dims) for a in accesses]
    found = [[float(LINE)] * len(accesses)]
    for loop in reversed(loops):
        row: list[float] = []
        for number, (access, dims) in enumerate(zip(accesses, reach, strict=True)):
            if not access.moves(loop.var):
                row.append(found[-1][number])
                continue
            for n, steps in enumerate(access.dims):
                if loop.var in steps:
                    further = abs(steps[loop.var]) * (turns(loop) - 1)
                    dims[n] = min(dims[n] + further, float(access.sizes[n]))
            row.append(_lines(access, dims))
        found.append(row)
    return found


def _lines(access: Access, dims: Sequence[float]) -> float:
    """Bytes of the lines that hold a box of the buffer: neighbouring dimensions that are whole make
    one run of memory."""
    run, runs, whole = 1.0, 1.0, True
    for reach, size in zip(reversed(dims), reversed(access.sizes), strict=True):
        if whole:
            run *= max(reach, 1.0)
            whole = reach >= size
        else:
            runs *= max(reach, 1.0)
    return runs * ceil(run * access.bytes / LINE) * LINE


def _fetched(
    loops: Sequence[For], accesses: Sequence[Access], touched: Sequence[Sequence[float]], size: int
) -> list[float]:
    """Bytes that a cache of this size fetches for each access: what the inner loops that fit into
    it touch, times the iterations of the loops outside. The innermost loop outside does not count
    if it does not move the access, whose data may then stay."""
    depth = max(n for n, row in enumerate(touched) if n == 0 or sum(row) <= size)
    outside = list(loops[: len(loops) - depth])
    found: list[float] = []
    for number, access in enumerate(accesses):
        around = list(outside)
        if around and not access.moves(around[-1].var) and touched[depth][number] <= size / 2:
            around.pop()
        found.append(touched[depth][number] * prod(map(turns, around)))
    return found
