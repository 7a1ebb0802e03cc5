"""Converters of ATen's operators: arithmetic and reductions; and the table of all.

A converter takes its arguments in the order of the operator's schema. torch decomposes operators
that are not in the table, so an operator needs no converter if torch can express it by others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..graph.nodes import Value
from ..ops.shape import normal_axis
from .layers.norms import lp_norm, squared_deviations
from .layers.products import scaled
from .layers.shapes import reshape, top_k, without
from .node import shape_of
from .torch_layers import LAYERS
from .torch_node import Converter, TorchNode, axes_of
from .torch_quantized import QUANTIZED
from .torch_recurrent import RECURRENT
from .torch_shapes import SHAPES

# ATen's name -> ours.
UNARY = {
    **{
        name: name
        for name in (
            "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf",
            "exp", "floor", "log", "logical_not", "mish", "reciprocal", "relu", "round", "sigmoid",
            "sign", "silu", "sin", "sinh", "sqrt", "tan", "tanh",
        )
    },
    "hardswish": "hard_swish",
    "neg": "negative",
}  # fmt: skip
BINARY = {
    "add": "add", "maximum": "maximum", "minimum": "minimum", "mul": "multiply", "sub": "subtract",
}  # fmt: skip
LOGICAL = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
OF_BOOL = {"add": "logical_or", "multiply": "logical_and"}
PI = math.pi
COMPARISONS = {
    "eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less",
    "ne": "equal",
}  # fmt: skip


# ---------------------------------------------------------------------------------- elementwise


def _unary(n: TorchNode, x: Any) -> Any:
    if n.aten == "logical_not":
        return n.emit("logical_not", n.tensor(x, "bool"))
    return n.emit(UNARY[n.aten], n.tensor(x, n.dtype))


def _binary(n: TorchNode, a: Any, b: Any, alpha: Any = 1) -> Any:
    op, dtype = BINARY[n.aten], n.dtype
    if dtype == "bool":
        return n.emit(OF_BOOL[op], n.tensor(a, dtype), n.tensor(b, dtype))
    return n.emit(op, n.tensor(a, dtype), scaled(n, n.tensor(b, dtype), alpha))


def _logical(n: TorchNode, a: Any, b: Any) -> Any:
    """Bitwise operators on bools are logical ones."""
    kind, _, name = n.aten.partition("_")
    op = LOGICAL[name] if kind == "logical" or n.dtype == "bool" else n.aten
    return n.emit(op, n.tensor(a, n.dtype), n.tensor(b, n.dtype))


def _comparison(n: TorchNode, a: Any, b: Any) -> Any:
    dtype = n.common_dtype()
    if dtype == "bool":
        dtype = "uint8"
    result = n.emit(COMPARISONS[n.aten], n.tensor(a, dtype), n.tensor(b, dtype))
    return n.emit("logical_not", result) if n.aten == "ne" else result


def _div(n: TorchNode, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    dtype = n.dtype
    x, y = n.tensor(a, dtype), n.tensor(b, dtype)
    if rounding_mode == "floor":
        return _floor_divide(n, x, y)
    quotient = n.emit("divide", x, y)
    if rounding_mode == "trunc" and dtype.startswith("float"):
        return _trunc(n, quotient)
    return quotient


def _floor_divide(n: TorchNode, a: Any, b: Any) -> Any:
    """Our integer division rounds towards zero, so the remainder is subtracted first."""
    x, y = n.tensor(a, n.dtype), n.tensor(b, n.dtype)
    if n.dtype.startswith("float"):
        return n.emit("floor", n.emit("divide", x, y))
    rest = n.emit("mod", x, y, truncated=False)
    return n.emit("divide", n.emit("subtract", x, rest), y)


def _remainder(n: TorchNode, a: Any, b: Any) -> Any:
    x, y = n.tensor(a, n.dtype), n.tensor(b, n.dtype)
    return n.emit("mod", x, y, truncated=n.aten == "fmod")


def _pow(n: TorchNode, base: Any, exponent: Any) -> Any:
    """Squares and cubes are products. Integers are computed in float64."""
    dtype = n.dtype
    x = n.tensor(base, dtype)
    match exponent:
        case 0.5 if dtype.startswith("float"):
            return n.emit("sqrt", x)
        case -1 if dtype.startswith("float"):
            return n.emit("reciprocal", x)
        case 2 | 3:
            square = n.emit("multiply", x, x)
            return square if exponent == 2 else n.emit("multiply", square, x)
    between = dtype if dtype.startswith("float") else "float64"
    return n.tensor(n.emit("power", n.tensor(base, between), n.tensor(exponent, between)), dtype)


def _rsqrt(n: TorchNode, x: Any) -> Any:
    return n.emit("reciprocal", n.emit("sqrt", n.tensor(x, n.dtype)))


def _log_to_base(n: TorchNode, x: Any) -> Any:
    base = {"log2": 2, "log10": 10}[n.aten]
    return scaled(n, n.emit("log", n.tensor(x, n.dtype)), 1 / math.log(base))


def _log1p(n: TorchNode, x: Any) -> Any:
    """log(1 + x) = log(u) * x / (u - 1): u = 1 + x alone loses the digits of a small x."""
    x, one = n.tensor(x, n.dtype), n.constant(1, n.dtype)
    u = n.emit("add", x, one)
    ratio = n.emit("divide", x, n.emit("subtract", u, one))
    return n.emit("where", n.emit("equal", u, one), x, n.emit("multiply", n.emit("log", u), ratio))


def _expm1(n: TorchNode, x: Any) -> Any:
    """e^x - 1 = tanh(x / 2) * (e^x + 1). This keeps the digits of a small x."""
    x = n.tensor(x, n.dtype)
    half = n.emit("tanh", scaled(n, x, 0.5))
    return n.emit("multiply", half, n.emit("add", n.emit("exp", x), n.constant(1, n.dtype)))


def _trunc(n: TorchNode, x: Any) -> Any:
    if not n.dtype.startswith("float"):
        return x
    below = n.emit("less", x, n.constant(0, n.dtype))
    return n.emit("where", below, n.emit("ceil", x), n.emit("floor", x))


def _of_float(n: TorchNode, x: Any) -> Any:
    """isnan and isinf take integers, too."""
    attrs = {"positive": True, "negative": True} if n.aten == "isinf" else {}
    return n.emit(
        n.aten, x if x.type.dtype.startswith("float") else n.tensor(x, "float32"), **attrs
    )


def _erfc(n: TorchNode, x: Any) -> Any:
    x = n.tensor(x, n.dtype)
    return n.emit("subtract", n.constant(1, n.dtype), n.emit("erf", x))


def _atan2(n: TorchNode, y: Any, x: Any) -> Any:
    """The angle of (x, y): atan(y / x), plus half a turn with y's sign where x < 0."""
    zero = n.constant(0, n.dtype)
    y, x = n.tensor(y, n.dtype), n.tensor(x, n.dtype)
    nowhere = n.emit("logical_and", n.emit("equal", x, zero), n.emit("equal", y, zero))
    slope = n.emit("where", nowhere, zero, n.emit("divide", y, x))
    half = n.emit("where", n.emit("less", y, zero), *(n.constant(a, n.dtype) for a in (-PI, PI)))
    turn = n.emit("where", n.emit("less", x, zero), half, zero)
    return n.emit("add", n.emit("atan", slope), turn)


def _clamp(n: TorchNode, x: Any, low: Any = None, high: Any = None) -> Any:
    y = n.tensor(x, n.dtype)
    numbers = {"min": low, "max": high}
    for key, op in (("min", "maximum"), ("max", "minimum")):
        if isinstance(numbers[key], Value):
            y = n.emit(op, y, n.tensor(numbers.pop(key), n.dtype))
    numbers = {key: value for key, value in numbers.items() if value is not None}
    return n.emit("clip", y, **numbers) if numbers else y


def _elu(n: TorchNode, x: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
    """scale * (x, or alpha * (e^(input_scale * x) - 1) below zero)."""
    below = n.emit("elu", scaled(n, x, input_scale), alpha=float(alpha))
    if scale == input_scale == 1:
        return below
    chosen = n.emit("where", n.emit("greater", x, n.constant(0, n.dtype)), x, below)
    return scaled(n, chosen, scale)


def _softplus(n: TorchNode, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """log(1 + e^(beta * x)) / beta. torch approximates it by x beyond the threshold; here it is
    exact."""
    return scaled(n, n.emit("softplus", scaled(n, x, beta)), 1 / beta)


def _where(n: TorchNode, test: Any, a: Any, b: Any) -> Any:
    return n.emit("where", n.tensor(test, "bool"), n.tensor(a, n.dtype), n.tensor(b, n.dtype))


def _cast(n: TorchNode, x: Any, *_: Any) -> Any:
    return n.tensor(x, n.dtype)


def _same(n: TorchNode, x: Any, *_: Any) -> Any:
    return x


# ----------------------------------------------------------------------------------- reductions

REDUCTIONS = {"amax": "max", "amin": "min", "mean": "mean", "prod": "prod", "sum": "sum"}


def _reduced(n: TorchNode, op: str, x: Value, dims: Any, keepdim: bool) -> Any:
    axes = axes_of(x, dims)
    return n.emit(op, x, axes=axes, keepdims=bool(keepdim)) if axes else x


def _reduce(n: TorchNode, x: Any, dims: Any = None, keepdim: Any = False, *_: Any) -> Any:
    """The default overload has no dims and reduces all axes: its second argument is the dtype."""
    if n.overload == "default" and n.aten not in ("amax", "amin"):
        dims, keepdim = None, False
    return _reduced(n, REDUCTIONS[n.aten], n.tensor(x, n.dtype), dims, keepdim)


def _any_all(n: TorchNode, x: Any, dims: Any = None, keepdim: Any = False) -> Any:
    bits = n.tensor(n.tensor(x, "bool"), "uint8")
    op = {"any": "max", "all": "min"}[n.aten]
    return n.tensor(_reduced(n, op, bits, dims, keepdim), n.dtype)


def _extremum(n: TorchNode, x: Any, dim: Any = None, keepdim: Any = False) -> Any:
    """The extremum of all elements; along a dimension, the extrema and their places; of two
    tensors, elementwise."""
    op = n.aten
    if n.overload == "other":
        both = n.tensor(x, n.dtype), n.tensor(dim, n.dtype)
        if n.dtype == "bool":
            return n.emit({"max": "logical_or", "min": "logical_and"}[op], *both)
        return n.emit({"max": "maximum", "min": "minimum"}[op], *both)
    if dim is None:
        return _reduced(n, op, x, None, False)
    return [_reduced(n, op, x, dim, keepdim), _place(n, f"arg{op}", x, dim, keepdim)]


def _argmax(n: TorchNode, x: Any, dim: Any = None, keepdim: Any = False) -> Any:
    return _place(n, n.aten, x, dim, keepdim)


def _place(n: TorchNode, op: str, x: Value, dim: int | None, keepdim: bool) -> Any:
    shape = shape_of(x)
    if dim is None or not shape:
        flat = reshape(n, x, (math.prod(shape),))
        place = n.emit(op, flat, axis=0, keepdims=False, last=False)
        return reshape(n, place, (1,) * len(shape)) if keepdim else place
    axis = normal_axis(op, dim, len(shape))
    return n.emit(op, x, axis=axis, keepdims=bool(keepdim), last=False)


def _var(n: TorchNode, x: Any, dims: Any = None, correction: Any = 1, keepdim: Any = False) -> Any:
    """The mean of squares around the mean, over count - correction."""
    axes = axes_of(x, dims)
    count = math.prod(shape_of(x)[axis] for axis in axes)
    _, squares = squared_deviations(n, x, axes)
    total = n.emit("sum", squares, axes=axes, keepdims=bool(keepdim))
    divisor = max(count - (1 if correction is None else correction), 0)
    return n.emit("divide", total, n.constant(divisor, n.dtype))


def _var_mean(
    n: TorchNode, x: Any, dims: Any = None, correction: Any = 1, keepdim: Any = False
) -> Any:
    return [_var(n, x, dims, correction, keepdim), _reduced(n, "mean", x, dims, keepdim)]


def _cumulative(n: TorchNode, x: Any, dim: int, *_: Any) -> Any:
    x = n.tensor(x, n.dtype)
    if not shape_of(x):
        return x
    product = n.aten == "cumprod"
    return n.emit(
        "cumulative", x, axis=axes_of(x, dim)[0], product=product, exclusive=False, reverse=False
    )


def _topk(
    n: TorchNode, x: Any, k: int, dim: int = -1, largest: bool = True, in_order: bool = True
) -> Any:
    (axis,) = axes_of(x, dim)
    return top_k(n, x, int(k), axis, bool(largest))


def _sort(n: TorchNode, x: Any, *rest: Any) -> Any:
    """The overload "stable" has a flag as its first argument; sorting is always stable here."""
    dim, descending = (rest if n.overload != "stable" else rest[1:]) or (-1, False)
    return _topk(n, x, shape_of(x)[axes_of(x, dim)[0]], dim, descending)


def _logsumexp(n: TorchNode, x: Any, dims: Any, keepdim: Any = False) -> Any:
    axes = axes_of(x, dims)
    top = n.emit("max", x, axes=axes, keepdims=True)
    power = n.emit("exp", n.emit("subtract", x, top))
    total = n.emit("log", n.emit("sum", power, axes=axes, keepdims=True))
    result = n.emit("add", total, top)
    return result if keepdim else without(n, result, axes)


def _vector_norm(
    n: TorchNode, x: Any, order: Any = 2, dims: Any = None, keepdim: Any = False, *_: Any
) -> Any:
    x = n.tensor(x, n.dtype)
    if order == math.inf:
        return _reduced(n, "max", n.emit("abs", x), dims, keepdim)
    if order <= 0:
        raise n.refuse(f"a vector norm of order {order} is not supported")
    return lp_norm(n, x, order, lambda powers: _reduced(n, "sum", powers, dims, keepdim))


def _softmax(n: TorchNode, x: Any, dim: int, *_: Any) -> Any:
    op = "log_softmax" if "log" in n.op else "softmax"
    x = n.tensor(x, n.dtype)
    return n.emit(op, x, axis=normal_axis(op, dim, len(shape_of(x)))) if shape_of(x) else x


_ATEN: dict[str, Converter] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(
        (f"{kind}_{op}" for kind in ("bitwise", "logical") for op in LOGICAL), _logical
    ),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("any", "all"), _any_all),
    **dict.fromkeys(("cumprod", "cumsum"), _cumulative),
    **dict.fromkeys(("isinf", "isnan"), _of_float),
    **dict.fromkeys(("max", "min"), _extremum),
    **dict.fromkeys(("argmax", "argmin"), _argmax),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("log2", "log10"), _log_to_base),
    **dict.fromkeys(("fmod", "remainder"), _remainder),
    **dict.fromkeys(("clamp", "hardtanh"), _clamp),
    **dict.fromkeys(("alias", "clone", "contiguous", "lift_fresh_copy"), _same),
    **{
        converter.__name__.removeprefix("_"): converter
        for converter in (
            _atan2, _div, _elu, _erfc, _expm1, _floor_divide, _log1p, _logsumexp, _pow, _rsqrt,
            _softplus, _sort, _topk, _trunc, _var, _var_mean, _where,
        )
    },
    "bitwise_not": lambda n, x: n.emit("logical_not" if n.dtype == "bool" else "bitwise_not", x),
    "gelu": lambda n, x, approximate="none": n.emit("gelu", x, approximate=approximate),
    "hardsigmoid": lambda n, x: n.emit("hard_sigmoid", x, alpha=1 / 6, beta=0.5),
    "leaky_relu": lambda n, x, slope: n.emit("leaky_relu", x, alpha=float(slope)),
    "relu6": lambda n, x: n.emit("clip", x, min=0, max=6),
    "_to_copy": _cast,
    "linalg_vector_norm": _vector_norm,
    **LAYERS,
    **RECURRENT,
    **SHAPES,
}  # fmt: skip

CONVERTERS: Mapping[str, Converter] = {
    **{f"aten.{name}": converter for name, converter in _ATEN.items()},
    **QUANTIZED,
}
