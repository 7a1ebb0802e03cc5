"""The time of a layer on a core: from its instructions by class, and the lines that its caches
fetch.

    computing = vector * (mac, vector) + memory * (load, store) + other * (branch, scalar)
                + l1_miss * lines that the first cache fetches
    waiting   = line_ns * lines that the last cache fetches
                + far_ns * those of them that come from memory, where one more cache is before it
    in order:     computing + waiting
    out of order: the larger of both, and where they are near each other up to 1.4 times as much:
                  sqrt(computing^2 + waiting^2)

Threads divide the waiting of a layer, and its computing without the share SERIAL. Part of the data
in the last cache is used by one thread, such as the weights of its channels; the rest is common,
such as the layer's input. So threads together fetch more lines than one thread, and fewer than if
each had only its part of the cache. Both are simulated, and APART is the weight of the second.
Memory moves the lines of all threads in turn, least_ns each, and JOIN cycles start the threads:
both are added. mlc_targets/cores.py has the figures per core; docs/explanation/predictions.md says
how they were found, and how far off they are.

Only additions, multiplications, divisions and square roots of doubles: the same bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets.caches import share_kib
from mlc_targets.calibrated import INTERVAL, JOIN, SERIAL
from mlc_targets.cores import Speed

# The share of data of single threads in a layer's data in the last cache. Published times hardly
# tell it: shares between 0.2 and 0.5 fit them alike, 1 and 0 fit them less.
APART = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer executes: instructions by class, and lines of 64 bytes that the first and the
    last cache fetch, for all threads. far_lines: those that a further cache of many cores fetches,
    if there is one. layers: how often the threads are started."""

    vector: int
    memory: int
    other: int
    l1_lines: int
    last_lines: float
    layers: int = 1
    far_lines: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milliseconds of a model, with the bounds that hold the truth in most cases; per layer."""

    ms: float
    low: float
    high: float
    layers: tuple[float, ...]


def work_of(
    by_class: Mapping[str, int], misses: Mapping[str, int], speed: Speed, threads: int = 1
) -> Work:
    """The work, by counts of QEMU's plugin, whose caches are CACHES of the core."""
    return Work(
        by_class["mac"] + by_class["vector"],
        by_class["load"] + by_class["store"],
        by_class["branch"] + by_class["scalar"],
        misses[f"{speed.l1_kib}K"],
        lines_of(misses, speed.last_kib, threads),
    )


def lines_of(misses: Mapping[str, Any], last_kib: int, threads: int) -> Any:
    """The lines that `threads` fetch together, from the lines that each cache fetches for one
    thread: a number, or an array."""
    whole, part = (misses[f"{share_kib(last_kib, n)}K"] for n in (1, threads))
    return whole + (part - whole) * APART


def layer_ms(work: Work, speed: Speed, threads: int = 1) -> float:
    """Milliseconds of one layer."""
    cycles = (
        work.vector * speed.vector
        + work.memory * speed.memory
        + work.other * speed.other
        + work.l1_lines * speed.l1_miss
    )
    computing = cycles * 1e3 / speed.mhz  # nanoseconds
    waiting = (work.last_lines * speed.line_ns + work.far_lines * speed.far_ns) / threads
    if threads > 1:
        computing = computing * (SERIAL + (1 - SERIAL) / threads)
    if speed.in_order:
        took = computing + waiting
    else:
        took = math.sqrt(computing * computing + waiting * waiting)
    if threads > 1:
        took += work.last_lines * speed.least_ns + work.layers * JOIN * 1e3 / speed.mhz
    return took * speed.pace / 1e6


def predict(layers: Sequence[Work], speed: Speed, threads: int = 1) -> Prediction:
    """The time of a whole model: its layers one after the other."""
    each = tuple(layer_ms(work, speed, threads) for work in layers)
    ms = math.fsum(each)  # exact, so equal in all versions of Python
    low, high = INTERVAL
    return Prediction(ms, ms * low, ms * high, each)
