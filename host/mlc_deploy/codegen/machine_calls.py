"""Calls of LLVM's intrinsics by name, as tensor intrinsics make them.

LLVM ends the whole process on an instruction that the target lacks; here it is an error first.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target
from mlc_targets.cpus import CPUS, cpu_features

from ..errors import CodegenError
from ..schedule.tensor_intrin import features_for, machine_of, nearest_calls
from .calls import call_named
from .types import element_type

Value = Any


def machine_call(
    b: ll.IRBuilder, target: Target, name: str, args: list[Value], dtype: str, kernel: str
) -> Value:
    """The call of an intrinsic of LLVM that the target has; else CodegenError."""
    require_features(target, name, kernel)
    return call_named(b, name, element_type(dtype), *args)


def require_features(target: Target, name: str, kernel: str) -> None:
    """Raises CodegenError for an intrinsic that is unknown, of another machine, or needs features
    that the target's CPU lacks."""
    needed = features_for(name)
    if needed is None:
        near = nearest_calls(name)
        raise CodegenError(
            f"no registered intrinsic calls '{name}', so that what it needs of a CPU is not known",
            where=kernel,
            mend=f"one of {', '.join(near)}" if near else "register_intrin with its CPU features",
        )
    machine = machine_of(name)
    if machine is not None and machine != target.arch:
        raise CodegenError(
            f"'{name}' is an instruction of {machine}, the target is {target.arch}",
            where=kernel,
            mend=f"a target of {machine}, or tensorize with an intrinsic of {target.arch}",
        )
    lacking = sorted(f for f in needed if not target.has(f))
    if lacking:
        have = [c for c in CPUS[target.arch] if needed <= cpu_features(target.arch, c)]
        have.sort(key=lambda cpu: not cpu.startswith("cortex"))
        raise CodegenError(
            f"'{name}' needs {' and '.join(lacking)}, which {target.llvm_cpu} does not have",
            where=kernel,
            mend=f"-mcpu={have[0]}, or -mattr={','.join('+' + f for f in lacking)} where the CPU "
            "has it",
        )
