"""The values of expressions in the statement that is being emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..ir import Expr, bottom_up, evaluated
from ..ir.rewrite import DEEP

T = TypeVar("T")


class Values(Generic[T]):
    """`make`, called once for each expression. Its result is used again in the same statement, and
    a result made under a condition only under that condition. Expressions may be deep."""

    def __init__(self, make: Callable[[Expr], T]) -> None:
        self.make = make
        self.levels: list[dict[Expr, T]] = [{}]  # outermost first
        self.depth = 0

    def __call__(self, e: Expr) -> T:
        for level in self.levels:
            if e in level:
                return level[e]
        if self.depth == DEEP:
            for n in bottom_up(e, self, evaluated):
                self.levels[-1][n] = self.make(n)
            return self.levels[-1][e]
        self.depth += 1
        made = self.levels[-1][e] = self.make(e)
        self.depth -= 1
        return made

    def __contains__(self, e: object) -> bool:
        return any(e in level for level in self.levels)

    def begin(self) -> None:
        """Another statement begins."""
        self.levels = [{}]

    @contextmanager
    def branch(self) -> Iterator[None]:
        """While code is emitted that runs under a condition."""
        self.levels.append({})
        yield
        self.levels.pop()
