"""Stage calls that change what is computed: cache_read, cache_write and rfactor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ir import (
    Expr,
    IterVar,
    Reduce,
    Var,
    all_of,
    if_then_else,
    is_const,
    replace_buffers,
    substitute,
)
from ..ir.build import compare
from ..ir.nodes import TRUE, Scope
from .stage import Fuse, Split, Stage, known_scope, made_axis
from .tensor import Axes, ComputeOp, ExternOp, Operation, Tensor, compute

if TYPE_CHECKING:
    from .stage_schedule import StageSchedule


def cache_read(
    s: StageSchedule, tensor: Tensor, scope: Scope, readers: Sequence[Tensor | Operation]
) -> Tensor:
    """… A[i] …   =>   A_scope[i] = A[i]; … A_scope[i] …, in the given readers."""
    name = f"{tensor.name}_{known_scope('cache_read', scope)}"
    near = s[tensor]
    ops: dict[Stage, ComputeOp] = {}
    for stage in (s[reader] for reader in readers):
        if not isinstance(stage.op, ComputeOp) or tensor not in stage.op.input_tensors:
            stage.refuse("cache_read", f"stage '{stage.name}' does not read '{tensor.name}'")
        ops[stage] = stage.op
    made: Tensor = compute(tensor.shape, lambda *i: tensor[i], name=name)
    assert isinstance(made.op, ComputeOp)
    s.add(made.op, near, after=True).scope = scope
    for stage, op in ops.items():
        body = tuple(replace_buffers(e, {tensor: made}) for e in op.body)
        s.rename(stage, replace(op, body=body))
    return made


def cache_write(s: StageSchedule, tensor: Tensor, scope: Scope) -> Tensor:
    """C[i] = e   =>   C_scope[i] = e; C[i] = C_scope[i]. The stage of C keeps its axes and does the
    copy."""
    stage = s[tensor]
    op = _single("cache_write", stage)
    if stage.relations or stage.marks:
        stage.refuse(
            "cache_write",
            f"loops of stage '{stage.name}' are scheduled already",
            "cache_write first, then schedule the loops of both",
        )
    name = f"{tensor.name}_{known_scope('cache_write', scope)}"
    fresh = {a.var: _axis(a, f"{a.var.name}_c") for a in (*op.axis, *op.reduce_axis)}
    values: dict[Var, Expr] = {v: a.var for v, a in fresh.items()}
    body: Expr
    match op.body[0]:
        case Reduce() as whole:
            body = _reduction(whole, values, [fresh[a.var] for a in whole.axes])
        case plain:
            body = substitute(plain, values)
    cached = ComputeOp(name, Axes(fresh[a.var] for a in op.axis), (body,), op.attrs)
    made = Tensor(name, tensor.shape, tensor.dtype, cached)
    s.add(cached, stage, after=False).scope = scope
    copy = ComputeOp(op.name, op.axis, (made[tuple(a.var for a in op.axis)],), {})
    stage.reset(copy)
    s.rename(stage, copy)
    return made


def rfactor(s: StageSchedule, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
    """B[i] = sum(e, (ko, ki))   =>   B_rf[ki, i] = sum(e, ko); B[i] = sum(B_rf[k, i], k)

    An axis of the reduction becomes dimension number factor_axis of the stage of B_rf; the stage of
    B then reduces over it. B_rf gets the axes that B's reduction was split into, and B loses the
    schedule of its loops (Suriana et al., "Parallel associative reductions in Halide", 2017).
    """
    stage = s[tensor]
    op = _single("rfactor", stage)
    whole = op.body[0]
    if not isinstance(whole, Reduce):
        stage.refuse("rfactor", f"stage '{stage.name}' is not a reduction")
    why = stage.axis_state(axis) or (
        "is not an axis of the reduction" if axis.kind != "reduce" else ""
    )
    if why:
        stage.refuse("rfactor", f"axis '{axis.var.name}' {why}")
    place = factor_axis + (len(op.axis) + 1 if factor_axis < 0 else 0)
    if not 0 <= place <= len(op.axis):
        stage.refuse("rfactor", f"factor_axis {factor_axis} of {len(op.axis)} dimensions and one")
    part = _axis(axis, axis.var.name)
    part = IterVar(part.var, part.extent, "spatial", part.var)
    over = [a for a in stage.leaf_iter_vars if a.kind == "reduce" and a is not axis]
    fresh = {a.var: _axis(a, a.var.name) for a in (*op.axis, *over)}
    values, guards = _roots(stage, {v: a.var for v, a in fresh.items()} | {axis.var: part.var})
    where = all_of(substitute(whole.condition, values), *guards)
    if over:
        body: Expr = _reduction(whole, values, [fresh[a.var] for a in over], where)
    else:
        body = if_then_else(where, substitute(whole.value, values), whole.identity)
    axes = [fresh[a.var] for a in op.axis]
    axes.insert(place, part)
    partial = ComputeOp(f"{tensor.name}_rf", Axes(axes), (body,), op.attrs)
    made = Tensor(partial.name, [a.extent for a in axes], tensor.dtype, partial)
    s.add(partial, stage, after=False)
    rest = _axis(axis, axis.var.name)
    at: list[Expr] = [a.var for a in op.axis]
    at.insert(place, rest.var)
    total = Reduce(whole.combine, made[tuple(at)], (rest,), TRUE, whole.identity, whole.dtype)
    last = ComputeOp(op.name, op.axis, (total,), {})
    stage.reset(last)
    s.rename(stage, last)
    return made


def _single(primitive: str, stage: Stage) -> ComputeOp:
    """The operation of a stage with one output."""
    if not isinstance(stage.op, ComputeOp):
        what = "calls functions" if isinstance(stage.op, ExternOp) else "is an input"
        stage.refuse(primitive, f"'{stage.name}' {what}; it has no loops")
    if len(stage.op.body) > 1:
        stage.refuse(primitive, f"stage '{stage.name}' has several outputs")
    return stage.op


def _axis(like: IterVar, name: str) -> IterVar:
    """Another axis over the same range."""
    return made_axis(name, like.extent, like)


def _reduction(
    whole: Reduce, values: Mapping[Var, Expr], axes: Sequence[IterVar], where: Expr | None = None
) -> Reduce:
    """The same reduction over other axes."""
    condition = substitute(whole.condition, values) if where is None else where
    inside = substitute(whole.value, values)
    return Reduce(whole.combine, inside, tuple(axes), condition, whole.identity, whole.dtype)


def _roots(stage: Stage, leaves: Mapping[Var, Expr]) -> tuple[dict[Var, Expr], list[Expr]]:
    """(the reduction's original axes in terms of the axes that they were split and fused into, the
    conditions that keep an iteration within the original ranges)."""
    values = dict(leaves)
    guards: list[Expr] = []
    for step in reversed(stage.relations):
        match step:
            case Split(parent, outer, inner) if parent.kind == "reduce":
                value = values[outer.var] * inner.extent + values[inner.var]
                values[parent.var] = value
                if not is_const(parent.extent - outer.extent * inner.extent, 0):
                    guards.append(compare("<", value, parent.extent))
            case Fuse(parts, fused) if fused.kind == "reduce":
                left = values[fused.var]
                for axis in reversed(parts[1:]):
                    values[axis.var] = left % axis.extent
                    left = left // axis.extent
                values[parts[0].var] = left
    return values, guards
