"""Calls of functions by name, with declarations on first use; lanes picked from vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir as ll

from .types import lane_numbers, undefined

Value = Any


def call_named(b: ll.IRBuilder, name: str, gives: ll.Type, *args: Value) -> Value:
    """The call of a function: an intrinsic of LLVM, or the C library's."""
    function = b.module.globals.get(name)
    if function is None:
        function = ll.Function(b.module, ll.FunctionType(gives, [a.type for a in args]), name)
    return b.call(function, args)


def picked(b: ll.IRBuilder, vectors: Sequence[Value], lanes: Sequence[int]) -> Value:
    """Lanes by number, of one vector or of two, end to end."""
    second = vectors[-1] if len(vectors) > 1 else undefined(vectors[0].type)
    return b.shuffle_vector(vectors[0], second, lane_numbers(tuple(lanes)))


def end_to_end(b: ll.IRBuilder, vectors: Sequence[Value]) -> Value:
    """Vectors of one length as one vector; their number is a power of two."""
    while len(vectors) > 1:
        both = range(2 * vectors[0].type.count)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [picked(b, pair, both) for pair in pairs]
    return vectors[0]
