"""The inputs of a model that are indices, and the number of entries they index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..ops import TensorType, has
from ..ops.shape import VIEWS
from .extents import largest
from .nodes import Call, CallBranch, CallLoop, Function, Value, Var

ALONG_AXIS = frozenset({"gather", "gather_elements", "scatter_elements"})
TUPLES = frozenset({"gather_nd", "scatter_nd"})


def index_extents(function: Function) -> Mapping[str, int]:
    """The number of entries that each index parameter may index, by name. Dynamic extents
    count as their maximum."""
    found = {p.name: index_extent(function, p) for p in function.params}
    return {name: extent for name, extent in found.items() if extent is not None}


def index_extent(function: Function, param: Var) -> int | None:
    """The number of entries that the parameter may index; None if it is not an index."""
    return _extent(function, param, dict(function.extents))


def _extent(function: Function, param: Var, most: Mapping[str, int]) -> int | None:
    carried: set[object] = {param}
    extents: list[int] = []
    for binding in function.bindings:
        match binding.call:
            case Call(op, (data, indices, *_), attrs) if op in ALONG_AXIS and indices in carried:
                extents.append(largest(data.type, most).sizes[attrs["axis"]])
            case Call(op, (data, indices, *_), attrs) if op in TUPLES and indices in carried:
                front = attrs.get("batch_dims", 0)
                count = largest(indices.type, most).sizes[-1]
                extents += largest(data.type, most).sizes[front : front + count]
            case Call("check_indices", (indices,), attrs) if indices in carried:
                extents += largest(TensorType(attrs["extents"], "int32"), most).sizes
            case Call() as call if not carried.isdisjoint(_kept(call)):
                carried.update(binding.outputs)
            case CallLoop(body, args):
                extents += _within(body.params[1:], body, args, carried, most)
            case CallBranch(then, otherwise, args):
                for body in (then, otherwise):
                    extents += _within(body.params, body, args[1:], carried, most)
    return min(extents, default=None)


def _kept(call: Call) -> Sequence[Value]:
    """The arguments whose elements the call copies to its result: indices stay indices."""
    match call.op:
        case "cast" | "copy" | "gather":
            return call.args[:1]
        case "where":
            return call.args[1:]
        case op if op in VIEWS:
            return call.args[:1]
        case op if has(op, "selects"):
            return call.args
    return ()


def _within(
    params: Sequence[Var],
    body: Function,
    args: Sequence[Value],
    carried: Collection[object],
    most: Mapping[str, int],
) -> list[int]:
    """The extents that a body's parameters index, for parameters that are given indices."""
    given = [p for p, arg in zip(params, args, strict=True) if arg in carried]
    found = [_extent(body, p, most) for p in given]
    return [extent for extent in found if extent is not None]
