"""Passes from scheduled PrimFuncs to flat loops."""

from .annotations import KEPT, PHASE, WHOLE
from .machine import LLVM_STEPS
from .pipeline import STEPS, Kernel, lower
from .simple import simple_loops
from .storage import WORKSPACE

__all__ = [
    "KEPT",
    "LLVM_STEPS",
    "PHASE",
    "STEPS",
    "WHOLE",
    "WORKSPACE",
    "Kernel",
    "lower",
    "simple_loops",
]
