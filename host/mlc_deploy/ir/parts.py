"""Which parts of an expression get a name in its text. A part in many places is written once. A
deep expression is written in pieces: parsers of Python and C allow some hundred nested parentheses,
C promises 63.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

from .nodes import Call, Expr, Node
from .rewrite import bottom_up, children, evaluated

SHORT = 24  # a part of up to so many written nodes is repeated
TALL = 40  # a part with more nodes from its root to a leaf has a name


def named_parts(roots: Sequence[Node]) -> dict[Expr, None]:
    """The parts to name, inner ones first. The length of a text is then linear in the number of
    different nodes."""
    return _parts(roots, ())


def _parts(roots: Sequence[Node], apart: tuple[str, ...]) -> dict[Expr, None]:
    """As named_parts. Also the calls of functions `apart` with parts in other arguments than the
    first."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        for n in bottom_up(root, seen):
            seen.add(n)
            order.append(n)
    uses = dict.fromkeys(order, 0)
    for n in (*roots, *(c for parent in order for c in children(parent))):
        uses[n] += 1
    found: dict[Expr, None] = {}
    size: dict[Node, int] = {}  # as written, where a name counts as 1
    height: dict[Node, int] = {}
    holding: set[Node] = set()  # the nodes that are or contain parts
    for n in order:
        below = children(n)
        size[n] = 1 + sum(size[c] for c in below)
        height[n] = 1 + max((height[c] for c in below), default=0)
        split = isinstance(n, Call) and n.name in apart and not holding.isdisjoint(below[1:])
        if isinstance(n, Expr) and ((uses[n] > 1 and size[n] > SHORT) or height[n] > TALL or split):
            found[n] = None
            size[n] = height[n] = 1
        if n in found or not holding.isdisjoint(below):
            holding.add(n)
    return found


class Parts:
    """The names of parts, for a writer of statements. It names the parts that are `due` before a
    statement, and before each side of an if_then_else that is a part."""

    def __init__(self, roots: Sequence[Node] = ()) -> None:
        self.wanted = _parts(roots, ("if_then_else",))
        self.names: list[dict[Expr, str]] = [{}]  # outermost scope first

    def get(self, e: Expr) -> str | None:
        """The part's name; None where it has none here."""
        return next((names[e] for names in self.names if e in names), None)

    def due(self, e: Expr) -> Iterator[Expr]:
        """The parts without a name here that are evaluated whenever e is, inner ones first. The
        caller names each with `name` before it takes the next."""
        if not self.wanted:
            return
        seen: set[Node] = set()
        for n in bottom_up(e, seen, evaluated):
            seen.add(n)
            if n in self.wanted and self.get(n) is None:
                yield n

    def name(self, e: Expr, name: str) -> None:
        self.names[-1][e] = name

    @contextmanager
    def branch(self) -> Iterator[None]:
        """While text is written that runs under a condition."""
        self.names.append({})
        yield
        self.names.pop()


def is_choice(e: Node) -> TypeGuard[Call]:
    return isinstance(e, Call) and e.name == "if_then_else"
