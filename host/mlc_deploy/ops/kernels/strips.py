"""Strips: whole rows of a result, which one task computes for a group of output channels. What it
makes of their data stays in the second-level cache, and a thread's workspace is that of a strip. A
thread makes a strip once for all of its groups that it takes in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from ...lower.annotations import KEPT
from ...schedule import Schedule

L2 = 512 << 10  # bytes of cache that small boards' cores share
TASKS = 4  # so many are enough for threads to share
# Instructions that a core does while memory delivers a byte; on x86-64 by the times of ResNet-50's
# layers of 14x14 pixels (scripts/bench/seconds.py resnet50, Emerald Rapids, LLVM 22).
PER_BYTE = {"aarch64": 0.25, "arm": 0.25, "x86_64": 0.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """Strips of so many rows; the output channels are cut into groups. tasks: of all strips and
    groups. cost: instructions, and waits for memory, in instructions."""

    rows: int
    groups: int
    tasks: int
    cost: float


S = TypeVar("S", bound=Strips)


def keep(sch: Schedule, loop: str, groups: int) -> None:
    """`loop`, which makes a strip's data for so many groups, serves all of them that a thread takes
    in turn."""
    if groups > 1:
        sch.annotate(loop, KEPT, groups)


def best(strips: Iterable[S]) -> S:
    """The strips of least cost, of those with enough tasks for threads, if any; of equal ones the
    smallest."""
    found = list(strips)
    shared = [s for s in found if s.tasks >= TASKS]
    return min(shared or found, key=lambda s: (s.cost, s.rows))


def groups_of(strips: int, parts: int) -> int:
    """Into how many groups the output channels, in so many parts, are cut, so that there are TASKS
    tasks."""
    wanted = -(-TASKS // strips)
    return next((n for n in range(min(wanted, parts), 0, -1) if parts % n == 0), 1)


def bytes_moved(weights: int, strips: int, strip: int, parts: int) -> int:
    """Bytes that come from memory: weights, for each strip where they do not stay in the cache; and
    data of a strip that does not, for each of the parts of the output channels."""
    of_weights = weights * (strips if weights > L2 else 1)
    return of_weights + (strips * strip * parts if strip > L2 else 0)
