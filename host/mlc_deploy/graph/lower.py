"""From graph calls to PrimFuncs: groups of bindings, each computed by one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from .. import te
from ..ir import PrimFunc, structural_hash, with_fields
from ..ir.names import LIBRARY_NAMES
from ..ops import Attrs, TensorType, compute
from .nodes import Binding, Call, Constant, Function, Value, Var
from .plan import is_view

# op, input placeholders, attributes, target, the function's name -> a scheduled PrimFunc whose
# parameters are the inputs and then the outputs.
LowerCall = Callable[[str, Sequence[te.Tensor], Attrs, Target, str], PrimFunc]


@dataclass(frozen=True, slots=True)
class Group:
    """Bindings that one kernel computes. Today each is a group of its own."""

    bindings: tuple[Binding, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What it reads from without, in order; a value as often as an argument names it."""
        inside = {v for b in self.bindings for v in b.outputs}
        return tuple(a for b in self.bindings for a in b.call.args if a not in inside)

    @property
    def outputs(self) -> tuple[Var, ...]:
        return self.bindings[-1].outputs

    @property
    def kernel(self) -> str:
        name = "_".join(b.call.op for b in self.bindings if isinstance(b.call, Call))
        return f"{name}_op" if name in LIBRARY_NAMES else name


def groups(function: Function) -> list[Group]:
    """The function's bindings that run, in order."""
    return [Group((b,)) for b in function.bindings if not is_view(b)]


def plain_call(
    op: str, inputs: Sequence[te.Tensor], attrs: Attrs, target: Target, name: str
) -> PrimFunc:
    """An operator's PrimFunc without a schedule."""
    return te.create_prim_func([*inputs, *compute(op, inputs, attrs)], name)


class Kernels:
    """The PrimFuncs of a program by name; one is made per distinct call, and equal ones merge."""

    def __init__(self, target: Target, lower_call: LowerCall) -> None:
        self.functions: dict[str, PrimFunc] = {}
        self._target = target
        self._lower_call = lower_call
        self._by_call: dict[tuple[Any, ...], str] = {}
        self._by_hash: dict[str, str] = {}

    def name_for(self, group: Group) -> str:
        """The name of the kernel that computes the group."""
        key = _key(group)
        if key not in self._by_call:
            func = lower_group(group, self._target, self._lower_call)
            digest = structural_hash(func)
            if digest not in self._by_hash:
                self._by_hash[digest] = self._add(func)
            self._by_call[key] = self._by_hash[digest]
        return self._by_call[key]

    def _add(self, func: PrimFunc) -> str:
        name, number = func.name, 0
        while name in self.functions:
            number += 1
            name = f"{func.name}_{number}"
        self.functions[name] = func if name == func.name else with_fields(func, name=name)
        return name


def _key(group: Group) -> tuple[Any, ...]:
    (binding,) = group.bindings
    assert isinstance(binding.call, Call), f"{binding} is no operator's call"
    types = tuple(a.type for a in binding.call.args)
    return (binding.call.op, types, tuple(binding.call.attrs.items()))


def lower_group(group: Group, target: Target, lower_call: LowerCall) -> PrimFunc:
    """The kernel of a group: its inputs as parameters, then its outputs."""
    (binding,) = group.bindings
    assert isinstance(binding.call, Call), f"{binding} is no operator's call"
    inputs = [_placeholder(a, n) for n, a in enumerate(binding.call.args)]
    return lower_call(binding.call.op, inputs, binding.call.attrs, target, group.kernel)


def _placeholder(value: Value, number: int) -> te.Tensor:
    t: TensorType = value.type
    return te.placeholder(
        t.shape, t.dtype, f"w{number}" if isinstance(value, Constant) else f"x{number}"
    )
