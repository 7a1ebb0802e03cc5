"""Schedules of TE: a schedule is a list of stages.

    s = te.create_schedule(C.op)
    x, y = s[C].op.axis
    xo, yo, xi, yi = s[C].tile(x, y, 8, 32)
    s[B].compute_at(s[C], yo)

Calls on stages are recorded. `schedule.stages` replays them when the schedule is lowered or built,
consumers first: the place of a stage decides the ranges of its axes. cache_read, cache_write and
rfactor change what is computed, so they make their stages at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ..errors import ScheduleError
from ..ir import IterVar
from ..ir.nodes import Scope
from . import stage_caches
from .program import topological
from .stage import Stage, caller
from .tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor


class StageSchedule:
    """The stages of everything that some operations need, producers first."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._outputs: list[Stage] = []
        self.stages: list[Stage] = []
        self._of: dict[Operation, Stage] = {}
        for tensor in topological(outputs):
            if tensor.op not in self._of:
                self._of[tensor.op] = Stage(self, tensor.op)
                self.stages.append(self._of[tensor.op])
        self._outputs = list(dict.fromkeys(self._of[tensor.op] for tensor in outputs))

    @property
    def outputs(self) -> list[Operation]:
        return [stage.op for stage in self._outputs]

    def __getitem__(self, what: Tensor | Operation) -> Stage:
        """The stage of a tensor or operation."""
        op = what.op if isinstance(what, Tensor) else what
        if op not in self._of:
            name = getattr(op, "name", repr(op))
            names = ", ".join(stage.name for stage in self.stages)
            raise ScheduleError(
                f"schedule: '{name}' is not one of its stages", where=caller(), mend=names
            )
        return self._of[op]

    def __contains__(self, what: Tensor | Operation) -> bool:
        return (what.op if isinstance(what, Tensor) else what) in self._of

    @property
    def is_scheduled(self) -> bool:
        """Whether anything was asked of any stage."""
        return any(stage.is_scheduled or stage.op is not op for op, stage in self._of.items())

    def add(self, op: ComputeOp, near: Stage, after: bool) -> Stage:
        """A stage for an operation, right before or after another."""
        stage = Stage(self, op)
        self._of[op] = stage
        self.stages.insert(self.stages.index(near) + after, stage)
        return stage

    def rename(self, stage: Stage, op: ComputeOp) -> None:
        """Gives the stage another operation; it is found by the old one, too."""
        stage.op = op
        self._of[op] = stage

    def cache_read(
        self,
        tensor: Tensor,
        scope: Scope,
        readers: Tensor | Operation | Sequence[Tensor | Operation],
    ) -> Tensor:
        """See stage_caches.cache_read."""
        one = isinstance(readers, (Tensor, Operation))
        given = cast("Sequence[Tensor | Operation]", [readers] if one else readers)
        return stage_caches.cache_read(self, tensor, scope, given)

    def cache_write(self, tensor: Tensor, scope: Scope) -> Tensor:
        """See stage_caches.cache_write."""
        return stage_caches.cache_write(self, tensor, scope)

    def rfactor(self, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
        """See stage_caches.rfactor."""
        return stage_caches.rfactor(self, tensor, axis, factor_axis)

    def normalize(self) -> StageSchedule:
        """The schedule itself: every axis begins at 0 anyway."""
        return self


def create_schedule(
    ops: Operation | Tensor | Sequence[Operation | Tensor],
) -> StageSchedule:
    """An untransformed schedule of operations and all that they read."""
    given = [ops] if isinstance(ops, (Operation, Tensor)) else list(ops)
    tensors = [t for op in given for t in ([op] if isinstance(op, Tensor) else outputs_of(op))]
    if not tensors:
        raise ScheduleError("create_schedule: no operation is given", where=caller())
    return StageSchedule(tensors)


def outputs_of(op: Operation) -> list[Tensor]:
    """Tensors that stand for an operation's outputs."""
    if isinstance(op, PlaceholderOp):
        raise ScheduleError(f"create_schedule: '{op.name}' is an input", where=caller())
    if isinstance(op, ExternOp):
        return [Tensor(p.name, p.shape, p.dtype, op, n) for n, p in enumerate(op.places)]
    shape = [axis.extent for axis in op.axis]
    return [
        Tensor(op.name if n == 0 else f"{op.name}_{n}", shape, e.dtype, op, n)
        for n, e in enumerate(op.body)
    ]
