"""Expressions as pickle writes them: a flat table, since they are graphs of any depth."""

from __future__ import annotations

from typing import Any

from .nodes import Expr
from .rewrite import bottom_up, children


class _At(int):
    """The number of an earlier line of the table."""


Line = tuple[type, tuple[Any, ...]]  # a node's class, and its fields


def reduced(e: Expr) -> tuple[Any, ...]:
    """What `__reduce__` gives. A variable or constant is written as itself, so that it stays one
    object in a pickle. Other expressions are written as a table of their nodes."""
    if not children(e):
        return type(e), _fields(e)
    numbers: dict[Any, _At] = {}
    table: list[Line] = []

    def line(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(line(item) for item in v)
        return numbers.get(v, v) if isinstance(v, Expr) else v

    for n in bottom_up(e, seen := set[Any]()):
        seen.add(n)
        if isinstance(n, Expr) and children(n):
            table.append((type(n), tuple(map(line, _fields(n)))))
            numbers[n] = _At(len(numbers))
    return made, (tuple(table),)


def made(table: tuple[Line, ...]) -> Expr:
    """The expression of a table."""
    nodes: list[Expr] = []

    def value(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(value(item) for item in v)
        return nodes[v] if isinstance(v, _At) else v

    for cls, fields in table:
        nodes.append(cls(*map(value, fields)))
    return nodes[-1]


def _fields(e: Expr) -> tuple[Any, ...]:
    return tuple(getattr(e, name) for name in e.__dataclass_fields__)  # type: ignore[attr-defined]
