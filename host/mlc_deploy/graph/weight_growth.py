"""Memory for speed: the choice of layers whose weights may grow, under a limit.

Some plans pack weights into more bytes to save instructions (Winograd filtering). The growth of all
layers together is limited (passes/context.py, MEMORY). It is spent where a byte saves most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import GraphError
from ..ops.plan import WEIGHTS, Plan
from ..passes.context import MEMORY
from .nodes import Constant, Function


def known_memory(memory: str) -> str:
    """Checks that the name is one of MEMORY and returns it. Raises GraphError."""
    if memory not in MEMORY:
        raise GraphError(f"unknown memory '{memory}'", mend=" or ".join(MEMORY))
    return memory


@dataclass(frozen=True, slots=True)
class Offer:
    """The instructions that a plan saves, and the bytes by which its weights grow."""

    saved: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A step from a layer's smaller offer to `offer`: the saving per byte, and the extra bytes."""

    layer: int
    offer: int
    rate: float
    bytes: int


def taken(layers: Sequence[Sequence[Offer]], most: float) -> list[int | None]:
    """The offer taken for each layer, if any, with at most `most` bytes in all.

    Greedy: steps from one offer to a larger one are taken in order of their saving per byte. A step
    that does not fit ends the steps of its layer; other layers go on.
    """
    steps = sorted(
        (step for n, offers in enumerate(layers) for step in _steps(n, offers)),
        key=lambda step: -step.rate,
    )
    found: list[int | None] = [None] * len(layers)
    ended: set[int] = set()
    left = most
    for step in steps:
        if step.layer in ended or step.bytes > left:
            ended.add(step.layer)
            continue
        left -= step.bytes
        found[step.layer] = step.offer
    return found


def _steps(layer: int, offers: Sequence[Offer]) -> list[_Step]:
    """The steps of a layer with the highest savings per byte, in falling order."""
    steps: list[_Step] = []
    now = Offer(0.0, 0)
    while True:
        larger = [n for n, o in enumerate(offers) if o.bytes > now.bytes and o.saved > now.saved]
        if not larger:
            return steps

        def rate(n: int, now: Offer = now) -> float:
            return (offers[n].saved - now.saved) / (offers[n].bytes - now.bytes)

        best = max(larger, key=rate)
        steps.append(_Step(layer, best, rate(best), offers[best].bytes - now.bytes))
        now = offers[best]


def offer(plan: Plan) -> Offer:
    """The offer of a plan whose weights grow."""
    assert plan.packing is not None
    weights = plan.types[WEIGHTS]
    return Offer(plan.saved, plan.packing.type(weights).bytes - weights.bytes)


def weights_of(function: Function) -> int:
    """The bytes of a function's constants, each counted once."""
    constants = {
        id(arg): arg.type.bytes
        for binding in function.bindings
        for arg in binding.call.args
        if isinstance(arg, Constant)
    }
    return sum(constants.values())
