"""Checks of a schedule before a candidate is built from it.

A check gives the reason against a schedule, or None. It sees the scheduled function before
lowering: a schedule that passes may still be impossible, but that is rare and found quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from mlc_targets import Target

from ..ir import Block, Const, For, PrimFunc, Stmt, children
from ..ir.build import is_root
from ..passes.context import option
from ..schedule.tree import bound_to

Check = Callable[[PrimFunc, Target], "str | None"]

MOST_REGISTERS = 16  # of a target without vectors


def nests(func: PrimFunc) -> Iterator[tuple[tuple[For, ...], Block]]:
    """Every innermost block with the loops around it, outermost first."""

    def visit(s: Stmt, loops: tuple[For, ...]) -> Iterator[tuple[tuple[For, ...], Block]]:
        if isinstance(s, For):
            loops = (*loops, s)
        inner = [found for c in children(s) if isinstance(c, Stmt) for found in visit(c, loops)]
        if isinstance(s, Block) and not is_root(s) and not inner:
            yield loops, s
        yield from inner

    yield from visit(func.body, ())


def disallow_dynamic_loop(func: PrimFunc, target: Target) -> str | None:
    """Every loop has a constant number of iterations."""
    for loops, block in nests(func):
        for loop in loops:
            if not isinstance(loop.extent, Const):
                return f"loop '{loop.name}' around block '{block.name}' has extent {loop.extent}"
    return None


def verify_vectors(func: PrimFunc, target: Target) -> str | None:
    """Vectors are of one register, or a few."""
    for loops, block in nests(func):
        lanes = max(1, *(target.lanes(w.buffer.dtype) for w in block.writes))
        for loop in loops:
            if loop.kind == "vectorized" and turns(loop) > 4 * lanes:
                return f"loop '{loop.name}' makes vectors of {turns(loop)} elements"
    return None


def verify_code_size(func: PrimFunc, target: Target) -> str | None:
    """No statement is copied more often by the loops around it than lowering takes."""
    most = option("lower.unroll_limit")
    for loops, block in nests(func):
        copies = prod(turns(loop) for loop in loops if loop.kind == "unrolled")
        if copies > most:
            return f"block '{block.name}' is unrolled to {copies} copies"
    return None


def verify_registers(func: PrimFunc, target: Target) -> str | None:
    """A tile of sums has no more vectors than there are registers."""
    registers = target.vector_registers or MOST_REGISTERS
    for loops, block in nests(func):
        if not any(w.buffer.scope == "local" for w in block.writes):
            continue
        reduced = bound_to(block, "reduce")
        sums = prod(turns(o) for o in loops if o.kind == "unrolled" and o.var not in reduced)
        if reduced and sums > registers:
            return f"block '{block.name}' keeps {sums} sums in {registers} registers"
    return None


def turns(loop: For) -> int:
    """A loop's iterations; one where they are known only at run time."""
    return int(loop.extent) if isinstance(loop.extent, Const) else 1


CHECKS: tuple[Check, ...] = (
    disallow_dynamic_loop,
    verify_vectors,
    verify_code_size,
    verify_registers,
)


def why_not(func: PrimFunc, target: Target) -> str | None:
    """The reason against a candidate of a scheduled function; None where there is none."""
    return next((reason for check in CHECKS if (reason := check(func, target))), None)
