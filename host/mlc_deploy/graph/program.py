"""A model as a program for the board: kernels, a table of calls, and a blob of weights."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from mlc_targets.object_format import ALIGNMENT, SPACES, STEPS, ModelMap, Operand, ParamMap, StepMap

from ..errors import LowerError
from ..files.mapped import Buffer, Spool, release_mapped
from ..ir import IRModule
from ..ir.names import Names
from .extents import open_extents
from .external import ExternalCall, external_call
from .lower import KernelSource, as_kernels, kernel_source
from .nodes import (
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Deferred,
    Function,
    TensorType,
    Value,
)
from .parts import Part, part_of
from .plan import Place, align
from .scalars import at_most, with_scalars
from .states import state_outputs


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of the executor. `kernel` names a PrimFunc, `layer` the model's layer. `args` are
    its tensors, then its symbolic dimensions, int64[]."""

    kernel: str
    layer: str
    args: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Runs a procedure `turns` times. The strides of places refer to the loop by its `number`. The
    iteration's number is written to `turn`, if given, before each iteration. An iteration runs only
    while the `condition`, if given, is true. A `count`, if given, holds the number of iterations,
    `turns` at most."""

    number: int
    turns: int
    procedure: int
    condition: Place | None
    turn: Place | None
    count: Place | None


@dataclass(frozen=True, slots=True)
class BranchStep:
    """Runs the procedure `then` if the condition is true, else `otherwise`."""

    condition: Place
    then: int
    otherwise: int


HEAD = 256  # arrays are compared in full only if their first bytes, this many, are equal
Step = int | LoopStep | BranchStep  # the number of a call
C = TypeVar("C", KernelCall, ExternalCall)


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """The content of the "model" map of mlc_abi.h, with its kernels and weights.

    `procedures` are lists of steps; the first is the model's. A model without loops and branches
    has none, and runs its `calls` in order. `arena` is in bytes. No plan needs less than
    `arena_lower_bound`. `weights_hash` is the BLAKE2b-256 of `weights` (both empty without
    weights). `states` has outputs that a run finds as the run before left them: the output's number
    and the name of its input in the model. `function` is the graph as lowered. `bindings` are its
    calls by number, also those in loops and branches. `externals` are its calls of registered
    functions, which the executor does not run. `extents` has the dynamic extents
    (graph/extents.py), with their maxima. `open` has the extents' names in the shapes of inputs and
    outputs, by name.
    """

    function: Function
    kernels: Mapping[str, KernelSource]
    calls: tuple[KernelCall, ...]
    procedures: tuple[tuple[Step, ...], ...]
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    arena: int
    arena_lower_bound: int
    weights: Buffer
    weights_hash: bytes
    states: Mapping[int, str]
    bindings: tuple[Binding, ...]
    externals: tuple[ExternalCall, ...] = ()
    extents: Mapping[str, int] = field(default_factory=dict)
    open: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def model_map(self) -> ModelMap:
        """The map for the object's section. Kernels are numbered in the order of `kernels`."""
        numbers = {name: n for n, name in enumerate(self.kernels)}
        made: ModelMap = {
            "inputs": [_signature(name, t, self.open.get(name)) for name, t in self.inputs],
            "outputs": [
                _signature(name, t, self.open.get(name), self.states.get(n))
                for n, (name, t) in enumerate(self.outputs)
            ],
            "arena": self.arena,
            "weights": len(self.weights),
            "weights_hash": self.weights_hash,
            "calls": [
                (numbers[call.kernel], call.layer, [_operand(p) for p in call.args])
                for call in self.calls
            ],
        }
        if self.procedures:
            made["procedures"] = [[_step(s) for s in steps] for steps in self.procedures]
        if self.extents:
            made["extents"] = dict(self.extents)
        return made


def _operand(place: Place) -> Operand:
    at = (SPACES.index(place.space), place.index, place.offset, place.size)
    return at + tuple(number for stride in place.strides for number in stride)


def _step(step: Step) -> StepMap:
    match step:
        case LoopStep(number, turns, procedure, condition, turn, count):
            places = (None if p is None else _operand(p) for p in (condition, turn, count))
            return (STEPS.index("loop"), number, turns, procedure, *places)
        case BranchStep(condition, then, otherwise):
            return (STEPS.index("branch"), _operand(condition), then, otherwise)
        case int():
            return step


def _signature(
    name: str, t: TensorType, extents: Sequence[str] | None = None, state: str | None = None
) -> ParamMap:
    made: ParamMap = {"name": name, "dtype": t.dtype, "shape": t.sizes}
    if extents is not None:
        made["open"] = list(extents)
    return made if state is None else {**made, "state": state}


class _Weights:
    """The constants that calls read. Each has its own place until they are written."""

    def __init__(self) -> None:
        self._constants: list[Constant] = []
        self._places: dict[object, Place] = {}
        self._size = 0

    def place(self, constant: Constant) -> Place:
        held = constant.held if isinstance(constant.held, Deferred) else constant
        if held not in self._places:
            size = constant.type.bytes
            self._places[held] = Place("weights", 0, self._size, size)
            self._constants.append(constant)
            self._size += max(align(size), ALIGNMENT)  # an empty one has its own place, too
        return self._places[held]

    def written(self) -> _Blob:
        """The blob. Constants of equal content share a place in it."""
        file, digest = Spool(self._size), hashlib.blake2b(digest_size=32)
        known: dict[tuple[int, bytes], list[int]] = {}  # offsets of arrays, by size and first bytes
        begins, moved = list[int](), list[int]()
        size = 0
        for constant, place in zip(self._constants, self._places.values(), strict=True):
            array = np.ascontiguousarray(constant.value)
            content = array.data.cast("B") if array.size else memoryview(b"")
            alike = known.setdefault((array.nbytes, bytes(content[:HEAD])), [])
            at = next((at for at in alike if file.holds(content, at)), None)
            if at is None:
                at = size
                alike.append(at)
                for data in (content, bytes(align(array.nbytes) - array.nbytes)):
                    file.write(data)
                    digest.update(data)
                size += align(array.nbytes)
            begins.append(place.offset)
            moved.append(at)
            release_mapped()
        return _Blob(file.finished(), digest.digest() if size else b"", begins, moved)


@dataclass(frozen=True, slots=True)
class _Blob:
    """The written weights. Bytes planned from begins[n] on now lie from moved[n] on."""

    content: Buffer
    hash: bytes
    begins: Sequence[int]
    moved: Sequence[int]

    def found(self, place: Place) -> Place:
        """The final place, for a place of any space."""
        if place.space != "weights":
            return place
        n = bisect_right(self.begins, place.offset) - 1
        return replace(place, offset=place.offset - self.begins[n] + self.moved[n])


@dataclass(frozen=True, slots=True)
class UnwrittenProgram:
    """A program without its weights. `program` has its kernels and calls. The places of weights
    are not final."""

    program: GraphProgram
    weights: _Weights

    def written(self) -> GraphProgram:
        """The program with computed, packed and written weights. This may take long."""
        program, blob = self.program, self.weights.written()

        def found(step: Step) -> Step:
            match step:
                case LoopStep(condition=condition, turn=turn, count=count):
                    condition, turn, count = (p and blob.found(p) for p in (condition, turn, count))
                    return replace(step, condition=condition, turn=turn, count=count)
                case BranchStep(condition):
                    return replace(step, condition=blob.found(condition))
                case int():
                    return step

        def calls(those: Iterable[C]) -> tuple[C, ...]:
            return tuple(replace(c, args=tuple(map(blob.found, c.args))) for c in those)

        return replace(
            program,
            weights=blob.content,
            weights_hash=blob.hash,
            calls=calls(program.calls),
            externals=calls(program.externals),
            procedures=tuple(tuple(map(found, steps)) for steps in program.procedures),
        )


def lower_graph(function: Function, module: IRModule | None = None) -> GraphProgram:
    """The program of an optimized graph. module holds the PrimFuncs that it calls."""
    return unwritten_program(function, module).written()


def unwritten_program(function: Function, module: IRModule | None = None) -> UnwrittenProgram:
    """The program of an optimized graph before its weights are written. Kernels may be compiled
    meanwhile."""
    most, opened = dict(function.extents), open_extents(function)
    if most:  # kernels first: with maxima for sizes, values lose their symbolic dimensions
        function = at_most(with_scalars(replace(function, bindings=as_kernels(function))))
    part = part_of(function)
    function = part.function
    states = state_outputs(function)
    inputs = [p for p in function.params if p not in states.values()]
    fixed: dict[Value, Place] = {
        p: Place("input", n, 0, p.type.bytes) for n, p in enumerate(inputs)
    }
    for n, value in enumerate(function.outputs):
        place = Place("output", n, 0, value.type.bytes)
        fixed[part.plan.memory.region(value)[0]] = place
        if n in states:
            fixed[states[n]] = place
    bindings = tuple(_every_call(part))
    lowering = _Lowering(module, iter(_layers(bindings)))
    lowering.procedure(part, fixed, 0)
    program = GraphProgram(
        function=function,
        kernels=lowering.kernels.sources,
        calls=tuple(lowering.calls),
        procedures=tuple(map(tuple, lowering.procedures)) if part.parts else (),
        inputs=tuple((p.name, p.type) for p in inputs),
        outputs=tuple(
            (n, v.type) for n, v in zip(function.output_names, function.outputs, strict=True)
        ),
        arena=part.plan.arena,
        arena_lower_bound=part.plan.lower_bound,
        weights=b"",
        weights_hash=b"",
        states={n: state.name for n, state in states.items()},
        bindings=bindings,
        externals=tuple(lowering.externals),
        extents=most,
        open=opened,
    )
    return UnwrittenProgram(program, lowering.weights)


class _Lowering:
    """A program under construction."""

    def __init__(self, module: IRModule | None, layers: Iterator[str]) -> None:
        self.kernels = _Kernels(module)
        self.layers = layers
        self.weights = _Weights()
        self.calls: list[KernelCall] = []
        self.procedures: list[list[Step]] = []
        self.externals: list[ExternalCall] = []
        self.loops = 0

    def procedure(self, part: Part, fixed: Mapping[Value, Place], base: int) -> int:
        """Adds the procedure of a part and returns its number. fixed: the places of its parameters
        and outputs. base: the start of its piece of the arena."""
        number, steps = len(self.procedures), list[Step]()
        self.procedures.append(steps)

        def place(value: Value) -> Place:
            found = part.plan.place(value, fixed, base)
            if found is None:
                root, offset = part.plan.memory.region(value)
                assert isinstance(root, Constant), f"{value} has no place"
                found = self.weights.place(root).part(offset, value.type.bytes)
            return found

        for binding in part.calls:
            call = binding.call
            begin = base + part.plan.within.get(binding, 0)
            match call:
                case CallPacked():
                    if number:
                        what = f"'{call.func}' runs on this machine, and is in a loop or branch"
                        mend = "an operator, or a call of it outside"
                        raise LowerError(what, where=str(binding), mend=mend)
                    layer = next(self.layers)
                    made = external_call(binding, layer, len(self.calls), place)
                    self.externals.append(made)
                case CallLoop():
                    (body,) = part.parts[binding]
                    steps.append(self.loop(binding, call, body, place, begin))
                case CallBranch():
                    steps.append(self.branch(binding, call, part.parts[binding], place, begin))
                case _:
                    given = list(map(place, call.args))
                    fused = call.function.params if isinstance(call, CallFused) else given
                    scalars = given[len(fused) :]
                    args = (*given[: len(fused)], *map(place, binding.outputs))
                    in_place = part.plan.in_place.get(binding.outputs[0])
                    kernel = self.kernels.name_for(binding, in_place, args)
                    steps.append(len(self.calls))
                    self.calls.append(KernelCall(kernel, next(self.layers), (*args, *scalars)))
        return number

    def loop(
        self,
        binding: Binding,
        call: CallLoop,
        body: Part,
        place: Callable[[Value], Place],
        base: int,
    ) -> LoopStep:
        number, self.loops = self.loops, self.loops + 1
        turns = call.turns
        assert isinstance(turns, int), f"{binding} has {turns} iterations"
        turn, *params = body.function.params
        states = [place(out) for out in binding.outputs[: call.states]]
        read = [
            place(x).element(number, turns, back)
            for x, back in zip(call.sequences, call.read, strict=True)
        ]
        others = [place(x) for x in call.args[call.states + len(call.read) :]]
        written = [
            place(x).element(number, turns, back)
            for x, back in zip(binding.outputs[call.states :], call.written, strict=True)
        ]
        before = list(states)
        for state, result in call.trailing:
            step = written[result].strides[-1]
            before[state] = place(call.args[state]).moving(*step)
        fixed: dict[Value, Place] = dict(zip(params, (*before, *read, *others), strict=True))
        outputs = [body.plan.memory.region(v)[0] for v in body.function.outputs]
        fixed.update(zip(outputs, (*states, *written), strict=True))
        return LoopStep(
            number,
            turns,
            self.procedure(body, fixed, base),
            states[0] if call.conditional else None,
            body.plan.place(turn, fixed, base),
            others[-1] if call.counted else None,
        )

    def branch(
        self, binding: Binding, call: CallBranch, parts: Sequence[Part],
        place: Callable[[Value], Place], base: int,
    ) -> BranchStep:  # fmt: skip
        taken: list[int] = []
        for part in parts:
            args = map(place, call.args[1:])
            fixed: dict[Value, Place] = dict(zip(part.function.params, args, strict=True))
            outputs = [part.plan.memory.region(v)[0] for v in part.function.outputs]
            fixed.update(zip(outputs, map(place, binding.outputs), strict=True))
            taken.append(self.procedure(part, fixed, base))
        return BranchStep(place(call.args[0]), *taken)


def _every_call(part: Part) -> Iterator[Binding]:
    """The calls of a part and of the parts in it, in the order of their numbers."""
    for binding in part.calls:
        if binding in part.parts:
            for inner in part.parts[binding]:
                yield from _every_call(inner)
        else:
            yield binding


class _Kernels:
    """The kernels of a program by name. Calls that compute the same share one kernel."""

    def __init__(self, module: IRModule | None) -> None:
        self.sources: dict[str, KernelSource] = {}
        self._module = module
        self._names = Names()
        self._by_digest: dict[bytes, str] = {}

    def name_for(self, binding: Binding, in_place: int | None, args: Sequence[Place]) -> str:
        """The name of the kernel that computes the binding with arguments and outputs at `args`."""
        source = kernel_source(binding, self._module)
        if in_place is not None:
            source = replace(source, in_place=(in_place,))
        alignments = tuple(place.alignment for place in args)
        if any(alignment < ALIGNMENT for alignment in alignments):
            source = replace(source, alignments=alignments)
        digest = source.digest
        if digest not in self._by_digest:
            name = self._names.fresh(source.name)
            self.sources[name] = replace(source, name=name)
            self._by_digest[digest] = name
        return self._by_digest[digest]


def _layers(calls: Sequence[Binding]) -> list[str]:
    """A name for each call: the name of the model's node, with the kernel if a node has several."""
    sources = Counter(b.source for b in calls)
    names: list[str] = []
    for number, binding in enumerate(calls):
        kernel = _kernel(binding)
        name = binding.source or f"{kernel}_{number}"
        once = sources[binding.source] == 1 or not binding.source
        names.append(name if once else f"{name}.{kernel}")
    again = Counter(names)
    return [n if again[n] == 1 else f"{n}_{number}" for number, n in enumerate(names)]


def _kernel(binding: Binding) -> str:
    match binding.call:
        case CallFused(function):
            return function.name
        case CallTIR(func) | CallPacked(func) | Call(func):
            return func
    raise AssertionError(f"{binding} is not a kernel")
