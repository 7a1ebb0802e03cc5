"""A function with its memory plan, and the parts within it: the bodies of loops and branches.

The states of a loop, and those of the model, stay in place. An iteration writes the next state over
the one it began with, if nothing later in the iteration reads the old one. Otherwise the next state
is copied there at the end of the iteration. An iteration may also give a state as an element of a
result. If the first state lies beside this result, the elements are the states, which need no
memory of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .lower import as_kernels
from .nodes import (
    AnyCall,
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    Function,
    Value,
    Var,
    bodies,
    taken_names,
)
from .order import frugal
from .plan import MemoryPlan, own_outputs, own_states, plan_memory, read_in_step
from .states import state_outputs
from .views import Memory, is_view


@dataclass(frozen=True, slots=True)
class Part:
    """The `calls` of a function in the order they run, and its memory `plan`.

    The memory of the function's parameters and outputs is fixed: the caller decides it. The same
    holds for the number of a loop's iteration, unless it is read. `parts` are the parts of the
    bodies that a call runs."""

    function: Function
    calls: tuple[Binding, ...]
    plan: MemoryPlan
    parts: Mapping[Binding, tuple[Part, ...]]


def part_of(function: Function, around: AnyCall | None = None) -> Part:
    """The part of a function. around: the loop or branch whose body it is, if any."""
    trailing: dict[int, int] = {}
    match around:
        case CallLoop():
            trailing = {state: around.states + result for state, result in around.trailing}
            own = enumerate(function.params[1 : 1 + around.states])
            states = {number: state for number, state in own if number not in trailing}
        case CallBranch(states=pairs):
            states = {number: function.params[arg - 1] for number, arg in pairs}
        case _:
            states = state_outputs(function)
    looping = isinstance(around, CallLoop)
    function = own_outputs(own_states(function, states), states, looping, trailing)
    function = replace(function, bindings=as_kernels(function))
    params: set[Value] = {*(function.params[1:] if looping else function.params)}
    part = _laid_out(function, states, params)
    if part.parts:
        return part
    memory = Memory(function)
    fixed = params.union(memory.region(v)[0] for v in function.outputs)
    other = frugal(function, fixed, part.plan.arena)
    if other is function:
        return part
    return min(part, _laid_out(other, states, params), key=lambda p: p.plan.arena)


def _laid_out(function: Function, states: Mapping[int, Var], params: set[Value]) -> Part:
    """The part of a function with its calls in their order. params: parameters whose memory lies
    elsewhere."""
    function, in_place = _states_in_place(function, states)
    calls = tuple(b for b in function.bindings if not is_view(b))
    parts = {
        binding: tuple(part_of(body, binding.call) for body in bodies(binding.call))
        for binding in calls
        if bodies(binding.call)
    }
    memory = Memory(function)
    fixed = params.union(memory.region(v)[0] for v in function.outputs)
    taken = {b: max(p.plan.arena for p in inner) for b, inner in parts.items()}
    plan = plan_memory(function, fixed, taken)
    plan = replace(plan, in_place={**plan.in_place, **in_place})
    return Part(function, calls, plan, parts)


def _states_in_place(
    function: Function, states: Mapping[int, Var]
) -> tuple[Function, dict[Var, int]]:
    """A function that may write its outputs to the memory of these states, by output number. And
    the outputs computed element by element from their state, with the state's argument number."""
    memory = Memory(function)
    calls = [b for b in function.bindings if not is_view(b)]
    made: dict[Value, int] = {out: time for time, b in enumerate(calls) for out in b.outputs}
    last = memory.last_reads(calls)
    names = taken_names(function)
    in_place: dict[Var, int] = {}
    copies: list[Binding] = []
    outputs = list(function.outputs)
    for number, state in states.items():
        after = outputs[number]
        root, _ = memory.region(after)
        if root is state:
            continue
        read, time = last.get(state, -1), made.get(root, -1)
        if read < time:
            continue
        step = _argument_in_step(calls[time], state, memory) if read == time else None
        if step is not None:
            in_place[calls[time].outputs[0]] = step
        else:
            copy = Var(names.fresh(f"{state.name}.next"), state.type)
            source = calls[time].source if time >= 0 else ""
            copies.append(Binding((copy,), Call("copy", (after,), {}), source))
            outputs[number] = copy
    if not copies:
        return function, in_place
    function = replace(function, outputs=tuple(outputs))
    function = replace(function, bindings=(*function.bindings, *copies))
    return replace(function, bindings=as_kernels(function)), in_place


def _argument_in_step(binding: Binding, state: Var, memory: Memory) -> int | None:
    """The number of the kernel's argument that is the state, if it is read element by element."""
    call = binding.call
    if not isinstance(call, CallFused) or len(binding.outputs) > 1:
        return None
    roots = [memory.region(a)[0] for a in call.args]
    if roots.count(state) != 1 or not memory.is_whole(call.args[roots.index(state)]):
        return None
    number = roots.index(state)
    return number if number in read_in_step(call.function) else None
