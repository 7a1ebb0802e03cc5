"""Simplification: expressions become fewer or cheaper calls that compute the same.

RULES is a table of small rules, each with its rewrite as docstring. All keep results exact to the
last bit, with two exceptions: the sign of zeros, and constants that are added or multiplied first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ops import has, operator
from ..ops.shape import has_border
from ..passes.context import optional
from .constants import is_float, is_static, same_dtype, shape_of, uniform, with_constant
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, Rule, rewrite, two_constants


@optional(level=1)
def simplify_expressions(function: Function) -> Function:
    """Expressions   =>   cheaper ones that are equal (RULES)"""
    return rewrite(function, RULES)


# ----------------------------------------------------------------------------------- arithmetic


def _neutral(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x + 0, x - 0, x * 1, x / 1, x ^ 1   =>   x"""
    match call:
        case Call("add" | "multiply" as op, (a, b)):
            neutral = 0 if op == "add" else 1
            for x, other in ((a, b), (b, a)):
                if x.type == out.type and uniform(other) == neutral:
                    return x
        case Call("subtract" | "divide" | "power" as op, (x, other)):
            neutral = 0 if op == "subtract" else 1
            if x.type == out.type and uniform(other) == neutral:
                return x
    return None


def _subtracted_constant(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x - c   =>   x + -c"""
    match call:
        case Call("subtract", (x, Constant(c, name))) if not isinstance(x, Constant):
            return graph.emit("add", x, Constant(np.negative(c), name))
    return None


def _exact_division(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x / c   =>   x * (1 / c), where c holds only powers of two, so the quotient is the same"""
    match call:
        case Call("divide", (x, Constant(c, name))) if is_float(x) and c.size:
            mantissa, _ = np.frexp(c)
            with np.errstate(all="ignore"):
                inverse = same_dtype(1 / c, c)
            if (np.abs(mantissa) == 0.5).all() and np.isfinite(inverse).all() and inverse.all():
                return graph.emit("multiply", x, Constant(inverse, name))
    return None


def constants_together(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """(x + a) + b   =>   x + (a + b);  (x * a) * b   =>   x * (a * b);  for constants a and b"""
    found = two_constants(graph, out, call) if call.op in ("add", "multiply") else None
    if found is None:
        return None
    x, first, second, y = found
    both = graph.emit(call.op, first, second)
    small = isinstance(both, Constant) and both.value.size == max(
        first.value.size, second.value.size
    )
    finite = small and isinstance(both, Constant) and _finite(both)
    return graph.emit(call.op, x, both, instead=y) if finite else None


def _finite(c: Constant) -> bool:
    return c.value.dtype.kind != "f" or bool(np.isfinite(c.value).all())


def _powers(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x ^ 2   =>   x * x;  x ^ 0.5   =>   sqrt(x);  x ^ -1   =>   1 / x"""
    match call:
        case Call("power", (x, exponent)) if x.type == out.type:
            match uniform(exponent):
                case 2.0:
                    return graph.emit("multiply", x, x)
                case 0.5:
                    return graph.emit("sqrt", x)
                case -1.0:
                    return graph.emit("reciprocal", x)
    return None


def _twice(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """-(-x)   =>   x;  relu(relu(x))   =>   relu(x);  likewise other inverse or idempotent calls;
    relu(x), abs(x)   =>   x, where x is never negative"""
    if len(call.args) != 1:
        return None
    (x,) = call.args
    if has(call.op, "own_inverse") and (inner := graph.call(x, call.op)):
        return inner.args[0]
    if has(call.op, "idempotent") and graph.call(x, call.op):
        return x
    return x if call.op in ("relu", "abs") and graph.call_of(x, "not_negative") else None


def _clips(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """clip(clip(x))   =>   clip(x);  clip(relu(x)), relu(clip(x)), max(min(x, c), d)   =>   clip;
    clip(x, min=0)   =>   relu(x);  clip without bounds   =>   x"""
    bounds = _bounds(call)
    if bounds is None:
        return None
    x, low, high = bounds
    if x.type != out.type:
        return None
    inner = graph.call(x, "relu", "clip", "minimum", "maximum")
    below = _bounds(inner) if inner else None
    if below is not None and below[0].type == out.type and _settled(below, low, high):
        x, low, high = below[0], *_met(below, low, high)
    elif call.op in ("relu", "clip") and (call.op == "relu" or (low, high) not in _PLAIN):
        return None
    match low, high:
        case None, None:
            return x
        case 0, None:
            return graph.emit("relu", x)
    return graph.emit("clip", x, min=low, max=high)


Number = float | int
Bounds = tuple[Value, Number | None, Number | None]
_PLAIN = ((None, None), (0, None))


def _bounds(call: Call) -> Bounds | None:
    """(x, its lower bound, its upper bound); None for calls that bound nothing by numbers."""
    match call:
        case Call("relu", (x,)):
            return x, 0, None
        case Call("clip", (x,), attrs):
            return x, attrs.get("min"), attrs.get("max")
        case Call("minimum" | "maximum" as op, args):
            x, constant = with_constant(args)
            bound = None if constant is None else uniform(constant)
            if bound is None or bound != bound:
                return None
            return (x, None, bound) if op == "minimum" else (x, bound, None)
    return None


def _settled(inner: Bounds, low: Number | None, high: Number | None) -> bool:
    """Whether the order of the bounds does not matter: no lower bound is above an upper one."""
    lows = [b for b in (inner[1], low) if b is not None]
    highs = [b for b in (inner[2], high) if b is not None]
    return all(a <= b for a in lows for b in highs)


def _met(
    inner: Bounds, low: Number | None, high: Number | None
) -> tuple[Number | None, Number | None]:
    lows = [b for b in (inner[1], low) if b is not None]
    highs = [b for b in (inner[2], high) if b is not None]
    return max(lows, default=None), min(highs, default=None)


def _where(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """where(constant, a, b)   =>   a or b;  where(c, x, x)   =>   x"""
    match call:
        case Call("where", (test, a, b)):
            known = uniform(test)
            chosen = a if known or a is b else b if known is not None else None
            return chosen if chosen is not None and chosen.type == out.type else None
    return None


# ---------------------------------------------------------------------------------------- casts


def _casts(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """cast to the same dtype   =>   x;  cast(cast(x)), the inner one exact   =>   cast(x)"""
    match call:
        case Call("cast", (x,), attrs):
            if x.type == out.type:
                return x
            inner = graph.call(x, "cast")
            if inner is not None and _exact(inner.args[0].type.dtype, x.type.dtype):
                source = inner.args[0]
                same = source.type == out.type
                return source if same else graph.emit("cast", source, dtype=attrs["dtype"])
    return None


def _exact(source: str, to: str) -> bool:
    """Whether dtype `to` holds every number of dtype `source`."""
    if "bfloat" in source + to or (source in ("int64", "uint64") and to.startswith("float")):
        return False  # numpy calls these safe
    return np.can_cast(source, to, "safe")


# --------------------------------------------------------------------------------- moving data


def _no_move(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """reshape, broadcast_to, tile, pad, slice or transpose that changes nothing   =>   x"""
    match call:
        case Call("reshape" | "broadcast_to" | "tile" | "pad" | "slice" as op, (x,), attrs):
            still = op != "slice" or all(step == 1 for step in attrs["step"])
            still = still and not has_border(attrs.get("pads", ()))
            return x if still and x.type == out.type else None
        case Call("transpose", (x,), attrs) if list(attrs["axes"]) == sorted(attrs["axes"]):
            return x
        case Call("concatenate", (x,)):
            return x
    return None


def _reshapes(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """reshape(reshape(x))   =>   reshape(x)"""
    inner = graph.call(call.args[0], "reshape") if call.op == "reshape" else None
    return graph.emit("reshape", inner.args[0], shape=call.attrs["shape"]) if inner else None


def _transposes(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """transpose(transpose(x))   =>   transpose(x)"""
    match call:
        case Call("transpose", (x,), attrs):
            inner = graph.call(x, "transpose")
            if inner is not None:
                axes = tuple(inner.attrs["axes"][axis] for axis in attrs["axes"])
                return graph.emit("transpose", inner.args[0], axes=axes)
    return None


def _transpose_of_units(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """transpose that moves only dimensions of 1   =>   reshape"""
    match call:
        case Call("transpose", (x,), attrs) if is_static(x):
            shape = shape_of(x)
            order = [axis for axis in attrs["axes"] if shape[axis] != 1]
            if order == sorted(order):
                return graph.emit("reshape", x, shape=shape_of(out))
    return None


def _slices(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """slice(slice(x))   =>   slice(x)"""
    match call:
        case Call("slice", (x,), attrs):
            inner = graph.call(x, "slice")
            if inner is None:
                return None
            below, keys = inner.attrs, ("begin", "step")
            steps = below["step"]
            first, step = (np.multiply(attrs[key], steps) for key in keys)
            begin = np.add(first, below["begin"])
            return graph.emit("slice", inner.args[0], begin=begin, step=step, shape=attrs["shape"])
    return None


def _slice_of_concat(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """slice(concatenate(..., x, ...)) that reads only x   =>   slice(x)"""
    match call:
        case Call("slice", (y,), attrs):
            joined = graph.call(y, "concatenate")
            if joined is None or not is_static(y) or 0 in shape_of(out):
                return None
            axis = joined.attrs["axis"] % len(shape_of(y))
            first = attrs["begin"][axis]
            last = first + (shape_of(out)[axis] - 1) * attrs["step"][axis]
            start = 0
            for x in joined.args:
                extent = shape_of(x)[axis]
                if start <= min(first, last) and max(first, last) < start + extent:
                    begin = list(attrs["begin"])
                    begin[axis] -= start
                    return graph.emit("slice", x, **{**attrs, "begin": begin})
                start += extent
    return None


def _concats(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """concatenate(..., concatenate(x, y), ...)   =>   concatenate(..., x, y, ...)"""
    match call:
        case Call("concatenate", args, attrs):
            rank = len(out.type.shape)
            parts: list[Value] = []
            for arg in args:
                inner = graph.call(arg, "concatenate") if graph.once(arg) else None
                same = inner is not None and (inner.attrs["axis"] - attrs["axis"]) % rank == 0
                parts += inner.args if inner is not None and same else (arg,)
            if len(parts) > len(args):
                return graph.emit("concatenate", *parts, **attrs)
    return None


def _gather(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """gather(x, constant indices at equal distances)   =>   slice(x)"""
    match call:
        case Call("gather", (x, Constant(indices)), attrs) if is_static(x) and indices.size:
            shape = shape_of(x)
            axis = attrs["axis"] % len(shape)
            extent = shape[axis]
            picked = indices.reshape(-1).astype(np.int64)
            picked = np.clip(np.where(picked < 0, picked + extent, picked), 0, extent - 1)
            steps = np.unique(np.diff(picked))
            if steps.size > 1 or indices.ndim > 1 or not extent:
                return None
            step = int(steps[0]) if steps.size else 1
            if step == 0:
                return None
            sizes = [picked.size if k == axis else n for k, n in enumerate(shape)]
            begin = [int(picked[0]) if k == axis else 0 for k in range(len(shape))]
            strides = [step if k == axis else 1 for k in range(len(shape))]
            part = graph.emit("slice", x, begin=begin, step=strides, shape=sizes)
            return part if indices.ndim else graph.emit("reshape", part, shape=shape_of(out))
    return None


def _broadcast_argument(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x + broadcast_to(y)   =>   x + y, where the sum has the same shape without it"""
    if not _broadcasts(call.op):
        return None
    for number, arg in enumerate(call.args):
        wide = graph.call(arg, "broadcast_to")
        if wide is None or not is_static(out):
            continue
        args = [*call.args[:number], wide.args[0], *call.args[number + 1 :]]
        if np.broadcast_shapes(*(shape_of(a) for a in args)) == shape_of(out):
            return graph.emit(call.op, *args, **call.attrs)
    return None


def _broadcasts(op: str) -> bool:
    """Whether the operator broadcasts its arguments against each other."""
    return operator(op).pattern == "elementwise"


def _moved_after_cast(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """cast(move(x)) to fewer bytes   =>   move(cast(x)); and move(cast(x)) from fewer bytes   =>
    cast(move(x)): the smaller dtype is moved, and casts meet"""
    if len(call.args) != 1:
        return None
    (x,) = call.args
    if not graph.once(x):
        return None
    if call.op == "cast" and _bytes(out) < _bytes(x):
        move = graph.call_of(x, "moves")
        if move is not None:
            return graph.emit(move.op, graph.emit("cast", move.args[0], **call.attrs), **move.attrs)
    if has(call.op, "moves"):
        cast = graph.call(x, "cast")
        if cast is not None and _bytes(cast.args[0]) < _bytes(x):
            return graph.emit("cast", graph.emit(call.op, *cast.args, **call.attrs), **cast.attrs)
    return None


def _bytes(value: Value) -> int:
    return np.dtype(value.type.dtype).itemsize


# ------------------------------------------------------------------------- windows, reductions


def _pad_into_window(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """conv2d(pad(x)), pool(pad(x))   =>   the same call with larger pads, where both pad with the
    same value"""
    match call:
        case Call("conv2d" | "max_pool" | "avg_pool" as op, (y, *rest), attrs):
            pad = graph.call(y, "pad")
            if pad is None or pad.attrs["mode"] != "constant" or attrs.get("ceil_mode"):
                return None
            rank = len(y.type.shape)
            given = tuple(pad.attrs["pads"])
            outside = (*given[:2], *given[rank : rank + 2])
            added = (*given[2:rank], *given[rank + 2 :])
            known = all(isinstance(n, int) for n in given)
            if not known or any(outside) or min(added, default=0) < 0 or "data_layout" in attrs:
                return None
            if not _pads_with(op, attrs, pad.attrs["value"], y):
                return None
            pads = tuple(a + b for a, b in zip(attrs["pads"], added, strict=True))
            changed = {**attrs, "pads": pads}
            if op == "avg_pool":
                changed["count_include_pad"] = True
            if op != "conv2d" and not _fit(pads, attrs):
                return None
            return graph.emit(op, pad.args[0], *rest, **changed)
    return None


def _pads_with(op: str, attrs: object, value: float, y: Value) -> bool:
    """Whether the operator's own pads hold this value."""
    assert isinstance(attrs, dict)
    match op:
        case "conv2d":
            return bool(value == attrs.get("pad_value", 0))
        case "avg_pool":
            return value == 0 and (attrs["count_include_pad"] or not any(attrs["pads"]))
    lowest = -math.inf if is_float(y) else np.iinfo(y.type.dtype).min
    return value == lowest


def _fit(pads: Sequence[int], attrs: object) -> bool:
    """Whether no window of a pool lies entirely in its pads."""
    assert isinstance(attrs, dict)
    reach = [d * (k - 1) + 1 for k, d in zip(attrs["kernel"], attrs["dilations"], strict=True)]
    return all(pad < r for pad, r in zip(pads, [*reach, *reach], strict=True))


def _global_pool(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """pool over one window that covers the whole image   =>   mean or max"""
    match call:
        case Call("max_pool" | "avg_pool" as op, (x,), attrs) if is_static(x):
            spatial = shape_of(x)[2:]
            whole = tuple(attrs["kernel"]) == spatial and not any(attrs["pads"])
            plain = all(d == 1 for d in attrs["dilations"]) and "layout" not in attrs
            if whole and plain and all(n == 1 for n in shape_of(out)[2:]):
                axes = tuple(range(2, 2 + len(spatial)))
                reduced = "mean" if op == "avg_pool" else "max"
                return graph.emit(reduced, x, axes=axes, keepdims=True)
    return None


def _reductions(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """mean(mean(x))   =>   mean(x) over the axes of both; sum, max, min and prod likewise"""
    match call:
        case Call("mean" | "sum" | "max" | "min" | "prod" as op, (y,), attrs):
            inner = graph.call(y, op)
            if inner is None or not graph.once(y) or (op == "mean" and not is_float(y)):
                return None
            (x,), rank = inner.args, len(inner.args[0].type.shape)
            first = {axis % rank for axis in inner.attrs["axes"]}
            keep = inner.attrs["keepdims"]
            left = [k for k in range(rank) if keep or k not in first]
            second = {left[axis % len(left)] for axis in attrs["axes"]}
            if keep != attrs["keepdims"] or first & second:
                return None
            return graph.emit(op, x, axes=tuple(sorted(first | second)), keepdims=keep)
    return None


def _matrix_product(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """matmul(a, b), b one matrix for all of a's rows   =>   dense(rows of a, b)"""
    match call:
        case Call("matmul", (a, b), attrs) if is_static(a) and is_static(b):
            if attrs.get("transpose_b"):
                return None
            (*batch, rows, inner), right = shape_of(a), shape_of(b)
            if math.prod(right[:-2]) != 1 or 0 in shape_of(out):
                return None
            flat = graph.emit("reshape", a, shape=(math.prod(batch) * rows, inner))
            matrix = graph.emit("reshape", b, shape=right[-2:])
            product = graph.emit("dense", flat, matrix, transpose_b=False)
            return graph.emit("reshape", product, shape=shape_of(out))
    return None


def _dense_of_transposed(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """dense(x, transpose(w))   =>   dense(x, w) with the other transpose_b"""
    match call:
        case Call("dense", (x, w), attrs) if "kernel_layout" not in attrs:
            turned = graph.call(w, "transpose")
            if turned is not None and tuple(turned.attrs["axes"]) == (1, 0):
                other = not attrs["transpose_b"]
                return graph.emit("dense", x, turned.args[0], transpose_b=other)
    return None


# Rules that merge adjacent data movements into one or none.
MEETINGS: tuple[Rule, ...] = (_no_move, _reshapes, _transposes, _transpose_of_units)

RULES: tuple[Rule, ...] = (
    _neutral,
    _subtracted_constant,
    _exact_division,
    constants_together,
    _powers,
    _twice,
    _clips,
    _where,
    _casts,
    *MEETINGS,
    _slices,
    _slice_of_concat,
    _concats,
    _gather,
    _broadcast_argument,
    _moved_after_cast,
    _pad_into_window,
    _global_pool,
    _reductions,
    _matrix_product,
    _dense_of_transposed,
)
