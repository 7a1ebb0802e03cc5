"""Compiles candidates to objects in worker processes with limits, so that each can fail alone."""

from __future__ import annotations

from mlc_targets import Target

from .. import ops  # noqa: F401  # registers the intrinsics that programs call by name
from ..codegen import compile_kernels
from ..ir import PrimFunc, with_fields
from ..lower import lower
from .workers import WorkerPool, cores

BUILD_SECONDS = 30.0  # of CPU time for one candidate
BUILD_BYTES = 8 << 30  # of address space; most is never touched
KERNEL = "main"


def builder(
    count: int | None = None,
    *,
    seconds: float = BUILD_SECONDS,
    memory: int | None = BUILD_BYTES,
    gently: bool = False,
) -> WorkerPool:
    """An executor for build_object, by default with one process per core. gently: the processes
    yield the cores to measurements on this machine."""
    return WorkerPool(count or cores(), seconds=seconds, memory=memory, gently=gently)


def build_object(func: PrimFunc, target: Target) -> bytes:
    """Compiles a scheduled function to an object with one kernel, named KERNEL. Raises LowerError,
    CodegenError, ScheduleError."""
    kernel = lower(with_fields(func, name=KERNEL), target)
    return compile_kernels(KERNEL, [kernel], target).object_bytes
