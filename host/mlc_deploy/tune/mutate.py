"""Neighbours of a point: one choice changed, or two points crossed.

The kind of a choice decides how it is changed. A tile's sizes exchange a prime factor; a number (of
unrolled steps, of loops in parallel, of elements in a tile) becomes the next one up or down, or any
other; a place to compute at, any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .space import Choice, Decision

FAR = 0.3  # how often a number jumps
MORE = 0.35  # how often another choice changes as well
SIZES = 2.0  # the weight of changing a tile's sizes; other choices have 1


def mutated(choices: Sequence[Choice], random: Random) -> tuple[Decision, ...] | None:
    """The decisions with one of them changed, sometimes several; None where there is nothing to
    decide."""
    open_ = [n for n, c in enumerate(choices) if len(set(c.options)) > 1]
    if not open_:
        return None
    weights = [SIZES if isinstance(choices[n].taken, tuple) else 1.0 for n in open_]
    decisions = [c.taken for c in choices]
    while True:
        number = random.choices(open_, weights)[0]
        decisions[number] = other(choices[number], random)
        if random.random() >= MORE:
            return tuple(decisions)


def other(choice: Choice, random: Random) -> Decision:
    """Another option than the one that was taken."""
    match choice.taken:
        case tuple() as sizes:
            near = [o for o in choice.options if isinstance(o, tuple) and _exchanged(sizes, o)]
            return random.choice(near or [o for o in choice.options if o != sizes])
        case number:
            ordered = sorted({o for o in choice.options if isinstance(o, int)})
            at = ordered.index(number)
            near_ = ordered[max(at - 1, 0) : at] + ordered[at + 1 : at + 2]
            if random.random() >= FAR:
                return random.choice(near_)
            return random.choice([o for o in ordered if o != number])


def _exchanged(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two tiles differ by one prime factor that moved."""
    differing = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    if len(differing) != 2:
        return False
    (x, y), _ = differing
    ratio, rest = divmod(max(x, y), min(x, y))
    return rest == 0 and all(ratio % n for n in range(2, int(ratio**0.5) + 1))


def crossed(a: Sequence[Choice], b: Sequence[Choice], random: Random) -> tuple[Decision, ...]:
    """Each decision from one of two points, where both had the same options; else from a."""
    taken = [c.taken for c in a]
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x.options == y.options and random.random() < 0.5:
            taken[n] = y.taken
    return tuple(taken)
