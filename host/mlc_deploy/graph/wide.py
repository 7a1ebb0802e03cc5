"""Calls with more operands than a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlc_targets.object_format import MAX_OPERANDS

from ..ir.names import Names
from ..ops import infer_types
from ..passes.context import required
from .nodes import Binding, Call, Function, Value, Var, taken_names, with_bindings
from .views import is_view


@required
def split_concatenations(function: Function) -> Function:
    """concatenate(a, …, z)   =>   concatenate(concatenate(a, …), …, concatenate(…, z)), where one
    kernel would have more operands than boards support."""
    names = taken_names(function)
    bindings: list[Binding] = []
    for binding in function.bindings:
        match binding.call:
            case Call("concatenate", args) if len(args) >= MAX_OPERANDS and not is_view(binding):
                bindings += _split(binding, args, names)
            case _:
                bindings.append(binding)
    return with_bindings(function, bindings)


def _split(binding: Binding, args: Sequence[Value], names: Names) -> list[Binding]:
    """The binding after bindings that concatenate parts of it, each within a kernel's limit."""
    call, most = binding.call, MAX_OPERANDS - 1
    assert isinstance(call, Call)
    made: list[Binding] = []
    parts: list[Value] = []
    for begin in range(0, len(args), most):
        some = tuple(args[begin : begin + most])
        (kind,) = infer_types("concatenate", [v.type for v in some], call.attrs)
        part = Var(names.fresh(binding.outputs[0].name), kind)
        made.append(Binding((part,), replace(call, args=some), binding.source))
        parts.append(part)
    whole = replace(binding, call=replace(call, args=tuple(parts)))
    return made + (_split(whole, parts, names) if len(parts) > most else [whole])
