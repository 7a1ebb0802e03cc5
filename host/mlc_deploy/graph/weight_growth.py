"""Memory for speed: which layers' weights may grow, where their growth is limited.

Some plans pack weights into more bytes than they have, and save instructions with them (Winograd's
filtering). All of that growth together is limited to a share of the model's weights, and spent
where a byte saves most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import GraphError
from ..ops.plan import WEIGHTS, Plan
from ..passes.context import MEMORY
from .nodes import Constant, Function


def known_memory(memory: str) -> str:
    """The name, if it is one of MEMORY. Raises GraphError."""
    if memory not in MEMORY:
        raise GraphError(f"unknown memory '{memory}'", mend=" or ".join(MEMORY))
    return memory


@dataclass(frozen=True, slots=True)
class Offer:
    """What a plan saves, in instructions, and by how many bytes it makes weights grow."""

    saved: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Step:
    """From a layer's cheaper offer to `offer`: what another byte saves, and how many there are."""

    layer: int
    offer: int
    rate: float
    bytes: int


def taken(layers: Sequence[Sequence[Offer]], most: float) -> list[int | None]:
    """The offer of each layer that is taken, if any, so that all together take at most so many
    bytes.

    Greedy: steps from one offer to a larger one are taken in the order of what a byte of them
    saves. A step that does not fit ends the steps of its layer, others go on.
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
    """The steps of a layer that save most per byte: each saves less than the one before."""
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
    """Of a plan whose weights grow."""
    assert plan.packing is not None
    weights = plan.types[WEIGHTS]
    return Offer(plan.saved, plan.packing.type(weights).bytes - weights.bytes)


def weights_of(function: Function) -> int:
    """Bytes of a function's constants, each of them once."""
    constants = {
        id(arg): arg.type.bytes
        for binding in function.bindings
        for arg in binding.call.args
        if isinstance(arg, Constant)
    }
    return sum(constants.values())
