"""Vectors of floats as 8-bit integers: rounded half to even, moved by a zero point, saturated.

    Cast("int8", min(max(nearbyint(x) + zero, -128), 127))

is how numbers are quantized (ops/quantize.py). Literal code is a clamp of floats and a conversion
per four lanes, and SSE2 has no instruction that rounds floats. But all machines narrow with
saturation:

    AArch64   fcvtns, sqxtn (of what is within int16: uzp1), sqadd, sqxtn or sqxtun
    armv7     1.5 * 2^23 - x as bits, taken from those of 1.5 * 2^23 + zero (vqsub), vqmovn twice.
              Where x is 2^22 or more by size, the bits are no longer x, but in order still, and far
              enough away to be saturated.
    x86-64    cvtps2dq, packssdw, paddsw, packsswb or packuswb; one register of AVX-512: cvtps2dq,
              paddd, vpmovsdb

With `number_or` around round(x) + zero, NaN is the least integer: it is so on armv7 and x86-64;
AArch64 then does as armv7.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..ir import Binary, Call, Cast, Const, Expr, Node, Var, dtype_of, value_range, walk
from ..ir.lanes import guarded, uniform, without_whole
from ..ir.outlines import MOST_WHOLE
from .calls import call_named, picked
from .types import undefined

Value = Any
I32 = ll.IntType(32)
WORDS, SINGLES = ll.VectorType(I32, 4), ll.VectorType(ll.FloatType(), 4)
SHORTS = ll.VectorType(ll.IntType(16), 8)
MAGIC = 0x4B400000  # the bits of 1.5 * 2^23, whose neighbours are 1 apart


@dataclass(frozen=True, slots=True)
class Saturated:
    """x rounded half to even, plus zero, an int32, saturated to dtype. least: NaN is the least
    integer, else it is undefined."""

    x: Expr
    zero: Expr
    dtype: str
    least: bool

    @property
    def known_zero(self) -> int | None:
        """The number that zero is; None for a parameter."""
        return int(self.zero.value) if isinstance(self.zero, Const) else None


def saturated(e: Cast, target: Target, zeros: Container[Var]) -> Saturated | None:
    """The parts of a saturating cast of a vector, where `emit` has better code than the expression.
    zeros: variables that may be zero points (ir/outlines.py::whole_parameters)."""
    kind = dtype_of(e.dtype)
    if not target.register_bits or kind.bits != 8 or not kind.is_integer or kind.lanes % 4:
        return None
    low, high = value_range(kind.scalar)
    match e.a:
        case Binary("min", Binary("max", rounded, least), most) if (
            uniform(least) == low and uniform(most) == high
        ):
            number = guarded(rounded)
            sum_ = rounded if number is None else number
            whole, zero = without_whole(sum_, MOST_WHOLE, zeros)
            match whole:
                case Call("nearbyint", (x,)) if dtype_of(x.dtype).scalar == "float32":
                    return Saturated(x, zero, e.dtype, number is not None)
    return None


def rounds(n: Node) -> bool:
    """Whether n rounds floats to integers."""
    return any(type(m) is Call and m.name == "nearbyint" for m in walk(n))


def emit(
    b: ll.IRBuilder, target: Target, s: Saturated, x: Value, zero: Value, short: bool = False
) -> Value:
    """The code, for the values of s.x and s.zero. short: x is within int16, also with the zero
    point."""
    match target.arch:
        case "aarch64" | "arm":
            return _narrowed(b, target.arch, s, x, zero, short)
    return _packed(b, target, s, x, zero, short)


def _packed(
    b: ll.IRBuilder, target: Target, s: Saturated, x: Value, zero: Value, short: bool
) -> Value:
    """x86-64 converts values out of range to the smallest int32, which is right only for small
    ones."""
    lanes, signed = x.type.count, dtype_of(s.dtype).kind == "int"
    if not short:
        high = I32(int(value_range(dtype_of(s.dtype).scalar)[1]))
        most = _every(b, x.type, b.sitofp(b.sub(high, zero), x.type.element))
        x = b.select(b.fcmp_ordered(">", x, most), most, x)  # minps: NaN stays
    wide = target.has("avx512bw")
    rises = s.known_zero is not None and s.known_zero >= 0
    if (
        wide and lanes == 16 and ((short and not s.least) or rises)
    ):  # the smallest int32 must not get smaller
        return _narrowed_at_once(b, s, x, zero)
    if wide and lanes in (32, 64):
        return _packed_wide(b, s, x, zero, 512)
    if target.has("avx2") and lanes in (16, 32):
        return _packed_wide(b, s, x, zero, 256)
    eights = []
    for first in range(0, lanes, 8):
        fours = _whole_x86(b, target, x, range(first, min(first + 8, lanes)))
        eight = call_named(b, "llvm.x86.sse2.packssdw.128", SHORTS, fours[0], fours[-1])
        eights.append(_plus_zero(b, s, eight, zero))
    name = f"llvm.x86.sse2.pack{'ss' if signed else 'us'}wb.128"
    sixteen = ll.VectorType(ll.IntType(8), 16)
    bytes_ = [call_named(b, name, sixteen, *pair) for pair in _pairs(eights)]
    return _joined(b, bytes_, lanes)


def _packed_wide(b: ll.IRBuilder, s: Saturated, x: Value, zero: Value, bits: int) -> Value:
    """For lanes that fill two or four registers of `bits`. The instructions pack each 128 bits
    separately; one shuffle of bytes puts the groups of four lanes in order."""
    lanes, signed = x.type.count, dtype_of(s.dtype).kind == "int"
    shorts, bytes_ = (ll.VectorType(ll.IntType(n), bits // n) for n in (16, 8))
    each, prefix = bits // 32, "avx512" if bits == 512 else "avx2"
    suffix = ".512" if bits == 512 else ""
    words = [_whole(b, picked(b, [x], range(n, n + each))) for n in range(0, lanes, each)]
    name = f"llvm.x86.{prefix}.packssdw{suffix}"
    pairs = [call_named(b, name, shorts, *two) for two in _pairs(words)]
    pairs = [_plus_zero(b, s, v, zero) for v in pairs]
    name = f"llvm.x86.{prefix}.pack{'ss' if signed else 'us'}wb{suffix}"
    whole = call_named(b, name, bytes_, pairs[0], pairs[-1])
    parts = bits // 128
    fours = (4 * (n // parts) + 16 * (n % parts) for n in range(lanes // 4))
    return picked(b, [whole], [first + n for first in fours for n in range(4)])


def _narrowed_at_once(b: ll.IRBuilder, s: Saturated, x: Value, zero: Value) -> Value:
    """A register of AVX-512. LLVM makes vpmovsdb of it, or vpmovusdb where nothing is negative."""
    words = _whole(b, x)
    every = words.type

    def all_lanes(number: float) -> ll.Constant:
        return ll.Constant(every, [int(number)] * every.count)

    if s.known_zero != 0:
        words = b.add(words, _every(b, every, zero))
    low, high = map(all_lanes, value_range(dtype_of(s.dtype).scalar))
    words = call_named(b, f"llvm.smax.v{every.count}i32", every, words, low)
    words = call_named(b, f"llvm.smin.v{every.count}i32", every, words, high)
    return b.trunc(words, ll.VectorType(ll.IntType(8), every.count))


def _whole(b: ll.IRBuilder, x: Value) -> Value:
    """A register of floats as int32: converting rounds half to even."""
    words = ll.VectorType(I32, x.type.count)
    if words.count == 16:
        every, as_is = ll.Constant(ll.IntType(16), -1), ll.Constant(I32, 4)
        nothing = ll.Constant(words, None)
        return call_named(b, "llvm.x86.avx512.mask.cvtps2dq.512", words, x, nothing, every, as_is)
    name = {4: "llvm.x86.sse2.cvtps2dq", 8: "llvm.x86.avx.cvt.ps2dq.256"}[words.count]
    return call_named(b, name, words, x)


def _whole_x86(b: ll.IRBuilder, target: Target, x: Value, lanes: range) -> list[Value]:
    """Lanes of a vector of floats as vectors of four int32: converting rounds half to even."""
    if target.has("avx") and len(lanes) == 8:
        both = _whole(b, picked(b, [x], lanes))
        return [picked(b, [both], range(n, n + 4)) for n in (0, 4)]
    return [_whole(b, picked(b, [x], range(n, n + 4))) for n in lanes[::4]]


def _plus_zero(b: ll.IRBuilder, s: Saturated, shorts: Value, zero: Value) -> Value:
    if s.known_zero == 0:
        return shorts
    name, one = f"llvm.sadd.sat.v{shorts.type.count}i16", b.trunc(zero, shorts.type.element)
    return call_named(b, name, shorts.type, shorts, _every(b, shorts.type, one))


def _every(b: ll.IRBuilder, vector: ll.VectorType, one: Value) -> Value:
    """A vector of one number in all lanes."""
    first = b.insert_element(undefined(vector), one, I32(0))
    return picked(b, [first], [0] * vector.count)


def _narrowed(
    b: ll.IRBuilder, arch: str, s: Saturated, x: Value, zero: Value, short: bool
) -> Value:
    lanes = dtype_of(s.dtype).lanes
    signed = dtype_of(s.dtype).kind == "int"
    is_arm = arch == "arm"
    by_bits = is_arm or s.least
    short = short and not by_bits
    bytes_: list[Value] = []
    for first in range(0, lanes, 8):
        halves = []
        for start in range(first, min(first + 8, lanes), 4):
            four = picked(b, [x], range(start, start + 4))
            moved = _by_bits(b, four, zero, is_arm) if by_bits else _whole_aarch64(b, four, short)
            halves.append(moved)
        eight = picked(b, [halves[0], halves[-1]], range(8))
        if short:
            eight = b.trunc(eight, SHORTS)
        if not by_bits:
            eight = _plus_zero(b, s, eight, zero)
        unsigned = "" if signed else "u"
        names = f"llvm.aarch64.neon.sqxt{unsigned}n.v8i8", f"llvm.arm.neon.vqmovns{unsigned}.v8i8"
        name = names[is_arm]
        bytes_.append(call_named(b, name, ll.VectorType(ll.IntType(8), 8), eight))
    return _joined(b, bytes_, lanes)


def _whole_aarch64(b: ll.IRBuilder, x: Value, short: bool) -> Value:
    """Four floats as int16; as int32 where they are short."""
    words = call_named(b, "llvm.aarch64.neon.fcvtns.v4i32.v4f32", WORDS, x)
    if short:
        return words
    return call_named(b, "llvm.aarch64.neon.sqxtn.v4i16", ll.VectorType(ll.IntType(16), 4), words)


def _by_bits(b: ll.IRBuilder, x: Value, zero: Value, is_arm: bool) -> Value:
    """Four floats as int16, the zero point added. The bits of NaN are large: it is the least."""
    bits = b.bitcast(b.fsub(ll.Constant(SINGLES, [12582912.0] * 4), x), WORDS)
    base = _every(b, WORDS, b.add(I32(MAGIC), zero))
    words = call_named(b, "llvm.ssub.sat.v4i32", WORDS, base, bits)
    name = "llvm.arm.neon.vqmovns.v4i16" if is_arm else "llvm.aarch64.neon.sqxtn.v4i16"
    return call_named(b, name, ll.VectorType(ll.IntType(16), 4), words)


def _joined(b: ll.IRBuilder, vectors: Sequence[Value], lanes: int) -> Value:
    """The first `lanes` lanes of vectors of one length, one after the other."""
    while len(vectors) > 1:
        both = range(2 * vectors[0].type.count)
        vectors = [picked(b, pair, both) for pair in _pairs(vectors)]
    (whole,) = vectors
    return whole if whole.type.count == lanes else picked(b, vectors, range(lanes))


def _pairs(vectors: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Pairs of neighbours; the last one with itself if their number is odd."""
    return [(v, vectors[min(n + 1, len(vectors) - 1)]) for n, v in enumerate(vectors) if n % 2 == 0]
