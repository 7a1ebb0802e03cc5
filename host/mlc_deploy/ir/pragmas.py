"""Annotations from schedules for lowering: their meaning, and their valid values.

Blocks carry requests for the buffers that they write; loops carry pragmas and prefetches. An
unknown key that begins with "pragma_" is refused: it would have no effect.
"""

from __future__ import annotations

import difflib
from typing import Any

PRAGMA = "pragma_"
AUTO_UNROLL = "pragma_auto_unroll_max_step"  # loops inside are unrolled up to so many statements
UNROLL_EXPLICIT = "pragma_unroll_explicit"  # False: LLVM or the C compiler may unroll
DEBUG_SKIP = "pragma_debug_skip_region"  # the loop is left out: its results are wrong
PREFETCH = "prefetch"  # of a loop: [[buffer, iterations ahead], …]
PREFETCH_NEXT = "prefetch_next"  # of a loop: [buffer, …], which iterations inside prefetch in parts
DOUBLE_BUFFER = "double_buffer_scope"  # of a block: the number of the buffer that it writes
DIM_ALIGN = "buffer_dim_align"  # of a block: [[number of the buffer, axis, factor, offset], …]

MOST_ALIGN = 1 << 16  # elements

# Pragmas of TVM without effect here, and why.
WITHOUT = {
    "parallel_launch_point": "threads are the board's pool: the parallel loop is a kernel's "
    "outermost",
    "parallel_barrier_when_finish": "a kernel ends where its parallel loop ends, and kernels wait "
    "for each other",
    "parallel_stride_pattern": "the board's pool hands out iterations of a parallel loop",
    "import_c": "generated code calls no code of yours",
    "import_llvm": "generated code calls no code of yours",
}
KNOWN = ("auto_unroll_max_step", "unroll_explicit", "debug_skip_region")


def defect(key: str, value: Any) -> tuple[str, str]:
    """(what is wrong with an annotation, how to mend it); ("", "") for nothing, and for the user's
    own keys."""
    match key:
        case "pragma_auto_unroll_max_step":
            if not _is_int(value) or value < 0:
                return f"auto_unroll_max_step is {value!r}", "a number of statements, 0 for none"
        case "pragma_unroll_explicit" | "pragma_debug_skip_region":
            if not isinstance(value, bool) and value not in (0, 1):
                return f"{key.removeprefix(PRAGMA)} is {value!r}", "True or False"
        case "double_buffer_scope":
            if not _is_int(value) or value < 0:
                return f"double_buffer_scope is {value!r}", "the number of the block's write"
        case "buffer_dim_align":
            if not _is_rows(value, 4, int):
                return f"buffer_dim_align is {value!r}", "[[write, axis, factor, offset], …]"
        case "prefetch":
            if not _is_rows(value, 2, object) or not all(
                isinstance(name, str) and _is_int(ahead) for name, ahead in value
            ):
                return f"prefetch is {value!r}", '[["A", 2], …]: buffers, iterations ahead'
        case "prefetch_next":
            if not isinstance(value, (list, tuple)) or not all(isinstance(n, str) for n in value):
                return f"prefetch_next is {value!r}", '["A", …]: buffers'
        case _ if key.startswith(PRAGMA):
            name = key.removeprefix(PRAGMA)
            if name in WITHOUT:
                return f"pragma '{name}' has no effect here: {WITHOUT[name]}", "leave it out"
            near = difflib.get_close_matches(name, KNOWN, 1) or KNOWN
            return f"no pragma '{name}'", " or ".join(near)
    return "", ""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rows(value: Any, length: int, kind: type) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(row, (list, tuple))
        and len(row) == length
        and all(isinstance(n, kind) for n in row)
        for row in value
    )


def align_defect(factor: Any, offset: Any) -> str:
    """What is wrong with a storage alignment's numbers; "" for nothing."""
    if not _is_int(factor) or not 1 <= factor <= MOST_ALIGN:
        return f"factor {factor!r} is not a number from 1 to {MOST_ALIGN}"
    if not _is_int(offset) or not 0 <= offset < factor:
        return f"offset {offset!r} is not a number from 0 to {factor - 1}"
    return ""
