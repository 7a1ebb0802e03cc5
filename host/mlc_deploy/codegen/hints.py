"""Hints to LLVM: what it is not to see before it selects instructions, what it is not to move, and
instructions that it does not select by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..ir import TUNE_CPU, PrimFunc, dtype_of
from .types import element_type, type_suffix

Value = Any
POINTER = ll.PointerType()


def attributes(function: ll.Function) -> None:
    """What holds of all functions."""
    function.attributes.add("nounwind")
    # Loops that copy stay loops: a call of memcpy costs more than the short rows it would copy.
    # llvmlite knows no attributes in quotes, so this one is added to the set that it is.
    set.add(function.attributes, '"no-builtins"')


def scheduling_model(func: PrimFunc, target: Target) -> str | None:
    """The CPU for which LLVM puts a kernel's instructions in order; None for the target's own.

    Of CPUs in 32-bit state LLVM has few models: the one of the Cortex-A9 suits floating point, and
    spills integers; the one of the Cortex-A57 and A72 lacks instructions, at which LLVM aborts.
    """
    own: str | None = func.attrs.get(TUNE_CPU)
    if own or target.arch != "arm" or not target.has("neon"):
        return own
    quantized = any(b.dtype in ("int8", "uint8") for b in func.buffers)
    return "cortex-a7" if quantized else "cortex-a9"


def opaque(b: ll.IRBuilder, pointer: Value) -> Value:
    """The same pointer, of which LLVM does not see what it was made of until it selects
    instructions: else it would go back to a base and an index."""
    return _call(b, "llvm.launder.invariant.group.p0", POINTER, pointer)


def unseen(b: ll.IRBuilder, number: ll.Constant) -> Value:
    """A number that is kept in a register, as LLVM does not see that it is constant: else it would
    add up steps, and a pointer that has moved would be the first one and an offset."""
    with b.goto_entry_block():
        return b.ptrtoint(opaque(b, b.inttoptr(number, POINTER)), number.type)


def fence(b: ll.IRBuilder) -> None:
    """A label, past which nothing is moved when instructions are put in order."""
    _call(b, "llvm.codeview.annotation", ll.VoidType(), b.module.add_metadata([]))


def prefetch(b: ll.IRBuilder, pointer: Value) -> None:
    """Data is to be read soon, and more than once: into the caches that are nearest."""
    i32 = ll.IntType(32)
    function = b.module.globals.get("llvm.prefetch.p0")
    if function is None:
        kind = ll.FunctionType(ll.VoidType(), [POINTER, i32, i32, i32])
        function = ll.Function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [pointer, i32(0), i32(3), i32(1)])  # to read, all levels, data


def load_registers(
    b: ll.IRBuilder, arch: str, pointer: Value, dtype: str, count: int
) -> Sequence[Value]:
    """`count` registers, 1 to 4, of neighbouring elements by one instruction."""
    register = element_type(dtype)
    if count == 1:
        return [b.load(pointer, align=dtype_of(dtype).bits // 8, typ=register)]
    name = {"arm": "arm.neon.vld1", "aarch64": "aarch64.neon.ld1"}[arch]
    result = ll.LiteralStructType([register] * count)
    loaded = _call(b, f"llvm.{name}x{count}.{type_suffix(register)}.p0", result, pointer)
    return [b.extract_value(loaded, n) for n in range(count)]


def _call(b: ll.IRBuilder, name: str, result: ll.Type, argument: Value) -> Value:
    """A call of an intrinsic, declared where it is not yet."""
    function = b.module.globals.get(name)
    if function is None:
        function = ll.Function(b.module, ll.FunctionType(result, [argument.type]), name)
    return b.call(function, [argument])
