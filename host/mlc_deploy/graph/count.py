"""Counts of a graph: multiply-accumulates, parameters, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..ops import operator
from .nodes import (
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    bodies,
)
from .scalars import at_most


def multiply_accumulates(binding: Binding) -> int:
    """The multiply-accumulates of a call: convolutions and matrix products only. A loop counts all
    its iterations, and a branch the body with more.

    Zero padding counts as data, and Winograd filtering as the convolution that it computes. A
    dynamic dimension (graph/scalars.py) counts as its maximum. TypeError if a shape is
    symbolic.
    """
    match binding.call:
        case Call(op, args, attrs):
            count = operator(op).multiplies
            types = [a.type for a in args]
            return 0 if count is None else count(types, attrs, binding.outputs[0].type)
        case CallFused(function):
            return sum(map(multiply_accumulates, at_most(function).bindings))
        case CallLoop(body, turns=turns):
            if not isinstance(turns, int):
                raise TypeError(f"a loop has {turns} iterations")
            return turns * sum(map(multiply_accumulates, body.bindings))
        case CallBranch() as branch:
            return max(sum(map(multiply_accumulates, f.bindings)) for f in bodies(branch))
    return 0


def operators(function: Function) -> Counter[str]:
    """The number of calls of each operator or function, also within kernels."""
    return Counter(_names(function))


def _names(function: Function) -> Iterator[str]:
    for binding in function.bindings:
        yield from names_of(binding)


def names_of(binding: Binding) -> Iterator[str]:
    """The operators and functions of a call, in order."""
    match binding.call:
        case Call(op):
            yield op
        case CallTIR(func) | CallPacked(func):
            yield func
        case CallFused(inner):
            yield from _names(inner)
        case call:
            for body in bodies(call):
                yield from _names(body)


def constants(function: Function) -> list[Constant]:
    """The constants that a function and its loops and branches read, each once."""
    found = {v: None for v in function.outputs if isinstance(v, Constant)}
    for binding in function.bindings:
        found |= {a: None for a in binding.call.args if isinstance(a, Constant)}
        for body in bodies(binding.call):
            found |= dict.fromkeys(constants(body))
    return list(found)


def parameters(function: Function) -> int:
    """The number of elements in all constants."""
    return sum(c.value.size for c in constants(function))
