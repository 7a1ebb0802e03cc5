"""Stage calls that change what is computed: cache_read, cache_write and rfactor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir import (
    Expr,
    IterVar,
    Reduce,
    Var,
    all_of,
    const,
    expr,
    if_then_else,
    is_const,
    replace_buffers,
    substitute,
)
from ..ir.build import TRUE, compare
from ..ir.nodes import Scope
from .stage import Fuse, Split, Stage, StageSchedule, known_scope, made_axis
from .tensor import ComputeOp, Operation, Tensor, compute


def cache_read(
    s: StageSchedule, tensor: Tensor, scope: Scope, readers: Sequence[Tensor | Operation]
) -> Tensor:
    """… A[i] …   =>   A_scope[i] = A[i]; … A_scope[i] …, in the given readers."""
    primitive = "cache_read"
    given = [readers] if isinstance(readers, Tensor) or not _is_list(readers) else list(readers)
    stages = [s[reader] for reader in given]
    near = s[tensor]
    for stage in stages:
        if not isinstance(stage.op, ComputeOp) or tensor not in stage.op.input_tensors:
            stage.refuse(primitive, f"stage '{stage.name}' does not read '{tensor.name}'")
    made: Tensor = compute(
        tensor.shape, lambda *i: tensor[i], name=f"{tensor.name}_{known_scope(primitive, scope)}"
    )
    assert isinstance(made.op, ComputeOp)
    s.add(made.op, near, after=True).scope = scope
    for stage in stages:
        assert isinstance(stage.op, ComputeOp)
        body = tuple(replace_buffers(e, {tensor: made}) for e in stage.op.body)
        s.rename(stage, replace(stage.op, body=body))
    return made


def _is_list(readers: object) -> bool:
    return isinstance(readers, (list, tuple))


def cache_write(s: StageSchedule, tensor: Tensor, scope: Scope) -> Tensor:
    """C[i] = e   =>   C_scope[i] = e; C[i] = C_scope[i]. The stage of C, with its axes, is the copy's."""
    primitive = "cache_write"
    stage = s[tensor]
    op = _unscheduled(primitive, stage)
    if len(op.body) > 1:
        stage.refuse(primitive, f"stage '{stage.name}' has several outputs")
    fresh = {axis.var: _again(axis) for axis in (*op.axis, *op.reduce_axis)}
    values: dict[Var, Expr] = {v: axis.var for v, axis in fresh.items()}
    match op.body[0]:
        case Reduce() as e:
            axes = tuple(fresh[a.var] for a in e.axes)
            inside, where = substitute(e.value, values), substitute(e.condition, values)
            body: Expr = Reduce(e.combine, inside, axes, where, e.identity, e.dtype)
        case e:
            body = substitute(e, values)
    name = f"{tensor.name}_{known_scope(primitive, scope)}"
    cached = ComputeOp(name, tuple(fresh[a.var] for a in op.axis), (body,), op.attrs)
    made = Tensor(name, tensor.shape, tensor.dtype, cached)
    s.add(cached, stage, after=False).scope = scope
    stage.reset(ComputeOp(op.name, op.axis, (made[tuple(a.var for a in op.axis)],), {}))
    s.rename(stage, stage.op)
    return made


def _again(axis: IterVar) -> IterVar:
    return made_axis(f"{axis.var.name}_c", axis.extent, axis)


def _unscheduled(primitive: str, stage: Stage) -> ComputeOp:
    if not isinstance(stage.op, ComputeOp):
        stage.refuse(primitive, f"'{stage.name}' is an input; it has no loops")
    if stage.relations or stage.marks:
        stage.refuse(
            primitive,
            f"loops of stage '{stage.name}' are scheduled already",
            f"{primitive} first",
        )
    return stage.op


def rfactor(s: StageSchedule, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
    """B[i] = sum(e, (ko, ki))   =>   B_rf[ki, i] = sum(e, ko); B[i] = sum(B_rf[k, i], k)

    The reduction's axis becomes dimension number factor_axis of a stage of its own, which the
    stage of B then reduces over. Loops of B must be scheduled anew; its reduction's axes,
    as they were split, are those of B_rf.
    """
    primitive = "rfactor"
    stage = s[tensor]
    op = stage.op
    if not isinstance(op, ComputeOp) or len(op.body) > 1 or not isinstance(op.body[0], Reduce):
        stage.refuse(primitive, f"stage '{stage.name}' is no reduction with one output")
    state = stage.axis_state(axis)
    if state or axis.kind != "reduce":
        stage.refuse(primitive, f"axis '{axis.var.name}' {state or 'is of results, no reduction'}")
    place = factor_axis + (len(op.axis) + 1 if factor_axis < 0 else 0)
    if not 0 <= place <= len(op.axis):
        stage.refuse(
            primitive, f"factor_axis {factor_axis} of a result with {len(op.axis)} dimensions"
        )
    leaves = {
        leaf: made_axis(leaf.var.name, leaf.extent, leaf)
        for leaf in stage.leaf_iter_vars
        if leaf.kind == "reduce"
    }
    results = {a.var: made_axis(a.var.name, a.extent, a) for a in op.axis}
    values, guards = _roots(stage, leaves)
    to: dict[Var, Expr] = {v: a.var for v, a in results.items()} | values
    part = made_axis(axis.var.name, axis.extent, op.axis[0] if op.axis else axis)
    part = replace(part, kind="spatial")
    to = {v: substitute(e, {leaves[axis].var: part.var}) for v, e in to.items()}
    where = all_of(
        substitute(op.body[0].condition, to),
        *(substitute(g, {leaves[axis].var: part.var}) for g in guards),
    )
    whole = op.body[0]
    rest = tuple(made for leaf, made in leaves.items() if leaf is not axis)
    inside = substitute(whole.value, to)
    if rest:
        body: Expr = Reduce(whole.combine, inside, rest, where, whole.identity, whole.dtype)
    else:
        body = if_then_else(where, inside, whole.identity)
    at = [results[a.var] for a in op.axis]
    at.insert(place, part)
    name = f"{tensor.name}_rf"
    made = Tensor(
        name, [a.extent for a in at], tensor.dtype, ComputeOp(name, tuple(at), (body,), op.attrs)
    )
    assert isinstance(made.op, ComputeOp)
    s.add(made.op, stage, after=False)
    over = made_axis(axis.var.name, axis.extent, axis)
    where_from: list[Expr] = [a.var for a in op.axis]
    where_from.insert(place, over.var)
    last = Reduce(whole.combine, made[tuple(where_from)], (over,), TRUE, whole.identity, whole.dtype)
    stage.reset(ComputeOp(op.name, op.axis, (last,), {}))
    s.rename(stage, stage.op)
    return made


def _roots(
    stage: Stage, leaves: dict[IterVar, IterVar]
) -> tuple[dict[Var, Expr], list[Expr]]:
    """The reduction's own axes in terms of the axes that they were split and fused into, and the
    conditions under which a turn is one of theirs."""
    values: dict[Var, Expr] = {leaf.var: made.var for leaf, made in leaves.items()}
    guards: list[Expr] = []
    for step in reversed(stage.relations):
        match step:
            case Split(parent, outer, inner) if parent.kind == "reduce":
                value = values[outer.var] * inner.extent + values[inner.var]
                values[parent.var] = value
                if not is_const(parent.extent % inner.extent, 0) or step.nparts is not None:
                    guards.append(compare("<", value, parent.extent))
            case Fuse(parts, fused) if fused.kind == "reduce":
                left = values[fused.var]
                for axis in reversed(parts[1:]):
                    values[axis.var] = left % axis.extent
                    left = left // axis.extent
                values[parts[0].var] = left
    return values, [g for g in guards if not is_const(g, True)]


def zero_like(e: Expr) -> Expr:
    return const(0, e.dtype)


__all__ = ["cache_read", "cache_write", "expr", "rfactor"]
