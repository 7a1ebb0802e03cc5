"""What a schedule asks of scratch buffers: aligned rows, and double buffers.

Blocks carry these requests as annotations. `lower_blocks` removes the blocks and keeps the requests
in an attribute, by buffer name. Compaction runs first: it finds the live part of a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..errors import LowerError
from ..ir import (
    Block,
    Buffer,
    Const,
    Dim,
    Expr,
    If,
    Load,
    PrimFunc,
    Stmt,
    Store,
    const,
    load,
    once,
    rebuild,
    replace_buffers,
    seq,
    substitute,
    walk,
    with_fields,
)
from ..ir.build import compare, span_of, stmts_of
from ..ir.pragmas import DIM_ALIGN, DOUBLE_BUFFER
from ..ir.printer import loop_header
from ..passes.context import required
from .compact import shared_loops

ASKED = "lower.scratch"  # the attribute: {buffer: [[axis, factor, offset], …] or DOUBLE_BUFFER}


def asked_of(block: Block) -> dict[str, Any]:
    """The requests in a block's annotations, by kind and name of the buffers that it writes."""
    found: dict[str, Any] = {}
    buffers = list(dict.fromkeys(w.buffer for w in block.writes))
    for number, *alignment in block.annotations.get(DIM_ALIGN, ()):
        name = _written(block, buffers, number).name
        found.setdefault(f"{DIM_ALIGN}.{name}", []).append(alignment)
    if DOUBLE_BUFFER in block.annotations:
        name = _written(block, buffers, block.annotations[DOUBLE_BUFFER]).name
        found[f"{DOUBLE_BUFFER}.{name}"] = True
    return found


def _written(block: Block, buffers: Sequence[Buffer], number: Any) -> Buffer:
    if not isinstance(number, int) or not 0 <= number < len(buffers):
        raise LowerError(f"block '{block.name}' writes no buffer number {number}")
    return buffers[number]


def _take(func: PrimFunc, kind: str) -> tuple[PrimFunc, dict[str, Any]]:
    """The function without the requests of a kind, and these requests by buffer."""
    asked: Mapping[str, Any] = func.attrs.get(ASKED, {})
    mine = {k.removeprefix(f"{kind}."): v for k, v in asked.items() if k.startswith(f"{kind}.")}
    if not mine:
        return func, {}
    rest = {k: v for k, v in asked.items() if not k.startswith(f"{kind}.")}
    attrs = {k: v for k, v in func.attrs.items() if k != ASKED}
    return with_fields(func, attrs={**attrs, ASKED: rest} if rest else attrs), mine


def _scratch(func: PrimFunc, name: str, what: str) -> Buffer | None:
    """The scratch buffer of that name; None where it is gone."""
    assert isinstance(func.body, Block)
    if any(b.name == name for b in func.buffers):
        raise LowerError(
            f"{what}: buffer '{name}' is an argument, whose memory the caller gives",
            where=func.name,
            mend=f"cache_read or cache_write '{name}', and {what} the copy",
        )
    return next((b for b in func.body.allocs if b.name == name), None)


# --------------------------------------------------------------------------------------- alignment


@required
def align_rows(func: PrimFunc) -> PrimFunc:
    """alloc B[n, m]   =>   alloc B[n, m] with strides (s, 1), s >= m and s % factor == offset

    Raises LowerError for an argument, and for an alignment of a symbolic size.
    """
    func, asked = _take(func, DIM_ALIGN)
    moved: dict[Buffer, Buffer] = {}
    for name, alignments in asked.items():
        buffer = _scratch(func, name, "storage_align")
        if buffer is not None:
            moved[buffer] = buffer.replace(strides=_aligned(func, buffer, alignments))
    return _with_buffers(func, moved) if moved else func


def _aligned(
    func: PrimFunc, buffer: Buffer, alignments: Sequence[Sequence[int]]
) -> tuple[Dim, ...]:
    wanted = {axis: (factor, offset) for axis, factor, offset in alignments}
    strides: list[Dim] = []
    step: Dim = 1
    for axis in reversed(range(buffer.ndim)):
        if axis in wanted:
            if not isinstance(step, int):
                raise LowerError(
                    f"storage_align: the stride of dimension {axis} of buffer '{buffer.name}' is "
                    f"{step}, which is not a constant",
                    where=func.name,
                    mend="compute_at a loop whose iterations need a constant part of it",
                )
            factor, offset = wanted[axis]
            step += (offset - step) % factor
        strides.append(step)
        step = step * buffer.shape[axis]
    return tuple(reversed(strides))


def _with_buffers(func: PrimFunc, moved: dict[Buffer, Buffer]) -> PrimFunc:
    root = func.body
    assert isinstance(root, Block)
    allocs = tuple(moved.get(b, b) for b in root.allocs)
    body = replace_buffers(root.body, moved)
    return with_fields(func, body=with_fields(root, body=body, allocs=allocs))


# -------------------------------------------------------------------------------------- two halves


@required
def double_buffers(func: PrimFunc) -> PrimFunc:
    """for i in range(n): B = f(i); g(i, B)
    =>   B[0] = f(0);  for i in range(n): if i + 1 < n: B[(i + 1) % 2] = f(i + 1);  g(i, B[i % 2])

    Each iteration fills the next iteration's half before it uses its own, so the next iteration's
    loads need not wait for this iteration's sums. Raises LowerError where an iteration cannot begin
    before the last one is over, and where there is no such loop."""
    func, asked = _take(func, DOUBLE_BUFFER)
    for name in asked:
        buffer = _scratch(func, name, "double_buffer")
        if buffer is not None:
            func = _doubled(func, buffer)
    return func


def _doubled(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    root = func.body
    assert isinstance(root, Block)
    around, made_in_turn = shared_loops(root.body, buffer)
    if not around:  # the loop of the schedule had one iteration, and is gone
        return func
    loop = around[-1]
    where = loop_header(loop)
    stmts = stmts_of(loop.body)
    makes = [s for s in stmts if buffer in _buffers(s, Store)]
    uses = [s for s in stmts if s not in makes]
    if loop.kind != "serial":
        _refuse(buffer, f"iterations of loop '{loop.name}' are {loop.kind}", where)
    if not any(buffer in _buffers(s, Load) for s in uses):
        _refuse(buffer, f"a statement of loop '{loop.name}' both makes and uses it", where)
    if not made_in_turn:
        _refuse(
            buffer, f"iterations of loop '{loop.name}' use what other iterations computed", where
        )
    made = {b for s in makes for b in _buffers(s, Store)}
    touched = {b for s in uses for b in (*_buffers(s, Load), *_buffers(s, Store))}
    written = {b for s in uses for b in _buffers(s, Store)}
    early = sorted(b.name for b in written if any(b in _buffers(s, Load) for s in makes))
    shared = sorted(b.name for b in (made & touched) - {buffer})
    if early or shared:
        other = (*early, *shared)[0]
        _refuse(
            buffer,
            f"its source '{other}', is computed in the same iteration of loop '{loop.name}'",
            where,
            f"compute_at '{other}' within it, or outside of loop '{loop.name}'",
        )
    halves = _halves(buffer)

    def half(s: Stmt, number: Expr) -> Stmt:
        return _in_half(s, buffer, halves, number)

    i, begin = loop.var, const(0, loop.var.dtype)
    following = i + 1
    first: Stmt = seq([substitute(half(s, i % 2), {i: begin}) for s in makes])
    ahead = seq([substitute(half(s, i % 2), {i: following}) for s in makes])
    rest = [half(s, i % 2) for s in uses]
    body = seq([If(compare("<", following, loop.extent), ahead), *rest])
    if not (isinstance(loop.extent, Const) and loop.extent.value > 0):
        first = If(compare("<", begin, loop.extent), first)
    replaced = seq([first, with_fields(loop, body=body)])

    def visit(m: Any) -> Any:
        if m is loop:
            return replaced
        return m if isinstance(m, Expr) else rebuild(m, visit)

    allocs = tuple(halves if b is buffer else b for b in root.allocs)
    return with_fields(func, body=with_fields(root, body=visit(root.body), allocs=allocs))


def _refuse(buffer: Buffer, why: str, where: str, mend: str = "") -> NoReturn:
    raise LowerError(
        f"double_buffer: buffer '{buffer.name}': {why}",
        where=where,
        mend=mend or "compute_at a serial loop whose iterations compute all that they use",
    )


def _halves(buffer: Buffer) -> Buffer:
    """A buffer of two copies, one after the other."""
    strides = None if buffer.strides is None else (span_of(buffer), *buffer.strides)
    return buffer.replace(shape=(2, *buffer.shape), strides=strides)


def _in_half(s: Stmt, buffer: Buffer, halves: Buffer, number: Expr) -> Stmt:
    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(b, indices) if b is buffer:
                return load(halves, (number, *map(visit, indices)))
            case Store(b, indices, value) if b is buffer:
                return Store(halves, (number, *map(visit, indices)), visit(value))
        return rebuild(m, visit)

    result: Stmt = visit(s)
    return result


def _buffers(s: Stmt, kind: type[Load] | type[Store]) -> set[Buffer]:
    return {n.buffer for n in walk(s) if isinstance(n, kind)}
