"""Converters of elementwise operators and reductions, and a table of plain renamings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import same_shape
from ..ops.shape import normal_axis
from .layers.shapes import reshape
from .narrow import BY_CODE
from .node import shape_of
from .onnx_file import dtype_name
from .onnx_node import REQUIRED, Converter, OnnxNode

# ONNX's name -> our name, and the attributes with ONNX's defaults. All inputs go to our operator.
PLAIN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{
        name: (name.lower(), {})
        for name in (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf",
            "Exp", "Floor", "IsNaN", "Log", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
            "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Where",
        )
    },
    "BitwiseNot": ("bitwise_not", {}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Gelu": ("gelu", {"approximate": "none"}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "LRN": ("lrn", {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Neg": ("negative", {}),
    "Not": ("logical_not", {}),
    "Selu": ("selu", {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
    "Shrink": ("shrink", {"lambd": 0.5, "bias": 0.0}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "Less": "less", "LessOrEqual": "less_equal",
}  # fmt: skip
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}
REDUCTIONS = {f"Reduce{op.capitalize()}": op for op in ("max", "mean", "min", "prod", "sum")}

NORMS = [f"Reduce{op}" for op in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare")]


def _plain(n: OnnxNode) -> Any:
    op, attributes = PLAIN[n.op]
    return n.emit(op, *n.every(), **{key: n.attr(key, d) for key, d in attributes.items()})


def _binary(n: OnnxNode) -> Any:
    """Before opset 7 the second input's dimensions begin at the first one's `axis`."""
    a, b = n.input(0), n.input(1)
    if n.opset < 7 and n.attr("axis", None) is not None:
        b = _from_axis(n, b, n.axis())
    return n.emit(BINARY[n.op], a, b)


def _from_axis(n: OnnxNode, value: Value, axis: int) -> Value:
    own = shape_of(value)
    return reshape(n, value, (*own, *(1,) * (len(n.shape()) - axis - len(own))))


def _variadic(n: OnnxNode) -> Any:
    first, *others = n.every()
    total = first
    for value in others:
        total = n.emit(VARIADIC[n.op], total, value)
    if n.op == "Mean":
        total = n.emit("multiply", total, n.constant(1 / len(n.inputs), first.type.dtype))
    return total


def _pow(n: OnnxNode) -> Any:
    """The base's dtype is the result's; integers to powers of floats are computed in float32."""
    base, exponent = n.input(0), n.input(1)
    dtype = base.type.dtype
    if isinstance(exponent, Constant) and not shape_of(exponent):
        match float(exponent.value):
            case 2.0:
                return n.emit("multiply", base, base)
            case 3.0 if dtype.startswith("float"):
                return n.emit("multiply", n.emit("multiply", base, base), base)
            case 0.5 if dtype.startswith("float"):
                return n.emit("sqrt", base)
    if not dtype.startswith("float") and not exponent.type.dtype.startswith("float"):
        return n.emit("integer_power", base, n.cast(exponent, dtype))
    between = dtype if dtype.startswith("float") else "float32"
    return n.cast(n.emit("power", n.cast(base, between), n.cast(exponent, between)), dtype)


def _mod(n: OnnxNode) -> Any:
    return n.emit("mod", n.input(0), n.input(1), truncated=bool(n.attr("fmod", 0)))


def _is_inf(n: OnnxNode) -> Any:
    signs = {key: bool(n.attr(f"detect_{key}", 1)) for key in ("positive", "negative")}
    return n.emit("isinf", n.input(0), **signs)


def _bit_shift(n: OnnxNode) -> Any:
    return n.emit("shift", n.input(0), n.input(1), left=n.attr("direction") == "LEFT")


def _bit_cast(n: OnnxNode) -> Any:
    kind = n.kind(0)
    if kind is not None and kind.bits % 8:
        raise n.refuse(f"the bits of {kind.name} are not supported")
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
    if n.opset < 7 and len(n.shape()) > 1 and not same_shape(n.shape(1), (1,)):
        slope = _from_axis(n, slope, 1)
    below = n.emit("less", x, n.constant(0, x.type.dtype))
    return n.emit("where", below, n.emit("multiply", x, slope), x)


def _cast(n: OnnxNode) -> Any:
    like = n.op == "CastLike"
    kind = n.kind(1) if like else BY_CODE.get(n.attr("to"))
    if kind is not None:
        mode = n.attr("round_mode", "up")
        return n.written(n.real(0), kind, saturate=bool(n.attr("saturate", 1)), mode=mode)
    dtype = n.dtype(1) if like else dtype_name(n.attr("to"), "the result", n.place)
    return n.cast(n.real(0), dtype)


# ----------------------------------------------------------------------------------- reductions


def _reduce(n: OnnxNode) -> Any:
    op, x = REDUCTIONS[n.op], n.input(0)
    axes = n.ints("axes", 1)
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            return x
        axes = list(range(len(n.shape())))
    if not n.shape():
        return x
    narrow = op in ("max", "min") and n.dtype() == "bool"
    value = n.cast(x, "uint8") if narrow else x
    return n.cast(n.emit(op, value, axes=axes, keepdims=bool(n.attr("keepdims", 1))), n.dtype())


def _norm(n: OnnxNode) -> Any:
    """Sums of absolute values, squares or exponentials, and their roots or logarithms."""
    x, axes, dtype = n.input(0), n.ints("axes", 1), n.dtype()
    if not axes and not n.attr("noop_with_empty_axes", 0):
        axes = list(range(len(n.shape())))
    keepdims = bool(n.attr("keepdims", 1))

    def total(value: Value, op: str = "sum", keepdims: bool = keepdims) -> Value:
        return n.emit(op, value, axes=axes, keepdims=keepdims) if axes else value

    real = x if dtype.startswith("float") else n.cast(x, "float32")
    match n.op.removeprefix("Reduce"):
        case "L1":
            return total(n.emit("abs", x))
        case "SumSquare":
            return total(n.emit("multiply", x, x))
        case "L2":
            y = n.emit("sqrt", total(n.emit("multiply", real, real)))
        case "LogSum":
            y = n.emit("log", total(real))
        case _:  # LogSumExp: the largest exponential is 1, so that none overflows
            most = n.emit("clip", total(real, "max", True), **_finite(real.type.dtype))
            sums = n.emit("log", total(n.emit("exp", n.emit("subtract", real, most))))
            y = n.emit("add", sums, most if keepdims else total(most, "max"))
    return n.cast(y, dtype)


def _finite(dtype: str) -> dict[str, float]:
    return {"min": float(np.finfo(dtype).min), "max": float(np.finfo(dtype).max)}


def _argmax(n: OnnxNode) -> Any:
    keepdims, last = bool(n.attr("keepdims", 1)), bool(n.attr("select_last_index", 0))
    given = {"axis": n.axis(0), "keepdims": keepdims, "last": last, "skips_nan": True}
    return n.emit(n.op.lower(), n.input(0), **given)


def _softmax(n: OnnxNode) -> Any:
    """Before opset 13, sums over all dimensions from axis (by default 1) on."""
    x, op = n.input(0), {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[n.op]
    shape, axis = n.shape(), n.attr("axis", 1 if n.opset < 13 else -1)
    if n.opset >= 13 or axis % max(len(shape), 1) == len(shape) - 1:
        return n.emit(op, x, axis=normal_axis(n.op, axis, len(shape)))
    flat = reshape(n, x, n.two_dimensional(axis))
    return reshape(n, n.emit(op, flat, axis=1), shape)


ELEMENTWISE: dict[str, Converter] = {
    **dict.fromkeys(PLAIN, _plain),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(VARIADIC, _variadic),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(NORMS, _norm),
    "ArgMax": _argmax,
    "ArgMin": _argmax,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "IsInf": _is_inf,
    "LogSoftmax": _softmax,
    "Mod": _mod,
    "PRelu": _prelu,
    "Pow": _pow,
    "Softmax": _softmax,
}
