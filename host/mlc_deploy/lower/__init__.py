"""Passes from scheduled PrimFuncs to flat loops."""

from .pipeline import STEPS, Kernel, lower
from .simple import simple_loops
from .storage import WORKSPACE

__all__ = [
    "STEPS",
    "WORKSPACE",
    "Kernel",
    "lower",
    "simple_loops",
]
