"""Ranges of a dynamic dimension, each with its own kernels: `--bind seq=1,<=64,<=512`.

    f(x, n)   =>   branch(n == 1, f for 1, branch(n <= 64, f for at most 64, f))

Each body is the whole function over the same weights. A single number makes the dimension known in
its body, with kernels for known shapes. "<=64" makes it another dimension with maximum 64. The
length in a run selects the body that runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..errors import GraphError
from ..ir import Dim, same_shape
from ..ir.names import Names
from ..ops import TensorType
from .bind import rebuilt
from .dims import simplified, symbol, symbols
from .emitter import Emitter
from .extents import LARGEST, defined_by, outside
from .nodes import Binding, Call, CallBranch, Function, Value, Var, const, with_values

RANGE = re.compile(r"\s*(<=)?\s*(\d+)\s*")


@dataclass(frozen=True, slots=True)
class Range:
    """The lengths equal to `number` (exact), or up to `number`."""

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"{'' if self.exact else '<='}{self.number}"


def parted(
    dims: Mapping[str, int | str],
) -> tuple[dict[str, Dim | str], dict[str, tuple[Range, ...]]]:
    """(dimensions with their largest range only, the lower ranges of dimensions with several). One
    that has another's name is that one, or has its number. Raises GraphError for ranges that do not
    rise, a last one that is not a bound, and names that lead round in a circle."""
    whole: dict[str, Dim | str] = {}
    ranges: dict[str, tuple[Range, ...]] = {}
    for name, text in dims.items():
        other = _last(name, dims)
        if other != name:
            found = dims[other]
            whole[name] = symbol(other) if isinstance(found, str) else found
        elif isinstance(text, str) and "," in text:
            *lower, last = _read(name, text)
            whole[name], ranges[name] = str(last), tuple(lower)
        else:
            whole[name] = text
    return whole, ranges


def _last(name: str, dims: Mapping[str, int | str]) -> str:
    """The last of the names that a name leads to: the one with a number or with ranges."""
    path = [name]
    while (after := dims[path[-1]]) in dims:
        if after in path:
            circle = " = ".join([*path, str(after)])
            raise GraphError(f"no number stands for {circle}", mend=f"{name}=128, or {name}<=128")
        path.append(str(after))
    return path[-1]


def _read(name: str, text: str) -> list[Range]:
    found: list[Range] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part)
        if match is None:
            raise GraphError(f"{name} cannot be '{part}'", mend=f"{name}=1,<=64,<=512")
        if not 0 < int(match[2]) <= LARGEST:
            raise outside(name, part, f"{name}=1,<=64,<=512")
        found.append(Range(int(match[2]), match[1] is None))
    rising = all(a.number < b.number for a, b in pairwise(found))
    if not rising or found[-1].exact:
        raise GraphError(
            f"the ranges {name}={text} are not in ascending order",
            mend=f"{name}=1,<=64,<=512",
        )
    return found


def in_ranges(function: Function, ranges: Mapping[str, Sequence[Range]]) -> Function:
    """The function with a body for each range of its dynamic dimensions. Raises GraphError for an
    unknown dimension, and for outputs with a computed extent."""
    for name, lower in ranges.items():
        _refuse(function, name)
        plain = function
        for own in reversed(lower):
            function = _chosen(plain, function, name, own)
    return function


def _refuse(function: Function, name: str) -> None:
    names = {p.name for p in function.params}
    opened = [n for n, _ in function.extents if n in names]
    if name not in opened:
        known = ", ".join(opened) or "none"
        raise GraphError(f"'{function.name}' has no dynamic dimension '{name}'", mend=known)
    for out, value in zip(function.output_names, function.outputs, strict=True):
        for extent in symbols([value.type]):
            if extent.name not in opened:
                raise GraphError(
                    f"'{out}' is {value.type}, and the model computes '{extent}': ranges need "
                    "outputs of the inputs' dimensions",
                    mend=f"{name}<={dict(function.extents)[name]}",
                )


def _chosen(plain: Function, function: Function, name: str, own: Range) -> Function:
    """branch(n == 1, plain for 1, function)"""
    fresh = Names([*(p.name for p in function.params), *(n for n, _ in function.extents)])
    inner = "" if own.exact else fresh.fresh(f"{name}_{own.number}")
    then = _for(plain, name, own, inner)
    otherwise = replace(_as_body(function), name=f"{function.name}_above_{own.number}")
    params = tuple(Var(p.name, p.type) for p in function.params)
    (length,) = (p for p in params if p.name == name)
    number = const(own.number, "int64")
    op = "equal" if own.exact else "less_equal"
    names = Names([p.name for p in params])
    truth = Var(names.fresh(f"{name}_is_{own.number}"), TensorType((), "bool"))
    ends = zip(function.output_names, function.outputs, strict=True)
    outputs = tuple(Var(names.fresh(out), v.type) for out, v in ends)
    bindings = (
        Binding((truth,), Call(op, (length, number), {}), "range"),
        Binding(outputs, CallBranch(then, otherwise, (truth, *params)), "range"),
    )
    more = {**dict(function.extents), **({inner: own.number} if inner else {})}
    return replace(function, params=params, bindings=bindings, outputs=outputs,
                   extents=tuple(more.items()))  # fmt: skip


def _as_body(function: Function) -> Function:
    return replace(function, states=(), extents=())


def _for(function: Function, name: str, own: Range, inner: str) -> Function:
    """The body of a range. Its inputs are views of its arguments; its outputs are copied."""
    body = rebuilt(_as_body(function), {}, {symbol(name): symbol(inner) if inner else own.number})
    e = Emitter(body, "range")
    params = tuple(e.param(f"{p.name}_whole", p.type) for p in function.params)
    values: dict[Value, Value] = {}
    pairs = zip(params, body.params, strict=True)
    for given, taken in sorted(pairs, key=lambda pair: pair[1].name != name):  # the length first
        if taken.name == name:
            values[taken] = _length(e, given, own, inner)
        elif taken.type == given.type:
            values[taken] = given
        else:
            flat = _reshaped(e, given, (_product(given.type.shape),))
            count = const(np.iinfo(np.int32).max, "int64")  # all elements
            extent = _product(taken.type.shape)
            begin = e.emit("first", flat, count, name="first", extent=extent)
            values[taken] = _reshaped(e, begin, taken.type.shape)
    body = with_values(body, values)
    e.bindings += body.bindings
    outputs = [_whole(e, v, o.type) for v, o in zip(body.outputs, function.outputs, strict=True)]
    return replace(
        body,
        name=f"{function.name}_{'' if own.exact else 'to_'}{own.number}",
        params=params,
        bindings=tuple(e.bindings),
        outputs=tuple(outputs),
    )


def _length(e: Emitter, given: Var, own: Range, inner: str) -> Value:
    if own.exact:
        return const(own.number, "int64")
    made = e.emit("extent", given, name=inner, extent=symbol(inner))
    assert defined_by(e.bindings[-1]) is symbol(inner)
    return made


def _whole(e: Emitter, value: Value, t: TensorType) -> Value:
    """A value of the body with the type that the function returns."""
    if value.type == t:
        return value
    flat = _reshaped(e, value, (_product(value.type.shape),))
    begin = e.emit("slice", flat, name="slice", begin=(0,), step=(1,), shape=(_product(t.shape),))
    return _reshaped(e, begin, t.shape)


def _reshaped(e: Emitter, x: Value, shape: Sequence[Dim]) -> Value:
    if same_shape(shape, x.type.shape):
        return x
    return e.emit("reshape", x, name="reshape", shape=tuple(shape))


def _product(shape: Sequence[Dim]) -> Dim:
    whole: Dim = 1
    for extent in shape:
        whole = whole * extent
    return simplified(TensorType((whole,), "bool")).shape[0]
