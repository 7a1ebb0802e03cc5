"""CPU levels: one model for several generations of a family, each with its own code and packing.

    aarch64:base,dotprod,i8mm        three programs: for any AArch64, for those with dot products,
                                     and for those with dot products and matrix products
    x86_64:avx2+fma,avx512f          two programs; CPUs without AVX2 run neither

A level is "base" or features joined by "+", and includes the levels before it. So a CPU that runs
a level also runs those before it, and the last one that it runs is the best.
"""

from __future__ import annotations

from collections.abc import Iterable

from .errors import TargetError
from .target import Target

BASE = "base"
MAX_LEVELS = 16  # in a saved model


def levels_of(spec: str) -> tuple[tuple[str, Target], ...]:
    """The levels in a target's text and the target of each; without levels, one that is "base".
    Raises TargetError."""
    family, colon, names = spec.strip().rpartition(":")
    if not colon or spec.lstrip().startswith("{"):
        return ((BASE, Target(spec)),)
    target = Target(family)
    found: dict[str, Target] = {}
    for name in (n.strip() for n in names.split(",")):
        if not name:
            raise TargetError("a level has no name", f"{family}:{BASE},dotprod", where=spec)
        if name in found:
            raise TargetError(f"the level '{name}' is named twice", "once", where=spec)
        if name == BASE and found:
            raise TargetError(
                f"'{BASE}' adds nothing to the levels before it", "it first", where=spec
            )
        if name != BASE:
            target = _with(target, name, spec)
        found[name] = target
    if len(found) > MAX_LEVELS:
        raise TargetError(f"{len(found)} levels are more than {MAX_LEVELS}", "fewer", where=spec)
    return tuple(found.items())


def best_level(targets: Iterable[Target], machine: str, features: frozenset[str]) -> int:
    """The index of the best target for a board of a machine and features: the last whose code it
    runs, since each target asks for more than the one before; 0 if it runs none."""
    runs = [
        number
        for number, target in enumerate(targets)
        if target.arch == machine and features.issuperset(target.required_features)
    ]
    return runs[-1] if runs else 0


def _with(target: Target, level: str, spec: str) -> Target:
    added = [f"+{feature}" for feature in level.split("+")]
    attributes = target.to_dict()
    attributes.pop("tag", None)  # the name of a board; this is another CPU
    kept = [m for m in target.mattr if f"+{m[1:]}" not in added]
    try:
        return Target({**attributes, "mattr": [*kept, *added]})
    except TargetError as error:
        raise TargetError(error.what, error.hint, where=spec) from None
