"""Relax's words over axes: sums and extrema, their places, running sums, sorted elements."""

from __future__ import annotations

from typing import Any

from ...ir import dtype_of, is_const
from ..nodes import Call, Value
from .parts import (
    Emits,
    Made,
    axes_of,
    axis_of,
    call,
    flat,
    integer,
    number,
    rank_of,
    refused,
    reshaped,
    shape_of,
    tensor,
)


def _reduced(e: Emits, op: str, x: Value, axis: Any, keepdims: bool) -> Value | Call:
    axes = axes_of(op, x, axis)
    return call(op, x, axes=axes, keepdims=bool(keepdims)) if axes else call("copy", x)


def _reduction(op: str) -> Any:
    def made(e: Emits, x: Any, axis: Any = None, keepdims: bool = False) -> Made:
        return _reduced(e, op, tensor(op, x), axis, keepdims)

    return made


def _squares(e: Emits, word: str, x: Value, axis: Any, keepdims: bool) -> Value | Call:
    """The mean of the squared distances from the mean."""
    axes = axes_of(word, x, axis)
    mean = e.emit("mean", x, axes=axes, keepdims=True)
    centred = e.emit("subtract", x, mean)
    return _reduced(e, "mean", e.emit("multiply", centred, centred), axes, keepdims)


def variance(e: Emits, x: Any, axis: Any = None, keepdims: bool = False) -> Made:
    return _squares(e, "variance", tensor("variance", x), axis, keepdims)


def std(e: Emits, x: Any, axis: Any = None, keepdims: bool = False) -> Made:
    return call("sqrt", e.emit(_squares(e, "std", tensor("std", x), axis, keepdims)))  # type: ignore[arg-type]


def _place(op: str) -> Any:
    def made(e: Emits, x: Any, axis: Any = None, keepdims: bool = False) -> Made:
        x = tensor(op, x)
        if axis is not None:
            at = axis_of(op, x, axis)
            return call(op, x, axis=at, keepdims=bool(keepdims), last=False)
        place = call(op, flat(e, x), axis=0, keepdims=False, last=False)
        if not keepdims:
            return place
        return call("reshape", e.emit(place), shape=(1,) * rank_of(x))

    return made


def _running(word: str, product: bool) -> Any:
    def made(
        e: Emits, data: Any, axis: Any = None, dtype: str | None = None, exclusive: bool = False
    ) -> Made:
        x = tensor(word, data)
        if axis is None:
            x, axis = flat(e, x), 0
        if dtype and dtype != x.type.dtype:
            x = e.emit("cast", x, dtype=dtype_of(dtype).name)
        at = axis_of(word, x, axis)
        return call(
            "cumulative", x, axis=at, product=product, exclusive=bool(exclusive), reverse=False
        )

    return made


def _ordered(e: Emits, word: str, x: Value, axis: Any, k: Any, largest: bool) -> tuple[Value, int]:
    at = axis_of(word, x, axis)
    extent = shape_of(x)[at]
    many = extent if k is None else min(integer(word, "k", k), extent)
    return e.emit("top_k", x, axis=at, k=many, largest=largest), at


def argsort(
    e: Emits, data: Any, axis: int = -1, descending: bool = False, dtype: str = "int32"
) -> Made:
    places, _ = _ordered(e, "argsort", tensor("argsort", data), axis, None, bool(descending))
    return call("cast", places, dtype=dtype_of(dtype).name)


def sort(e: Emits, x: Any, axis: int = -1, descending: bool = False) -> Made:
    x = tensor("sort", x)
    places, at = _ordered(e, "sort", x, axis, None, bool(descending))
    return call("gather_elements", x, places, axis=at)


def topk(
    e: Emits,
    data: Any,
    k: int = 1,
    axis: int = -1,
    ret_type: str = "both",
    largest: bool = True,
    dtype: str = "int32",
) -> Made:
    x = tensor("topk", data)
    places, at = _ordered(e, "topk", x, axis, k if k is None or k > 0 else None, bool(largest))
    values = call("gather_elements", x, places, axis=at)
    indices = call("cast", places, dtype=dtype_of(dtype).name)
    found = {"both": (values, indices), "values": values, "indices": indices}
    if ret_type not in found:
        raise refused(f"R.topk has no ret_type '{ret_type}'", ", ".join(found))
    return found[ret_type]


def collapse_sum_to(e: Emits, data: Any, shape: Any) -> Made:
    """The sum over the axes along which `shape` was broadcast."""
    x, own = tensor("collapse_sum_to", data), shape_of(data)
    front = len(own) - len(shape)
    over = [
        d
        for d in range(len(own))
        if d < front or (is_const(shape[d - front], 1) and not is_const(own[d], 1))
    ]
    if not over:
        return call("copy", x)
    total = e.emit("sum", x, axes=over, keepdims=True)
    return call("reshape", total, shape=tuple(shape))


def collapse_sum_like(e: Emits, data: Any, collapse_target: Any) -> Made:
    return collapse_sum_to(e, data, shape_of(tensor("collapse_sum_like", collapse_target)))


def _soft(word: str) -> Any:
    def made(e: Emits, data: Any, axis: int = -1) -> Made:
        x = tensor(f"nn.{word}", data)
        return call(word, x, axis=axis_of(f"nn.{word}", x, axis))

    return made


def softmax(e: Emits, x: Any, axis: int = -1) -> Made:
    return call("softmax", tensor("softmax", x), axis=axis)


def log_softmax(e: Emits, x: Any, axis: int = -1) -> Made:
    return call("log_softmax", tensor("log_softmax", x), axis=axis)


def cross_entropy_with_logits(e: Emits, predictions: Any, labels: Any) -> Made:
    """The sum of -predictions * labels, as a mean over the rows."""
    x = tensor("nn.cross_entropy_with_logits", predictions)
    y = tensor("nn.cross_entropy_with_logits", labels)
    axes = list(range(rank_of(x)))
    total = e.emit("sum", e.emit("multiply", x, y), axes=axes, keepdims=False)
    rows = shape_of(x)[0] if rank_of(x) > 1 else 1
    if not isinstance(rows, int):
        raise refused(f"R.nn.cross_entropy_with_logits needs a number of rows, not '{rows}'")
    return call("divide", total, number(-rows, x.type.dtype))


def nll_loss(
    e: Emits,
    predictions: Any,
    targets: Any,
    weights: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Made:
    """Minus the predictions [N, C, …] of the target classes [N, …], weighted by class."""
    x, t = tensor("nn.nll_loss", predictions), tensor("nn.nll_loss", targets)
    dtype, axis = x.type.dtype, 1 if rank_of(x) > 1 else 0
    wide = e.emit("cast", t, dtype="int64")
    zero = number(0, "int64")
    ignored = e.emit("equal", wide, number(ignore_index, "int64"))
    place = e.emit("where", ignored, zero, wide)
    at = list(shape_of(t))
    at.insert(axis, 1)
    picked = e.emit("gather_elements", x, reshaped(e, place, at), axis=axis)
    picked = reshaped(e, picked, shape_of(t))
    one = number(1, dtype)
    weight = one if weights is None else e.emit("gather", weights, place, axis=0)
    weight = e.emit("where", ignored, number(0, dtype), weight)
    loss = e.emit("negative", e.emit("multiply", picked, weight))
    if reduction == "none" or not shape_of(t):
        whole = call("copy", loss)
        if reduction == "mean":
            return call("divide", loss, weight)
        return whole
    axes = list(range(rank_of(t)))
    total = call("sum", loss, axes=axes, keepdims=False)
    if reduction == "sum":
        return total
    if reduction != "mean":
        raise refused(f"R.nn.nll_loss has no reduction '{reduction}'", "mean, sum, none")
    share = e.emit("sum", weight, axes=axes, keepdims=False)
    return call("divide", e.emit(total), share)


def table() -> dict[str, Any]:
    return {
        **{op: _reduction(op) for op in ("max", "mean", "min", "prod", "sum")},
        **{op: _place(op) for op in ("argmax", "argmin")},
        "argsort": argsort,
        "collapse_sum_like": collapse_sum_like,
        "collapse_sum_to": collapse_sum_to,
        "cumprod": _running("cumprod", True),
        "cumsum": _running("cumsum", False),
        "log_softmax": log_softmax,
        "nn.cross_entropy_with_logits": cross_entropy_with_logits,
        "nn.log_softmax": _soft("log_softmax"),
        "nn.nll_loss": nll_loss,
        "nn.softmax": _soft("softmax"),
        "softmax": softmax,
        "sort": sort,
        "std": std,
        "topk": topk,
        "variance": variance,
    }
