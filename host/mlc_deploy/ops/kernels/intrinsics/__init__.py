"""The tensor intrinsics of CPUs: `<machine>.<instruction>`, then the form: `.lane` for one operand
by lane, or the dtype of the result."""

from . import aarch64, arm, x86

INTRINS = (*aarch64.INTRINS, *arm.INTRINS, *x86.INTRINS)
