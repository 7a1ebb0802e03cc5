"""The target's tensor intrinsics that can compute a sum."""

from __future__ import annotations

from functools import lru_cache

from mlc_targets import Target

from ...errors import ScheduleError
from ...ir import Block
from ...ops.tile import schedule_intrin_sum
from ...schedule import Schedule
from ...schedule.tensor_intrin import TensorIntrin, registered_intrins

WITHOUT = 0.25  # how often none is used where some fit


def sample_intrin(sch: Schedule, block: str, target: Target) -> TensorIntrin | None:
    """One of the intrinsics that compute the block's sums, or None."""
    fitting = fitting_intrins(sch, block, target)
    if not fitting:
        return None
    each = (1.0 - WITHOUT) / len(fitting)
    number = sch.sample_categorical(range(len(fitting) + 1), [WITHOUT, *[each] * len(fitting)])
    return fitting[number - 1] if number else None


def fitting_intrins(sch: Schedule, block: str, target: Target) -> list[TensorIntrin]:
    """The target's intrinsics that compute the block's sums."""
    found = sch.block(block)
    return [i for i in _adding(target) if _may_fit(found, i) and _fits(sch, block, i)]


@lru_cache(maxsize=64)
def _adding(target: Target) -> tuple[TensorIntrin, ...]:
    """The target's intrinsics that add sums of products to sums."""
    return tuple(
        i
        for i in registered_intrins()
        if i.features.get(target.arch, frozenset({"no such feature"})) <= target.features
        and i.nest[1].init is None
        and any(kind == "reduce" and turns > 1 for kind, turns in i.extents)
    )


def _may_fit(block: Block, intrin: TensorIntrin) -> bool:
    """Whether the dtypes agree: a quick test that most intrinsics fail."""
    return [_dtypes(block), block.writes[0].buffer.dtype] == [
        _dtypes(intrin.nest[1]),
        intrin.nest[1].writes[0].buffer.dtype,
    ]


def _dtypes(block: Block) -> list[str]:
    made = {w.buffer for w in block.writes}
    return sorted(r.buffer.dtype for r in block.reads if r.buffer not in made)


def _fits(sch: Schedule, block: str, intrin: TensorIntrin) -> bool:
    trial = Schedule(sch.func, seed=0)
    try:
        outside = trial.add_unit_loop(trial.get_loops(block)[0])
        schedule_intrin_sum(trial, block, outside, intrin, 1)
    except ScheduleError:
        return False
    return True
