"""What the tests of workers ask of them; a worker finds it here by its name."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

from mlc_deploy.codegen import KernelObject
from mlc_deploy.codegen.machine_code import optimized
from mlc_deploy.driver.builder import build_object
from mlc_deploy.driver.kernels import compile_unit
from mlc_deploy.errors import LowerError
from mlc_deploy.graph.lower import KernelSource
from mlc_deploy.ir import PrimFunc
from mlc_deploy.passes.context import PassContext
from mlc_targets import Target


def square(n: int) -> int:
    print("a line that is not an answer")
    return n * n


def abort_at(n: int, at: int) -> int:
    if n == at:
        os.write(2, b"LLVM ERROR: Cannot select\n")
        os.abort()
    return n


# An instruction of 32-bit ARM.
ANOTHER_MACHINE = """
declare <4 x i32> @llvm.arm.neon.vqrdmulh.v4i32(<4 x i32>, <4 x i32>)
define <4 x i32> @f(<4 x i32> %x) {
  %y = call <4 x i32> @llvm.arm.neon.vqrdmulh.v4i32(<4 x i32> %x, <4 x i32> %x)
  ret <4 x i32> %y
}
"""


def compile_or_abort(
    unit: tuple[KernelSource, ...], target: Target, context: PassContext
) -> tuple[KernelObject, ...]:
    if unit[0].name == "gather4":
        with optimized(ANOTHER_MACHINE, target) as (machine, module):
            machine.emit_object(module)
    return compile_unit(unit, target, context)


def leave_at(n: int, at: int) -> int:
    if n == at:
        sys.exit(3)
    return n


def own_pid() -> int:
    return os.getpid()


def killed_at_first(marker: str, times: int) -> int:
    """Its process is killed the first times, as a system without memory does it; how often."""
    path = Path(marker)
    before = len(path.read_text()) if path.exists() else 0
    if before < times:
        path.write_text("x" * (before + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return before


def refuse_from(n: int, first: int) -> int:
    if n >= first:
        time.sleep((10 - n) * 0.02)  # the later ones are done before
        raise LowerError(f"task {n}", where="here", mend="there")
    return n


def divide(n: int) -> float:
    return 1 / n


def wait(folder: str, seconds: float) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(seconds)


def grown_by_builds(func: PrimFunc, target: Target, count: int) -> int:
    """Bytes that a process has more for having built a function as often, the first times apart."""
    for n in range(3 + count):
        build_object(func, target)
        gc.collect()
        if n == 2:
            before = _resident()
    return _resident() - before


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
