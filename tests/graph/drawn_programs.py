"""Random graphs of loops and branches within each other."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from mlc_deploy.graph import BlockBuilder, Function, Value, const
from mlc_deploy.ir import Dim


def program_graph(seed: int, open_rows: bool = False) -> Function:
    """Loops and branches within each other, over tensors of one shape. open_rows: there is also a
    tensor `rows` of n of these, and loops turn n times over it."""
    chance = random.Random(seed)
    bb = BlockBuilder("main")
    shape = chance.choice([(16,), (3, 5), (1, 40)])
    given = bb.param("rows", ("n", *shape)) if open_rows else None
    # Their sum is far from zero: branches ask for its sign, which rounding must not change.
    weights = const(np.linspace(-1, 0.8, math.prod(shape), dtype=np.float32).reshape(shape))
    known: list[Value] = [bb.param(f"x{n}", shape) for n in range(2)]
    known.append(bb.emit("negative", weights))
    unary, binary = ("negative", "sigmoid", "tanh"), ("add", "subtract", "minimum", "multiply")

    def some(values: list[Value], depth: int) -> Value:
        for _ in range(chance.randrange(1, 4)):
            kind = chance.random()
            if kind < 0.2 and depth < 3:
                values = [*values, *looped(values, depth)]
            elif kind < 0.35 and depth < 3:
                values = [*values, *branched(values, depth)]
            elif kind < 0.6:
                values = [*values, bb.emit(chance.choice(unary), chance.choice(values))]
            else:
                pair = chance.choice(values), chance.choice(values)
                values = [*values, bb.emit(chance.choice(binary), *pair)]
        return values[-1]

    def looped(values: list[Value], depth: int) -> list[Value]:
        count = chance.randrange(1, 3)
        if given is not None and chance.random() < 0.6:
            rows = bb.emit(chance.choice(unary), given) if chance.random() < 0.5 else given
            return rounds(given.type.shape[0], rows, count, values, depth)
        turns = chance.randrange(1, 4)
        rows = (
            bb.emit(
                "concatenate",
                *[
                    bb.emit("reshape", chance.choice(values), shape=(1, *shape))
                    for _ in range(turns)
                ],
                axis=0,
            )
            if turns > 1
            else bb.emit("reshape", values[0], shape=(1, *shape))
        )
        return rounds(turns, rows, count, values, depth)

    def rounds(turns: Dim, rows: Value, count: int, values: list[Value], depth: int) -> list[Value]:
        back = [chance.random() < 0.5 for _ in range(2)]

        def step(turn: Value, states: list[Value], parts: list[Value]) -> Any:
            inner = [*values, *states, *parts]
            if isinstance(turns, int) and back[0]:
                inner.append(bb.emit("gather", rows, turn, axis=0))
            after = [some(inner, depth + 1) if chance.random() < 0.8 else chance.choice(states)
                     for _ in states]  # fmt: skip
            return after, [some(inner, depth + 1)]

        states = [chance.choice(values) for _ in range(count)]
        ends, (result,) = bb.emit_loop(
            turns, states, step, read=[(rows, back[0])], written=[back[1]]
        )
        return [*ends, bb.emit("sum", result, axes=(0,), keepdims=False)]

    def branched(values: list[Value], depth: int) -> list[Value]:
        total = bb.emit("sum", chance.choice(values), axes=tuple(range(len(shape))), keepdims=False)
        truth = bb.emit("less", total, const(0.0, "float32"))
        return list(bb.emit_branch(
            truth, lambda: [some(values, depth + 1)], lambda: [some(values, depth + 1)]
        ))  # fmt: skip

    return bb.finish([some(known, 0), some(known, 0)], ["y", "z"])
