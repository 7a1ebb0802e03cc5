"""Operators on values: an LLVM instruction where the machine has it, other code where not.

LLVM ends the whole process on code that a target cannot select. Known cases never reach it: 32-bit
ARM neither compares nor converts vectors of float16, has no minimum of doubles that keeps NaN, and
would call libm to round floats.

A machine without arithmetic on float16 computes in float32. Intermediate results are then not
rounded, except for operators where a last bit may change much: comparisons, conversions, and
rounding to integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..errors import CodegenError
from ..ir import DType, dtype_of, with_lanes
from . import integers, math
from .calls import call_named, end_to_end, picked
from .types import element_type, type_suffix, undefined

Value = Any
I32 = ll.IntType(32)

FLOAT_BITS = {ll.HalfType: 16, ll.FloatType: 32, ll.DoubleType: 64}
FLOAT = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
INTEGER = {"+": "add", "-": "sub", "*": "mul", "&": "and_", "|": "or_", "^": "xor"}
ROUNDING = {"floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc"}
UNARY = {**ROUNDING, "nearbyint": "llvm.roundeven", "sqrt": "llvm.sqrt", "abs": "llvm.fabs"}
STEPS = (*ROUNDING, "nearbyint", "fmod")  # functions that have steps
# Functions of the C library: name -> whether the runtime has it for float64 too.
LIBM = {
    "exp": True,
    "expm1": True,
    "log": True,
    "log1p": True,
    "sin": True,
    "cos": True,
    "tan": True,
    "tanh": True,
    "erf": True,
    "fmod": True,
    "pow": False,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """arch: the target's. fused: multiply-add in one instruction, by lane too. halves: arithmetic
    on float16. rounds: instructions that round floats to integers. by_four: an instruction converts
    four numbers between float16 and float32, and LLVM does not select it by itself. flushes:
    vectors take denormal numbers for 0."""

    arch: str
    fused: bool
    halves: bool
    rounds: bool
    by_four: bool
    flushes: bool


def machine_of(target: Target) -> Machine:
    # 32-bit NEON multiplies and adds in one instruction by lane only unfused.
    narrow = target.arch == "arm"
    return Machine(
        arch=target.arch,
        fused=not narrow,
        halves=target.float16 == "arithmetic",
        rounds=not narrow or target.has("fp-armv8"),
        by_four=narrow and target.has("fp16") and target.has("neon"),
        flushes=narrow and target.has("neon"),
    )


def binary(
    b: ll.IRBuilder,
    machine: Machine,
    op: str,
    x: Value,
    y: Value,
    dtype: str,
    flags: tuple[str, ...] = (),
) -> Value:
    """`x op y`, for what no rule of integers.py is about; flags are LLVM's fast-math flags."""
    kind = dtype_of(dtype)
    if kind.kind == "float" and kind.bits > 16 and op in FLOAT:  # the most frequent
        return getattr(b, FLOAT[op])(x, y, flags=flags)
    if kind.kind == "float" and kind.bits == 16 and not machine.halves:
        x, y = _widened(b, machine, x), _widened(b, machine, y)
        return _converted(b, machine, binary(b, machine, op, x, y, _single(kind), flags), kind)
    match op, kind.kind:
        case ("and", _):
            return b.and_(x, y)
        case ("or", _):
            return b.or_(x, y)
        case (_, "float") if op in FLOAT:
            return getattr(b, FLOAT[op])(x, y, flags=flags)
        case ("min" | "max", "float"):
            if kind.bits == 64 and not machine.fused:
                return _extremum(b, op, x, y)
            return intrinsic(b, "llvm.minimum" if op == "min" else "llvm.maximum", [x, y])
        case ("min" | "max", _):
            return intrinsic(b, f"llvm.{'s' if kind.kind == 'int' else 'u'}{op}", [x, y])
        case (_, _) if op in INTEGER:
            return getattr(b, INTEGER[op])(x, y)
    raise AssertionError(f"no code for {op} of {dtype}")


def _extremum(b: ll.IRBuilder, op: str, x: Value, y: Value) -> Value:
    """The smaller or larger; a NaN on either side gives NaN: y where both comparisons fail."""
    better = b.fcmp_ordered("<" if op == "min" else ">", x, y)
    return b.select(b.or_(better, b.fcmp_unordered("uno", x, x)), x, y)


def larger_number(b: ll.IRBuilder, machine: Machine, x: Value, y: Value) -> Value:
    """The larger; y where x is NaN."""
    if machine.arch == "aarch64":
        return intrinsic(b, "llvm.maxnum", [x, y])
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def compare(b: ll.IRBuilder, machine: Machine, op: str, x: Value, y: Value, dtype: str) -> Value:
    """`x op y` as i1; with a NaN only `!=` holds."""
    kind = dtype_of(dtype)
    match kind.kind:
        case "float":
            if kind.bits == 16 and not machine.halves:
                x, y = _extended(b, machine, x), _extended(b, machine, y)
            return b.fcmp_unordered(op, x, y) if op == "!=" else b.fcmp_ordered(op, x, y)
        case "int":
            return b.icmp_signed(op, x, y)
    return b.icmp_unsigned(op, x, y)


def cast(
    b: ll.IRBuilder, machine: Machine, value: Value, source: str, to: str, fits: bool = False
) -> Value:
    """Value conversion: floats become integers as integers.py says, integers wrap. fits: a float is
    within the integer's range, unless it is NaN."""
    x, y = dtype_of(source), dtype_of(to)
    if x.kind == "float" and x.bits == 16 and y.kind != "float" and not machine.halves:
        return cast(b, machine, _extended(b, machine, value), _single(x), to, fits)
    wanted = element_type(to)
    match x.kind, y.kind:
        case ("float", "float"):
            return _converted(b, machine, value, y)
        case ("float", "int" | "uint"):
            return integers.truncated(b, machine.arch, value, y, fits)
        case ("float", "bool"):
            return b.fcmp_unordered("!=", value, ll.Constant(value.type, None))
        case (_, "bool"):
            return b.icmp_unsigned("!=", value, ll.Constant(value.type, None))
        case ("int", "float"):
            return b.sitofp(value, wanted)
        case (_, "float"):
            return b.uitofp(value, wanted)
    if x.kind != "bool" and x.bits > y.bits:
        return b.trunc(value, wanted)
    if x.kind != "bool" and x.bits == y.bits:
        return value
    return b.sext(value, wanted) if x.kind == "int" else b.zext(value, wanted)


def call(
    b: ll.IRBuilder, machine: Machine, name: str, args: list[Value], dtype: str, where: str
) -> Value:
    """A function of floats. Raises CodegenError, naming the kernel `where`, for an unknown
    function."""
    kind = dtype_of(dtype)
    if name in ("likely", "bounded"):
        return args[0]
    if kind.kind != "float":
        raise CodegenError(
            f"no code for T.{name} of {kind.scalar}", where=where, mend='.astype("float32")'
        )
    if kind.bits == 16 and machine.halves and name in math.HALVES:
        return math.HALVES[name](b, args[0])
    if kind.bits == 16 and not (machine.halves and name in UNARY):
        widen = _extended if name in STEPS else _widened
        wide = [widen(b, machine, a) for a in args]
        return _converted(b, machine, call(b, machine, name, wide, _single(kind), where), kind)
    if kind.bits == 32 and name in math.BOUNDS:
        return _bounded(b, name, args[0], kind.lanes)
    if kind.bits == 32 and name in math.FUNCTIONS:
        return math.FUNCTIONS[name](b, args[0])
    if kind.bits == 32 and name in math.ROUNDINGS and not machine.rounds:
        return math.ROUNDINGS[name](b, args[0])
    if name in UNARY:
        return intrinsic(b, UNARY[name], args)
    match name:
        case "fma":
            if machine.fused:
                return intrinsic(b, "llvm.fma", args)
            return b.fadd(b.fmul(args[0], args[1]), args[2])
        case "pow" if kind.bits == 64:
            return _double_power(b, machine, args[0], args[1], dtype, where)
        case "sigmoid" | "silu":
            one = _same(args[0].type, 1.0)
            power = call(b, machine, "exp", [b.fneg(args[0])], dtype, where)
            if name == "sigmoid":
                return b.fdiv(one, b.fadd(one, power))
            return _vanishing(b, args[0], b.fdiv(args[0], b.fadd(one, power)))
        case "gelu":
            (x,) = args
            half, root, one = (_same(x.type, c) for c in (0.5, 0.5**0.5, 1.0))
            rest = b.fadd(call(b, machine, "erf", [b.fmul(x, root)], dtype, where), one)
            return _vanishing(b, x, b.fmul(b.fmul(x, half), rest))
    if name not in LIBM or (kind.bits == 64 and not LIBM[name]):
        raise CodegenError(
            f"no code for T.{name} of {kind.scalar}", where=where, mend='.astype("float32")'
        )
    return _per_lane(b, name, args, kind.lanes)


def _bounded(b: ll.IRBuilder, name: str, x: Value, lanes: int) -> Value:
    """Vector code; lanes beyond its bound, or that are NaN, are the C library\'s."""
    size = intrinsic(b, UNARY["abs"], [x])
    bound = math.BOUNDS[name]
    limit = ll.Constant(x.type, [bound] * lanes if lanes > 1 else bound)
    beyond = any_beyond = b.fcmp_unordered(">", size, limit)
    if lanes > 1:
        bits = f"llvm.vector.reduce.or.v{lanes}i1"
        any_beyond = call_named(b, bits, ll.IntType(1), beyond)
    with b.if_else(any_beyond, likely=False) as (far, near):
        with far:
            mixed = b.select(beyond, _per_lane(b, name, [x], lanes), math.FUNCTIONS[name](b, x))
            called = b.block
        with near:
            result, computed = math.FUNCTIONS[name](b, x), b.block
    either = b.phi(x.type)
    either.add_incoming(mixed, called)
    either.add_incoming(result, computed)
    return either


def intrinsic(b: ll.IRBuilder, name: str, args: list[Value]) -> Value:
    """An overloaded intrinsic of LLVM whose result and arguments have one type."""
    full = f"{name}.{type_suffix(args[0].type)}"
    return call_named(b, full, args[0].type, *args)


def _double_power(
    b: ll.IRBuilder, machine: Machine, x: Value, y: Value, dtype: str, where: str
) -> Value:
    """x^y of float64 as e^(y ln |x|): pow itself would add 8 KB to the runtime. The relative error
    is at most 2^-52 times 1 + |y ln x|. Specials are those of IEEE 754."""
    zero, half, one = (_same(x.type, c) for c in (0.0, 0.5, 1.0))

    def function(name: str, *args: Value) -> Value:
        return call(b, machine, name, list(args), dtype, where)

    def is_whole(v: Value) -> Value:
        return b.fcmp_ordered("==", function("trunc", v), v)

    size = function("abs", x)
    power = function("exp", b.fmul(y, function("log", size)))
    power = b.select(b.fcmp_ordered("==", size, one), _or_nan(b, one, y), power)
    odd = b.and_(is_whole(y), b.not_(is_whole(b.fmul(y, half))))
    negative = b.fcmp_ordered("<", b.fdiv(one, x), zero)  # also -0
    negative = b.or_(negative, b.fcmp_ordered("<", x, zero))
    power = b.select(b.and_(negative, odd), b.fneg(power), power)
    rooted = b.and_(b.fcmp_ordered("<", x, zero), b.not_(is_whole(y)))
    finite = b.fcmp_ordered("!=", x, _same(x.type, float("-inf")))
    power = b.select(b.and_(rooted, finite), _same(x.type, float("nan")), power)
    certain = b.or_(b.fcmp_ordered("==", x, one), b.fcmp_ordered("==", y, zero))
    return b.select(certain, one, power)


def _vanishing(b: ll.IRBuilder, x: Value, y: Value) -> Value:
    """y; -0 where x is -inf."""
    far = b.fcmp_ordered("==", x, _same(x.type, float("-inf")))
    return b.select(far, _same(x.type, -0.0), y)


def _or_nan(b: ll.IRBuilder, value: Value, y: Value) -> Value:
    """The value; NaN where y is."""
    return b.select(b.fcmp_unordered("uno", y, y), y, value)


def _same(kind: ll.Type, number: float) -> ll.Constant:
    return ll.Constant(kind, [number] * kind.count if isinstance(kind, ll.VectorType) else number)


def _single(kind: DType) -> str:
    return with_lanes("float32", kind.lanes)


def _widened(b: ll.IRBuilder, machine: Machine, half: Value) -> Value:
    """float16 as float32; the unrounded float32 where there is one."""
    exact = getattr(half, "unrounded", None)
    return _extended(b, machine, half) if exact is None else exact


def _extended(b: ll.IRBuilder, machine: Machine, half: Value) -> Value:
    """float16 as float32."""
    lanes = half.type.count if isinstance(half.type, ll.VectorType) else 1
    return _converted(b, machine, half, dtype_of(with_lanes("float32", lanes)))


def _converted(b: ll.IRBuilder, machine: Machine, value: Value, to: DType) -> Value:
    """A float, or a vector of floats, converted to another width."""
    wanted = element_type(to.name)
    if value.type == wanted:
        return value
    bits = FLOAT_BITS[type(getattr(value.type, "element", value.type))]
    if machine.by_four and {bits, to.bits} == {16, 32} and to.lanes % 4 == 0:
        result = _by_four(b, value, to)
    else:
        result = (b.fpext if to.bits > bits else b.fptrunc)(value, wanted)
    if bits == 32 and to.bits == 16 and not machine.halves:
        result.unrounded = value
    return result


def _by_four(b: ll.IRBuilder, value: Value, to: DType) -> Value:
    """32-bit NEON's conversions between float16 and float32, whose float16 is bits."""
    halves, singles = ll.VectorType(ll.IntType(16), 4), ll.VectorType(ll.FloatType(), 4)
    widens = to.bits == 32
    name = f"llvm.arm.neon.vcvt{'hf2fp' if widens else 'fp2hf'}"
    gives = singles if widens else halves
    parts = []
    for first in range(0, to.lanes, 4):
        four = picked(b, [value], range(first, first + 4))
        part = call_named(b, name, gives, b.bitcast(four, halves) if widens else four)
        parts.append(part if widens else b.bitcast(part, ll.VectorType(ll.HalfType(), 4)))
    return end_to_end(b, parts)


def _per_lane(b: ll.IRBuilder, name: str, args: list[Value], lanes: int) -> Value:
    """A function of the C library, lane by lane."""
    if lanes == 1:
        return _libm(b, name, args)
    result: Value = undefined(args[0].type)
    for lane in range(lanes):
        one = _libm(b, name, [b.extract_element(a, I32(lane)) for a in args])
        result = b.insert_element(result, one, I32(lane))
    return result


def _libm(b: ll.IRBuilder, name: str, args: list[Value]) -> Value:
    scalar = args[0].type
    symbol = name + ("f" if isinstance(scalar, ll.FloatType) else "")
    function = b.module.globals.get(symbol)
    if function is None:
        kind = ll.FunctionType(scalar, [scalar] * len(args))
        function = ll.Function(b.module, kind, symbol)
        function.attributes.add("nounwind")
    return b.call(function, args)
