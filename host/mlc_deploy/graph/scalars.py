"""Kernels take what a run decides, dimensions, as arguments; memory is planned for the most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import GraphError
from ..ir import Var as Symbol
from .bind import rebuilt
from .dims import bound, symbol
from .extents import defined_by, dims_in, dims_of
from .nodes import (
    Binding,
    CallBranch,
    CallFused,
    CallLoop,
    Function,
    Value,
    Var,
    in_bodies,
)


def with_scalars(function: Function) -> Function:
    """A function of kernels, each of which takes the dimensions that it computes with as arguments
    behind its tensors, in the order of its `extents`. There they are called alike, so that kernels
    that do the same are the same. Raises GraphError for loops and branches that compute with
    them."""
    values: dict[Symbol, Value] = {symbol(p.name): p for p in function.params}
    most = dict(function.extents)
    bindings: list[Binding] = []
    for binding in function.bindings:
        match binding.call:
            case CallFused(inner, args):
                dims = dims_in(inner)
                names = {v: symbol(f"n{number}") for number, v in enumerate(dims)}
                own = tuple((names[v].name, most[v.name]) for v in dims)
                inner = replace(rebuilt(inner, {}, names), extents=own) if dims else inner
                call = CallFused(inner, (*args, *(values[v] for v in dims)))
                binding = replace(binding, call=call)
            case CallLoop() | CallBranch() if dims_of(binding):
                what = f"a loop or branch computes with '{min(map(str, dims_of(binding)))}'"
                raise GraphError(f"{what}, which only a run decides", where=binding.source)
        said = defined_by(binding)
        if said is not None:
            values[said] = binding.outputs[0]
        bindings.append(binding)
    return replace(function, bindings=tuple(bindings))


def at_most(function: Function) -> Function:
    """The function with each value as large as it can be, for planning its memory. What is within a
    kernel stays as it is."""
    known = {symbol(name): most for name, most in function.extents}
    return _sized(function, known) if known else function


def _sized(function: Function, known: Mapping[Symbol, int]) -> Function:
    made: dict[Value, Value] = {}

    def sized(var: Var) -> Var:
        t = bound(var.type, known)
        kept = var if t is var.type else Var(var.name, t)
        made[var] = kept
        return kept

    params = tuple(map(sized, function.params))
    bindings: list[Binding] = []
    for binding in function.bindings:
        call = replace(binding.call, args=tuple(made.get(a, a) for a in binding.call.args))
        bindings.append(Binding(tuple(map(sized, binding.outputs)), call, binding.source))
    outputs = tuple(made.get(v, v) for v in function.outputs)
    whole = replace(function, params=params, bindings=tuple(bindings), outputs=outputs)
    return in_bodies(whole, lambda body: _sized(body, known))
