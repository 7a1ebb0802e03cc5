"""Loops of layers: the few turns that cost more as a loop are written out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.nodes import Value
from ..node import Node, Step
from .shapes import select, stacked


def loop(
    n: Node,
    turns: int,
    states: Sequence[Value],
    step: Step,
    *,
    read: Sequence[tuple[Value, bool]] = (),
    written: Sequence[bool] = (),
) -> tuple[list[Value], list[Value]]:
    """The last states and the results of a loop, as BlockBuilder.emit_loop has it. A single turn is
    no loop."""
    if turns != 1:
        return n.emit_loop(turns, states, step, read=read, written=written)
    parts = [select(n, x, 0) for x, _ in read]
    ends, results = step(n.constant(np.int64(0), "int64"), list(states), parts)
    return list(ends), [stacked(n, [result]) for result in results]
