"""Hints to LLVM: what it is not to see before it selects instructions, what it is not to move, and
instructions that it does not select by itself."""

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
    """What holds of all functions of a kernel. tuned: for which CPU it is optimised."""
    function.attributes.add("nounwind")
    # Loops that copy stay loops: a call of memcpy costs more than the short rows it would copy.
    # llvmlite knows no attributes in quotes, so these are added to the set that it is.
    set.add(function.attributes, '"no-builtins"')
    for key, value in tuned.items():
        set.add(function.attributes, f'"{key}"="{value}"')


def opaque(b: ll.IRBuilder, pointer: Value) -> Value:
    """The same pointer, of which LLVM does not see what it was made of until it selects
    instructions: else it would go back to a base and an index."""
    return call_named(b, "llvm.launder.invariant.group.p0", POINTER, pointer)


def unseen(b: ll.IRBuilder, number: ll.Constant) -> Value:
    """A number that is kept in a register, as LLVM does not see that it is constant: else it would
    add up steps, and a pointer that has moved would be the first one and an offset."""
    with b.goto_entry_block():
        return b.ptrtoint(opaque(b, b.inttoptr(number, POINTER)), number.type)


def fence(b: ll.IRBuilder) -> None:
    """A label, past which nothing is moved when instructions are put in order."""
    call_named(b, "llvm.codeview.annotation", ll.VoidType(), b.module.add_metadata([]))


def prefetch(b: ll.IRBuilder, pointer: Value) -> None:
    """Data is to be read soon, and more than once: into the caches that are nearest."""
    i32 = ll.IntType(32)
    how = i32(0), i32(3), i32(1)  # to read, all levels, data
    call_named(b, "llvm.prefetch.p0", ll.VoidType(), pointer, *how)


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
