"""Why a target computes an operator the way it does: its candidates, what each needs, and which of
them fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_targets import Target

from .registry import Attrs, TensorType
from .strategy import candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation, its needs, and whether the operator meets them."""

    name: str
    needs: str
    fits: bool


def explain(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> tuple[Candidate, ...]:
    """The candidates of an operator on plain data and weights, best first, without the default
    schedule, which takes everything."""
    found: dict[str, Candidate] = {}
    for i in candidates(op, target):
        needs = i.reason(types, attrs, target) if i.reason else i.needs
        fits = i.plan(types, attrs, target) is not None
        found.setdefault(i.name, Candidate(i.name, needs, fits))
    return tuple(found.values())
