"""Hints to LLVM: values hidden from it until instruction selection, fences, and instructions that
it does not select by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir as ll

from ..ir import dtype_of
from .calls import call_named
from .types import element_type, type_suffix

Value = Any
POINTER = ll.PointerType()


def attributes(function: ll.Function, tuned: Mapping[str, str]) -> None:
    """Sets the attributes of a kernel's function. tuned: the CPU that it is optimised for."""
    function.attributes.add("nounwind")
    # Loops that copy stay loops: a call of memcpy costs more than the short rows it would copy.
    # llvmlite refuses attributes in quotes, so set.add bypasses its check.
    set.add(function.attributes, '"no-builtins"')
    for key, value in tuned.items():
        set.add(function.attributes, f'"{key}"="{value}"')


def opaque(b: ll.IRBuilder, pointer: Value) -> Value:
    """The same pointer, but LLVM does not see its origin until it selects instructions. Otherwise
    it would go back to a base and an index."""
    return call_named(b, "llvm.launder.invariant.group.p0", POINTER, pointer)


def unseen(b: ll.IRBuilder, number: ll.Constant) -> Value:
    """A number kept in a register: LLVM does not see that it is constant. Otherwise it would add up
    the steps, and rewrite a moving pointer as base + offset."""
    with b.goto_entry_block():
        return b.ptrtoint(opaque(b, b.inttoptr(number, POINTER)), number.type)


def fence(b: ll.IRBuilder) -> None:
    """A label; instruction scheduling moves nothing past it."""
    call_named(b, "llvm.codeview.annotation", ll.VoidType(), b.module.add_metadata([]))


def prefetch(b: ll.IRBuilder, pointer: Value) -> None:
    """Prefetches data that is read soon, and more than once, into the nearest caches."""
    i32 = ll.IntType(32)
    how = i32(0), i32(3), i32(1)  # to read, all levels, data
    call_named(b, "llvm.prefetch.p0", ll.VoidType(), pointer, *how)


def store_registers(b: ll.IRBuilder, pointer: Value, values: Sequence[Value]) -> None:
    """2 to 4 registers of neighbouring elements by one instruction of AArch64."""
    name = f"llvm.aarch64.neon.st1x{len(values)}.{type_suffix(values[0].type)}.p0"
    call_named(b, name, ll.VoidType(), *values, pointer)


def load_registers(
    b: ll.IRBuilder, arch: str, pointer: Value, dtype: str, count: int
) -> Sequence[Value]:
    """`count` registers, 1 to 4, of neighbouring elements by one instruction."""
    register = element_type(dtype)
    if count == 1:
        return [b.load(pointer, align=dtype_of(dtype).bits // 8, typ=register)]
    name = {"arm": "arm.neon.vld1", "aarch64": "aarch64.neon.ld1"}[arch]
    result = ll.LiteralStructType([register] * count)
    loaded = call_named(b, f"llvm.{name}x{count}.{type_suffix(register)}.p0", result, pointer)
    return [b.extract_value(loaded, n) for n in range(count)]
