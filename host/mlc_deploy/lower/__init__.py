"""Passes from scheduled PrimFuncs to flat loops."""

from .pipeline import STEPS, Kernel, lower
