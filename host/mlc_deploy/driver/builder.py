"""Candidates to objects: in worker processes, with limits, so that each can fail on its own."""

from __future__ import annotations

from mlc_targets import Target

from .. import ops  # noqa: F401  # programs call intrinsics by their names, which it registers
from ..codegen import compile_kernels
from ..ir import PrimFunc, with_fields
from ..lower import lower
from .workers import WorkerPool, cores

BUILD_SECONDS = 30.0  # of work for one candidate
BUILD_BYTES = 8 << 30  # addresses, of which most are never used
KERNEL = "main"


def builder(
    count: int | None = None,
    *,
    seconds: float = BUILD_SECONDS,
    memory: int | None = BUILD_BYTES,
    gently: bool = False,
) -> WorkerPool:
    """An executor for build_object: by default as many processes as cores. gently: they leave the
    cores to what is measured on this machine."""
    return WorkerPool(count or cores(), seconds=seconds, memory=memory, gently=gently)


def build_object(func: PrimFunc, target: Target) -> bytes:
    """A scheduled function as an object with one kernel, KERNEL. Raises LowerError, CodegenError,
    ScheduleError."""
    kernel = lower(with_fields(func, name=KERNEL), target)
    return compile_kernels(KERNEL, [kernel], target).object_bytes
