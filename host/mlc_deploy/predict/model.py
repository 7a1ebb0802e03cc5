"""The time of a layer on a core: from its instructions by class, and what its caches fetch.

    computing = vector * (mac, vector) + memory * (load, store) + other * (branch, scalar)
                + l1_miss * lines that the first cache fetches
    waiting   = line_ns * lines that the last cache fetches
                + far_ns * those of them that come from memory, where one more cache is before it
    in order:     computing + waiting
    out of order: the larger of both, and where they are near each other up to 1.4 times as much:
                  sqrt(computing^2 + waiting^2)

Threads divide the computing of a layer, but for SERIAL of it, and the waiting. Part of what the
last cache holds is each thread's own, as weights of its channels are, and the rest is common to
all, as the layer's input is. So threads fetch more lines together than one does, and fewer than if
each had only its part of that cache: both are simulated, and APART is the weight of the latter.
Memory moves the lines of all threads in turn, least_ns each, and JOIN cycles start the threads:
both are added.
Figures per core are in mlc_targets/cores.py; how they were found, and how far off they are, is in
docs/explanation/predictions.md.

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

# The share of its threads' own data in what a layer has in the last cache. Published times hardly
# tell it: shares between 0.2 and 0.5 fit them alike, 1 and 0 fit them less.
APART = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer executes: instructions by class, and lines of 64 bytes that the first cache and
    the last one fetch, for all threads; far_lines: of these, what a cache that many cores share
    fetches, where there is one. layers: how often it starts the threads."""

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
    """Of counts by QEMU's plugin, whose caches are CACHES of the core."""
    return Work(
        by_class["mac"] + by_class["vector"],
        by_class["load"] + by_class["store"],
        by_class["branch"] + by_class["scalar"],
        misses[f"{speed.l1_kib}K"],
        lines_of(misses, speed.last_kib, threads),
    )


def lines_of(misses: Mapping[str, Any], last_kib: int, threads: int) -> Any:
    """Lines that so many threads fetch together, from those that each cache would fetch for one: a
    number, or an array of them."""
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
    """Of a whole model: its layers one after the other."""
    each = tuple(layer_ms(work, speed, threads) for work in layers)
    ms = math.fsum(each)  # exact, so of no version of Python
    low, high = INTERVAL
    return Prediction(ms, ms * low, ms * high, each)
