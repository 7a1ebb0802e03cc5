"""Loops of layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.nodes import Constant, Value
from ...ir import Dim, Expr
from ..node import Node, Step, shape_of
from .shapes import joined, rows, select, with_axis

ENDLESS = (1 << 31) - 1  # iterations of a loop that only its condition ends


def loop(
    n: Node,
    turns: Dim,
    states: Sequence[Value],
    step: Step,
    *,
    read: Sequence[tuple[Value, bool]] = (),
    written: Sequence[bool] = (),
) -> tuple[list[Value], list[Value]]:
    """The last states and the results of a loop, as BlockBuilder.emit_loop gives them.

    If a state is constant at first and there surely is an iteration, the first iteration is written
    out. Much of it then is constant, too, such as the product of a matrix and zeros."""
    known = any(isinstance(s, Constant) for s in states)
    if isinstance(turns, Expr) or turns < 1 or not (turns == 1 or known):
        return n.emit_loop(turns, states, step, read=read, written=written)
    parts = [select(n, x, turns - 1 if back else 0) for x, back in read]
    ends, results = step(n.constant(np.int64(0), "int64"), list(states), parts)
    firsts = [with_axis(n, result, 0) for result in results]
    if turns == 1:
        return list(ends), firsts

    def later(
        turn: Value, own: list[Value], elements: list[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        return step(n.emit("add", turn, n.constant(1, "int64")), own, elements)

    rest = [(rows(n, x, 0 if back else 1, shape_of(x)[0] - 1), back) for x, back in read]
    last, others = n.emit_loop(turns - 1, ends, later, read=rest, written=written)
    both = zip(firsts, others, written, strict=True)
    return last, [joined(n, [b, a] if back else [a, b]) for a, b, back in both]
