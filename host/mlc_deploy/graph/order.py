"""The order of calls, where another one than the model's needs less memory.

A greedy list schedule: of the calls whose arguments are there, the next is the one after which the
least is alive, and of equal ones that which goes on with what was computed last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace

from .nodes import Binding, Function, Value, is_pure
from .views import Memory, is_view


def frugal(function: Function, fixed: Container[Value]) -> Function:
    """function with its bindings in such an order; itself where that is the one it has, or where
    calls have effects besides their outputs. fixed: values whose memory lies elsewhere."""
    bindings = function.bindings
    if not all(map(is_pure, bindings)):
        return function
    memory = Memory(function)
    makers = {v: n for n, b in enumerate(bindings) for v in b.outputs}
    needs = [{makers[a] for a in b.call.args if a in makers} for b in bindings]
    readers: list[list[int]] = [[] for _ in bindings]
    for n, needed in enumerate(needs):
        for maker in needed:
            readers[maker].append(n)
    touched = [_roots(b, memory) for b in bindings]
    left = Counter(root for roots in touched for root in roots)
    waiting = [len(needed) for needed in needs]
    alive: set[Value] = set()
    ready = {n for n, count in enumerate(waiting) if not count}
    order: list[int] = []
    when: dict[int, int] = {}

    def grows(n: int) -> int:
        """Bytes that are alive after a call and were not before it."""
        if is_view(bindings[n]):
            return 0
        made = {memory.region(v)[0] for v in bindings[n].outputs}
        freed = {root for root in touched[n] if left[root] == 1}
        return _bytes(made - alive - freed, fixed) - _bytes(freed & alive, fixed)

    def age(n: int) -> int:
        return -max((when[maker] for maker in needs[n]), default=-1)

    while ready:
        n = min(ready, key=lambda n: (not is_view(bindings[n]), grows(n), age(n), n))
        ready.remove(n)
        when[n] = len(order)
        order.append(n)
        left.subtract(touched[n])
        alive |= touched[n]
        for reader in readers[n]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.add(reader)
    if order == list(range(len(bindings))):
        return function
    return replace(function, bindings=tuple(bindings[n] for n in order))


def _roots(binding: Binding, memory: Memory) -> set[Value]:
    """The memory that a call touches; a view touches none."""
    if is_view(binding):
        return set()
    return {memory.region(v)[0] for v in (*binding.call.args, *binding.outputs)}


def _bytes(values: set[Value], fixed: Container[Value]) -> int:
    return sum(v.type.bytes for v in values if v not in fixed)
