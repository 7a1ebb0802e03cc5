"""The order of tasks: trials go to the task where the model's latency is likely to fall most.

The gradient of Ansor (Zheng et al., OSDI 2020, section 6): the expected gain of a task's round is a
mean of two: the gain of its last rounds, and the possible gain divided by the number of rounds. The
possible gain is the task's cost above its cost at the rate of the best task, where its operations
are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Protocol

from .records import Task

ALPHA = 0.2  # weight of the past gain; the possible gain has the rest
WINDOW = 3  # last rounds that count as the past
NEARLY = 0.9  # of a task's cost at the best task's rate: better rates may exist
EXPLORE_EVERY = 8  # one round of so many goes to the task with the fewest rounds


@dataclass(eq=False)
class Progress:
    """The progress of a task. best: its lowest cost. history: `best` after each round. baseline:
    the default's cost. since: the trials since `best` last fell."""

    task: Task
    baseline: float = inf
    best: float = inf
    trials: int = 0  # told
    asked: int = 0  # proposed
    rounds: int = 0
    since: int = 0
    history: list[float] = field(default_factory=list)
    done: str = ""  # why it is done; "" while it is not

    @property
    def share(self) -> float:
        """The cost of all its calls in the model."""
        return self.task.weight * min(self.best, self.baseline)


class TaskScheduler(Protocol):
    """Chooses the task of the next round among those that are not done."""

    def next(self, tasks: Sequence[Progress]) -> int: ...


class RoundRobin:
    """All tasks in turn."""

    def next(self, tasks: Sequence[Progress]) -> int:
        return min(_open(tasks), key=lambda n: (tasks[n].rounds, n))


class GradientBased:
    """The task whose next round has the largest expected gain for the model."""

    def next(self, tasks: Sequence[Progress]) -> int:
        candidates = _open(tasks)
        turn = sum(t.rounds for t in tasks)
        if turn % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            return min(candidates, key=lambda n: (tasks[n].rounds, n))
        counted = [t for t in tasks if t.task.flops and isfinite(t.share)]
        least = min((min(t.best, t.baseline) / t.task.flops for t in counted), default=0.0)
        return max(candidates, key=lambda n: (_gain(tasks[n], least), -n))


def _open(tasks: Sequence[Progress]) -> list[int]:
    return [n for n, t in enumerate(tasks) if not t.done]


def _gain(t: Progress, least: float) -> float:
    """The expected gain of a round in the model's cost. least: the lowest cost of an operation in
    any task."""
    if not isfinite(t.share):
        return 0.0 if t.rounds else inf
    past = [t.baseline, *t.history][-WINDOW - 1 :]
    fell = (past[0] - past[-1]) / max(len(past) - 1, 1) if isfinite(past[0]) else 0.0
    cost = min(t.best, t.baseline)
    possible = (cost - NEARLY * least * t.task.flops) / (t.rounds + 1)
    return t.task.weight * (ALPHA * fell + (1 - ALPHA) * possible)
