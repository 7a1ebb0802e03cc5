"""Products of widened integers: T.Cast("int16", a) * T.Cast("int16", b) of int8.

armv7     vmull, which LLVM finds only if both conversions are next to the product: those
          of weights it moves out of the loop
AArch64   smull and smull2, for halves of a register: smull2 takes the upper half of both
          factors, so the other one is kept in a register twice
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..ir import Binary, Cast, Expr, Load, Shuffle, dtype_of
from .calls import call_named, end_to_end, picked
from .types import undefined

Value = Any
I32 = ll.IntType(32)


def widened_factors(e: Binary, target: Target) -> tuple[Expr, Expr] | None:
    """The factors before widening to twice their bits, where `emit` has better code than the
    expression."""
    if not target.register_bits:
        return None
    match e:
        case Binary("*", Cast(_, a), Cast(_, b), dtype):
            kind, source = dtype_of(dtype), dtype_of(a.dtype)
            whole = source.is_integer and source.bits in (8, 16) and kind.bits == 2 * source.bits
            if not whole or a.dtype != b.dtype or kind.lanes * source.bits % 64:
                return None
            if target.arch == "arm" or (target.arch == "aarch64" and _one_in_half(a, b)):
                return a, b
    return None


def _one_in_half(a: Expr, b: Expr) -> bool:
    """Whether exactly one of two vectors is half of a register."""
    return (_half(a) is None) != (_half(b) is None)


def _half(e: Expr) -> int | None:
    """Which half of a register a vector is; None where it is not a half."""
    match e:
        case Shuffle((Load(),), lanes) if len(lanes) * dtype_of(e.dtype).bits == 64:
            which = lanes[0] // len(lanes)
            halves = [tuple(range(n, n + len(lanes))) for n in (0, len(lanes))]
            return which if lanes in halves else None
    return None


def emit(
    b: ll.IRBuilder, target: Target, factors: tuple[Expr, Expr], values: tuple[Value, ...]
) -> Value:
    """The product of two vectors of integers, of twice their bits, given their values."""
    kind = dtype_of(factors[0].dtype)
    sign = "s" if kind.kind == "int" else "u"
    lanes = 64 // kind.bits
    if target.arch == "aarch64":
        name = f"llvm.aarch64.neon.{sign}mull.v{lanes}i{2 * kind.bits}"
        half = next(h for h in map(_half, factors) if h is not None)
        values = tuple(
            v if _half(f) is not None else _both_halves(b, v)[half]
            for f, v in zip(factors, values, strict=True)
        )
    else:
        name = f"llvm.arm.neon.vmull{sign}.v{lanes}i{2 * kind.bits}"
    wide = ll.VectorType(ll.IntType(2 * kind.bits), lanes)
    parts = []
    for first in range(0, kind.lanes, lanes):
        taken = range(first, first + lanes)
        parts.append(call_named(b, name, wide, *(picked(b, [v], taken) for v in values)))
    return end_to_end(b, parts)


def _both_halves(b: ll.IRBuilder, half: Value) -> tuple[Value, Value]:
    """A register that has the vector in both halves, as its halves."""
    word = ll.IntType(64)
    pair = ll.VectorType(word, 2)
    one = b.insert_element(undefined(pair), b.bitcast(half, word), I32(0))
    zeros = ll.Constant(ll.VectorType(I32, 2), [0, 0])
    two = b.shuffle_vector(one, undefined(pair), zeros)
    lanes = half.type.count
    whole = b.bitcast(two, ll.VectorType(half.type.element, 2 * lanes))
    return picked(b, [whole], range(lanes)), picked(b, [whole], range(lanes, 2 * lanes))
