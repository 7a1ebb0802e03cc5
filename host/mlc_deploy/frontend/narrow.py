"""Narrow types, which ONNX stores but no operator computes with: bfloat16, floats of 4 to 8 bits,
integers of 2 and 4 bits.

A graph keeps narrow numbers in a carrier: an integer as int8 or uint8, the bits of a float in
uint8, bfloat16 in uint16. The importer remembers which values are narrow. `read` converts them to
float32 or to the carrier's integers, for operators; `write` rounds as ONNX's Cast does. Both emit
calls, so constants are converted at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto

try:
    import ml_dtypes
except ImportError:  # onnx before 1.17 does not require it
    ml_dtypes: Any = None  # type: ignore[no-redef]

from ..graph.nodes import Value
from .node import Node

FRACTION = 23  # bits of float32's fraction
BIAS = 127  # of float32's exponent
INFINITE = 0xFF << FRACTION  # the bits of float32's infinity


@dataclass(frozen=True, slots=True)
class NarrowInteger:
    """name: numpy's name, from the package ml_dtypes."""

    name: str
    bits: int
    signed: bool

    @property
    def carrier(self) -> str:
        return "int8" if self.signed else "uint8"

    @property
    def range(self) -> tuple[int, int]:
        low = -(1 << self.bits - 1) if self.signed else 0
        return low, low + (1 << self.bits) - 1

    def from_bits(self, bits: NDArray[Any]) -> NDArray[Any]:
        """The carrier of numbers given in the low bits of bytes."""
        low, _ = self.range
        return ((bits.astype(np.int16) + low) % (1 << self.bits) + low).astype(self.carrier)

    def read(self, n: Node, value: Value) -> Value:
        return n.emit("cast", value, dtype=self.carrier)  # another value, not marked as narrow

    def write(self, n: Node, value: Value, saturate: bool = True, mode: str = "") -> Value:
        """Truncates, and wraps as casts of other integers do."""
        low, high = self.range
        offset = n.constant(low, "int32")
        moved = n.emit("subtract", n.cast(value, "int32"), offset)
        wrapped = n.emit("bitwise_and", moved, n.constant(high - low, "int32"))
        return n.cast(n.emit("add", wrapped, offset), self.carrier)


@dataclass(frozen=True, slots=True)
class NarrowFloat:
    """A float of `bits` bits, `fraction` of them after the point. largest: the bits of the largest
    number. Without saturation, larger ones become infinity, or NaN in types without infinity. nan
    None: the type has only finite numbers, so it always saturates.

    In types without negative zero, its bits, `1 << bits - 1`, are NaN. A type without a fraction
    has only powers of 2, no sign and no zero.
    """

    name: str
    bits: int
    fraction: int
    bias: int
    largest: int
    nan: int | None = None
    infinity: int | None = None

    @property
    def carrier(self) -> str:
        return "uint16" if self.bits > 8 else "uint8"

    @property
    def top(self) -> int:
        return 1 << self.bits - 1

    def from_bits(self, bits: NDArray[Any]) -> NDArray[Any]:
        return bits

    def table(self) -> NDArray[np.float32]:
        """The number of each pattern of bits."""
        return np.array([self._number(code) for code in range(1 << self.bits)], np.float32)

    def _number(self, code: int) -> float:
        if self.fraction == 0:
            return math.nan if code == self.nan else math.ldexp(1, code - self.bias)
        size = code & (self.top - 1)
        sign = -1.0 if code >= self.top else 1.0
        if size > self.largest or code == self.nan:
            return sign * math.inf if size == self.infinity else math.nan
        exponent, part = size >> self.fraction, size & ((1 << self.fraction) - 1)
        part += (1 << self.fraction) * (exponent > 0)
        return sign * math.ldexp(part, max(exponent, 1) - self.bias - self.fraction)

    def read(self, n: Node, value: Value) -> Value:
        """The float32 of the same number."""
        if self.bias == BIAS and self.fraction:  # the upper half of a float32
            wide = n.cast(value, "uint32")
            by = n.constant(32 - self.bits, "uint32")
            return n.emit("bitcast", n.emit("shift", wide, by, left=True), dtype="float32")
        places = n.cast(value, "int32")
        return n.emit("gather", n.constant(self.table(), "float32"), places, axis=0)

    def write(self, n: Node, value: Value, saturate: bool = True, mode: str = "up") -> Value:
        """The nearest number; of two, the even one. Powers of 2 round by `mode` (up, down,
        nearest)."""

        def whole(number: int) -> Value:
            return n.constant(number, "int32")

        x = n.cast(value, "float32")
        own = n.emit("bitcast", x, dtype="int32")
        size = n.emit("bitwise_and", own, whole(0x7FFFFFFF))
        finite = n.emit("minimum", size, whole(INFINITE))
        shift = whole(FRACTION - self.fraction)
        rounded = n.emit("add", finite, self._rounding(n, finite, mode))
        code = n.emit("shift", rounded, shift, left=False)
        if self.bias != BIAS:
            code = n.emit("subtract", code, whole((BIAS - self.bias) << self.fraction))
            # Below the smallest exponent, numbers are whole multiples of one step. Adding a float32
            # whose last bit is worth this step rounds them to it.
            unit = n.constant(2.0 ** (FRACTION + 1 - self.bias - self.fraction), "float32")
            small = n.emit("add", n.emit("abs", x), unit)
            steps = [n.emit("bitcast", v, dtype="int32") for v in (small, unit)]
            least = n.emit("less", size, whole((BIAS + 1 - self.bias) << FRACTION))
            code = n.emit("where", least, n.emit("subtract", *steps), code)
        beyond = self.nan if self.infinity is None else self.infinity
        if saturate or beyond is None:
            code = n.emit("minimum", code, whole(self.largest))
        else:
            above = n.emit("greater", code, whole(self.largest))
            code = n.emit("where", above, whole(beyond), code)
        # In types without NaN it becomes -0, as ml_dtypes has it.
        nan = n.emit("greater", size, whole(INFINITE - (self.fraction == 0)))
        code = n.emit("where", nan, whole(self.top if self.nan is None else self.nan), code)
        if self.fraction:
            sign = n.emit("where", n.emit("less", own, whole(0)), whole(self.top), whole(0))
            if self.nan == self.top:
                zero = n.emit("equal", code, whole(0))
                sign = n.emit("where", zero, whole(0), sign)
            code = n.emit("bitwise_or", code, sign)
        return n.cast(code, self.carrier)

    def _rounding(self, n: Node, size: Value, mode: str) -> Value:
        """The term to add to the bits of a float32 before the last ones are cut off."""
        shift = FRACTION - self.fraction
        if self.fraction == 0 and mode != "nearest":
            return n.constant({"up": (1 << shift) - 1, "down": 0}[mode], "int32")
        kept = n.emit("shift", size, n.constant(shift, "int32"), left=False)
        # A half rounds to even; a power of 2 rounds up, except the smallest one.
        op = "bitwise_and" if self.fraction else "minimum"
        odd = n.emit(op, kept, n.constant(1, "int32"))
        return n.emit("add", odd, n.constant((1 << shift - 1) - 1, "int32"))


Narrow = NarrowInteger | NarrowFloat

_TYPES: Mapping[str, Narrow] = {
    "BFLOAT16": NarrowFloat("bfloat16", 16, 7, 127, 0x7F80, 0x7FC0),
    "FLOAT8E4M3FN": NarrowFloat("float8_e4m3fn", 8, 3, 7, 0x7E, 0x7F),
    "FLOAT8E4M3FNUZ": NarrowFloat("float8_e4m3fnuz", 8, 3, 8, 0x7F, 0x80),
    "FLOAT8E5M2": NarrowFloat("float8_e5m2", 8, 2, 15, 0x7B, 0x7E, 0x7C),
    "FLOAT8E5M2FNUZ": NarrowFloat("float8_e5m2fnuz", 8, 2, 16, 0x7F, 0x80),
    "FLOAT8E8M0": NarrowFloat("float8_e8m0fnu", 8, 0, 127, 0xFE, 0xFF),
    "FLOAT6E2M3": NarrowFloat("float6_e2m3fn", 6, 3, 1, 0x1F),
    "FLOAT6E3M2": NarrowFloat("float6_e3m2fn", 6, 2, 3, 0x1F),
    "FLOAT4E2M1": NarrowFloat("float4_e2m1fn", 4, 1, 1, 0x7),
    "INT4": NarrowInteger("int4", 4, True),
    "UINT4": NarrowInteger("uint4", 4, False),
    "INT2": NarrowInteger("int2", 2, True),
    "UINT2": NarrowInteger("uint2", 2, False),
}
# By ONNX's number (only types that the installed onnx knows), and by numpy's name.
BY_CODE: Mapping[int, Narrow] = {
    code: _TYPES[name] for name, code in TensorProto.DataType.items() if name in _TYPES
}
BY_NAME: Mapping[str, Narrow] = {kind.name: kind for kind in _TYPES.values()}

# Operators whose converters handle narrow values, and operators that only move elements.
AWARE = frozenset(
    "BitCast Cast CastLike Constant ConstantOfShape DequantizeLinear GatherBlockQuantized If Loop "
    "Optional OptionalGetElement OptionalHasElement QuantizeLinear Scan SequenceAt "
    "SequenceConstruct SequenceErase SequenceInsert SequenceLength Shape Size".split()
)
MOVES = frozenset(
    "CenterCropPad Compress Concat DepthToSpace Expand Flatten Gather GatherElements "
    "GatherND Identity OneHot Reshape ReverseSequence Slice SpaceToDepth Split Squeeze "
    "TensorScatter Tile Transpose Unsqueeze Where".split()
)


@dataclass(frozen=True, slots=True)
class Flow:
    """How a node treats narrow numbers: the inputs to read as float32 and the outputs to write.
    moves: the converter already gives outputs in their carrier.
    """

    read: Mapping[int, Narrow]
    written: Mapping[int, Narrow]
    moves: bool


def carried(kinds: Iterable[Narrow | None]) -> Flow:
    """The flow of a converter that takes and gives carriers. kinds: of its outputs, if known."""
    return Flow({}, {k: kind for k, kind in enumerate(kinds) if kind is not None}, True)


def flow_of(node: NodeProto, kinds: Mapping[int, Narrow], schema: Any) -> Flow:
    """The flow by ONNX's definition of the operator: an output has the type of the inputs with the
    same type letter. Operators that ONNX does not define have one type of floats. kinds: of the
    inputs."""
    if schema is None:
        return Flow(
            kinds, dict.fromkeys(range(len(node.output)), next(iter(kinds.values()))), False
        )

    def letter(formals: Any, k: int) -> str:
        return str(formals[min(k, len(formals) - 1)].type_str)

    letters = {letter(schema.inputs, k): kind for k, kind in kinds.items()}
    results = {k: letter(schema.outputs, k) for k in range(len(node.output))}
    written = {k: letters[own] for k, own in results.items() if own in letters}
    moves = node.op_type in MOVES
    if moves:
        kept = set(results.values())
        kinds = {k: v for k, v in kinds.items() if letter(schema.inputs, k) not in kept}
    return Flow(kinds, written, moves)


def declared_kind(info: ValueInfoProto) -> Narrow | None:
    return BY_CODE.get(info.type.tensor_type.elem_type)


def stored(given: Any) -> NDArray[Any]:
    """An array of a narrow type in its carrier; other arrays unchanged."""
    array: NDArray[Any] = np.asarray(given)
    match BY_NAME.get(array.dtype.name):
        case NarrowInteger() as kind:
            return array.astype(kind.carrier)
        case NarrowFloat() as kind:
            return array.view(kind.carrier)
    return array


def shown(array: NDArray[Any], kind: Narrow | None) -> NDArray[Any]:
    """An array in its carrier as an array of ml_dtypes' type; unchanged without that package."""
    dtype = None if kind is None else getattr(ml_dtypes, kind.name, None)
    if dtype is None:
        return array
    return array.astype(dtype) if isinstance(kind, NarrowInteger) else array.view(dtype)


def from_tensor(tensor: TensorProto, kind: Narrow, shape: Sequence[int]) -> NDArray[Any]:
    """The carrier of a tensor's own data. Raises ValueError for another number of elements."""
    if tensor.HasField("raw_data"):
        return from_bytes(np.frombuffer(tensor.raw_data, np.uint8), kind, shape)
    each = np.array(tensor.int32_data, np.int64).astype("<u2" if kind.bits > 8 else "<u1")
    if kind.bits == 6:  # not packed: each number has an entry
        return (each & np.uint8(0x3F)).reshape(shape)
    return from_bytes(each.view(np.uint8), kind, shape)


def from_bytes(data: NDArray[np.uint8], kind: Narrow, shape: Sequence[int]) -> NDArray[Any]:
    """The carrier of packed numbers, the lowest bits first. Raises ValueError for another number of
    bytes."""
    count = math.prod(shape)
    if data.size != size_of(kind, count):
        raise ValueError(f"{data.size} bytes for {count} numbers of {kind.bits} bits")
    if kind.bits > 8:
        return data.view("<u2").astype(np.uint16).reshape(shape)
    bits = np.unpackbits(data, bitorder="little")[: count * kind.bits].reshape(count, kind.bits)
    return kind.from_bits(np.packbits(bits, axis=1, bitorder="little").reshape(shape))


def size_of(kind: Narrow, count: int) -> int:
    """The bytes of `count` numbers in a file."""
    return -(-count * kind.bits // 8)
