"""Lowering: from a scheduled PrimFunc to flat loops, one readable list of steps.

MLC_DUMP=all, or a comma-separated list of step names, prints the program to stderr after each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ..arith import simplify
from ..ir import Block, Buffer, For, PrimFunc, Var, walk, with_fields
from ..ir.verify import verify
from .blocks import lower_blocks
from .compact import compact_buffers
from .flatten import flatten_buffers
from .partition import partition_loops
from .unroll import unroll_loops
from .vectorize import vectorize_loops


def simplify_body(func: PrimFunc) -> PrimFunc:
    """Expressions in their simplest form, guards that always hold removed."""
    return with_fields(func, body=simplify(func.body))


STEPS: tuple[Callable[[PrimFunc], PrimFunc], ...] = (
    lower_blocks,
    simplify_body,
    compact_buffers,
    partition_loops,  # before vectorize: lanes lose their guards
    flatten_buffers,
    simplify_body,  # before vectorize: a lane's index must be seen to be base + step * lane
    vectorize_loops,
    unroll_loops,  # late, so that the passes above see each statement once
    simplify_body,
)

Watch = Callable[[str, PrimFunc, bool], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lowered function: its signature as it was scheduled, and its flat body.

    body's parameters and scratch buffers are one-dimensional; the root block holds the scratch.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    outputs: tuple[str, ...]
    body: PrimFunc

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        root = self.body.body
        assert isinstance(root, Block)
        return root.allocs

    @property
    def parallel(self) -> For | None:
        """The parallel loop, when it is the whole body; others run serially."""
        root = self.body.body
        assert isinstance(root, Block)
        loop = root.body
        return loop if isinstance(loop, For) and loop.kind == "parallel" else None


def lower(func: PrimFunc, watch: Watch | None = None) -> Kernel:
    """The flat loops of a scheduled function. Raises LowerError for what cannot be lowered."""
    watch = watch or _dump_wanted
    flat = verify(func)
    for step in STEPS:
        before, flat = flat, step(flat)
        verify(flat, step.__name__)
        watch(step.__name__, flat, flat is not before)
    written = {r.buffer.name for n in walk(func.body) if isinstance(n, Block) for r in n.writes}
    outputs = tuple(b.name for b in func.buffers if b.name in written)
    return Kernel(func.name, func.params, outputs, flat)


def _dump_wanted(step: str, func: PrimFunc, changed: bool) -> None:
    wanted = os.environ.get("MLC_DUMP", "")
    if wanted and (wanted in ("all", "1") or step in wanted.split(",")):
        text = str(func) if changed else "(unchanged)"
        print(f"--- {func.name}: after {step}\n{text}", file=sys.stderr)
