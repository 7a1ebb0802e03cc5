"""The place of each tensor: in the arena, the weights, or a caller's input or output.

Views (views.py) lie in another tensor's memory. Every other tensor that is neither weight, input
nor output gets a place in one arena. Tensors that are not needed at the same time share memory. A
kernel's output takes over an argument's memory if nothing else needs the argument afterwards, and
if the kernel reads each of its elements only for the output element of the same index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from mlc_targets.object_format import ALIGNMENT, Space

from ..ir import same_shape
from .fuse import pattern
from .nodes import Binding, Call, CallBranch, CallFused, CallLoop, Function, Value, Var, taken_names
from .views import Memory, is_owned, is_view, owning, update, updated_args


@dataclass(frozen=True, slots=True)
class Place:
    """`size` bytes from `offset` of a space. `index` is the number of the input or output. For each
    (loop, bytes) in `strides`, the place moves by this many bytes from iteration to iteration of
    the loop."""

    space: Space
    index: int
    offset: int
    size: int
    strides: tuple[tuple[int, int], ...] = ()

    @property
    def alignment(self) -> int:
        """The alignment in bytes of all its addresses, at most ALIGNMENT."""
        return gcd(ALIGNMENT, self.offset, *(step for _, step in self.strides))

    def part(self, offset: int, size: int) -> Place:
        """A piece of this place."""
        return replace(self, offset=self.offset + offset, size=size)

    def element(self, loop: int, turns: int, backwards: bool) -> Place:
        """The place of each iteration's element, for a loop that reads or writes a sequence
        here."""
        size = self.size // turns if turns else 0
        offset = self.offset + (turns - 1) * size if backwards and turns else self.offset
        return replace(self, offset=offset, size=size).moving(loop, -size if backwards else size)

    def moving(self, loop: int, step: int) -> Place:
        """This place, moving by `step` bytes from iteration to iteration of a loop."""
        return replace(self, strides=(*self.strides, (loop, step)))


@dataclass(frozen=True, slots=True)
class Interval:
    """A tensor's size in bytes, and the numbers of the first and the last call that touch it."""

    size: int
    begin: int
    end: int

    def meets(self, other: Interval) -> bool:
        return self.begin <= other.end and other.begin <= self.end


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The places of a function's values in its part of the arena, in bytes from the part's start.

    `offsets`: of the values with memory there. `within`: of the parts for the bodies of loops and
    branches. `arena`: the part's size. `lower_bound`: the most bytes alive at once. `in_place`: the
    outputs in an argument's memory, with the argument's number.
    """

    memory: Memory
    offsets: Mapping[Value, int]
    within: Mapping[Binding, int]
    arena: int
    lower_bound: int
    in_place: Mapping[Var, int]

    def place(self, value: Value, fixed: Mapping[Value, Place], base: int) -> Place | None:
        """The place of a value: fixed, or in the part, which begins at `base`. None for a constant,
        and for a value that nothing reads."""
        root, offset = self.memory.region(value)
        if root in fixed:
            return fixed[root].part(offset, value.type.bytes)
        if root in self.offsets:
            return Place("arena", 0, base + self.offsets[root] + offset, value.type.bytes)
        return None


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def own_states(function: Function, states: Mapping[int, Var]) -> Function:
    """The states of every loop, and values that calls and branches update, get their own memory. A
    value is copied if it is an input or a constant, if it is read elsewhere, or if it lies within
    another value's memory. states: parameters whose memory an update may write to."""
    if not any(isinstance(b.call, CallLoop | CallBranch) or update(b) for b in function.bindings):
        return function
    memory = Memory(function)
    names = taken_names(function)
    computed = {v for b in function.bindings if not is_view(b) for v in b.outputs}
    read = Counter(memory.region(v)[0] for v in function.outputs)
    for binding in function.bindings:
        if not is_view(binding):
            read.update(memory.region(a)[0] for a in binding.call.args)
    bindings: list[Binding] = []

    free: set[Value] = {*computed, *states.values()}

    def owned(binding: Binding, number: int, value: Value, free: Collection[Value]) -> Value:
        """The value, or a copy, whose memory the binding writes its output `number` to."""
        root, _ = memory.region(value)
        if root in free and read[root] == 1 and memory.is_whole(value):
            return value
        copy = Var(names.fresh(f"{binding.outputs[number].name}.state"), value.type)
        bindings.append(Binding((copy,), Call("copy", (value,), {}), binding.source))
        return copy

    for binding in function.bindings:
        call = binding.call
        if isinstance(call, CallLoop) and not call.owned:
            call = replace(call, trailing=_trailing(binding, call, memory), owned=True)
            beside = {state for state, _ in call.trailing}
            free.difference_update(binding.outputs[state] for state in beside)
            own = (
                state if number in beside else owned(binding, number, state, free & computed)
                for number, state in enumerate(call.args[: call.states])
            )
            call = replace(call, args=(*own, *call.args[call.states :]))
            binding = replace(binding, call=call)
        elif isinstance(call, CallBranch) and not call.states:
            args = list(call.args)
            pairs = updated_args(call)
            for number, arg in pairs:
                args[arg] = owned(binding, number, args[arg], free)
            binding = replace(binding, call=replace(call, args=tuple(args), states=pairs))
        elif update(binding) and not is_owned(binding):
            binding = owning(binding, owned(binding, 0, call.args[0], free))
        bindings.append(binding)
    return replace(function, bindings=tuple(bindings))


def _trailing(binding: Binding, loop: CallLoop, memory: Memory) -> tuple[tuple[int, int], ...]:
    """The states of a loop that are elements of a result, each with the result's number. An
    iteration gives one value for both, and the first state lies beside the result."""
    if loop.conditional or loop.counted or not isinstance(loop.turns, int) or not loop.turns:
        return ()
    found: list[tuple[int, int]] = []
    after, given = loop.body.outputs[: loop.states], loop.body.outputs[loop.states :]
    for state, value in enumerate(after):
        size = value.type.bytes
        root, begin = memory.region(loop.args[state])
        for result in (k for k, other in enumerate(given) if other is value):
            around, offset = memory.region(binding.outputs[loop.states + result])
            beside = loop.turns * size if loop.written[result] else -size
            if root is around and begin == offset + beside and size % ALIGNMENT == 0 < size:
                found.append((state, result))
                break
    return tuple(found)


def own_outputs(
    function: Function,
    states: Mapping[int, Var],
    body: bool = False,
    trailing: Mapping[int, int] | None = None,
) -> Function:
    """Every output gets its own memory, written by a call. A value is copied if it is an input or a
    constant, or if it lies within another value's memory. states: output -> the parameter in whose
    memory it may stay. trailing: an output without its own memory -> the output in whose memory it
    lies. Both refer to outputs by number. The source of a copy is its output's name; in a body, the
    layer that it copies."""
    trailing = trailing or {}
    memory = Memory(function)
    computed = {v for b in function.bindings for v in b.outputs}
    names = taken_names(function)
    sources: dict[Value, str] = {v: b.source for b in function.bindings for v in b.outputs}
    taken: set[Value] = set()
    copies: list[Binding] = []
    outputs: list[Value] = []
    for number, (value, name) in enumerate(
        zip(function.outputs, function.output_names, strict=True)
    ):
        if number in trailing:
            outputs.append(value)
            continue
        root, _ = memory.region(value)
        state = states.get(number)
        stays = state is not None and root is state and memory.is_whole(value)
        if not stays and (root not in computed or root in taken or not memory.is_whole(value)):
            copy = Var(names.fresh(f"{name}.copy"), value.type)
            source = sources.get(root, "") if body else name
            copies.append(Binding((copy,), Call("copy", (value,), {}), source))
            value = copy
        taken.add(root)
        outputs.append(value)
    if not copies:
        return function
    for number, other in trailing.items():
        outputs[number] = outputs[other]
    bindings = (*function.bindings, *copies)
    return replace(function, bindings=bindings, outputs=tuple(outputs))


def plan_memory(
    function: Function,
    fixed: Collection[Value] = (),
    parts: Mapping[Binding, int] | None = None,
) -> MemoryPlan:
    """Offsets for the values of a function after own_states and own_outputs. fixed: values that lie
    elsewhere. parts: bytes of the arena that the bodies of a binding take."""
    memory = Memory(function)
    calls = [b for b in function.bindings if not is_view(b)]
    in_place = _take_over(calls, memory, {*fixed})
    intervals: dict[Value | Binding, Interval] = {}
    for time, call in enumerate(calls):
        for value in (*call.outputs, *call.call.args):
            root, offset = memory.region(value)
            if isinstance(root, Var) and root not in fixed:
                first = Interval(align(root.type.bytes), time, time)
                before = intervals.get(root, first)
                # The largest size of n * (m - 4) elements is another as n * m - n * 4.
                size = max(before.size, align(offset + value.type.bytes))
                begin = 0 if root in function.params else before.begin
                intervals[root] = Interval(size, begin, time)
        if parts and parts.get(call):
            intervals[call] = Interval(parts[call], time, time)
    placed = dict(zip(intervals, place_intervals(list(intervals.values())), strict=True))
    ends = [offset + intervals[key].size for key, offset in placed.items()]
    return MemoryPlan(
        memory,
        {k: offset for k, offset in placed.items() if not isinstance(k, Binding)},
        {k: offset for k, offset in placed.items() if isinstance(k, Binding)},
        max(ends, default=0),
        lower_bound(list(intervals.values())),
        in_place,
    )


def _take_over(calls: Sequence[Binding], memory: Memory, fixed: set[Value]) -> dict[Var, int]:
    """The outputs that take over an argument, with its number. Updates `memory` accordingly."""
    last = memory.last_reads(calls)
    found: dict[Var, int] = {}
    for time, binding in enumerate(calls):
        if not isinstance(binding.call, CallFused) or len(binding.outputs) > 1:
            continue
        (out,) = binding.outputs
        if out in fixed or out in memory.within:
            continue
        read = [memory.region(a)[0] for a in binding.call.args]
        for number in read_in_step(binding.call.function):
            root = read[number]
            free = isinstance(root, Var) and root not in fixed and last[root] == time
            if free and read.count(root) == 1 and memory.is_whole(binding.call.args[number]):
                found[out] = number
                memory.within[out] = root, 0
                last[root] = last.pop(out, time)
                break
    return found


def read_in_step(function: Function) -> list[int]:
    """The numbers of a fused function's parameters that have the output's type and are read element
    by element: each element only for the output element of the same index."""
    (out,) = function.outputs
    found: list[int] = []
    for number, param in enumerate(function.params):
        reached: set[Value] = {param}
        in_step = param.type == out.type
        for binding in function.bindings:
            if reached.intersection(binding.call.args):
                reached.update(binding.outputs)
                call = binding.call
                elementwise = pattern(binding) == "elementwise" or (
                    isinstance(call, Call) and call.op == "lookup" and call.args[0] in reached
                )
                same = all(same_shape(v.type.shape, out.type.shape) for v in binding.outputs)
                in_step = in_step and elementwise and same
        if in_step:
            found.append(number)
    return found


# The order of placement decides how well the tensors fit. No order is always best, so all are
# tried: by size, by size times lifetime, by lifetime, by begin, and by end.
ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda i: (-i.size, i.begin),
    lambda i: (-i.size * (i.end - i.begin + 1), i.begin),
    lambda i: (i.begin - i.end, -i.size),
    lambda i: (i.begin, -i.size),
    lambda i: (-i.end, -i.size),
)


def place_intervals(intervals: Sequence[Interval]) -> list[int]:
    """An offset for each interval. Intervals alive at the same time do not overlap."""
    bound = lower_bound(intervals)
    best: list[int] = []
    least = None
    for order in ORDERS:
        offsets = _place(intervals, order)
        end = max((o + i.size for o, i in zip(offsets, intervals, strict=True)), default=0)
        if least is None or end < least:
            best, least = offsets, end
        if end == bound:
            break
    return best


def _place(
    intervals: Sequence[Interval], order: Callable[[Interval], tuple[int, ...]]
) -> list[int]:
    """Places the intervals in an order, each in the smallest gap that holds it."""
    offsets: dict[int, int] = {}
    for n in sorted(range(len(intervals)), key=lambda n: order(intervals[n])):
        mine = intervals[n]
        busy = sorted((offsets[k], intervals[k].size) for k in offsets if intervals[k].meets(mine))
        offsets[n] = _best_gap(busy, mine.size)
    return [offsets[n] for n in range(len(intervals))]


def _best_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap between busy (offset, size) that holds size, or the end."""
    best: tuple[int, int] | None = None
    end = 0
    for offset, length in busy:
        gap = offset - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, offset + length)
    return end if best is None else best[1]


def lower_bound(intervals: Sequence[Interval]) -> int:
    """The largest sum of sizes alive at one time: no plan needs less."""
    changes: dict[int, int] = {}
    for i in intervals:
        changes[i.begin] = changes.get(i.begin, 0) + i.size
        changes[i.end + 1] = changes.get(i.end + 1, 0) - i.size
    alive = most = 0
    for time in sorted(changes):
        alive += changes[time]
        most = max(most, alive)
    return most
