"""A model's kernels as tasks. Kernels that compute the same are one task, weighted by their
calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_targets import Target

from ..driver.builder import KERNEL
from ..errors import TuneError
from ..graph.count import multiply_accumulates
from ..graph.lower import KernelSource, unscheduled
from ..graph.nodes import Function
from ..ir import Const, PrimFunc, with_fields
from ..ops.cpu import default_schedule
from ..schedule import IS_SCHEDULED
from .records import Task


def kernel_tasks(sources: Mapping[str, KernelSource], target: Target) -> dict[str, Task]:
    """The tasks of kernels, by the kernels' names, each with weight 1. Kernels with their own
    schedule, and those of symbolic shapes, are left out."""
    tasks: dict[str, Task] = {}
    for name, source in sources.items():
        begun = unscheduled(source, target)
        if IS_SCHEDULED in begun.func.attrs or not _is_static(begun.func):
            continue
        func = with_fields(begun.func, name=KERNEL)
        flops = 0.0
        if isinstance(source.computes, Function):
            flops = 2.0 * sum(map(multiply_accumulates, source.computes.bindings))
        tasks[name] = Task(name, func, target, begun.schedule, 1, source, flops)
    return tasks


def merged(tasks: Mapping[str, Task], calls: Mapping[str, int]) -> list[Task]:
    """One task for each workload, of tasks and numbers of calls by kernel name."""
    found: dict[str, Task] = {}
    for name, task in tasks.items():
        known = found.get(task.workload)
        weight = calls.get(name, 0) + (known.weight if known else 0)
        found[task.workload] = replace(known or task, weight=weight)
    return list(found.values())


def task_of(func: PrimFunc, target: Target, name: str = "") -> Task:
    """The task of an unscheduled function. Raises TuneError for a scheduled one, and for unknown
    sizes."""
    if IS_SCHEDULED in func.attrs:
        raise TuneError(
            "the function carries a schedule already",
            where=func.name,
            mend="the function as te.create_prim_func gives it",
        )
    if not _is_static(func):
        raise TuneError(
            "kernels are tuned for sizes that are known",
            where=f"{func.name}: "
            + ", ".join(f"{b.name}[{', '.join(map(str, b.shape))}]" for b in func.buffers),
            mend="numbers for its dimensions",
        )
    return Task(
        name or func.name,
        with_fields(func, name=KERNEL),
        target,
        lambda f: default_schedule(f, target),
    )


def _is_static(func: PrimFunc) -> bool:
    return len(func.buffers) == len(func.params) and all(
        isinstance(extent, (int, Const)) for b in func.buffers for extent in b.shape
    )
