"""What a program contains, found in one walk. A pass for something that it does not contain needs
no walk of its own."""

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


@lru_cache(2)  # after a pass that changes nothing, the next one asks about the same program
def contents(n: Node) -> Contents:
    """What n contains."""
    nodes = list(walk(n))
    loads = [m for m in nodes if type(m) is Load]
    ramps = [i for load in loads for i in load.indices if type(i) is Ramp]
    return Contents(
        kinds=frozenset(map(type, nodes)),
        calls=frozenset(m.name for m in nodes if type(m) is Call),
        loaded=frozenset(load.buffer for load in loads),
        strided=any(not is_const(ramp.stride, 1) for ramp in ramps),
    )
