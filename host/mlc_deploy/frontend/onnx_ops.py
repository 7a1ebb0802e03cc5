"""Converters of ONNX operators: a table from names to functions of an OnnxNode.

Elementwise operators, reductions and shapes stand here; networks' layers in onnx_layers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.nodes import Constant, Value
from ..ops.shape import normal_axis
from .onnx_control import CONTROL
from .onnx_file import dtype_name
from .onnx_index import INDEXING
from .onnx_layers import LAYERS
from .onnx_node import Converter, OnnxNode, limited, static_shape
from .onnx_quantize import QUANTIZED
from .onnx_recurrent import RECURRENT
from .onnx_sampling import SAMPLING
from .onnx_sequence import SEQUENCES
from .onnx_signal import SIGNAL

# ONNX's name -> ours, and ONNX's attributes with their defaults.
UNARY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Abs": ("abs", {}),
    "Acos": ("acos", {}),
    "Acosh": ("acosh", {}),
    "Asin": ("asin", {}),
    "Asinh": ("asinh", {}),
    "Atan": ("atan", {}),
    "Atanh": ("atanh", {}),
    "BitwiseNot": ("bitwise_not", {}),
    "Ceil": ("ceil", {}),
    "Cos": ("cos", {}),
    "Cosh": ("cosh", {}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Erf": ("erf", {}),
    "Exp": ("exp", {}),
    "Floor": ("floor", {}),
    "Gelu": ("gelu", {"approximate": "none"}),
    "IsNaN": ("isnan", {}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Log": ("log", {}),
    "Neg": ("negative", {}),
    "Not": ("logical_not", {}),
    "Reciprocal": ("reciprocal", {}),
    "Relu": ("relu", {}),
    "Round": ("round", {}),
    "Selu": ("selu", {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
    "Sigmoid": ("sigmoid", {}),
    "Shrink": ("shrink", {"lambd": 0.5, "bias": 0.0}),
    "Sign": ("sign", {}),
    "Sin": ("sin", {}),
    "Sinh": ("sinh", {}),
    "Softplus": ("softplus", {}),
    "Softsign": ("softsign", {}),
    "Sqrt": ("sqrt", {}),
    "Tan": ("tan", {}),
    "Tanh": ("tanh", {}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
}
BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(n: OnnxNode) -> Any:
    op, attributes = UNARY[n.op]
    return n.emit(op, n.input(0), **{key: n.attr(key, d) for key, d in attributes.items()})


def _binary(n: OnnxNode) -> Any:
    """Before opset 7 the second input's dimensions begin at the first one's `axis`."""
    a, b = n.input(0), n.input(1)
    if n.opset < 7 and n.attr("axis", None) is not None:
        b = _from_axis(n, b, n.attr("axis"))
    return n.emit(BINARY[n.op], a, b)


def _from_axis(n: OnnxNode, value: Value, axis: int) -> Value:
    rank, own = len(n.shape()), static_shape(value)
    after = rank - normal_axis(n.op, axis, rank) - len(own)
    result: Value = n.emit("reshape", value, shape=(*own, *(1,) * max(after, 0)))
    return result


def _variadic(n: OnnxNode) -> Any:
    total = n.input(0)
    for number in range(1, len(n.inputs)):
        total = n.emit(VARIADIC[n.op], total, n.input(number))
    return total


def _mean(n: OnnxNode) -> Any:
    total = n.input(0)
    for number in range(1, len(n.inputs)):
        total = n.emit("add", total, n.input(number))
    return n.emit("multiply", total, n.constant(1 / len(n.inputs), total.type.dtype))


def _pow(n: OnnxNode) -> Any:
    """The base's dtype is the result's; integers with powers of floats go by way of float32."""
    base, exponent = n.input(0), n.input(1)
    dtype = base.type.dtype
    if isinstance(exponent, Constant) and exponent.value.size == 1 and not static_shape(exponent):
        match float(exponent.value):
            case 2.0:
                return n.emit("multiply", base, base)
            case 0.5 if dtype.startswith("float"):
                return n.emit("sqrt", base)
    if not dtype.startswith("float") and not exponent.type.dtype.startswith("float"):
        return n.emit("integer_power", base, _cast_to(n, exponent, dtype))
    between = dtype if dtype.startswith("float") else "float32"
    power = n.emit("power", _cast_to(n, base, between), _cast_to(n, exponent, between))
    return _cast_to(n, power, dtype)


def _cast_to(n: OnnxNode, value: Value, dtype: str) -> Value:
    result: Value = value if value.type.dtype == dtype else n.emit("cast", value, dtype=dtype)
    return result


def _mod(n: OnnxNode) -> Any:
    return n.emit("mod", n.input(0), n.input(1), truncated=bool(n.attr("fmod", 0)))


def _is_inf(n: OnnxNode) -> Any:
    signs = {key: bool(n.attr(f"detect_{key}", 1)) for key in ("positive", "negative")}
    return n.emit("isinf", n.input(0), **signs)


def _bit_shift(n: OnnxNode) -> Any:
    return n.emit("shift", n.input(0), n.input(1), left=n.attr("direction") == "LEFT")


def _bit_cast(n: OnnxNode) -> Any:
    return n.emit("bitcast", n.input(0), dtype=dtype_name(n.attr("to"), "the result", n.place))


def _clip(n: OnnxNode) -> Any:
    """The bounds are attributes before opset 11, then inputs that may be computed."""
    x = n.input(0)
    bounds = {"min": n.attr("min", None), "max": n.attr("max", None)}
    for number, (key, op) in enumerate((("min", "maximum"), ("max", "minimum")), 1):
        bound = n.optional(number)
        if isinstance(bound, Constant):
            bounds[key] = bound.value.item()
        elif bound is not None:
            x = n.emit(op, x, bound)
    return n.emit("clip", x, **bounds)


def _prelu(n: OnnxNode) -> Any:
    x, slope = n.input(0), n.input(1)
    if n.opset < 7 and len(n.shape()) > 1 and n.shape(1) != (1,):
        slope = _from_axis(n, slope, 1)
    below = n.emit("less", x, n.constant(0, x.type.dtype))
    return n.emit("where", below, n.emit("multiply", x, slope), x)


def _where(n: OnnxNode) -> Any:
    return n.emit("where", n.input(0), n.input(1), n.input(2))


def _cast(n: OnnxNode) -> Any:
    to = n.input(1).type.dtype if n.op == "CastLike" else ""
    return _cast_to(n, n.input(0), to or dtype_name(n.attr("to"), "the result", n.place))


# ----------------------------------------------------------------------------------- reductions

REDUCTIONS = {
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
}


def _reduce(n: OnnxNode) -> Any:
    op, x = REDUCTIONS[n.op], n.input(0)
    axes = n.ints("axes", 1)
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            return x
        axes = list(range(len(x.type.shape)))
    if not x.type.shape:
        return x
    narrow = op in ("max", "min") and x.type.dtype == "bool"
    value = _cast_to(n, x, "uint8") if narrow else x
    result = n.emit(op, value, axes=axes, keepdims=bool(n.attr("keepdims", 1)))
    return _cast_to(n, result, x.type.dtype)


def _argmax(n: OnnxNode) -> Any:
    axis = normal_axis(n.op, n.attr("axis", 0), len(n.shape()))
    keepdims, last = bool(n.attr("keepdims", 1)), bool(n.attr("select_last_index", 0))
    return n.emit(n.op.lower(), n.input(0), axis=axis, keepdims=keepdims, last=last)


def _softmax(n: OnnxNode) -> Any:
    """Before opset 13, over all dimensions from axis (by default 1) on."""
    x, op = n.input(0), {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[n.op]
    shape = n.shape()
    axis = n.attr("axis", 1 if n.opset < 13 else -1)
    if n.opset >= 13 or axis % max(len(shape), 1) == len(shape) - 1:
        return n.emit(op, x, axis=normal_axis(n.op, axis, len(shape)))
    flat = n.emit("reshape", x, shape=_two_dimensional(n, axis))
    return n.emit("reshape", n.emit(op, flat, axis=1), shape=shape)


# --------------------------------------------------------------------------------------- shapes


def _two_dimensional(n: OnnxNode, axis: int) -> tuple[int, int]:
    shape = n.shape()
    if not -len(shape) <= axis <= len(shape):
        raise ValueError(f"axis {axis} of a tensor with {len(shape)} dimensions")
    front = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:front]), math.prod(shape[front:])


def _flatten(n: OnnxNode) -> Any:
    return n.emit("reshape", n.input(0), shape=_two_dimensional(n, n.attr("axis", 1)))


def _reshape(n: OnnxNode) -> Any:
    """0 copies the input's dimension (unless allowzero), -1 stands for what is left."""
    old = n.shape()
    shape = [int(v) for v in n.known(1, "shape").reshape(-1)]
    if not n.attr("allowzero", 0):
        if any(d == 0 and k >= len(old) for k, d in enumerate(shape)):
            raise ValueError(f"shape {shape} copies a dimension that {list(old)} has not")
        shape = [old[k] if d == 0 else d for k, d in enumerate(shape)]
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        if rest and math.prod(old) % rest:
            raise ValueError(f"{list(old)} has not as many elements as {shape}")
        shape[shape.index(-1)] = math.prod(old) // rest if rest else 0
    return n.emit("reshape", n.input(0), shape=shape)


def _transpose(n: OnnxNode) -> Any:
    rank = len(n.shape())
    return n.emit("transpose", n.input(0), axes=n.attr("perm", list(reversed(range(rank)))))


def _concat(n: OnnxNode) -> Any:
    values = [n.input(k) for k in range(len(n.inputs))]
    return n.emit("concatenate", *values, axis=n.attr("axis"))


def _squeeze(n: OnnxNode) -> Any:
    old = n.shape()
    axes = n.ints("axes", 1)
    if axes is None:
        axes = [axis for axis, extent in enumerate(old) if extent == 1]
    gone = {normal_axis(n.op, axis, len(old)) for axis in axes}
    if any(old[axis] != 1 for axis in gone):
        raise ValueError(f"axes {sorted(gone)} of {list(old)} are not all 1")
    shape = [extent for axis, extent in enumerate(old) if axis not in gone]
    return n.emit("reshape", n.input(0), shape=shape)


def _unsqueeze(n: OnnxNode) -> Any:
    axes = n.ints("axes", 1) or []
    shape = list(n.shape())
    rank = len(shape) + len(axes)
    for axis in sorted({normal_axis(n.op, axis, rank) for axis in axes}):
        shape.insert(axis, 1)
    if len(shape) != rank:
        raise ValueError(f"axes {axes} name a dimension twice")
    return n.emit("reshape", n.input(0), shape=shape)


def _split(n: OnnxNode) -> Any:
    x, shape = n.input(0), n.shape()
    axis = normal_axis(n.op, n.attr("axis", 0), len(shape))
    sizes = n.ints("split", 1)
    if sizes is None:
        parts = n.attr("num_outputs", len(n.outputs))
        share = -(-shape[axis] // parts)
        sizes = [share] * (parts - 1) + [shape[axis] - share * (parts - 1)]
    if sum(sizes) != shape[axis] or min(sizes) < 0:
        raise ValueError(
            f"the sizes {list(sizes)} do not add up to dimension {axis} of {list(shape)}"
        )
    begins = np.cumsum([0, *sizes])
    return [
        _part(n, x, {axis: (int(begin), 1, size)})
        for begin, size in zip(begins, sizes, strict=False)
    ]


def _part(n: OnnxNode, x: Value, along: Mapping[int, tuple[int, int, int]]) -> Any:
    """x cut along some axes: begin, step, extent."""
    every = [along.get(axis, (0, 1, extent)) for axis, extent in enumerate(static_shape(x))]
    begin, step, shape = (tuple(part) for part in zip(*every, strict=True))
    return n.emit("slice", x, begin=begin, step=step, shape=shape)


def _slice(n: OnnxNode) -> Any:
    x, shape = n.input(0), n.shape()
    starts, ends = n.ints("starts", 1) or [], n.ints("ends", 2) or []
    axes, steps = n.ints("axes", 3), n.ints("steps", 4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if 0 in steps:
        raise ValueError("a step is 0")
    along: dict[int, tuple[int, int, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = normal_axis(n.op, axis, len(shape))
        # Python's slices clamp as ONNX's do, but an end below 0 after clamping means "none".
        taken = range(shape[axis])[start:end:step]
        along[axis] = (taken.start if len(taken) else 0, step, len(taken))
    return _part(n, x, along)


def _expand(n: OnnxNode) -> Any:
    wanted = [int(d) for d in n.known(1, "shape").reshape(-1)]
    shape = np.broadcast_shapes(n.shape(), tuple(wanted))
    if shape == n.shape():
        return n.input(0)
    return n.emit("broadcast_to", n.input(0), shape=shape)


def _tile(n: OnnxNode) -> Any:
    return n.emit("tile", n.input(0), reps=n.ints("repeats", 1))


def _gather(n: OnnxNode) -> Any:
    axis = normal_axis(n.op, n.attr("axis", 0), len(n.shape()))
    return n.emit("gather", n.input(0), n.input(1), axis=axis)


def _pad(n: OnnxNode) -> Any:
    x, rank = n.input(0), len(n.shape())
    pads, axes = n.ints("pads", 1) or [], n.ints("axes", 3)
    value = n.optional(2)
    if axes is not None:
        half = len(pads) // 2
        every = [0] * (2 * rank)
        for axis, before, after in zip(axes, pads[:half], pads[half:], strict=True):
            axis = normal_axis(n.op, axis, rank)
            every[axis], every[rank + axis] = before, after
        pads = every
    mode = n.attr("mode", "constant")
    if mode == "constant" and value is not None and not isinstance(value, Constant):
        return n.emit("pad_with", x, n.emit("reshape", value, shape=()), pads=pads)
    fill = n.attr("value", 0.0) if value is None else n.known(2, "value").item()
    return n.emit("pad", x, pads=pads, mode=mode, value=fill)


def _depth_to_space(n: OnnxNode) -> Any:
    batch, channels, height, width = n.shape()
    b = n.attr("blocksize")
    depth = channels // (b * b)
    first = n.attr("mode", "DCR") == "DCR"
    split = (batch, b, b, depth, height, width) if first else (batch, depth, b, b, height, width)
    axes = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
    x = n.emit("transpose", n.emit("reshape", n.input(0), shape=split), axes=axes)
    return n.emit("reshape", x, shape=(batch, depth, height * b, width * b))


def _space_to_depth(n: OnnxNode) -> Any:
    batch, channels, height, width = n.shape()
    b = n.attr("blocksize")
    split = (batch, channels, height // b, b, width // b, b)
    axes = (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = n.emit("transpose", n.emit("reshape", n.input(0), shape=split), axes=axes)
    return n.emit("reshape", x, shape=(batch, channels * b * b, height // b, width // b))


# ------------------------------------------------------------------------------------ constants


def _shape(n: OnnxNode) -> Any:
    shape = n.shape()
    begin, end = n.attr("start", 0), n.attr("end", None)
    return n.constant(shape[begin:end], "int64")


def _size(n: OnnxNode) -> Any:
    return n.constant(math.prod(n.shape()), "int64")


def _constant(n: OnnxNode) -> Any:
    for key, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        if (value := n.attr(key, None)) is not None:
            return n.constant(value, dtype)
    return Constant(n.attr("value"), n.outputs[0])


def _constant_of_shape(n: OnnxNode) -> Any:
    shape = n.known(0, "shape").reshape(-1).tolist()
    value = n.attr("value", np.zeros(1, np.float32))
    return n.emit("broadcast_to", Constant(value.reshape(())), shape=shape)


def _non_zero(n: OnnxNode) -> Any:
    """Its output's shape depends on the data."""
    places = np.nonzero(np.atleast_1d(n.known(0, "the number of elements that are not 0")))
    return n.constant(np.array(places), "int64")


def _range(n: OnnxNode) -> Any:
    start, limit, delta = (n.known(k, "range") for k in range(3))
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    numbers = np.arange(limited(count, "a range"))
    return n.constant(start + numbers * delta, str(start.dtype))


def _identity(n: OnnxNode) -> Any:
    return n.input(0)


def _dropout(n: OnnxNode) -> Any:
    """Nothing is dropped when a model runs; the mask says so."""
    training = n.opset >= 12 and n.optional(2) is not None and n.fixed(2, "training_mode").item()
    if training:
        raise ImporterError("it is in training mode, which is not supported", where=n.place)
    if len(n.outputs) == 1:
        return n.input(0)
    return [n.input(0), n.constant(np.ones(n.shape(), bool), "bool")]


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(VARIADIC, _variadic),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **CONTROL,
    **INDEXING,
    **LAYERS,
    **QUANTIZED,
    **RECURRENT,
    **SAMPLING,
    **SEQUENCES,
    **SIGNAL,
    "ArgMax": _argmax,
    "ArgMin": _argmax,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _identity,
    "IsInf": _is_inf,
    "LogSoftmax": _softmax,
    "Mean": _mean,
    "Mod": _mod,
    "NonZero": _non_zero,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _pow,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Softmax": _softmax,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
