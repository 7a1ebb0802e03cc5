"""Passes from scheduled PrimFuncs to flat loops."""

from .pipeline import STEPS, Kernel, lower

__all__ = [
    "STEPS",
    "Kernel",
    "lower",
]
