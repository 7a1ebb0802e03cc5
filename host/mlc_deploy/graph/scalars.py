"""Kernels take dynamic dimensions as arguments. Memory is planned for their maxima."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import GraphError
from ..ir import Var as Symbol
from .bind import rebuilt
from .control import element
from .dims import symbol, symbols
from .extents import EXTENT, defined_by, dims_in, dims_of, largest, largest_extent
from .nodes import (
    Binding,
    CallBranch,
    CallFused,
    CallLoop,
    Function,
    Value,
    Var,
    in_bodies,
    taken_names,
)


def with_scalars(function: Function) -> Function:
    """The function with kernels that take their dimensions as arguments. The dimensions follow a
    kernel's tensors, in the order of its `extents`. They have the same names in all kernels, so
    equal kernels compare equal. Loops and branches take the dimensions of their bodies. A loop is
    counted if its iterations are such a dimension. Raises GraphError for a loop with elements of a
    size known only at run time."""
    return _with_scalars(
        function, {symbol(p.name): p for p in function.params}, dict(function.extents)
    )


def _with_scalars(
    function: Function, values: Mapping[Symbol, Value], most: Mapping[str, int]
) -> Function:
    """values: the dimensions known at the start of the function."""
    known = dict(values)
    bindings: list[Binding] = []
    for binding in function.bindings:
        match binding.call:
            case CallFused(inner, args):
                dims = dims_in(inner)
                names = {v: symbol(f"n{number}") for number, v in enumerate(dims)}
                own = tuple((names[v].name, most[v.name]) for v in dims)
                inner = replace(rebuilt(inner, {}, names), extents=own) if dims else inner
                call = CallFused(inner, (*args, *(known[v] for v in dims)))
                binding = replace(binding, call=call)
            case CallLoop() | CallBranch():
                binding = replace(binding, call=_of_bodies(binding, known, most))
        extent = defined_by(binding)
        if extent is not None:
            known[extent] = binding.outputs[0]
        bindings.append(binding)
    return replace(function, bindings=tuple(bindings))


def _of_bodies(
    binding: Binding, known: Mapping[Symbol, Value], most: Mapping[str, int]
) -> CallLoop | CallBranch:
    """The loop or branch of a binding, with the dimensions of its bodies as arguments."""
    call = binding.call
    assert isinstance(call, CallLoop | CallBranch)
    dims = [v for v in sorted(dims_of(binding), key=lambda v: v.name) if v in known]
    counted = isinstance(call, CallLoop) and isinstance(call.turns, Symbol)
    if isinstance(call, CallLoop):
        _hold_elements(binding, call)
        if isinstance(call.turns, Symbol):
            dims = [*(v for v in dims if v is not call.turns), call.turns]

    def taking(body: Function) -> Function:
        names = taken_names(body)
        own = {v: Var(names.fresh(v.name), EXTENT) for v in dims}
        body = replace(body, params=(*body.params, *own.values()))
        return _with_scalars(body, own, most)

    args = (*call.args, *(known[v] for v in dims))
    match call:
        case CallLoop(body):
            return replace(call, body=taking(body), args=args, counted=counted)
        case CallBranch(then, otherwise):
            return CallBranch(taking(then), taking(otherwise), args)


def _hold_elements(binding: Binding, loop: CallLoop) -> None:
    for sequence in (*loop.sequences, *binding.outputs[loop.states :]):
        part = element(sequence.type)
        for extent in symbols([part])[:1]:
            what = (
                f"a loop's iterations each take or give {part}, and '{extent}' is known only at "
                "run time"
            )
            raise GraphError(what, where=binding.source, mend=f"{extent}=16: one of its sizes")


def at_most(function: Function) -> Function:
    """The function with the maximum size of each value, for planning its memory. Kernels stay as
    they are inside."""
    return _sized(function, dict(function.extents)) if function.extents else function


def _sized(function: Function, most: Mapping[str, int]) -> Function:
    made: dict[Value, Value] = {}

    def sized(var: Var) -> Var:
        t = largest(var.type, most)
        kept = var if t == var.type else Var(var.name, t)
        made[var] = kept
        return kept

    params = tuple(map(sized, function.params))
    bindings: list[Binding] = []
    for binding in function.bindings:
        call = replace(binding.call, args=tuple(made.get(a, a) for a in binding.call.args))
        if isinstance(call, CallLoop):
            call = replace(call, turns=largest_extent(call.turns, most))
        bindings.append(Binding(tuple(map(sized, binding.outputs)), call, binding.source))
    outputs = tuple(made.get(v, v) for v in function.outputs)
    whole = replace(function, params=params, bindings=tuple(bindings), outputs=outputs)
    return in_bodies(whole, lambda body: _sized(body, most))
