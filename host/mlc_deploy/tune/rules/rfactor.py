"""Reductions in parts: several sums of one result, side by side."""

from __future__ import annotations

from mlc_targets import Target

from ...ops.cpu.default import part_reduction
from ...schedule import Schedule
from .intrinsics import fitting_intrins


def add_rfactor(sch: Schedule, block: str, target: Target) -> Schedule:
    """sum over k   =>   a sum of sums over every lanes-th k, or not

    where only neighbours along the reduction are neighbours in memory, and no intrinsic adds them
    up.
    """
    possible = part_reduction(sch, block, target) is not sch
    if not possible or fitting_intrins(sch, block, target):
        return sch
    if sch.sample_categorical([0, 1], [0.3, 0.7]):
        return part_reduction(sch, block, target)
    return sch
