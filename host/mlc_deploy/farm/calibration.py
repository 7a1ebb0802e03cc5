"""Kernels that find boards of one kind with different times: by a weak power supply, another
memory, a fan that does not turn. One kernel is bound by arithmetic, one by memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING

import numpy as np

from ..board.connect import target_of
from ..driver.compile import compile as compile_model
from ..graph import BlockBuilder, Constant

if TYPE_CHECKING:
    from mlc_rpc import Session

    from ..tune.boards import Board

KERNELS = ("matrix product", "copy of memory")  # in the order of times_of
SIDE = 192  # of matrices: three of them fit into a second-level cache
COPIED = 4 << 20  # float32 numbers, more than a cache holds
SAMPLES, SAMPLE_MS = 5, 40
APART = 1.2  # boards of one kind are within 17 % of each other (shared measurements of one chip)


def calibrated(board: Board) -> tuple[float, ...]:
    """A job for a board: as times_of."""
    return times_of(board.session)


def times_of(session: Session) -> tuple[float, ...]:
    """The seconds of each kernel on one thread, the least of SAMPLES. Raises RpcError."""
    target = target_of(session.device)
    builder = BlockBuilder("computing")
    x = builder.param("x", (SIDE, SIDE))
    weights = np.linspace(-1, 1, SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    computing = builder.finish([builder.emit("matmul", x, Constant(weights, "w"))])
    builder = BlockBuilder("memory")
    memory = builder.finish([builder.emit("relu", builder.param("x", (COPIED,)))])
    found = []
    for function in (computing, memory):
        module = session.load(compile_model(function, target))
        zeros = {p.name: np.zeros(p.type.sizes, np.float32) for p in function.params}
        timing = module.time(zeros, number=1, repeat=SAMPLES, min_repeat_ms=SAMPLE_MS)
        found.append(min(timing.samples))
        module.close()
    return tuple(found)


def how_apart(times: Sequence[float], others: Sequence[tuple[float, ...]]) -> str:
    """The message about a deviating board. others: the times of the other boards."""
    middles = [median_low([o[n] for o in others if o]) for n in range(len(times))]
    ratio, kernel = max(
        (max(t / m, m / t), n) for n, (t, m) in enumerate(zip(times, middles, strict=True))
    )
    way = "longer" if times[kernel] > middles[kernel] else "shorter"
    return f"its {KERNELS[kernel]} takes {ratio:.2f} times {way} than on others of its kind"


def deviating(times: Sequence[tuple[float, ...]]) -> list[int]:
    """The numbers of boards of one kind that differ from the others: a kernel takes more than APART
    times the median of all boards, or less than the median / APART. Of two boards, the faster is
    the median. Boards without times never differ."""
    kernels = max((len(t) for t in times), default=0)
    found = set()
    for kernel in range(kernels):
        of = {n: t[kernel] for n, t in enumerate(times) if t}
        middle = median_low(of.values())
        found |= {n for n, t in of.items() if not middle / APART <= t <= middle * APART}
    return sorted(found)
