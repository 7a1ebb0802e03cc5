"""The layout of a graph's picture: rows of nodes, each node below all that it depends on.

After Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures", IEEE SMC 11(2), 1981. An edge over several rows has a place in each of them. The places
of a row are ordered by their neighbours in the rows around. Each is drawn as near to its neighbours
as the others in its row allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SWEEPS = 4  # over all rows, down and up in turn
NARROW = 0.22  # of a node's width: the width of a passing edge


@dataclass(frozen=True, slots=True)
class Layout:
    """`at` has each node's column (its middle, in widths of a node) and row; `through` the places
    that each edge passes, from the top."""

    at: Sequence[tuple[float, int]]
    through: Mapping[tuple[int, int], Sequence[tuple[float, int]]]
    width: float
    rows: int


def laid_out(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """The layout of nodes 0 to count - 1; an edge goes from a smaller number to a larger one."""
    edges = sorted({(a, b) for a, b in edges if 0 <= a < b < count})
    row = [0] * count
    for a, b in edges:  # sorted by the smaller number: its row is known
        row[b] = max(row[b], row[a] + 1)
    _move_down(row, edges)
    places = list(row)  # the rows of nodes, then those of passing edges
    chains: dict[tuple[int, int], list[int]] = {}
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]

    def passing(at: int) -> int:
        places.append(at)
        above.append([])
        below.append([])
        return len(places) - 1

    for a, b in edges:
        chain = [a, *(passing(at) for at in range(row[a] + 1, row[b])), b]
        chains[a, b] = chain[1:-1]
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
    rows: list[list[int]] = [[] for _ in range(max(places, default=-1) + 1)]
    for place, at in enumerate(places):
        rows[at].append(place)
    _order(rows, above, below)
    widths = [1.0 if place < count else NARROW for place in range(len(places))]
    x = _columns(rows, above, below, widths)
    least = min((x[p] - widths[p] / 2 for p in range(len(places))), default=0.0)
    x = [value - least for value in x]
    return Layout(
        [(x[n], row[n]) for n in range(count)],
        {edge: [(x[p], places[p]) for p in chain] for edge, chain in chains.items()},
        max((x[p] + widths[p] / 2 for p in range(len(places))), default=0.0),
        len(rows),
    )


def _move_down(row: list[int], edges: Sequence[tuple[int, int]]) -> None:
    """Moves nodes without inputs down to the row above their first reader."""
    readers: dict[int, int] = {}
    written = {b for _, b in edges}
    for a, b in edges:
        readers[a] = min(readers.get(a, row[b] - 1), row[b] - 1)
    for node, at in readers.items():
        if node not in written:
            row[node] = max(at, 0)


def _order(
    rows: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> None:
    """Orders each row by the median of its neighbours' positions."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        towards = above if down else below
        position = {place: n for row in rows for n, place in enumerate(row)}
        for row in rows if down else reversed(rows):
            middle = {
                place: median([position[other] for other in towards[place]])
                if towards[place]
                else position[place]
                for place in row
            }
            row.sort(key=middle.__getitem__)
            position.update((place, n) for n, place in enumerate(row))


def _columns(
    rows: Sequence[Sequence[int]], above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]], widths: Sequence[float],
) -> list[float]:  # fmt: skip
    """The middle of each place: near its neighbours', in the row's order, without overlaps."""
    x = [0.0] * len(widths)
    for row in rows:
        at = 0.0
        for place in row:
            x[place] = at + widths[place] / 2
            at += widths[place]
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        towards = above if down else below
        for row in rows if down else list(reversed(rows)):
            wanted = [
                median([x[other] for other in towards[p]]) if towards[p] else x[p] for p in row
            ]
            for place, value in zip(row, _apart(row, wanted, widths), strict=True):
                x[place] = value
    return x


def _apart(row: Sequence[int], wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The columns of a row, as near to the wanted ones as possible. Places that would overlap
    become one group, at the mean of its members' wishes."""
    groups: list[tuple[float, float, int]] = []  # sum of (wanted - offset), width so far, members
    offsets: list[float] = []
    for place, at in zip(row, wanted, strict=True):
        total, width, members = at - widths[place] / 2, widths[place], 1
        offsets.append(0.0)
        while groups:
            before, before_width, before_members = groups[-1]
            if before / before_members + before_width <= total / members + 1e-9:
                break
            groups.pop()
            for n in range(len(offsets) - members, len(offsets)):
                offsets[n] += before_width
            total, members = before + total - members * before_width, before_members + members
            width += before_width
        groups.append((total, width, members))
    found: list[float] = []
    for total, _, members in groups:
        for _ in range(members):
            n = len(found)
            found.append(total / members + offsets[n] + widths[row[n]] / 2)
    return found
