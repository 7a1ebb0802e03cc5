"""The LLVM types of values, in registers and in memory, and constants for addresses and lanes."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

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


def forget_constants() -> None:
    """Frees the kept constants: kernels share few."""
    integer.cache_clear()
    lane_numbers.cache_clear()


@lru_cache(KEPT)
def integer(bits: int, value: int) -> ll.Constant:
    """An integer constant."""
    return ll.IntType(bits)(value)


class _Vector(ll.Constant):  # type: ignore[misc]  # llvmlite says nothing of types
    """A vector of equal lanes in short form: llvmlite would write each lane, and LLVM is slow to
    read long text."""

    def __init__(self, t: ll.VectorType, value: Any, word: str) -> None:
        super().__init__(t, value)
        self._word = word

    def _get_reference(self) -> str:
        return self._word


@lru_cache(KEPT)
def lane_numbers(lanes: tuple[int, ...]) -> ll.Constant:
    """A mask of shuffles."""
    if len(set(lanes)) == 1:
        return repeated(integer(32, lanes[0]), len(lanes))
    return ll.Constant(ll.VectorType(ll.IntType(32), len(lanes)), list(lanes))


def repeated(value: ll.Constant, lanes: int) -> ll.Constant:
    """A vector with one number in all lanes."""
    return _Vector(ll.VectorType(value.type, lanes), value.constant, f"splat ({value})")


def undefined(t: ll.Type) -> ll.Constant:
    """A vector of undefined lanes."""
    return _undefined(t.element, t.count)


@cache
def _undefined(element: ll.Type, lanes: int) -> ll.Constant:
    return _Vector(ll.VectorType(element, lanes), ll.Undefined, "undef")


def type_suffix(t: ll.Type) -> str:
    """A type as in the names of overloaded intrinsics: "v4f32"."""
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
