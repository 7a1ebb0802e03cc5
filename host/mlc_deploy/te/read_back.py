"""From loops and blocks back to tensor expressions: programs of create_prim_func, and others of
that form, are read as stages again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Reduce,
    Seq,
    Stmt,
    Store,
    Var,
    expr,
    free_vars,
    is_const,
    loads,
    replace_buffers,
    same_expr,
)
from ..ir.nodes import TRUE
from .tensor import Axes, ComputeOp, Tensor

# Operators whose operands may be swapped: both orders give the same bits.
COMMUTE = ("+", "*")


@dataclass(frozen=True, slots=True, eq=False)
class ReadStage:
    """buffer[axis] = value, which reads buffers; value may be a Reduce."""

    name: str
    buffer: Buffer
    axis: tuple[IterVar, ...]
    value: Expr
    attrs: Mapping[str, Any]


def stages_of(func: PrimFunc, inputs: int) -> tuple[ReadStage, ...] | None:
    """The stages of a PrimFunc, whose first `inputs` parameters are inputs. Each block must store
    every element of its own buffer once, in plain loops; None for other functions."""
    buffers = func.buffers
    if len(buffers) != len(func.params) or not isinstance(func.body, Block) or func.body.iters:
        return None
    plain = all(map(_is_plain, (*buffers, *func.body.allocs)))
    if not plain or func.body.init is not None or len({*buffers}) != len(buffers):
        return None
    known = set(buffers[:inputs])
    ours = {*buffers[inputs:], *func.body.allocs}
    stages: list[ReadStage] = []
    for statement in _statements(func.body.body):
        stage = _stage(statement)
        if stage is None or stage.buffer not in ours or stage.buffer in known:
            return None
        if any(load.buffer not in known for load in loads(stage.value)):
            return None
        known.add(stage.buffer)
        stages.append(stage)
    return tuple(stages) if known.issuperset(buffers) else None


def tensors_of(
    func: PrimFunc, stages: Sequence[ReadStage], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The outputs of a PrimFunc that was read as stages, for these inputs."""
    made: dict[Buffer, Buffer] = dict(zip(func.buffers, inputs, strict=False))
    for stage in stages:
        value = replace_buffers(stage.value, made)
        op = ComputeOp(stage.name, Axes(stage.axis), (value,), stage.attrs)
        buffer = stage.buffer
        made[buffer] = Tensor(buffer.name, buffer.shape, buffer.dtype, op)
    outputs = (made[b] for b in func.buffers[len(inputs) :])
    return tuple(t for t in outputs if isinstance(t, Tensor))


def _is_plain(buffer: Buffer) -> bool:
    static = all(isinstance(extent, int) for extent in buffer.shape)
    return static and buffer.strides is None and buffer.scope == "global"


def _statements(s: Stmt) -> Iterator[Stmt]:
    if isinstance(s, Seq):
        for inner in s.stmts:
            yield from _statements(inner)
    else:
        yield s


def _stage(nest: Stmt) -> ReadStage | None:
    """for i, k: block(i, k): B[i] = …   =>   B[i] = …"""
    extents: dict[Var, Expr] = {}
    while isinstance(nest, For):
        if nest.kind != "serial" or nest.annotations:
            return None
        extents[nest.var] = nest.extent
        nest = nest.body
    if not isinstance(nest, Block) or nest.allocs or not is_const(nest.predicate, True):
        return None
    if not isinstance(nest.body, Store):
        return None
    left = dict(extents)
    for i in nest.iters:
        once = is_const(i.extent, 1) and is_const(i.binding, 0)
        if not once and not _is_whole(i, left):
            return None
    out = nest.body
    axis = _axis(out, nest.iters)
    if left or axis is None:
        return None
    reduced = tuple(i for i in nest.iters if i.kind == "reduce")
    value = _value(out, nest.init, reduced)
    bound = {i.var for i in (*axis, *reduced)}
    if value is None or not free_vars(value) <= bound:
        return None
    return ReadStage(nest.name, out.buffer, axis, value, nest.annotations)


def _is_whole(i: IterVar, left: dict[Var, Expr]) -> bool:
    """Whether an iteration covers a whole loop of its own, which is taken out of `left`."""
    if not isinstance(i.binding, Var) or i.binding not in left:
        return False
    return same_expr(left.pop(i.binding), i.extent)


def _axis(out: Store, iters: Sequence[IterVar]) -> tuple[IterVar, ...] | None:
    """The iterations that index the store, in order; None for other indices, or where they do not
    cover the buffer."""
    spatial = {i.var: i for i in iters if i.kind == "spatial"}
    found: list[IterVar] = []
    for number, (at, extent) in enumerate(zip(out.indices, out.buffer.shape, strict=True)):
        own = spatial.pop(at, None) if isinstance(at, Var) else None
        if own is None and is_const(extent, 1) and is_const(at, 0):
            var = Var(f"u{number}")
            own = IterVar(var, expr(1), "spatial", var)
        if own is None or not is_const(own.extent, int(extent)):  # type: ignore[arg-type]
            return None
        found.append(IterVar(own.var, own.extent, "spatial", own.var))
    unused = all(is_const(i.extent, 1) for i in spatial.values())
    return tuple(found) if unused else None


def _value(out: Store, init: Stmt | None, reduced: Sequence[IterVar]) -> Expr | None:
    """The value that a block stores: an expression, or the reduction that init begins."""
    if init is None:
        own = any(load.buffer is out.buffer for load in loads(out.value))
        return None if reduced or own else out.value
    match init:
        case Store(buffer, indices, Const() as identity) if buffer is out.buffer and _same(
            indices, out.indices
        ):
            pass
        case _:
            return None
    match out.value:
        case Binary(op, Load() as before, value) if _is_element(before, out):
            pass
        case Binary(op, value, Load() as before) if op in COMMUTE and _is_element(before, out):
            pass
        case _:
            return None
    if any(load.buffer is out.buffer for load in loads(value)) or not reduced:
        return None
    axes = tuple(IterVar(i.var, i.extent, "reduce", i.var) for i in reduced)
    return Reduce(op, value, axes, TRUE, identity, value.dtype)


def _is_element(load: Load, out: Store) -> bool:
    return load.buffer is out.buffer and _same(load.indices, out.indices)


def _same(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    return all(same_expr(a, b) for a, b in zip(some, others, strict=True))
