"""Quantized models: floats that represent quantized numbers become these integers.

A model marks a quantized layer by a pair of operators: the layer reads floats from `dequantize`,
and its results go to `quantize`. canonicalize_quantized replaces them by an integer operator with
the arithmetic of ONNX's QLinearConv: int32 sums, a bias in units of the sums, one float32
multiplication per output, rounding half to even, saturation. Averages become sums of integers, too.
From then on, the integers define the model. Float sums would be rounded, and some outputs would
differ by one.

uint8 becomes int8 wherever it is not a parameter or an output (signs.py). So all layers are int8,
and the targets have instructions for int8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import same_shape
from ..ops import Array, evaluate, has, operator
from ..ops.quantize import TOP_BIT
from ..passes.context import optional
from .constants import is_static, shape_of
from .moves import broadcast_before
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, Rule, rewrite
from .signs import UNSIGNED, weight_sums
from .sum_bounds import short_floats

EIGHT_BITS = ("int8", "uint8")
SUMS = "int32"


@optional(level=0)
def canonicalize_quantized(function: Function) -> Function:
    """quantize(relu(layer(dequantize(x), dequantize(w)) + b))   =>   requantize(layer(x, w) + b'),
    and integers instead of floats wherever the result is equal"""
    return rewrite(function, RULES)


@dataclass(frozen=True, slots=True)
class Quantized:
    """Integers q that mean (q - zero) * scale. scale and zero are constants that broadcast."""

    q: Value
    scale: Array
    zero: Array

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == self.zero.size == 1

    def like(self, other: Quantized) -> bool:
        """Whether equal integers of both mean equal numbers."""
        same = self.q.type.dtype == other.q.type.dtype and self.per_tensor and other.per_tensor
        return same and self.scale.item() == other.scale.item() and self.zero == other.zero


def _dequantized(graph: Rewriting, value: Value) -> Quantized | None:
    """The integers of a dequantized float value."""
    match graph.call(value, "dequantize"):
        case Call(_, (q, Constant(scale), Constant(zero))) if value.type.dtype == "float32":
            return Quantized(q, scale, zero)
    return None


def _dequantize(graph: Rewriting, x: Quantized) -> Value:
    return graph.emit("dequantize", x.q, Constant(x.scale), Constant(x.zero))


# ---------------------------------------------------------------------- int8 in place of uint8


def _signed_layer(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer(x, w)   =>   layer(x - 128, w) + 128 * sum(w), and the same for w"""
    match call:
        case Call(op, (x, w), attrs) if _is_layer(op) and is_static(w):
            if x.type.dtype == "uint8" and "kernel_layout" not in attrs:
                return UNSIGNED.layer(graph, call)
            if w.type.dtype == "uint8" and "kernel_layout" not in attrs:
                return _signed_weights(graph, call, x, w)
    return None


def _signed_weights(graph: Rewriting, call: Call, x: Value, w: Value) -> Value:
    """layer(x, w)   =>   layer(x, w - 128) + 128 * sum(x), or with unchanged weights if int8 holds
    them"""
    if isinstance(w, Constant) and (w.value < TOP_BIT).all():
        return graph.emit(call.op, x, Constant(w.value.astype(np.int8), w.name), **call.attrs)
    sums = graph.emit(call.op, x, UNSIGNED.number(graph, w), **call.attrs)
    of_data = _data_sums(graph, call, x, w, call.attrs)
    more = Constant(np.asarray(-UNSIGNED.more, SUMS))
    return _plus(graph, sums, graph.emit("multiply", of_data, more))


def _rows_along_k(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """matmul(x, y)   =>   matmul(x, transpose(y), transpose_b=True), for int8, whose kernels sum
    products along rows; likewise dense if y is not constant"""
    match call:
        case Call("dense" | "matmul", (x, y), attrs) if not isinstance(y, Constant):
            rank = len(y.type.shape)
            known = is_static(x) and is_static(y)
            if {x.type.dtype, y.type.dtype} != {"int8"} or rank < 2 or not known:
                return None
            if not attrs.get("transpose_b"):
                y = graph.emit("transpose", y, axes=(*range(rank - 2), rank - 1, rank - 2))
            elif call.op == "matmul":
                return None
            return graph.emit("matmul", x, y, transpose_b=True)
    return None


# ---------------------------------------------------------------------------- moving the integers


def _moved_before(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """move(dequantize(q))   =>   dequantize(move(q))"""
    x = _dequantized(graph, call.args[0]) if call.args else None
    if x is None:
        return None
    match call.op:
        case "reshape" if not x.per_tensor and is_static(x.q) and is_static(out):
            shapes = [
                broadcast_before(a.shape, shape_of(x.q), shape_of(out)) for a in (x.scale, x.zero)
            ]
            if None in shapes:
                return None
            scale, zero = (
                a.reshape(s or ()) for a, s in zip((x.scale, x.zero), shapes, strict=True)
            )
            q = graph.emit("reshape", x.q, **call.attrs)
            return _dequantize(graph, Quantized(q, scale, zero))
        case "transpose" if not x.per_tensor:
            rank, axes = len(out.type.shape), call.attrs["axes"]
            scale, zero = (
                a.reshape((1,) * (rank - a.ndim) + a.shape).transpose(axes)
                for a in (x.scale, x.zero)
            )
            q = graph.emit("transpose", x.q, axes=axes)
            return _dequantize(graph, Quantized(q, scale, zero))
        case op if x.per_tensor and len(call.args) == 1 and _passes(call):
            q = graph.emit(op, x.q, **call.attrs)
        case "gather" if x.per_tensor:
            q = graph.emit("gather", x.q, call.args[1], **call.attrs)
        case "pad" if x.per_tensor and call.attrs.get("value", 0) == 0:
            attrs = {**call.attrs, "value": x.zero.item()}
            q = graph.emit("pad", x.q, **attrs)
        case "relu" if x.per_tensor and x.q.type.dtype != SUMS:  # sums are clipped after narrowing
            q = graph.emit("maximum", x.q, Constant(x.zero.reshape(())))
        case _:
            return None
    scalars = x.scale.reshape(()), x.zero.reshape(())
    return _dequantize(graph, Quantized(q, *scalars))


def _concat_before(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """concatenate(dequantize(p), dequantize(q))   =>   dequantize(concatenate(p, q)), where scales
    and zero points are equal"""
    if call.op != "concatenate":
        return None
    parts = [_dequantized(graph, a) for a in call.args]
    first = parts[0]
    if first is None or not all(p is not None and p.like(first) for p in parts):
        return None
    joined = graph.emit("concatenate", *(p.q for p in parts if p is not None), **call.attrs)
    return _dequantize(graph, Quantized(joined, first.scale, first.zero))


def _summed(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """mean(dequantize(q))   =>   dequantize(sum(q) - n * zero), for n numbers, with the scale
    divided by n; likewise avg_pool, if every window has n numbers"""
    if call.op not in ("mean", "avg_pool"):
        return None
    x = _dequantized(graph, call.args[0])
    if x is None or not x.per_tensor or x.q.type.dtype not in EIGHT_BITS or not is_static(x.q):
        return None
    attrs = dict(call.attrs)
    if call.op == "avg_pool":
        whole_windows = attrs.pop("count_include_pad") or not any(attrs["pads"])
        if attrs["ceil_mode"] or not whole_windows:
            return None
    whole = graph.emit("cast", x.q, dtype=SUMS)
    if call.op == "mean":
        shape = shape_of(x.q)
        count = math.prod(shape[axis] for axis in attrs["axes"])
        sums = graph.emit("sum", whole, **attrs)
        if x.zero.any():
            sums = _plus(graph, sums, Constant(-count * x.zero.reshape(()).astype(SUMS)))
    else:
        count = math.prod(attrs["kernel"])
        if x.zero.any():
            whole = _plus(graph, whole, Constant(-x.zero.reshape(()).astype(SUMS)))
        sums = graph.emit("sum_pool", whole, **attrs)
    scale = (x.scale.reshape(()) / np.float32(count)).astype(np.float32)
    return _dequantize(graph, Quantized(sums, scale, np.zeros((), SUMS)))


def _moved_behind(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """quantize(move(x))   =>   move(quantize(x)), so that quantize stands beside the layer"""
    match call:
        case Call("quantize", (y, Constant() as scale, Constant() as zero)):
            if scale.value.size != 1 or zero.value.size != 1 or not graph.once(y):
                return None
            scale, zero = Constant(scale.value.reshape(())), Constant(zero.value.reshape(()))
            move = graph.call_of(y, "selects")
            if move is None or not _passes(move) or not all(_is_float(a) for a in move.args):
                return None
            parts = [graph.emit("quantize", a, scale, zero) for a in move.args]
            return graph.emit(move.op, *parts, **move.attrs)
    return None


def _passes(call: Call) -> bool:
    """Whether the call copies elements of its arguments unchanged, so it can copy integers."""
    of_places = operator(call.op).pattern != "elementwise" and not operator(call.op).numbers
    return of_places and has(call.op, "selects")


def _is_layer(op: str) -> bool:
    """Whether the operator multiplies data by weights: zero points then become sums of either."""
    return operator(op).output_axes is not None


def _is_float(value: Value) -> bool:
    return value.type.dtype == "float32"


def _there_and_back(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """quantize(dequantize(q))   =>   q, where both have the same scale and zero point"""
    match call:
        case Call("quantize", (y, Constant(scale), Constant(zero))):
            x = _dequantized(graph, y)
            return x.q if x is not None and x.like(Quantized(out, scale, zero)) else None
    return None


# ------------------------------------------------------------------------------------- layers


def _integer_layer(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer(dequantize(x), dequantize(w))   =>   dequantize(sums of integer products)"""
    if not _is_layer(call.op) or len(call.args) != 2 or "kernel_layout" in call.attrs:
        return None
    x, w = (_dequantized(graph, a) for a in call.args)
    if x is None or w is None or not x.per_tensor or not is_static(w.q):
        return None
    if {x.q.type.dtype, w.q.type.dtype} - set(EIGHT_BITS):
        return None
    scale, zero = (_per_output(a, call, w.q) for a in (w.scale, w.zero))
    if scale is None or zero is None:
        return None
    w = _without_zero(Quantized(w.q, scale, zero))
    sums = _sums(graph, call, x, w)
    total = (x.scale.reshape(()) * w.scale).astype(np.float32)
    return _dequantize(graph, Quantized(sums, total, np.zeros((), SUMS)))


def _output_axis(call: Call, rank: int) -> int:
    """The axis of the outputs in the weights."""
    if call.op.startswith("conv"):
        return 0
    return rank - 2 if call.attrs.get("transpose_b") else rank - 1


def _per_output(numbers: Array, call: Call, w: Value) -> Array | None:
    """Scales or zero points of weights, in a shape that broadcasts against the layer's output; None
    if they are neither per tensor nor per output."""
    if numbers.size == 1:
        return numbers.reshape(())
    rank = len(w.type.shape)
    full = (1,) * (rank - numbers.ndim) + numbers.shape
    axis = _output_axis(call, rank)
    if any(n != 1 for k, n in enumerate(full) if k != axis):
        return None
    spatial = (1,) * (rank - 2) if call.op.startswith("conv") else ()
    return numbers.reshape(-1, *spatial)


def _without_zero(w: Quantized) -> Quantized:
    """Weights less their zero point, if int8 holds the difference."""
    if not isinstance(w.q, Constant) or not w.zero.any() or w.zero.size != 1:
        return w
    plain = w.q.value.astype(np.int32) - w.zero.astype(np.int32)
    if plain.size and (plain.min() < -128 or plain.max() > 127):
        return w
    return Quantized(Constant(plain.astype(np.int8), w.q.name), w.scale, np.zeros((), np.int8))


def _sums(graph: Rewriting, call: Call, x: Quantized, w: Quantized) -> Value:
    """sum((x - zx) * (w - zw)) = sum(x * w) - zx * sum(w) - zw * sum(x) + n * zx * zw, as int32"""
    zx, zw = (a.astype(np.int32) for a in (x.zero.reshape(()), w.zero))
    conv = call.op.startswith("conv")
    attrs = {**call.attrs, "pad_value": x.zero.item()} if conv else dict(call.attrs)
    sums = graph.emit(call.op, x.q, w.q, **attrs)
    if zx:
        of_weights = weight_sums(graph, call, w.q)
        sums = _plus(graph, sums, graph.emit("multiply", of_weights, Constant(-zx)))
    if zw.any():
        of_data = _data_sums(graph, call, x.q, w.q, attrs)
        sums = _plus(graph, sums, graph.emit("multiply", of_data, Constant(-zw)))
    terms = _terms(call, w.q) * zx * zw
    return _plus(graph, sums, Constant(np.asarray(terms, np.int32))) if terms.any() else sums


def _plus(graph: Rewriting, sums: Value, more: Value) -> Value:
    return graph.emit("add", sums, more)


def _terms(call: Call, w: Value) -> Array:
    """The number of products in a sum."""
    shape = shape_of(w)
    if call.op.startswith("conv"):
        return np.asarray(np.prod(shape[1:]), np.int32)
    return np.asarray(shape[-1 if call.attrs.get("transpose_b") else -2], np.int32)


def _data_sums(graph: Rewriting, call: Call, x: Value, w: Value, attrs: Mapping[str, Any]) -> Value:
    """The sums of the data that each output reads: a layer whose weights are ones."""
    if call.op.startswith("conv"):
        outputs, *window = shape_of(w)  # one output for all, unless groups read different channels
        ones = Constant(np.ones((1 if attrs["groups"] == 1 else outputs, *window), np.int8))
        return graph.emit(call.op, x, ones, **attrs)
    whole = graph.emit("cast", x, dtype=SUMS)
    return graph.emit("sum", whole, axes=(len(x.type.shape) - 1,), keepdims=True)


# ------------------------------------------------------------------------- biases, requantizing


def _integer_bias(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """dequantize(sums) + dequantize(b)   =>   dequantize(sums + b), for equal scales"""
    if call.op != "add":
        return None
    for one, other in (call.args, call.args[::-1]):
        sums, bias = _dequantized(graph, one), _dequantized(graph, other)
        if sums is None or bias is None or one.type != out.type:
            continue
        if not sums.q.type.dtype == bias.q.type.dtype == SUMS or bias.zero.any() or sums.zero.any():
            continue
        if not isinstance(bias.q, Constant) or not _same_scales(sums.scale, bias.scale):
            continue
        total = graph.emit("add", sums.q, bias.q)
        return _dequantize(graph, Quantized(total, sums.scale, sums.zero))
    return None


def _same_scales(a: Array, b: Array) -> bool:
    """Whether scales are equal up to the rounding of a float32 product of two scales."""
    if a.size == 1 or b.size == 1:
        return bool(np.allclose(a, b, rtol=1e-5, atol=0))
    shapes = [tuple(n for n in s.shape if n != 1) for s in (a, b)]
    return shapes[0] == shapes[1] and bool(
        np.allclose(a.reshape(-1), b.reshape(-1), rtol=1e-5, atol=0)
    )


def _requantized(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """quantize(clip(dequantize(sums) + b))   =>   clip'(requantize(sums + b'))

    Quantizing is monotonic, so integer bounds can be applied afterwards. A float bias is rounded to
    a multiple of the sums' unit, as in ONNX's quantized layers.
    """
    match call:
        case Call("quantize", (y, Constant(scale), Constant(zero))):
            if scale.size != 1 or zero.size != 1 or out.type.dtype not in EIGHT_BITS:
                return None
            y, low, high = _unclipped(graph, y)
            y, bias = _unbiased(graph, y)
            x = _dequantized(graph, y)
            if x is None or x.q.type.dtype != SUMS or x.zero.any():
                return None
            sums = x.q
            if bias is not None:
                whole = np.rint(bias.astype(np.float64) / x.scale)
                if not np.abs(whole).max(initial=0) < 2**31:
                    return None
                sums = graph.emit("add", sums, Constant(whole.astype(SUMS)))
                if not same_shape(sums.type.shape, x.q.type.shape):
                    return None
            multiplier = (x.scale / scale.reshape(())).astype(np.float32)
            zero_point = zero.reshape(())
            q = graph.emit("requantize", sums, Constant(multiplier), Constant(zero_point))
            return _clipped(graph, q, *(_as_integer(b, scale, zero_point) for b in (low, high)))
    return None


def _unclipped(graph: Rewriting, y: Value) -> tuple[Value, float | None, float | None]:
    """(the argument of an activation, its lower bound, its upper bound)."""
    match graph.call(y, "relu", "clip"):
        case Call("relu", (x,)):
            return x, 0.0, None
        case Call("clip", (x,), attrs):
            low, high = attrs.get("min"), attrs.get("max")
            if low is None or high is None or low <= high:
                return x, low, high
    return y, None, None


def _unbiased(graph: Rewriting, y: Value) -> tuple[Value, Array | None]:
    """(the value that a constant is added to, the constant)."""
    added = graph.call(y, "add")
    if added is None:
        return y, None
    for x, other in (added.args, added.args[::-1]):
        if x.type != y.type:
            continue
        if isinstance(other, Constant):
            return x, other.value
        known = _dequantized(graph, other)
        if known is not None and isinstance(known.q, Constant):
            (real,) = evaluate("dequantize", (known.q.value, known.scale, known.zero), {})
            return x, real
    return y, None


def _as_integer(bound: float | None, scale: Array, zero: Array) -> int | None:
    if bound is None:
        return None
    (q,) = evaluate("quantize", (np.asarray(bound, np.float32), scale.reshape(()), zero), {})
    return int(q)


def _clipped(graph: Rewriting, q: Value, low: int | None, high: int | None) -> Value:
    """q clipped to bounds, without bounds that its dtype has anyway."""
    limits = np.iinfo(q.type.dtype)
    low = None if low == limits.min else low
    high = None if high == limits.max else high
    if low is None and high is None:
        return q
    return graph.emit("clip", q, min=low, max=high)


RULES: tuple[Rule, ...] = (
    UNSIGNED.read,
    UNSIGNED.made,
    UNSIGNED.moved,
    _signed_layer,
    _rows_along_k,
    _there_and_back,
    _moved_before,
    _concat_before,
    _summed,
    _integer_layer,
    _integer_bias,
    _requantized,
    short_floats,
    _moved_behind,
)
