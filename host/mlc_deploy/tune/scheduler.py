"""Whose turn it is: trials go to the task where the model's latency is likely to fall most.

The gradient of Ansor (Zheng et al., OSDI 2020, section 6): what a round of a task is expected to
bring is a mean of what the last ones brought, and of what may be possible by how many rounds there
were. Possible is what the task costs more than it would at the rate of the best task, as far as
what it computes is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Protocol

from .records import Task

ALPHA = 0.2  # of what the past says; the rest is of what may be possible
WINDOW = 3  # rounds that are the past
NEARLY = 0.9  # of what a task costs at the rate of the best one: there may be better ones still
EXPLORE_EVERY = 8  # rounds of which one goes to the task that had the fewest


@dataclass(eq=False)
class Progress:
    """How a task stands. `best` is its lowest cost, after each of its rounds in `history`;
    `baseline` the default's. `since` are the trials since it last fell."""

    task: Task
    baseline: float = inf
    best: float = inf
    trials: int = 0  # told
    asked: int = 0  # proposed
    rounds: int = 0
    since: int = 0
    history: list[float] = field(default_factory=list)
    done: str = ""  # why nothing is tried any more

    @property
    def share(self) -> float:
        """Of the model: the cost of all its calls."""
        return self.task.weight * min(self.best, self.baseline)


class TaskScheduler(Protocol):
    """Says which task the next round is of: one of those that are not done."""

    def next(self, tasks: Sequence[Progress]) -> int: ...


class RoundRobin:
    """All tasks in turn."""

    def next(self, tasks: Sequence[Progress]) -> int:
        return min(_open(tasks), key=lambda n: (tasks[n].rounds, n))


class GradientBased:
    """The task whose next round is expected to bring the model most."""

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
    """What a round of the task is expected to take off the model's cost; least: the lowest cost of
    an operation in any task."""
    if not isfinite(t.share):
        return 0.0 if t.rounds else inf
    past = [t.baseline, *t.history][-WINDOW - 1 :]
    fell = (past[0] - past[-1]) / max(len(past) - 1, 1) if isfinite(past[0]) else 0.0
    cost = min(t.best, t.baseline)
    possible = (cost - NEARLY * least * t.task.flops) / (t.rounds + 1)
    return t.task.weight * (ALPHA * fell + (1 - ALPHA) * possible)
