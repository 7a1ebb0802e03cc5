"""The tensor intrinsics of ARM CPUs. Importing it registers them: `<machine>.<instruction>`, then
what the form is about: `.lane` for one operand by lane, or the dtype of the result."""

from . import aarch64, arm  # noqa: F401
