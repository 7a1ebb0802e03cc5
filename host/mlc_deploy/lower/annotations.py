"""Annotations of loops that a schedule gives, and lowering and code generation heed; any value."""

WHOLE = (
    "lower.whole"  # is not cut where a guard in it is decided: its body is too much to be doubled
)
TOGETHER = (
    "lower.together"  # neighbouring vectors are loaded at once where registers are free for them
)
PHASE = "codegen.phase"  # becomes a function of its own, with all registers to itself
