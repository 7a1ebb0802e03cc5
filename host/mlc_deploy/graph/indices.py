"""Which inputs of a model are indices, and into how many entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..ops.shape import VIEWS
from .nodes import Call, CallBranch, CallLoop, Function, Value, Var


def index_extents(function: Function) -> Mapping[str, int]:
    """How many entries each parameter that is an index may index, by name."""
    found = {p.name: index_extent(function, p) for p in function.params}
    return {name: extent for name, extent in found.items() if extent is not None}


def index_extent(function: Function, param: Var) -> int | None:
    """How many entries the parameter may index, where it is an index; None where it is none."""
    keeping = {*VIEWS, "cast", "copy"}  # what gives indices when it gets them
    carried: set[object] = {param}
    extents: list[int] = []
    for binding in function.bindings:
        match binding.call:
            case Call("gather", (data, indices), attrs) if indices in carried:
                extents.append(data.type.sizes[attrs["axis"]])
            case Call(op, (source, *_)) if op in keeping and source in carried:
                carried.update(binding.outputs)
            case CallLoop(body, args):
                extents += _within(body.params[1:], body, args, carried)
            case CallBranch(then, otherwise, args):
                for body in (then, otherwise):
                    extents += _within(body.params, body, args[1:], carried)
    return min(extents, default=None)


def _within(
    params: Sequence[Var], body: Function, args: Sequence[Value], carried: Collection[object]
) -> list[int]:
    """The extents of what a body's parameters index that are given indices."""
    given = [p for p, arg in zip(params, args, strict=True) if arg in carried]
    found = [index_extent(body, p) for p in given]
    return [extent for extent in found if extent is not None]
