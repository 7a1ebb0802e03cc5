"""Loop annotations that schedules set for lowering and code generation; any value sets one."""

WHOLE = "lower.whole"  # partition does not cut the loop: its body is too large to copy
TOGETHER = "lower.together"  # neighbouring vectors are loaded at once while registers are free
# The number n of neighbouring tasks that read what the loop computes, which depends on task // n:
# it runs in the first of them, and where a thread begins.
KEPT = "codegen.kept"
PHASE = "codegen.phase"  # becomes a function of its own, with all registers to itself
