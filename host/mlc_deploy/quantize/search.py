"""Chooses the layers that become integers: as many as the budget allows.

A layer's sensitivity is measured: the error of the model's outputs if only this layer is int8. If
all layers together break the budget, the most sensitive stay float. Halving finds how few suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .agreement import Judge
from .net import Net
from .run import Sample, run

PROBED = 8  # runs to measure sensitivities


@dataclass(frozen=True)
class Found:
    """The chosen layers, the model's score with them, and the known sensitivities."""

    chosen: frozenset[str]
    score: float
    sensitivity: Mapping[str, float]


def within_budget(
    form: Callable[[Collection[str]], Net],
    chosen: frozenset[str],
    samples: Sequence[Sample],
    judge: Judge,
    least: float,
    known: Mapping[str, float] | None = None,
) -> Found:
    """The largest part of `chosen`, maybe none, with which the model scores at least `least`.
    known: sensitivities from an earlier search with this form."""

    def score(layers: Collection[str]) -> float:
        return judge.score(list(run(form(layers), samples)))

    whole = score(chosen)
    if whole >= least or not chosen:
        return Found(chosen, whole, known or {})
    few = samples[:PROBED]
    probe = judge.of_first(len(few))
    sensitivity = dict(known or {})
    for name in sorted(chosen.difference(sensitivity)):
        sensitivity[name] = probe.error(list(run(form({name}), few)))
    order = sorted(chosen, key=lambda name: -sensitivity[name])
    low, high, best = 0, len(order), score(())  # low breaks the budget, high keeps it
    while high - low > 1:
        middle = (low + high) // 2
        found = score(order[middle:])
        if found >= least:
            high, best = middle, found
        else:
            low = middle
    return Found(frozenset(order[high:]), best, sensitivity)
