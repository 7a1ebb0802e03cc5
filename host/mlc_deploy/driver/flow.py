"""The data flow of a model: which call reads which tensor, and each tensor's place and lifetime.

The call table, which the board walks, decides it: a call reads the tensor last written to the same
bytes. A loop counts as one iteration, and both sides of a branch count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlc_targets.object_format import SPACES, Arg, Loop, Metadata, Model

if TYPE_CHECKING:
    from mlc_rpc.host_call import HostCall, HostPlace

Memory = tuple[str, int]  # a space, and the index in it
GIVEN = -1  # instead of a call's number: the tensor is there before the first call


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes from `begin` up to `end` of a memory."""

    memory: Memory
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Access:
    """The regions that a call reads and writes."""

    layer: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`begin` and `end` are the first and the last call during which it occupies its memory; GIVEN
    is before the first call, the number of calls after the last. A tensor ends before the call that
    overwrites it."""

    name: str
    region: Region
    begin: int
    end: int


def accesses_of(metadata: Metadata, host_calls: Sequence[HostCall] = ()) -> list[Access]:
    """The accesses of all calls of an object's model in order, calls of registered functions
    included."""
    described = metadata.model
    assert described is not None
    turns = {
        step.number: step.turns
        for steps in described.procedures
        for step in steps
        if isinstance(step, Loop)
    }
    found: list[Access] = []
    for call in described.calls:
        params = metadata.kernels[call.kernel].params
        regions = [_region(arg, turns) for arg in call.args]
        written = tuple(r for r, p in zip(regions, params, strict=False) if p.output)
        read = tuple(r for r, p in zip(regions, params, strict=False) if not p.output)
        found.append(Access(call.layer, (*read, *regions[len(params) :]), written))
    for host in reversed(host_calls):
        places = list(map(_host_region, host.args))
        inputs = len(places) - host.outputs
        access = Access(host.layer, tuple(places[:inputs]), tuple(places[inputs:]))
        found.insert(host.at_call, access)
    return found


def _region(arg: Arg, turns: Mapping[int, int]) -> Region:
    """The bytes that the argument covers in all iterations of its loops."""
    moved = [step * max(turns.get(loop, 1) - 1, 0) for loop, step in arg.strides]
    begin = arg.offset + sum(min(m, 0) for m in moved)
    end = arg.offset + arg.size + sum(max(m, 0) for m in moved)
    return Region((SPACES[arg.space], arg.index), begin, end)


def _host_region(place: HostPlace) -> Region:
    return Region((place.space, place.index), place.offset, place.offset + place.size)


class Flow:
    """The tensors of a call table, and the numbers of those that each call reads and writes."""

    def __init__(
        self, model: Model, accesses: Sequence[Access], on_host: Sequence[int] = ()
    ) -> None:
        self.tensors: list[Tensor] = []
        self.reads: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        # What lies in each memory now: begin, end, number of the tensor.
        self._last: dict[Memory, list[tuple[int, int, int]]] = {}
        states = {p.state for p in model.outputs if p.state}
        for n, p in enumerate(q for q in model.inputs if q.name not in states):
            self._add(p.name, Region(("input", n), 0, 1 << 62), GIVEN)
        outputs = [p.name for p in model.outputs]
        for n, p in enumerate(model.outputs):
            if p.state:
                self._add(p.state, Region(("output", n), 0, 1 << 62), GIVEN)
        sizes: dict[int, int] = {}  # of given tensors, by the calls that read them
        for time, access in enumerate(accesses):
            read: dict[int, None] = {}
            for region in access.reads:
                for number in self._at(region):
                    read[number] = None
                    self._touched(number, time)
                    sizes[number] = max(sizes.get(number, 0), region.end)
            made: list[int] = []
            for region in access.writes:
                space, index = region.memory
                name = access.layer if space != "output" else outputs[index]
                made.append(self._add(name, region, time))
                if space == "output":
                    self._touched(made[-1], len(accesses))
            self.reads.append(tuple(read))
            self.writes.append(tuple(made))
        for number, t in enumerate(self.tensors):
            if t.begin == GIVEN:
                region = replace(t.region, end=sizes.get(number, 0))
                self.tensors[number] = replace(t, region=region)
        for first, last in _loops(model):
            before = sum(at <= first for at in on_host)
            self._every_turn(first + before, last + before)

    def _add(self, name: str, region: Region, time: int) -> int:
        """Puts a tensor into a region, over what lies there, and returns its number."""
        number = len(self.tensors)
        self.tensors.append(Tensor(name, region, time, time))
        kept: list[tuple[int, int, int]] = []
        for begin, end, other in self._last.get(region.memory, ()):
            old = self.tensors[other]
            taken_over = region.begin <= begin and end <= region.end and old.begin < time
            if taken_over and old.end == time:
                self._touched(other, time - 1)
            if begin < region.begin:
                kept.append((begin, min(end, region.begin), other))
            if end > region.end:
                kept.append((max(begin, region.end), end, other))
        kept.append((region.begin, region.end, number))
        self._last[region.memory] = kept
        return number

    def _at(self, region: Region) -> Iterator[int]:
        for begin, end, number in self._last.get(region.memory, ()):
            if begin < region.end and region.begin < end:
                yield number

    def _touched(self, number: int, time: int) -> None:
        self.tensors[number] = replace(self.tensors[number], end=time)

    def _every_turn(self, first: int, last: int) -> None:
        """A tensor from before a loop that the loop reads lives until the loop's end, unless the
        loop overwrites it."""
        for number, t in enumerate(self.tensors):
            if t.begin < first <= t.end < last and not self._is_taken(t, last):
                self._touched(number, last)

    def _is_taken(self, t: Tensor, until: int) -> bool:
        """Whether another tensor takes its place after its end."""
        return any(
            t.end < other.begin <= until
            and other.region.memory == t.region.memory
            and other.region.begin < t.region.end
            and t.region.begin < other.region.end
            for other in self.tensors
        )


def _loops(model: Model) -> list[tuple[int, int]]:
    """The first and the last call of each loop, inner loops first."""

    def calls_of(procedure: int) -> Iterator[int]:
        for step in model.procedures[procedure]:
            match step:
                case int():
                    yield step
                case Loop(procedure=inner):
                    yield from calls_of(inner)
                case branch:
                    yield from calls_of(branch.procedure)
                    yield from calls_of(branch.otherwise)

    found = []
    for steps in model.procedures:
        for step in steps:
            if isinstance(step, Loop) and (calls := list(calls_of(step.procedure))):
                found.append((min(calls), max(calls)))
    return sorted(found, key=lambda span: span[1] - span[0])


def alive(tensors: Sequence[Tensor], calls: int) -> list[int]:
    """During each call, the bytes of the arena in tensors that are still needed."""
    found = [0] * calls
    for t in tensors:
        if t.region.memory[0] == "arena":
            for time in range(max(t.begin, 0), min(t.end, calls - 1) + 1):
                found[time] += t.region.size
    return found
