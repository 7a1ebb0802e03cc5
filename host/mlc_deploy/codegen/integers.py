"""Division, shifts, and conversion of floats in LLVM IR, as ir/numbers.py defines them.

LLVM leaves division by 0, of the least number by -1, shifts by too much and conversion out of range
undefined. Where ARM's instructions do what we define and have a name in LLVM, they are asked for
without a check. Elsewhere a check stands before each that `arith/value_ranges.py` does not prove
defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir as ll

from ..ir import DType
from .calls import call_named
from .types import element_type, type_suffix, undefined

if TYPE_CHECKING:
    from .operators import Machine

Value = Any
I32 = ll.IntType(32)
DIVISIONS = ("//", "%", "tdiv", "tmod")
SHIFTS = ("<<", ">>")


@dataclass(frozen=True, slots=True)
class Division:
    """natural: no side is negative. defined: the divisor is neither 0 nor -1 below the least."""

    natural: bool
    defined: bool


def divided(b: ll.IRBuilder, machine: Machine, op: str, x: Value, y: Value, of: Division) -> Value:
    """`x op y` of integers, for one of DIVISIONS."""
    if of.defined:
        return _divided(b, op, x, y, of.natural)
    zero = ll.Constant(x.type, None if isinstance(x.type, ll.VectorType) else 0)
    quotient = _by_instruction(b, machine, x, y, of.natural)
    if quotient is not None:
        if op == "tdiv" or (of.natural and op == "//"):
            return quotient
        # By 0 the rest would be x. LLVM makes one instruction of product and difference.
        rest = b.sub(x, b.mul(quotient, y))
        rest = b.select(b.icmp_signed("==", y, zero), zero, rest)
        return rest if op == "tmod" or of.natural else _rounded_down(b, op, quotient, rest, y)
    one = _same(x.type, 1)
    if of.natural:
        special = b.icmp_unsigned("==", y, zero)
        result = _divided(b, op, x, b.select(special, one, y), True)
        # By 1 there is no rest, and by 0 neither.
        return b.select(special, zero, result) if op in ("//", "tdiv") else result
    # By 0 and by -1, x * y is the quotient, and there is no rest.
    special = b.icmp_unsigned("<", b.add(y, one), _same(x.type, 2))
    result = _divided(b, op, x, b.select(special, one, y), False)
    return b.select(special, b.mul(x, y), result) if op in ("//", "tdiv") else result


def _divided(b: ll.IRBuilder, op: str, x: Value, y: Value, natural: bool) -> Value:
    """A division that LLVM defines."""
    if natural:
        return b.udiv(x, y) if op in ("//", "tdiv") else b.urem(x, y)
    match op:
        case "tdiv":
            return b.sdiv(x, y)
        case "tmod":
            return b.srem(x, y)
    return floored(b, op, x, y)


def floored(b: ll.IRBuilder, op: str, x: Value, y: Value) -> Value:
    """Division that rounds down, from LLVM's, which rounds towards zero."""
    rest = b.srem(x, y)
    return _rounded_down(b, op, None if op == "%" else b.sdiv(x, y), rest, y)


def _rounded_down(b: ll.IRBuilder, op: str, quotient: Value, rest: Value, y: Value) -> Value:
    zero = ll.Constant(rest.type, None if isinstance(rest.type, ll.VectorType) else 0)
    differs = b.icmp_signed("<", b.xor(rest, y), zero)
    adjust = b.and_(differs, b.icmp_signed("!=", rest, zero))
    if op == "%":
        return b.add(rest, b.select(adjust, y, zero))
    return b.add(quotient, b.sext(adjust, rest.type))


def _by_instruction(
    b: ll.IRBuilder, machine: Machine, x: Value, y: Value, natural: bool
) -> Value | None:
    """x / y by AArch64's instruction: x / 0 is 0, and the least number / -1 is itself. None on
    other machines."""
    if isinstance(x.type, ll.VectorType):
        lanes = [_by_instruction(b, machine, _lane(b, x, n), _lane(b, y, n), natural)
                 for n in range(x.type.count)]  # fmt: skip
        found: Value = undefined(x.type)
        for n, lane in enumerate(lanes):
            if lane is None:
                return None
            found = b.insert_element(found, lane, I32(n))
        return found
    if machine.arch != "aarch64":  # 32-bit ARM's has no name in LLVM
        return None
    width = x.type.width
    if width > 64:
        return None
    if width < 32:
        extend = b.zext if natural else b.sext
        whole = _by_instruction(b, machine, extend(x, I32), extend(y, I32), natural)
        return b.trunc(whole, x.type)
    return call_named(b, f"llvm.aarch64.{'udiv' if natural else 'sdiv'}.i{width}", x.type, x, y)


def _lane(b: ll.IRBuilder, vector: Value, number: int) -> Value:
    return b.extract_element(vector, I32(number))


def _same(kind: ll.Type, number: float) -> ll.Constant:
    return ll.Constant(kind, [number] * kind.count if isinstance(kind, ll.VectorType) else number)


def shifted(b: ll.IRBuilder, op: str, x: Value, y: Value, kind: DType, within: bool) -> Value:
    """`x op y` of integers, for one of SHIFTS. within: the amount is known to be less than the
    number of bits."""
    right = b.ashr if kind.kind == "int" else b.lshr
    plain = b.shl if op == "<<" else right
    if within:
        return plain(x, y)
    if op == ">>" and kind.kind == "int":  # all bits of the result are the sign then
        name = f"llvm.umin.{type_suffix(x.type)}"
        return b.ashr(x, call_named(b, name, x.type, y, _same(x.type, kind.bits - 1)))
    beyond = b.icmp_unsigned(">=", y, _same(x.type, kind.bits))
    return b.select(beyond, _same(x.type, 0), plain(x, y))


def truncated(b: ll.IRBuilder, arch: str, x: Value, to: DType, fits: bool) -> Value:
    """A float as an integer. fits: it is within the integer's range, unless it is NaN."""
    wanted = element_type(to.name)
    signed = to.kind == "int"
    vector = isinstance(x.type, ll.VectorType)
    arm = arch in ("aarch64", "arm")
    if to.bits < 32:
        if fits and arm:  # as short as it can be; NaN gives 0
            return (b.fptosi if signed else b.fptoui)(x, wanted)
        words = ll.VectorType(I32, x.type.count) if vector else I32
        # x86 gives the least int32 for NaN: its lowest bits are 0
        whole = b.fptosi(x, words) if fits else _saturated(b, arch, x, words, True)
        return b.trunc(whole, wanted)
    return _saturated(b, arch, x, wanted, signed)


def _saturated(b: ll.IRBuilder, arch: str, x: Value, wanted: ll.Type, signed: bool) -> Value:
    """A float as an integer of 32 or 64 bits; the nearest where it is beyond them, 0 for NaN."""
    vector = isinstance(x.type, ll.VectorType)
    bits = (wanted.element if vector else wanted).width
    if arch == "arm" and vector and bits == 32 and isinstance(x.type.element, ll.FloatType):
        # LLVM would do it lane by lane, though NEON's instruction does just this
        return (b.fptosi if signed else b.fptoui)(x, wanted)
    if arch == "aarch64" and vector and bits == 32 and isinstance(x.type.element, ll.DoubleType):
        return _narrowed(b, _saturated(b, arch, x, _wide(wanted), signed), wanted, signed)
    if arch != "x86_64" or not vector:
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat"
        return call_named(b, f"{name}.{type_suffix(wanted)}.{type_suffix(x.type)}", wanted, x)
    # LLVM would do it lane by lane
    low, above = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    least, limit = _same(x.type, float(low)), _same(x.type, float(above))
    small = b.fcmp_ordered("<", x, least)
    large = b.fcmp_ordered(">=", x, limit)
    inside = b.and_(b.fcmp_ordered(">=", x, least), b.fcmp_ordered("<", x, limit))
    kept = b.select(inside, x, _same(x.type, 0.0))
    whole = (b.fptosi if signed else b.fptoui)(kept, wanted)
    whole = b.select(large, _same(wanted, above - 1), whole)
    return b.select(small, _same(wanted, low), whole)


def _wide(words: ll.VectorType) -> ll.VectorType:
    return ll.VectorType(ll.IntType(64), words.count)


def _narrowed(b: ll.IRBuilder, whole: Value, wanted: ll.VectorType, signed: bool) -> Value:
    """Integers of 64 bits as the nearest of 32: LLVM selects one instruction for it."""
    suffix, kind = type_suffix(whole.type), whole.type
    if signed:
        least, most = _same(kind, -(1 << 31)), _same(kind, (1 << 31) - 1)
        whole = call_named(b, f"llvm.smax.{suffix}", kind, whole, least)
        whole = call_named(b, f"llvm.smin.{suffix}", kind, whole, most)
    else:
        whole = call_named(b, f"llvm.umin.{suffix}", kind, whole, _same(kind, (1 << 32) - 1))
    return b.trunc(whole, wanted)
