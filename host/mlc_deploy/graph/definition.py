"""The definition of a called PrimFunc, read from its loops: it tells how the call may be fused.

specialize.py finds the definition once, when it resolves the call, and the call carries it. A
scheduled function has no definition and keeps its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from ..ir import (
    Buffer,
    Expr,
    IterVar,
    Load,
    PrimFunc,
    Reduce,
    Var,
    is_const,
    loads,
    same_expr,
    same_shape,
)
from ..ir.nodes import Node
from ..ir.rewrite import children
from ..ops.elementwise import broadcast_shape
from ..ops.registry import Pattern
from ..schedule import IS_SCHEDULED
from ..te import Tensor
from ..te.read_back import ReadStage, stages_of, tensors_of


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A PrimFunc of static shapes that can be read as tensor expressions. Its last parameter is the
    only output."""

    func: PrimFunc
    pattern: Pattern

    @property
    def stages(self) -> tuple[ReadStage, ...]:
        found = stages_of(self.func, len(self.func.params) - 1)
        assert found is not None, f"{self.func}"
        return found

    def compute(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor expression of these inputs."""
        return tensors_of(self.func, self.stages, inputs)


def definition_of(func: PrimFunc, inputs: int) -> Definition | None:
    """What a PrimFunc computes from its first `inputs` parameters; None if it is scheduled, has
    several outputs, or cannot be read as tensor expressions."""
    if IS_SCHEDULED in func.attrs or not 0 < inputs == len(func.params) - 1:
        return None
    stages = stages_of(func, inputs)
    if stages is None:
        return None
    return Definition(func, _pattern(stages))


def _pattern(stages: Sequence[ReadStage]) -> Pattern:
    """The pattern, as ops.Pattern explains. A function that reads an element at several places is
    an anchor: a function fused into it would be computed at each place."""
    reductions = [s.value for s in stages if isinstance(s.value, Reduce)]
    if reductions:
        once = len(stages) == 1 and _reads_once(stages[0], reductions[0])
        return "reduction" if once else "anchor"
    if all(map(is_elementwise, stages)) and len({s.buffer.shape for s in stages}) == 1:
        return "elementwise"
    places: dict[Buffer, Load] = {}
    for load in (load for stage in stages for load in loads(stage.value)):
        first = places.setdefault(load.buffer, load)
        if not all(map(same_expr, first.indices, load.indices)):
            return "anchor"
    return "injective"


def _reads_once(stage: ReadStage, reduction: Reduce) -> bool:
    """Whether a reduction reads each input element for only one result."""
    axes = {i.var for i in (*stage.axis, *reduction.axes) if not is_const(i.extent, 1)}
    return all({i for i in load.indices if isinstance(i, Var)} >= axes for load in loads(reduction))


def static_shape(buffer: Buffer) -> tuple[int, ...]:
    """The shape as numbers; shapes of definitions are static."""
    return tuple(map(index, buffer.shape))  # type: ignore[arg-type]


def is_whole(load: Load, axes: Sequence[IterVar]) -> bool:
    """Whether a load covers its whole buffer, one axis along each dimension."""
    return len(axes) == len(load.indices) and all(
        at is axis.var and is_const(axis.extent, extent)
        for at, axis, extent in zip(load.indices, axes, static_shape(load.buffer), strict=True)
    )


def is_elementwise(stage: ReadStage) -> bool:
    """Whether a stage reads elements, maybe broadcast, only at its own index, and its value depends
    on the index in no other way. Its buffer must have the broadcast shape of its inputs."""
    if isinstance(stage.value, Reduce) or _asks_for_index(stage.value):
        return False
    read = list(loads(stage.value))
    if not read or not all(_is_in_step(stage, load) for load in read):
        return False
    return same_shape(broadcast_shape("", [load.buffer.shape for load in read]), stage.buffer.shape)


def _asks_for_index(value: Expr) -> bool:
    """Whether a variable occurs outside the indices of loads."""
    left, seen = [value], set[Node]()
    while left:
        e = left.pop()
        if isinstance(e, Var):
            return True
        if not isinstance(e, Load) and e not in seen:
            seen.add(e)
            left.extend(children(e))  # type: ignore[arg-type]
    return False


def _is_in_step(stage: ReadStage, load: Load) -> bool:
    """Whether a load reads the element that broadcasting puts at the stage's index."""
    own = stage.axis[len(stage.axis) - len(load.indices) :]
    return len(own) == len(load.indices) and all(
        (at is axis.var and is_const(axis.extent, extent)) or (extent == 1 and is_const(at, 0))
        for at, axis, extent in zip(load.indices, own, static_shape(load.buffer), strict=True)
    )
