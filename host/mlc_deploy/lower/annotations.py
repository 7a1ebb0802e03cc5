"""Loop annotations that schedules set for lowering and code generation; any value sets one."""

WHOLE = "lower.whole"  # partition does not cut the loop: its body is too large to copy
TOGETHER = "lower.together"  # neighbouring vectors are loaded at once while registers are free
PHASE = "codegen.phase"  # becomes a function of its own, with all registers to itself
