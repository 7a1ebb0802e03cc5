"""Guards of an expression: what the if_then_else around it say. Loads are merged only under equal
guards, so that no element is read that was not read before."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from ...arith import Known, linear
from ...ir import Call, Compare, Expr, Node, children, dtype_of, once, rebuild, walk, with_fields
from ...ir.build import conjuncts

Guards = frozenset[object]
NO_GUARDS: Guards = frozenset()
Rewrite = Callable[[Any, Guards], Expr | None]


def guarded(values: Sequence[Expr], known: Known) -> Iterator[tuple[Any, Guards]]:
    """The nodes of expressions with their guards, each pair once."""
    met: set[Node] = set()
    plain = [n for v in values for n in walk(v, met)]
    if not any(type(n) is Call and n.name == "if_then_else" for n in plain):
        yield from ((n, NO_GUARDS) for n in plain)
        return
    left: list[tuple[Any, Guards]] = [(v, NO_GUARDS) for v in values]
    seen = set(left)
    while left:
        n, guards = left.pop()
        yield n, guards
        if isinstance(n, Call) and n.name == "if_then_else":
            inner: list[tuple[Any, Guards]] = [*_branches(n, guards, known)]
        else:
            inner = [(child, guards) for child in children(n)]
        fresh = [pair for pair in inner if pair not in seen]
        seen.update(fresh)
        left += fresh


def rewriting(rewrite: Rewrite, known: Known) -> Callable[[Any], Any]:
    """A function that rebuilds expressions: rewrite(node, guards) gives a node's replacement, or
    None."""

    @cache
    def within(guards: Guards) -> Callable[[Any], Any]:
        @once
        def inside(n: Any) -> Any:
            made = rewrite(n, guards)
            if made is not None:
                return made
            if isinstance(n, Call) and n.name == "if_then_else":
                args = [within(own)(e) for e, own in _branches(n, guards, known)]
                same = all(map(operator.is_, args, n.args))
                return n if same else with_fields(n, args=tuple(args))
            return rebuild(n, inside)

        return inside

    return within(NO_GUARDS)


def _branches(n: Call, guards: Guards, known: Known) -> list[tuple[Expr, Guards]]:
    """The arguments of an if_then_else, each with its guards."""
    condition, then, otherwise = n.args
    holding = frozenset(_key(c, known) for c in conjuncts(condition))
    return [(condition, guards), (then, guards | holding), (otherwise, guards | {("not", holding)})]


def _key(condition: Expr, known: Known) -> object:
    """A key for a condition; comparisons of equal integers have equal keys."""
    match condition:
        case Compare(op, a, b) if dtype_of(a.dtype).is_integer and dtype_of(a.dtype).lanes == 1:
            return op, linear(a, known).plus(linear(b, known), -1)
    return condition
