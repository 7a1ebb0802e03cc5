"""The ends of loops: code that runs seldom is small rather than fast."""

from __future__ import annotations

from typing import Any

from ..arith import simplify
from ..ir import (
    Binary,
    Const,
    For,
    Seq,
    Stmt,
    const,
    inner_statements,
    rebuild,
    substitute,
    walk,
    with_fields,
)
from .lanes import uses

SELDOM = 5  # a part is seldom if its loop has at least this many times its iterations
MOST_UNROLLED = 192  # statements per iteration of a part that runs seldom


def is_seldom(turns: int, of: int) -> bool:
    """Whether a part runs in so few of a loop's iterations that unrolling it gains next to
    nothing."""
    return turns * SELDOM <= of


def rolled(s: Stmt) -> Stmt:
    """for k in range(n): for i in unrolled(m): S[m*k + i]
    =>   for k in range(n*m/f): for i in unrolled(f): S[f*k + i]

    where f is the largest divisor of m that makes at most MOST_UNROLLED statements. The order
    stays.
    """

    def visit(m: Any) -> Any:
        if not isinstance(m, Stmt):
            return m
        if isinstance(m, For) and (found := _merged(m)) is not None:
            return found
        return rebuild(m, visit)

    done: Stmt = visit(s)
    return done


def _merged(loop: For) -> For | None:
    match loop:
        case For(
            var, Const(turns), "serial", For(step, Const(most), "unrolled", body) as inner
        ) if most > 1 and not inner.annotations:
            turns, most, size = int(turns), int(most), _size(body)
        case _:
            return None
    fits = (n for n in range(most, 0, -1) if most % n == 0 and n * size <= MOST_UNROLLED)
    few = next(fits, 1)
    if few == most:
        return None
    number = var * few + step if few > 1 else var
    values = {var: number // most, step: number % most}
    ranges = {var: (0, turns * most // few - 1), step: (0, few - 1)}
    made = simplify(substitute(body, values), ranges)
    if any(isinstance(n, Binary) and n.op in ("//", "%") and uses(n, var) for n in walk(made)):
        return None
    if few > 1:
        made = with_fields(inner, extent=const(few), body=made)
    return with_fields(loop, extent=const(turns * most // few), body=made)


def _size(s: Stmt) -> int:
    """How many statements s has once it is unrolled."""
    if isinstance(s, For):
        copies = s.extent.value if s.kind == "unrolled" and isinstance(s.extent, Const) else 1
        return int(copies) * _size(s.body)
    below = inner_statements(s)
    return sum(map(_size, below)) if below or isinstance(s, Seq) else 1
