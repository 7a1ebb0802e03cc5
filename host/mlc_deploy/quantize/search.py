"""Which layers become integers: all that the budget and the target's costs allow.

Sensitivity is measured: a layer's is the error of the model's outputs when it alone is int8. If
all together break the budget, the most sensitive stay float: the fewest that keep it, found by
halving.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .agreement import Judge
from .net import Net
from .run import Sample, run

PROBED = 8  # runs by which sensitivities are measured


@dataclass(frozen=True)
class Found:
    """The chosen layers, what the model scores with them, and what is known of sensitivities."""

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
    """The largest part of `chosen` with which the model scores at least `least`; perhaps none.
    known: sensitivities that an earlier search with this form measured."""

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
