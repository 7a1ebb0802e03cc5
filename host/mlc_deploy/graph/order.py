"""An order of calls that needs less memory than the model's order.

A beam search extends partial orders by one call at a time. It keeps the few that need the least
memory so far, and only one per set of calls. So a call with a large result that is read late, such
as the shortcut around a block, moves after calls that need the memory more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from .nodes import Binding, CallFused, Function, Value, Var, is_pure
from .plan import align, read_in_step
from .views import Memory, is_view

WIDTH = 16  # partial orders kept of each length
MOST_STEPS = 20_000  # calls times orders: for longer functions, fewer orders are kept
MOST_NEXT = 16  # calls tried after a partial order, the first ones in the model's order


def frugal(function: Function, fixed: Collection[Value], arena: int) -> Function:
    """function with its bindings in an order that needs less memory than `arena`. The function
    itself if no such order is found, or if calls have effects besides their outputs. fixed: values
    whose memory lies elsewhere."""
    if not all(map(is_pure, function.bindings)):
        return function
    calls = _Calls(function, fixed)
    if arena <= calls.least:
        return function
    found = calls.order()
    if found.peak >= arena:
        return function
    bindings = tuple(_with_views(function, [calls.bindings[n] for n in found.calls()]))
    return replace(function, bindings=bindings)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A partial order: the call `last` after the order `before`. done: its calls as bits. alive,
    peak: bytes alive after them, and at most. ready: the calls that may follow."""

    before: _Begun | None
    last: int
    done: int
    alive: int
    peak: int
    ready: tuple[int, ...]

    def calls(self) -> list[int]:
        order: list[int] = []
        here: _Begun | None = self
        while here is not None and here.before is not None:
            order.append(here.last)
            here = here.before
        return order[::-1]


class _Calls:
    """The calls of a function by number, the calls that each depends on, and the memory they
    touch."""

    def __init__(self, function: Function, fixed: Collection[Value]) -> None:
        memory = Memory(function)
        self.bindings = [b for b in function.bindings if not is_view(b)]
        self.needs: list[set[int]] = []
        self.readers: list[list[int]] = [[] for _ in self.bindings]
        makers: dict[Value, set[int]] = {}  # the calls that compute a value, through views
        for binding in function.bindings:
            needed = {n for a in binding.call.args for n in makers.get(a, ())}
            if is_view(binding):
                makers.update((v, needed) for v in binding.outputs)
                continue
            number = len(self.needs)
            makers.update((v, {number}) for v in binding.outputs)
            self.needs.append(needed)
            for maker in needed:
                self.readers[maker].append(number)
        touched = [_roots(b, memory, fixed) for b in self.bindings]
        self.touching: dict[Value, int] = {}
        for number, roots in enumerate(touched):
            for root in roots:
                self.touching[root] = self.touching.get(root, 0) | 1 << number
        # Per call: for each memory that it touches, the bytes and all calls that touch it (bits).
        self.touched = [[(align(r.type.bytes), self.touching[r]) for r in roots]
                        for roots in touched]  # fmt: skip
        self.instead = [_taken_over(b, memory, fixed) for b in self.bindings]
        kept = (sum(size for size, _ in t) for t in self.touched)
        saved = (align(b.outputs[0].type.bytes) if over else 0
                 for b, over in zip(self.bindings, self.instead, strict=True))  # fmt: skip
        self.least = max((k - s for k, s in zip(kept, saved, strict=True)), default=0)

    def order(self) -> _Begun:
        """The order that needs the least memory among those kept to the end."""
        first = tuple(n for n, needed in enumerate(self.needs) if not needed)
        kept = [_Begun(None, -1, 0, 0, 0, first)]
        width = min(WIDTH, max(1, MOST_STEPS // max(1, len(self.bindings))))
        for _ in self.bindings:
            longer: dict[int, _Begun] = {}
            for begun in kept:
                for number in begun.ready[:MOST_NEXT]:
                    other = self._then(begun, number)
                    same = longer.get(other.done)
                    if same is None or other.peak < same.peak:
                        longer[other.done] = other
            # The sort is stable: among equals, the order with the earliest call comes first.
            kept = sorted(longer.values(), key=lambda b: (b.peak, b.alive))[:width]
        return kept[0]

    def _then(self, begun: _Begun, number: int) -> _Begun:
        """The order with one more call."""
        done = begun.done | 1 << number
        made = freed = 0
        for size, touching in self.touched[number]:
            made += 0 if touching & begun.done else size
            freed += 0 if touching & ~done else size
        most = begun.alive + made
        for root in self.instead[number]:  # if nothing else needs the memory, the output takes it
            if not self.touching[root] & ~done:
                most -= align(root.type.bytes)
                break
        ready = [n for n in begun.ready if n != number]
        ready += [
            n for n in self.readers[number] if all(done >> maker & 1 for maker in self.needs[n])
        ]
        alive = begun.alive + made - freed
        return _Begun(begun, number, done, alive, max(begun.peak, most), tuple(sorted(ready)))


def _roots(binding: Binding, memory: Memory, fixed: Collection[Value]) -> list[Value]:
    """The memory that a call touches, without fixed values and constants."""
    values = (*binding.outputs, *binding.call.args)
    roots = dict.fromkeys(memory.region(v)[0] for v in values)
    return [r for r in roots if isinstance(r, Var) and r not in fixed]


def _taken_over(binding: Binding, memory: Memory, fixed: Collection[Value]) -> list[Value]:
    """The memory that the output of a call may take over if nothing else needs it."""
    call = binding.call
    if not isinstance(call, CallFused) or len(binding.outputs) > 1:
        return []
    (out,) = binding.outputs
    if out in fixed or out in memory.within:
        return []
    read = [memory.region(a)[0] for a in call.args]
    return [
        read[n]
        for n in read_in_step(call.function)
        if isinstance(read[n], Var)
        and read[n] not in fixed
        and read.count(read[n]) == 1
        and memory.is_whole(call.args[n])
    ]


def _with_views(function: Function, calls: list[Binding]) -> Iterator[Binding]:
    """The calls in this order, with each view as early as possible."""
    readers: dict[Value, list[Binding]] = {}
    waiting: dict[Binding, int] = {}
    made = {v for b in function.bindings for v in b.outputs}
    for binding in function.bindings:
        if is_view(binding):
            needed = {a for a in binding.call.args if a in made}
            waiting[binding] = len(needed)
            for arg in needed:
                readers.setdefault(arg, []).append(binding)

    def after(binding: Binding) -> Iterator[Binding]:
        left = [binding]
        while left:
            here = left.pop()
            yield here
            for out in here.outputs:
                for view in readers.get(out, ()):
                    waiting[view] -= 1
                    if not waiting[view]:
                        left.append(view)

    for binding, count in waiting.items():
        if not count:
            yield from after(binding)
    for binding in calls:
        yield from after(binding)
