"""Views: values that lie in another value's memory, so their calls need not run.

A reshape lies in its argument's memory, and so does a contiguous slice. The arguments of a
concatenation are written directly into its memory, unless something else decides their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlc_targets.object_format import ALIGNMENT

from ..ops import has
from ..ops.shape import normal_axis
from ..passes.context import optional
from .constants import is_static
from .nodes import (
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    Function,
    TensorType,
    Value,
    Var,
    bodies,
    with_bindings,
)

IN_PLACE = "in_place"  # attribute of a concatenation whose arguments are written into it
OWNED = "owned"  # attribute of a call that updates its own memory


@optional(level=1)
def concatenate_in_place(function: Function) -> Function:
    """concatenate(x, y)   =>   concatenate(x, y, in_place=True), where x and y can be computed
    directly in their place in the result."""
    made = {v for b in function.bindings if not is_view(b) for v in _placeable(b)}
    memory = Memory(function)
    taken = {memory.region(v)[0] for v in function.outputs}
    bindings: list[Binding] = []
    for binding in function.bindings:
        roots = _movable(binding, memory, made - taken)
        if roots:
            taken.update(roots)
        if roots and not _marked(binding):
            assert isinstance(binding.call, Call)
            attrs = {**binding.call.attrs, IN_PLACE: True}
            binding = replace(binding, call=replace(binding.call, attrs=attrs))
        bindings.append(binding)
    return with_bindings(function, bindings)


def _placeable(binding: Binding) -> Sequence[Var]:
    """The outputs of a call that may be written anywhere. A loop's state that is also an element of
    a result is left out: it may lie in the result (plan.own_states)."""
    call = binding.call
    if not isinstance(call, CallLoop):
        return binding.outputs
    given = call.body.outputs
    states = zip(binding.outputs, given[: call.states], strict=False)
    apart = [out for out, value in states if value not in given[call.states :]]
    return (*apart, *binding.outputs[call.states :])


def _movable(binding: Binding, memory: Memory, free: set[Var]) -> set[Value]:
    """The values that can be written directly into the concatenation; none if one cannot."""
    match binding.call:
        case Call("concatenate", args, attrs) if all(map(is_static, args)):
            regions = [memory.region(a) for a in args]
            roots = {root for root, _ in regions}
            whole = all(
                root in free and not offset and root.type.bytes == arg.type.bytes
                for arg, (root, offset) in zip(args, regions, strict=True)
            )
            (out,) = binding.outputs
            axis = normal_axis("concatenate", attrs["axis"], len(out.type.shape))
            adjoin = math.prod(_sizes(out.type)[:axis]) == 1
            aligned = all(a.type.bytes % ALIGNMENT == 0 for a in args[:-1])
            if whole and adjoin and aligned and len(roots) == len(args):
                return roots
    return set()


def _marked(binding: Binding) -> bool:
    return isinstance(binding.call, Call) and bool(binding.call.attrs.get(IN_PLACE))


def is_view(binding: Binding) -> bool:
    """Whether the binding's output lies in existing memory and needs no work."""
    match binding.call:
        case Call("reshape" | "first" | "extent"):
            return True
        case Call("concatenate"):
            return _marked(binding)
        case Call("slice", (x,), attrs) if is_static(x) and is_static(binding.outputs[0]):
            return slice_offset(x.type, attrs["begin"], attrs["step"], attrs["shape"]) is not None
    return False


def update(binding: Binding) -> Call | None:
    """The call, maybe within a kernel, that writes into the memory of the binding's first argument;
    None if there is none."""
    match binding.call:
        case CallFused(Function(bindings=(inner,))):
            return update(inner)
        case Call(op) as call if has(op, "updates"):
            return call
    return None


def owning(binding: Binding, memory: Value) -> Binding:
    """The binding, an update, as one that owns `memory`."""
    call = binding.call
    args = (memory, *call.args[1:])
    match call:
        case CallFused(Function(bindings=(inner,)) as function):
            function = replace(function, bindings=(owning(inner, inner.call.args[0]),))
            return replace(binding, call=CallFused(function, args))
        case Call(attrs=attrs):
            return replace(binding, call=replace(call, args=args, attrs={**attrs, OWNED: True}))
    raise AssertionError(f"{binding} updates nothing")


def is_owned(binding: Binding) -> bool:
    """Whether the binding updates its own memory, as plan.own_states marks it."""
    call = update(binding)
    return call is not None and bool(call.attrs[OWNED])


def updated_args(branch: CallBranch) -> tuple[tuple[int, int], ...]:
    """The outputs of a branch that both bodies leave in the memory of the same argument, each with
    the argument's number."""

    def roots(body: Function) -> list[int]:
        memory = Memory(body, updates=True)
        numbers: dict[Value, int] = {p: n for n, p in enumerate(body.params, 1)}
        whole = (memory.region(v)[0] if memory.is_whole(v) else v for v in body.outputs)
        return [numbers.get(root, 0) for root in whole]

    if not any(update(b) for body in bodies(branch) for b in body.bindings):
        return ()
    one, other = map(roots, bodies(branch))
    same = [(k, arg) for k, (arg, b) in enumerate(zip(one, other, strict=True)) if arg == b and arg]
    args = [arg for _, arg in same]
    return tuple((k, arg) for k, arg in same if args.count(arg) == 1)


def slice_offset(
    x: TensorType, begin: tuple[int, ...], step: tuple[int, ...], shape: tuple[int, ...]
) -> int | None:
    """The offset in bytes of a slice in x; None if it is not contiguous or not aligned."""
    sizes = _sizes(x)
    cut = [k for k, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n != size]
    if cut and math.prod(shape[: cut[-1]]) != 1:
        return None
    if 0 in shape or any(s != 1 and n > 1 for s, n in zip(step, shape, strict=True)):
        return None
    element = 0
    for first, size in zip(begin, sizes, strict=True):
        element = element * size + first
    offset = element * (x.bytes // x.elements)
    return offset if offset % ALIGNMENT == 0 else None


def _sizes(t: TensorType) -> tuple[int, ...]:
    return tuple(n for n in t.shape if isinstance(n, int))


@dataclass(frozen=True, slots=True)
class Memory:
    """The values of a function that lie in other values' memory."""

    within: dict[Value, tuple[Value, int]]  # the value it lies in, and the offset in bytes

    def __init__(self, function: Function, updates: bool = False) -> None:
        """updates: treats all calls that update memory as owning it."""
        object.__setattr__(self, "within", {})
        for binding in function.bindings:
            if is_view(binding):
                self._add(binding)
            elif isinstance(binding.call, CallLoop) and binding.call.owned:
                self._add_states(binding, binding.call)
            elif isinstance(binding.call, CallBranch):
                for number, arg in binding.call.states:
                    self.within[binding.outputs[number]] = binding.call.args[arg], 0
            elif is_owned(binding) or (updates and update(binding)):
                self.within[binding.outputs[0]] = binding.call.args[0], 0

    def _add(self, binding: Binding) -> None:
        (out,) = binding.outputs
        match binding.call:
            case Call("concatenate", args):
                begin = 0
                for arg in args:
                    self.within[self.region(arg)[0]] = out, begin
                    begin += arg.type.bytes
            case Call("slice", (x,), attrs):
                offset = slice_offset(x.type, attrs["begin"], attrs["step"], attrs["shape"])
                assert offset is not None, f"{binding} is not a view"
                self.within[out] = x, offset
            case Call("reshape" | "first" | "extent", (x, *_)):
                self.within[out] = x, 0

    def _add_states(self, binding: Binding, loop: CallLoop) -> None:
        own = zip(binding.outputs, loop.args[: loop.states], strict=False)
        self.within.update((out, (state, 0)) for out, state in own)
        for state, result in loop.trailing:
            sequence, last = binding.outputs[loop.states + result], binding.outputs[state]
            end = 0 if loop.written[result] else sequence.type.bytes - last.type.bytes
            self.within[last] = sequence, end

    def region(self, value: Value) -> tuple[Value, int]:
        """The value whose memory holds this value, and the offset in bytes."""
        offset = 0
        while value in self.within:
            value, more = self.within[value]
            offset += more
        return value, offset

    def last_reads(self, calls: Sequence[Binding]) -> dict[Value, int]:
        """The values whose memory calls read, and the number of the last such call."""
        return {self.region(a)[0]: number for number, b in enumerate(calls) for a in b.call.args}

    def is_whole(self, value: Value) -> bool:
        """Whether the value fills the whole memory that it lies in."""
        root, offset = self.region(value)
        return not offset and root.type.bytes == value.type.bytes
