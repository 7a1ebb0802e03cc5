"""Which inputs of a model are indices, and into how many entries."""

from __future__ import annotations

from collections.abc import Mapping

from ..ops.shape import VIEWS
from .nodes import Call, Function, Var


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
    return min(extents, default=None)
