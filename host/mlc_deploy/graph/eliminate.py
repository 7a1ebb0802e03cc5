"""Removal of calls: calls with unused results, and repeated calls."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from operator import is_

from ..ir import Var as Symbol
from ..passes.context import optional
from .control import trimmed
from .extents import defined_by, dims_of
from .nodes import (
    Binding,
    Call,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    Value,
    Var,
    is_pure,
    substitute,
)

# Constants of at most this many bytes are compared by content, larger ones by identity.
COMPARED_BYTES = 64


@optional(level=1)
def eliminate_dead_code(function: Function) -> Function:
    """Removes calls without effects that no output needs, and unused parts of loops and
    branches."""
    needed: set[Value] = set(function.outputs)
    extents: set[Symbol] = set()
    kept: list[Binding] = []
    for binding in reversed(function.bindings):
        says = defined_by(binding)
        if not is_pure(binding) or needed.intersection(binding.outputs) or says in extents:
            kept.append(trimmed(binding, needed))
            needed.update(kept[-1].call.args)
            extents |= dims_of(kept[-1])
    if len(kept) == len(function.bindings) and all(map(is_, reversed(kept), function.bindings)):
        return function
    return replace(function, bindings=tuple(reversed(kept)))


@optional(level=2)
def eliminate_common_subexpressions(function: Function) -> Function:
    """Two calls of one function on the same values, without effects   =>   the first of them."""
    seen: dict[Hashable, Binding] = {}
    constants: dict[Hashable, Constant] = {}

    def one_of_equals(value: Value) -> Value:
        if not isinstance(value, Constant) or value.type.bytes > COMPARED_BYTES:
            return value
        return constants.setdefault((value.type, value.value.tobytes()), value)

    def rewrite(binding: Binding, args: tuple[Value, ...]) -> dict[Var, Value] | None:
        key = _key(binding, tuple(map(one_of_equals, args)))
        first = binding if key is None else seen.setdefault(key, binding)
        return None if first is binding else dict(zip(binding.outputs, first.outputs, strict=True))

    return substitute(function, rewrite)


def _key(binding: Binding, args: tuple[Value, ...]) -> Hashable | None:
    """A key that is equal for calls with equal results; None for a call that must stay."""
    match binding.call:
        case Call(op, _, attrs):
            return ("operator", op, args, tuple(sorted(attrs.items())))
        case CallTIR(func, _, types, tir_vars):
            return ("tir", func, args, types, tir_vars)
        case CallPacked(func, _, types, pure=True):
            return ("packed", func, args, types)
    return None
