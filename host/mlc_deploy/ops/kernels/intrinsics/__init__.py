"""The tensor intrinsics of CPUs. Importing it registers them: `<machine>.<instruction>`, then
what the form is about: `.lane` for one operand by lane, or the dtype of the result."""

from ....schedule.tensor_intrin import registered_intrins

_others = registered_intrins()  # of users, who may be first

from . import aarch64, arm, x86  # noqa: E402, F401

OWN_INTRINS = frozenset(registered_intrins()).difference(_others)
