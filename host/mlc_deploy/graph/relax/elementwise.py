"""Relax's words on the elements of tensors: arithmetic, comparisons, choices, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import dtype_of
from ..nodes import Constant, Value
from .parts import (
    Emits,
    Made,
    Number,
    call,
    extents,
    fixed,
    number,
    operands,
    refused,
    shape_of,
    tensor,
)

# Words that are operators of this name: of one tensor, and of two.
ONE = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp floor isnan log"
    " logical_not negative round sigmoid sign sin sinh sqrt tan tanh"
).split()
TWO = (
    "add bitwise_and bitwise_or bitwise_xor divide equal greater greater_equal less less_equal"
    " logical_and logical_or logical_xor maximum minimum multiply subtract"
).split()


def unary(word: str, op: str) -> Any:
    def made(e: Emits, x: Any) -> Made:
        return call(op, tensor(word, x))

    return made


def binary(word: str, op: str) -> Any:
    def made(e: Emits, x1: Any, x2: Any) -> Made:
        return call(op, *operands(word, x1, x2))

    return made


def floor_divide(e: Emits, x1: Any, x2: Any) -> Made:
    """Our integer division rounds towards zero, so the remainder is subtracted first."""
    a, b = operands("floor_divide", x1, x2)
    if dtype_of(a.type.dtype).kind == "float":
        return call("floor", e.emit("divide", a, b))
    rest = e.emit("mod", a, b, truncated=False)
    return call("divide", e.emit("subtract", a, rest), b)


def power(e: Emits, x1: Any, x2: Any) -> Made:
    a, b = operands("power", x1, x2)
    op = "power" if dtype_of(a.type.dtype).kind == "float" else "integer_power"
    return call(op, a, b)


def not_equal(e: Emits, x1: Any, x2: Any) -> Made:
    return call("logical_not", e.emit("equal", *operands("not_equal", x1, x2)))


def left_shift(e: Emits, x1: Any, x2: Any) -> Made:
    return call("shift", *operands("left_shift", x1, x2), left=True)


def right_shift(e: Emits, x1: Any, x2: Any) -> Made:
    return call("shift", *operands("right_shift", x1, x2), left=False)


def rsqrt(e: Emits, x: Any) -> Made:
    return call("reciprocal", e.emit("sqrt", tensor("rsqrt", x)))


def square(e: Emits, x: Any) -> Made:
    x = tensor("square", x)
    return call("multiply", x, x)


def isinf(e: Emits, x: Any) -> Made:
    return call("isinf", tensor("isinf", x), positive=True, negative=True)


def isfinite(e: Emits, x: Any) -> Made:
    x = tensor("isfinite", x)
    infinite = e.emit("isinf", x, positive=True, negative=True)
    return call("logical_not", e.emit("logical_or", infinite, e.emit("isnan", x)))


def clip(e: Emits, x: Any, min: Any, max: Any) -> Made:
    x = tensor("clip", x)
    bounds = {}
    for name, bound in (("min", min), ("max", max)):
        if not isinstance(bound, Number):
            raise refused(f"R.clip: {name} is {bound}, not a number", "R.minimum and R.maximum")
        bounds[name] = bound
    return call("clip", x, **bounds)


def ewise_fma(e: Emits, x1: Any, x2: Any, x3: Any) -> Made:
    a, b, c = operands("ewise_fma", x1, x2, x3)
    return call("add", e.emit("multiply", a, b), c)


def where(e: Emits, condition: Any, x1: Any, x2: Any) -> Made:
    return call("where", tensor("where", condition), *operands("where", x1, x2))


def masked_fill(e: Emits, x: Any, mask: Any, value: Any) -> Made:
    x, filling = operands("masked_fill", x, value)
    return call("where", tensor("masked_fill", mask), filling, x)


def astype(e: Emits, x: Any, dtype: str) -> Made:
    return call("cast", tensor("astype", x), dtype=dtype_of(dtype).name)


def wrap_param(e: Emits, data: Any, dtype: str = "float32") -> Made:
    return call("cast", tensor("wrap_param", data), dtype=dtype_of(dtype).name)


def leakyrelu(e: Emits, data: Any, alpha: float = 0.01) -> Made:
    return call("leaky_relu", tensor("nn.leakyrelu", data), alpha=alpha)


def gelu_tanh(e: Emits, data: Any) -> Made:
    return call("gelu", tensor("nn.gelu_tanh", data), approximate="tanh")


def same(word: str) -> Any:
    """A word without effect on the numbers."""

    def made(e: Emits, x: Any, *rest: Any) -> Made:
        return call("copy", tensor(word, x))

    return made


# -------------------------------------------------------------------------------------- creation


def full(e: Emits, shape: Any, fill_value: Any, dtype: str | None = None) -> Made:
    filling: Value
    if isinstance(fill_value, Number):
        filling = number(fill_value, dtype)
    else:
        filling = tensor("full", fill_value)
        if dtype and filling.type.dtype != dtype:
            filling = e.emit("cast", filling, dtype=dtype)
    return call("broadcast_to", filling, shape=extents("full", shape))


def full_like(e: Emits, x: Any, fill_value: Any, dtype: str | None = None) -> Made:
    x = tensor("full_like", x)
    return full(e, shape_of(x), fill_value, dtype or x.type.dtype)


def zeros(e: Emits, shape: Any, dtype: str) -> Made:
    return full(e, shape, 0, dtype_of(dtype).name)


def ones(e: Emits, shape: Any, dtype: str) -> Made:
    return full(e, shape, 1, dtype_of(dtype).name)


def zeros_like(e: Emits, x: Any, dtype: str | None = None) -> Made:
    return full_like(e, x, 0, dtype)


def ones_like(e: Emits, x: Any, dtype: str | None = None) -> Made:
    return full_like(e, x, 1, dtype)


def _triangle(word: str, keep: Any) -> Any:
    def made(e: Emits, x: Any, k: int = 0) -> Made:
        x = tensor(word, x)
        if len(shape_of(x)) < 2 or not isinstance(k, int):
            raise refused(f"R.{word} takes a matrix and a number of diagonals, not {x.type}, {k}")
        sizes = fixed(word, shape_of(x)[-2:])
        return call("where", Constant(keep(sizes, k)), x, number(0, x.type.dtype))

    return made


def table() -> dict[str, Any]:
    return {
        **{op: unary(op, op) for op in ONE},
        **{op: binary(op, op) for op in TWO},
        **{f"nn.{op}": unary(f"nn.{op}", op) for op in ("relu", "silu", "gelu")},
        **{w: same(w) for w in ("stop_lift_params", "hint_on_device", "to_vdevice",
                                "memory.ensure_zero_offset", "grad.no_grad",
                                "grad.start_checkpoint", "grad.end_checkpoint")},
        "astype": astype,
        "clip": clip,
        "ewise_fma": ewise_fma,
        "floor_divide": floor_divide,
        "full": full,
        "full_like": full_like,
        "isfinite": isfinite,
        "isinf": isinf,
        "left_shift": left_shift,
        "masked_fill": masked_fill,
        "nn.gelu_tanh": gelu_tanh,
        "nn.leakyrelu": leakyrelu,
        "not_equal": not_equal,
        "ones": ones,
        "ones_like": ones_like,
        "power": power,
        "right_shift": right_shift,
        "rsqrt": rsqrt,
        "square": square,
        "tril": _triangle("tril", lambda s, k: np.tri(s[0], s[1], k).astype(bool)),
        "triu": _triangle("triu", lambda s, k: ~np.tri(s[0], s[1], k - 1).astype(bool)),
        "where": where,
        "wrap_param": wrap_param,
        "zeros": zeros,
        "zeros_like": zeros_like,
    }  # fmt: skip
