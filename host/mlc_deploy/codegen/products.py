"""Products of widened integers: T.Cast("int16", a) * T.Cast("int16", b) of int8, as vmull.

32-bit ARM has an instruction for them, which LLVM finds only where both conversions stand beside
the product: those of weights it moves out of the loop.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..ir import Binary, Cast, Expr, Load, Shuffle, dtype_of
from .types import element_type

Value = Any
I32 = ll.IntType(32)


def widened_factors(e: Binary, target: Target) -> tuple[Expr, Expr] | None:
    """What is widened to twice its bits and multiplied, where `emit` has better code than the
    expression."""
    if not target.register_bits:
        return None
    match e:
        case Binary("*", Cast(_, a), Cast(_, b), dtype):
            kind, source = dtype_of(dtype), dtype_of(a.dtype)
            whole = source.is_integer and source.bits in (8, 16) and kind.bits == 2 * source.bits
            if not whole or a.dtype != b.dtype or kind.lanes * source.bits % 64:
                return None
            if target.arch == "arm" or (target.arch == "aarch64" and _half(a) != _half(b)):
                return a, b
    return None


def _half(e: Expr) -> int | None:
    """Which half of a register a vector is; None for what is no half of one."""
    match e:
        case Shuffle((Load(dtype=whole),), lanes) if dtype_of(whole).lanes == 2 * len(lanes):
            return lanes[0] // len(lanes) if lanes[0] % len(lanes) == 0 else None
    return None


def emit(
    b: ll.IRBuilder, target: Target, factors: tuple[Expr, Expr], values: tuple[Value, Value]
) -> Value:
    """The product of two vectors of integers, of twice their bits, given their values."""
    kind = dtype_of(factors[0].dtype)
    sign = "s" if kind.kind == "int" else "u"
    lanes = 64 // kind.bits
    name = f"llvm.arm.neon.vmull{sign}.v{lanes}i{2 * kind.bits}"
    if target.arch == "aarch64":
        name = f"llvm.aarch64.neon.{sign}mull.v{lanes}i{2 * kind.bits}"
        first, second = map(_half, factors)
        x, y = values
        if second is None:
            assert first is not None
            y = _both_halves(b, y)[first]
        elif first is None:
            x = _both_halves(b, x)[second]
        else:
            pass
        values = x, y
    narrow = element_type(f"{kind.scalar}x{lanes}")
    wide = ll.VectorType(ll.IntType(2 * kind.bits), lanes)
    function = b.module.globals.get(name)
    if function is None:
        function = ll.Function(b.module, ll.FunctionType(wide, [narrow, narrow]), name)
    parts = []
    for first in range(0, kind.lanes, lanes):
        taken = range(first, first + lanes)
        parts.append(b.call(function, [_shuffled(b, v, taken) for v in values]))
    while len(parts) > 1:
        both = ll.Constant(ll.VectorType(I32, 2 * parts[0].type.count),
                           list(range(2 * parts[0].type.count)))  # fmt: skip
        parts = [b.shuffle_vector(p, q, both) for p, q in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _both_halves(b: ll.IRBuilder, half: Value) -> tuple[Value, Value]:
    """A register that has the vector in both halves, as its halves."""
    word = ll.IntType(64)
    pair = ll.VectorType(word, 2)
    one = b.insert_element(ll.Constant(pair, ll.Undefined), b.bitcast(half, word), I32(0))
    zeros = ll.Constant(ll.VectorType(I32, 2), [0, 0])
    two = b.shuffle_vector(one, ll.Constant(pair, ll.Undefined), zeros)
    lanes = half.type.count
    whole = b.bitcast(two, ll.VectorType(half.type.element, 2 * lanes))
    return _shuffled(b, whole, range(lanes)), _shuffled(b, whole, range(lanes, 2 * lanes))


def _shuffled(b: ll.IRBuilder, vector: Value, lanes: range) -> Value:
    mask = ll.Constant(ll.VectorType(I32, len(lanes)), list(lanes))
    return b.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), mask)
