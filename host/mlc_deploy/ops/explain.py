"""Why a target computes an operator the way it does: its candidates, what each asks for, and which
of them this operator could have.

A candidate may ask for data in blocks of channels or for packed weights, so it is held against the
operator in each form that the target might give to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from .. import te
from .arm_cpu.winograd import decide
from .layout import layout, packed_shape
from .registry import Attrs, TensorType
from .strategy import Implementation, blocked_attrs, candidates, packed_attrs

PLAIN = "NCHW"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation, what it asks for, and whether the operator has that."""

    name: str
    needs: str
    fits: bool


def explain(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> tuple[Candidate, ...]:
    """The candidates of an operator on plain data and weights, best first; the default schedule,
    which takes everything, is none of them."""
    forms = list(_forms(op, types, attrs, target))
    found: dict[str, Candidate] = {}
    if op == "conv2d":  # of which a pass makes another operator
        decision = decide(types, attrs, target)
        fits = decision.plan is not None
        found["winograd_blocks"] = Candidate("winograd_blocks", decision.reason, fits)
    for i in candidates(op, target):  # under several keys, maybe
        if i.name not in found:
            fits = any(_takes(i, *form, target) for form in forms)
            found[i.name] = Candidate(i.name, i.needs, fits)
    return tuple(found.values())


def _forms(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> Iterator[tuple[list[TensorType], dict[str, Any]]]:
    """The operator as the target might have it: types and attributes."""
    plain = dict(attrs)
    for wanted in (
        blocked_attrs(op, types, attrs, target),
        packed_attrs(op, types, attrs, target),
        {},
    ):
        if wanted is not None:
            yield _packed(types, wanted), {**plain, **wanted}


def _packed(types: Sequence[TensorType], wanted: Attrs) -> list[TensorType]:
    found = list(types)
    data = wanted.get("data_layout", wanted.get("layout", PLAIN))
    if data != PLAIN:
        found[0] = _in_layout(found[0], PLAIN, data)
    if "kernel_layout" in wanted:
        found[1] = _in_layout(found[1], wanted["source_layout"], wanted["kernel_layout"])
    return found


def _in_layout(of: TensorType, source: str, to: str) -> TensorType:
    sizes = dict(zip(layout(source).axes, of.sizes, strict=True))
    return TensorType(packed_shape(layout(to), sizes), of.dtype)


def _takes(
    implementation: Implementation, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> bool:
    inputs = [te.placeholder(t.shape, t.dtype, f"p{n}") for n, t in enumerate(types)]
    return implementation.applies(inputs, attrs, target)
