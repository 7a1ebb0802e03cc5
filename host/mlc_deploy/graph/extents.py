"""Extents known only at run time: the number of nonzero elements, the length of a text.

Such an extent is a symbolic dimension. A parameter of its name, int64[], gives its value, or a call
of the operator `extent`. An output of its name returns it to the caller. Memory is planned for the
maximum, and loops run to the value. Tensors are dense: n rows of at most 100 are stored as n rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..arith import expr_bounds
from ..errors import GraphError
from ..ir import Dim, Expr, free_vars
from ..ir import Var as Symbol
from ..ops import TensorType
from .dims import bound_dims, symbols
from .nodes import (
    Binding,
    Call,
    CallFused,
    CallLoop,
    Function,
    Var,
    bodies,
)

EXTENT = TensorType((), "int64")  # the type of an extent's value
LARGEST = (1 << 31) - 1


def defined_by(binding: Binding) -> Symbol | None:
    """The dimension whose value a binding gives."""
    match binding.call:
        case Call("extent", attrs=attrs):
            return attrs["extent"]  # type: ignore[no-any-return]
    return None


def saying(function: Function, extent: Symbol) -> Var:
    """The variable of a function that holds an extent's value."""
    found = [b.outputs[0] for b in function.bindings if defined_by(b) is extent]
    return next(iter([*found, *(p for p in function.params if p.name == extent.name)]))


def dims_of(binding: Binding) -> set[Symbol]:
    """The symbolic dimensions of a binding's arguments, outputs, attributes and inner functions."""
    call = binding.call
    found = set(symbols([v.type for v in (*call.args, *binding.outputs)]))
    match call:
        case Call(attrs=attrs):
            for n in _exprs(tuple(attrs.values())):
                found |= free_vars(n)
        case CallFused(function):
            found.update(dims_in(function))
        case CallLoop(turns=Expr() as turns):
            found |= free_vars(turns)
    for body in bodies(call):
        found.update(dims_in(body))
    return found


def dims_in(function: Function) -> list[Symbol]:
    """The symbolic dimensions in a function, by name."""
    found = set(symbols([p.type for p in function.params]))
    for binding in function.bindings:
        found |= dims_of(binding)
    return sorted(found, key=lambda v: v.name)


def known(attr: Any, dims: Mapping[Symbol, Dim]) -> Any:
    """An attribute with dimensions replaced by `dims`."""
    if isinstance(attr, tuple):
        return tuple(known(part, dims) for part in attr)
    return bound_dims([attr], dims)[0] if isinstance(attr, Expr) else attr


def _exprs(value: Any) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _exprs(part)


def largest(t: TensorType, most: Mapping[str, int]) -> TensorType:
    """The type of the largest tensor, with the maximum of each dynamic extent."""
    return TensorType(tuple(largest_extent(n, most) for n in t.shape), t.dtype)


def largest_extent(extent: Dim, most: Mapping[str, int]) -> Dim:
    """The maximum of an extent: 64 for 64 - n. It stays an expression in extents without known
    bounds."""
    if not isinstance(extent, Expr):
        return extent
    known = {v: (0, most[v.name]) for v in free_vars(extent) if v.name in most}
    high = expr_bounds(extent, known)[1]
    if high is None:
        return bound_dims([extent], {v: number for v, (_, number) in known.items()})[0]
    return max(int(high), 0)


def opened(function: Function, dims: Mapping[str, str]) -> Function:
    """The function with dynamic dimensions. dims has them by name, with the maximum
    as "<=512". Each becomes a parameter of its name, too. Raises GraphError for an unknown
    dimension, and for other text."""
    known = [v.name for v in symbols([p.type for p in function.params])]
    params, most = list(function.params), dict(function.extents)
    for name, text in dims.items():
        if name not in known:
            what = f"'{function.name}' has no dimension '{name}'"
            raise GraphError(what, mend=", ".join(known) or "none: all its shapes are known")
        most[name] = most_of(name, text)
        if name not in (p.name for p in params):
            params.append(Var(name, EXTENT))
    return replace(function, params=tuple(params), extents=tuple(most.items()))


def most_of(name: str, text: str) -> int:
    """The number in "<=512". Raises GraphError."""
    number = re.fullmatch(r"\s*<=\s*(\d+)\s*", text)
    if number is None:
        mend = f"{name}=128, {name}<=128, or the name of another dimension that has a number"
        raise GraphError(f"{name} cannot be '{text}'", mend=mend)
    if not 0 < int(number[1]) <= LARGEST:
        raise outside(name, text, f"{name}<=128")
    return int(number[1])


def outside(name: str, text: str, mend: str) -> GraphError:
    return GraphError(f"{name} cannot be '{text}': numbers are from 1 to {LARGEST}", mend=mend)


def open_extents(function: Function) -> dict[str, tuple[str, ...]]:
    """For each parameter and output, by name: the extent's name of each dimension, "" for a known
    dimension. Static parameters and outputs are left out. Raises GraphError if a dimension is
    computed from extents."""
    ends = [(p.name, p.type) for p in function.params]
    ends += [(n, v.type) for n, v in zip(function.output_names, function.outputs, strict=True)]
    found: dict[str, tuple[str, ...]] = {}
    for name, t in ends:
        for extent in t.shape:
            if isinstance(extent, Expr) and not isinstance(extent, Symbol):
                raise GraphError(f"'{name}' is {t}: '{extent}' is not an extent of its own")
        names = tuple("" if isinstance(n, int) else str(n) for n in t.shape)
        if any(names):
            found[name] = names
    return found
