"""Converters of operators on elements, of reductions and of places along an axis."""

from __future__ import annotations

from typing import Any

from ...graph.nodes import Value
from ...ops.shape import normal_axis
from ..layers.norms import lp_norm
from ..layers.shapes import top_k
from ..node import shape_of
from .file import DTYPES
from .layers import activated
from .node import Converter, TfliteNode
from .quantized import QUANTIZED

UNARY = {
    "ABS": "abs", "CEIL": "ceil", "COS": "cos", "EXP": "exp", "FLOOR": "floor", "LOG": "log",
    "LOGICAL_NOT": "logical_not", "LOGISTIC": "sigmoid", "NEG": "negative", "RELU": "relu",
    "ROUND": "round", "SIGN": "sign", "SIN": "sin", "SQRT": "sqrt", "TANH": "tanh",
}  # fmt: skip
BINARY = {
    "ADD": "add", "DIV": "divide", "EQUAL": "equal", "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal", "LESS": "less", "LESS_EQUAL": "less_equal",
    "LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or", "MAXIMUM": "maximum",
    "MINIMUM": "minimum", "MUL": "multiply", "POW": "power", "SUB": "subtract",
}  # fmt: skip
CLIPS = {"RELU6": (0, 6), "RELU_0_TO_1": (0, 1), "RELU_N1_TO_1": (-1, 1)}
REDUCTIONS = {
    "MEAN": "mean", "REDUCE_MAX": "max", "REDUCE_MIN": "min", "REDUCE_PROD": "prod", "SUM": "sum",
}  # fmt: skip
ACTIVATED = ("ADD", "DIV", "MUL", "SUB")
COMPARED = ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL")


def _float(n: TfliteNode) -> Value:
    """The first input. Raises ImporterError for a quantized operator."""
    _plain(n)
    return n.input(0)


def _plain(n: TfliteNode) -> None:
    if any(t is not None and t.quantization and t.kind in ("INT8", "UINT8") for t in n.given):
        raise n.refuse("it is not supported, quantized")


def _unary(n: TfliteNode) -> Any:
    return n.emit(UNARY[n.op], _float(n))


def _binary(n: TfliteNode) -> Any:
    if n.op not in COMPARED:
        _plain(n)
    else:
        _same_kind(n)
    a, b = n.input(0), n.input(1)
    if n.op == "NOT_EQUAL":
        return n.emit("logical_not", n.emit("equal", a, b))
    y = n.emit(BINARY[n.op], a, b)
    return activated(n, y) if n.op in ACTIVATED else y


def _same_kind(n: TfliteNode) -> None:
    """Refuses quantized inputs that differ in scale or zero point: only equal ones can be compared
    as stored."""
    quantized = [t for t in n.given if t is not None and t.quantization and t.kind != "INT32"]
    if quantized and n.affine(0) != n.affine(1):
        raise n.refuse("its inputs are quantized differently, which is not supported")


def _clipped(n: TfliteNode) -> Any:
    low, high = CLIPS[n.op]
    return n.emit("clip", _float(n), min=low, max=high)


def _gelu(n: TfliteNode) -> Any:
    kind = "tanh" if n.option("Approximate", False) else "none"
    return n.emit("gelu", _float(n), approximate=kind)


def _prelu(n: TfliteNode) -> Any:
    x, slope = _float(n), n.input(1)
    zero = n.constant(0, x.type.dtype)
    below = n.emit("multiply", x, slope)
    return n.emit("where", n.emit("greater_equal", x, zero), x, below)


def _softmax(n: TfliteNode) -> Any:
    x = _float(n)
    beta = n.option("Beta", 1.0)
    if beta != 1.0:
        x = n.emit("multiply", x, n.constant(beta, x.type.dtype))
    return n.emit("softmax", x, axis=len(shape_of(x)) - 1)


def _square(n: TfliteNode) -> Any:
    x = _float(n)
    return n.emit("multiply", x, x)


def _squared_difference(n: TfliteNode) -> Any:
    _plain(n)
    difference = n.emit("subtract", n.input(0), n.input(1))
    return n.emit("multiply", difference, difference)


def _floor_div(n: TfliteNode) -> Any:
    _plain(n)
    a, b = n.input(0), n.input(1)
    if a.type.dtype.startswith("float"):
        return n.emit("floor", n.emit("divide", a, b))
    rest, zero = n.emit("mod", a, b, truncated=True), n.constant(0, a.type.dtype)
    turned = n.emit("logical_xor", n.emit("less", rest, zero), n.emit("less", b, zero))
    inexact = n.emit("logical_not", n.emit("equal", rest, zero))
    below = n.cast(n.emit("logical_and", inexact, turned), a.type.dtype)
    return n.emit("subtract", n.emit("divide", a, b), below)


def _floor_mod(n: TfliteNode) -> Any:
    _plain(n)
    return n.emit("mod", n.input(0), n.input(1), truncated=False)


def _select(n: TfliteNode) -> Any:
    if any(t is not None and t.quantization and t.kind != "INT32" for t in n.given[1:]):
        out = n.affine_out()
        if any(n.affine(k) != out for k in (1, 2)):
            raise n.refuse("its inputs are quantized differently, which is not supported")
    condition, a, b = n.every()
    own, rank = shape_of(condition), len(shape_of(a))
    if n.op == "SELECT" and len(own) == 1 and rank > 1:  # a flag per row
        condition = n.emit("reshape", condition, shape=(*own, *(1,) * (rank - 1)))
    return n.emit("where", condition, a, b)


def _cast(n: TfliteNode) -> Any:
    _plain(n)
    kind = n.made[0].kind
    if kind not in DTYPES:
        raise ValueError(f"tensors of type {kind} are not supported")
    return n.cast(n.input(0), DTYPES[kind])


def _reduce(n: TfliteNode) -> Any:
    x, axes = _float(n), n.axes(1)
    keep = bool(n.option("KeepDims", False))
    if not axes:
        return x
    if n.op in ("REDUCE_ANY", "REDUCE_ALL"):
        op = "max" if n.op == "REDUCE_ANY" else "min"
        return n.cast(n.emit(op, n.cast(x, "uint8"), axes=axes, keepdims=keep), "bool")
    return n.emit(REDUCTIONS[n.op], x, axes=axes, keepdims=keep)


def _place(n: TfliteNode) -> Any:
    """The place of the largest or smallest element along an axis, the first of equal ones."""
    axis = normal_axis(n.op, n.whole(1, "axis"), len(n.shape()))
    op = "argmax" if n.op == "ARG_MAX" else "argmin"
    return n.cast(n.emit(op, n.input(0), axis=axis, keepdims=False, last=False), n.made[0].dtype)


def _top_k(n: TfliteNode) -> Any:
    values, places = top_k(n, n.input(0), n.whole(1, "k"), len(n.shape()) - 1, True)
    return [values, n.cast(places, n.made[1].dtype if len(n.made) > 1 else "int32")]


def _cumulative(n: TfliteNode) -> Any:
    axis = normal_axis(n.op, n.whole(1, "axis"), len(n.shape()))
    flags = {
        "exclusive": bool(n.option("Exclusive", False)),
        "reverse": bool(n.option("Reverse", False)),
    }
    return n.emit("cumulative", _float(n), axis=axis, product=False, **flags)


def _l2_normalization(n: TfliteNode) -> Any:
    """x / max(|x|, 1e-6), along the last axis."""
    x, last = _float(n), len(n.shape()) - 1
    size = lp_norm(n, x, 2, lambda y: n.emit("sum", y, axes=[last], keepdims=True))
    return n.emit("divide", x, n.emit("maximum", size, n.constant(1e-6, x.type.dtype)))


def _local_response(n: TfliteNode) -> Any:
    """x / (bias + alpha * sum of squares of the neighbours along the channels) ^ beta."""
    x = _float(n)
    radius, last = n.option("Radius"), len(n.shape()) - 1
    if not 0 <= radius < 1 << 16:
        raise ValueError(f"the radius is {radius}")
    size = 2 * radius + 1
    first = n.emit("transpose", x, axes=(0, last, *range(1, last)))
    y = n.emit(
        "lrn", first, size=size, alpha=n.option("Alpha") * size, beta=n.option("Beta"),
        bias=n.option("Bias"),
    )  # fmt: skip
    return n.emit("transpose", y, axes=(0, *range(2, last + 1), 1))


def _by_kind(name: str, plain: Converter) -> Converter:
    """The converter `plain`, or that of QUANTIZED if the output is quantized."""
    stored = QUANTIZED[name]
    return lambda n: stored(n) if n.is_quantized() else plain(n)


_PLAIN: dict[str, Converter] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(CLIPS, _clipped),
    **dict.fromkeys((*REDUCTIONS, "REDUCE_ALL", "REDUCE_ANY"), _reduce),
    "ARG_MAX": _place, "ARG_MIN": _place, "CAST": _cast, "CUMSUM": _cumulative,
    "FLOOR_DIV": _floor_div, "FLOOR_MOD": _floor_mod, "GELU": _gelu,
    "L2_NORMALIZATION": _l2_normalization, "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "NOT_EQUAL": _binary, "PRELU": _prelu, "SELECT": _select, "SELECT_V2": _select,
    "SOFTMAX": _softmax, "SQUARE": _square, "SQUARED_DIFFERENCE": _squared_difference,
    "TOPK_V2": _top_k,
    "ELU": lambda n: n.emit("elu", _float(n), alpha=1.0),
    "HARD_SWISH": lambda n: n.emit("hard_swish", _float(n)),
    "LEAKY_RELU": lambda n: n.emit("leaky_relu", _float(n), alpha=n.option("Alpha")),
    "LOG_SOFTMAX": lambda n: n.emit("log_softmax", _float(n), axis=len(n.shape()) - 1),
    "RSQRT": lambda n: n.emit("reciprocal", n.emit("sqrt", _float(n))),
}  # fmt: skip
ELEMENTWISE: dict[str, Converter] = {
    name: _by_kind(name, plain) if name in QUANTIZED else plain for name, plain in _PLAIN.items()
}
