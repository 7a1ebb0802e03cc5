"""What a program holds at all, found in one walk: passes for something that it does not hold leave it
as it is without a walk of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .build import is_const
from .nodes import Buffer, Call, Load, Node, Ramp
from .rewrite import walk


@dataclass(frozen=True, slots=True)
class Contents:
    """kinds: the types of its nodes. calls: the names that are called. loaded: the buffers that it
    loads from. strided: whether it loads vectors of elements that are not neighbours."""

    kinds: frozenset[type]
    calls: frozenset[str]
    loaded: frozenset[Buffer]
    strided: bool


@lru_cache(2)  # programs: passes that change nothing ask about the same one again
def contents(n: Node) -> Contents:
    """What stands in n."""
    kinds: set[type] = set()
    calls: set[str] = set()
    loaded: set[Buffer] = set()
    strided = False
    for m in walk(n):
        kinds.add(type(m))
        if isinstance(m, Load):
            loaded.add(m.buffer)
            for index in m.indices:
                strided = strided or (type(index) is Ramp and not is_const(index.stride, 1))
        elif isinstance(m, Call):
            calls.add(m.name)
    return Contents(frozenset(kinds), frozenset(calls), frozenset(loaded), strided)
