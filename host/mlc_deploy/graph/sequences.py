"""Loops that gather an element by the iteration's number read a sequence instead.

The place of a sequence's element moves from iteration to iteration, so nothing is copied.
"""

from __future__ import annotations

from dataclasses import replace

from mlc_targets.object_format import ALIGNMENT

from ..ir.names import Names
from ..ops.shape import normal_axis
from ..passes.context import optional
from .constants import is_static
from .control import element, sequence
from .nodes import (
    Binding,
    Call,
    CallLoop,
    Constant,
    Function,
    Value,
    Var,
    taken_names,
    with_bindings,
)


@optional(level=1)
def gathers_to_sequences(function: Function) -> Function:
    """loop(body of gather(x, turn + 2), x)   =>   loop(body, slice(x, 2, turns)), a sequence of the
    elements that body gathered"""
    if not any(isinstance(b.call, CallLoop) for b in function.bindings):
        return function
    names = taken_names(function)
    bindings: list[Binding] = []
    for binding in function.bindings:
        bindings += _with_sequences(binding, names)
    return with_bindings(function, bindings)


def _with_sequences(binding: Binding, names: Names) -> list[Binding]:
    """The binding of a loop, which now reads sequences instead of gathering, after their slices."""
    loop = binding.call
    if not isinstance(loop, CallLoop) or not isinstance(loop.turns, int):
        return [binding]
    body, count = loop.body, loop.states + len(loop.read)
    whole = dict(zip(body.params[1 + count :], loop.args[count:], strict=True))
    places = _places(body)
    before: list[Binding] = []
    gathered: dict[Binding, Value] = {}
    for inner in body.bindings:
        match inner.call:
            case Call("gather", (Var() as x, Var() as index), attrs) if (
                x in whole and index in places and is_static(x)
            ):
                begin, given = places[index], whole[x]
                if normal_axis("gather", attrs["axis"], len(x.type.shape)) or not _is_view(
                    x, begin, loop.turns
                ):
                    continue
                if begin or x.type.sizes[0] != loop.turns:
                    before.append(_slice(given, begin, loop.turns, inner.source, names))
                    (given,) = before[-1].outputs
                gathered[inner] = given
    if not gathered:
        return [binding]
    elements = [out for inner in gathered for out in inner.outputs]
    params = (*body.params[: 1 + count], *elements, *body.params[1 + count :])
    rest = tuple(b for b in body.bindings if b not in gathered)
    call = replace(
        loop,
        body=replace(body, params=params, bindings=rest),
        args=(*loop.args[:count], *gathered.values(), *loop.args[count:]),
        read=(*loop.read, *[False] * len(gathered)),
    )
    return [*before, replace(binding, call=call)]


def _places(body: Function) -> dict[Value, int]:
    """The values that are a loop's iteration plus a constant, with the constant."""
    places: dict[Value, int] = {body.params[0]: 0}
    for binding in body.bindings:
        match binding.call:
            case Call("add", (Var() as turn, Constant(value))) | Call(
                "add", (Constant(value), Var() as turn)
            ) if turn in places and not value.ndim:
                places[binding.outputs[0]] = places[turn] + int(value)
            case Call("check_indices", (Var() as turn,)) if turn in places:
                places[binding.outputs[0]] = places[turn]  # _is_view finds them all inside
    return places


def _is_view(x: Var, begin: int, turns: int) -> bool:
    """Whether x has elements from `begin` on for all iterations, and their slice needs no copy."""
    if not 0 <= begin <= x.type.sizes[0] - turns:
        return False
    return begin * element(x.type).bytes % ALIGNMENT == 0


def _slice(x: Value, begin: int, turns: int, source: str, names: Names) -> Binding:
    made = sequence(element(x.type), turns)
    rank = len(made.shape)
    attrs = {"begin": (begin, *[0] * (rank - 1)), "shape": made.sizes, "step": (1,) * rank}
    return Binding((Var(names.fresh("rows"), made),), Call("slice", (x,), attrs), source)
