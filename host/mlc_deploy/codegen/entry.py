"""The entry of a kernel by the kernel ABI (device_runtime/include/mlc_abi.h): it unpacks mlc_args
for the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count

from llvmlite import ir as ll

from ..lower import Kernel
from . import hints
from .calls import call_named
from .signature import scalars_of

I8, I32, I64 = (ll.IntType(n) for n in (8, 32, 64))
POINTER = ll.PointerType()
# Of 32-bit ARM's FPSCR: flush to zero, and one NaN for all. NEON computes so whatever they are.
FLUSH = 1 << 24 | 1 << 25


def emit_entry(
    body: ll.Function,
    kernel: Kernel,
    word: ll.IntType,
    symbol: str,
    tuned: Mapping[str, str],
    scalars: Sequence[ll.Value] | None = None,
    left_out: Sequence[str] = (),
    flushes: bool = False,
) -> None:
    """Adds int32 symbol(mlc_args *, int32 begin, int32 end), which calls the body.

    word: the integer of pointer width, the type of scalars in the body. tuned: the CPU that the
    kernel is optimised for. scalars: values of the kernel's scalars, where the caller does not give
    them. left_out: names of buffers that the caller does not give; the body gets null for them.
    flushes: vector instructions take denormal numbers for 0, so the others do it, too, while the
    kernel runs.
    """
    entry = ll.Function(body.module, ll.FunctionType(I32, [POINTER, I32, I32]), symbol)
    hints.attributes(entry, tuned)
    args, begin, end = entry.args
    b = ll.IRBuilder(entry.append_basic_block("entry"))
    data = b.load(args, typ=POINTER)
    values: list[ll.Value] = []
    given = count()
    for buffer in kernel.body.buffers:
        if buffer.name in left_out:
            values.append(POINTER(None))
        else:
            place = b.gep(data, [I32(next(given))], source_etype=POINTER)
            values.append(b.load(place, typ=POINTER))
    fields = [b.gep(args, [I32(n * word.width // 8)], source_etype=I8) for n in (1, 2)]
    if scalars is None:
        first = b.load(fields[0], typ=POINTER)
        for n in range(len(scalars_of(kernel))):
            wide = b.load(b.gep(first, [I32(n)], source_etype=I64), typ=I64)
            values.append(wide if word.width == 64 else b.trunc(wide, word))
    else:
        values += scalars
    values.append(b.load(fields[1], typ=POINTER))
    if not flushes:
        b.ret(b.call(body, [*values, begin, end]))
        return
    before = call_named(b, "llvm.arm.get.fpscr", I32)
    set_mode = partial(call_named, b, "llvm.arm.set.fpscr", ll.VoidType())
    set_mode(b.or_(before, I32(FLUSH)))
    status = b.call(body, [*values, begin, end])
    set_mode(before)
    b.ret(status)
