"""Products of widened integers: T.Cast("int16", a) * T.Cast("int16", b) of int8, as vmull.

32-bit ARM has an instruction for them, which LLVM finds only where both conversions stand beside
the product: those of weights it moves out of the loop.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..ir import Binary, Cast, Expr, dtype_of
from .types import element_type

Value = Any
I32 = ll.IntType(32)


def widened_factors(e: Binary, target: Target) -> tuple[Expr, Expr] | None:
    """What is widened to twice its bits and multiplied, where the target has vmull for it."""
    if target.arch != "arm" or not target.register_bits:
        return None
    match e:
        case Binary("*", Cast(_, a), Cast(_, b), dtype):
            kind, source = dtype_of(dtype), dtype_of(a.dtype)
            whole = source.is_integer and source.bits in (8, 16) and kind.bits == 2 * source.bits
            if whole and a.dtype == b.dtype and kind.lanes * source.bits % 64 == 0:
                return a, b
    return None


def emit(b: ll.IRBuilder, x: Value, y: Value, source: str) -> Value:
    """The product of two vectors of `source`, of twice its bits."""
    kind = dtype_of(source)
    lanes = 64 // kind.bits
    narrow = element_type(f"{kind.scalar}x{lanes}")
    wide = ll.VectorType(ll.IntType(2 * kind.bits), lanes)
    name = f"llvm.arm.neon.vmull{'s' if kind.kind == 'int' else 'u'}.v{lanes}i{2 * kind.bits}"
    function = b.module.globals.get(name)
    if function is None:
        function = ll.Function(b.module, ll.FunctionType(wide, [narrow, narrow]), name)
    parts = []
    for first in range(0, kind.lanes, lanes):
        mask = ll.Constant(ll.VectorType(I32, lanes), list(range(first, first + lanes)))
        undefined = ll.Constant(x.type, ll.Undefined)
        parts.append(b.call(function, [b.shuffle_vector(v, undefined, mask) for v in (x, y)]))
    while len(parts) > 1:
        both = ll.Constant(ll.VectorType(I32, 2 * parts[0].type.count),
                           list(range(2 * parts[0].type.count)))  # fmt: skip
        parts = [b.shuffle_vector(p, q, both) for p, q in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
