"""The LLVM types of values, in registers and in memory, and the constants that addresses and lanes
are made of."""

from __future__ import annotations

from functools import cache, lru_cache

from llvmlite import ir as ll

from ..ir import dtype_of

KEPT = 1 << 12  # constants whose text is made once


@cache
def element_type(dtype: str) -> ll.Type:
    """The LLVM type of a value; bool is i1 (i8 in memory)."""
    kind = dtype_of(dtype)
    match kind.kind, kind.bits:
        case "float", 16:
            scalar: ll.Type = ll.HalfType()
        case "float", 32:
            scalar = ll.FloatType()
        case "float", 64:
            scalar = ll.DoubleType()
        case "bool", _:
            scalar = ll.IntType(1)
        case _:
            scalar = ll.IntType(kind.bits)
    return ll.VectorType(scalar, kind.lanes) if kind.lanes > 1 else scalar


@cache
def memory_type(dtype: str) -> ll.Type:
    """The LLVM type of a value as it is stored."""
    kind = dtype_of(dtype)
    if kind.kind != "bool":
        return element_type(dtype)
    return ll.VectorType(ll.IntType(8), kind.lanes) if kind.lanes > 1 else ll.IntType(8)


@lru_cache(KEPT)
def integer(bits: int, value: int) -> ll.Constant:
    """An integer constant."""
    return ll.IntType(bits)(value)


@lru_cache(KEPT)
def lane_numbers(lanes: tuple[int, ...]) -> ll.Constant:
    """A mask of shuffles."""
    return ll.Constant(ll.VectorType(ll.IntType(32), len(lanes)), list(lanes))


def undefined(t: ll.Type) -> ll.Constant:
    """A vector of which nothing is said."""
    return _undefined(t.element, t.count)


@cache
def _undefined(element: ll.Type, lanes: int) -> ll.Constant:
    return ll.Constant(ll.VectorType(element, lanes), ll.Undefined)


def type_suffix(t: ll.Type) -> str:
    """A type as the names of overloaded intrinsics end: "v4f32"."""
    match t:
        case ll.VectorType():
            return f"v{t.count}{type_suffix(t.element)}"
        case ll.HalfType():
            return "f16"
        case ll.FloatType():
            return "f32"
        case ll.DoubleType():
            return "f64"
    return f"i{t.width}"
