"""Names that are unique within a PrimFunc, derived deterministically."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .nodes import Block, For, Let, PrimFunc
from .rewrite import statements


class Names:
    """The names taken so far; `fresh` takes one more."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # the number that a wanted name was given last

    def fresh(self, wanted: str) -> str:
        """`wanted`, or wanted_1, wanted_2 … where it is taken."""
        if wanted not in self._taken:
            self._taken.add(wanted)
            return wanted
        number = self._last.get(wanted, 0) + 1
        while (name := f"{wanted}_{number}") in self._taken:
            number += 1
        self._last[wanted] = number
        self._taken.add(name)
        return name


def distinct(wanted: Sequence[str]) -> tuple[str, ...]:
    """The names, where one that comes again gets a number that makes it unique."""
    taken = Names(wanted)
    seen: set[str] = set()
    given = []
    for name in wanted:
        given.append(taken.fresh(name) if name in seen else name)
        seen.add(given[-1])
    return tuple(given)


def names_of(func: PrimFunc) -> Names:
    """The names of a function's parameters, loops, iterations and buffers."""
    taken = {p.name for p in func.params}
    for s in statements(func.body):
        match s:
            case For(var) | Let(var):
                taken.add(var.name)
            case Block():
                taken.update(b.name for b in s.allocs)
                taken.update(i.var.name for i in s.iters)
    return Names(taken)


def block_names_of(func: PrimFunc) -> Names:
    """The names of a function's blocks, which are a namespace of their own."""
    return Names(s.name for s in statements(func.body) if isinstance(s, Block))


# Functions of the C library that generated code may call. A kernel of such a name would be called
# in its place, since both are symbols of one object.
LIBRARY_NAMES = frozenset(
    "exp log sin cos tan tanh erf pow sqrt floor ceil round rint trunc fmod fma fabs fmin fmax "
    "memcpy memmove memset memcmp".split()
)
