"""Passes from scheduled PrimFuncs to flat loops."""

from .annotations import PHASE, WHOLE
from .pipeline import STEPS, Kernel, lower
from .simple import simple_loops
from .storage import WORKSPACE

__all__ = [
    "PHASE",
    "STEPS",
    "WHOLE",
    "WORKSPACE",
    "Kernel",
    "lower",
    "simple_loops",
]
