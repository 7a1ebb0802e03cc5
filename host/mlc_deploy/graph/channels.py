"""Layers filled up to whole blocks of channels. int8 layers always are: the instructions work only
on whole blocks. Float layers are filled up where this costs less.

Weights are filled up with zeros at compile time. The data may then hold anything in the added
channels. Floats there must be finite, since zero times infinity is not zero. Layers pass the added
channels on to each other. A slice cuts them off where anything else reads the data.

int8 groups of few channels are filled up in one of two ways, whichever leaves fewer products.
Several groups become one, with zero weights between different groups. Or each group is filled up
by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from mlc_targets import Target

from ..ir import same_dim, same_shape
from ..ops import Array, Attrs, TensorType, has, operator
from ..ops.half import arithmetic
from ..ops.plan import Plan, known_of_weights
from ..ops.quantize import BLOCK
from ..ops.strategy import plans
from ..passes.context import optional
from .constants import is_static, shape_of
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

FLOATS = ("float32", "float16")
MOST_FILLED = 8  # a channel may be filled up to this many products per useful one
MOVED = 8  # moving a channel of a pixel between groups takes as long as this many products


@optional(level=2)
def fill_channels(target: Target) -> Callable[[Function], Function]:
    """layer(x, w)   =>   slice(layer(pad(x), pad(w))) where channels do not divide into blocks;
    f(slice(x))   =>   slice(f(x)), if f works channel by channel"""

    def filled(graph: Rewriting, out: Var, call: Call) -> Value | None:
        weights = _weights(call)
        if weights is None:
            return None
        found = list(_plans(call.op, _types(call), call.attrs, weights, target))
        if any(map(_in_blocks, found)):
            return None
        block = _block(str(weights.dtype), target)
        w, attrs, types = _whole_blocks(call, weights, block)
        then = next(filter(_in_blocks, _plans(call.op, types, attrs, w, target)), None)
        if then is None or not _pays(graph, call, found, then):
            return None
        parts = 1 if call.op == "dense" else _parts(weights, call.attrs["groups"], attrs["groups"])
        x = _with_channels(graph, call.args[0], types[0].sizes[1], parts)
        y = graph.emit(call.op, x, Constant(w), **attrs)
        return _cut(graph, y, out, parts)

    def fill_channels(function: Function) -> Function:
        return rewrite(function, (filled, _cut_later))

    return fill_channels


def plan_of_blocks(call: Call, target: Target) -> Plan | None:
    """The plan of an int8 layer in whole blocks of channels, filled up if it has none as it is."""
    weights = _weights(call)
    if weights is None or weights.dtype != np.int8:
        return None
    found = _plans(call.op, _types(call), call.attrs, weights, target)
    w, attrs, types = _whole_blocks(call, weights, BLOCK)
    filled = _plans(call.op, types, attrs, w, target)
    return next(filter(_in_blocks, chain(found, filled)), None)


def _weights(call: Call) -> Array | None:
    """The constant weights of a layer that may be filled up; None for other calls."""
    if call.op not in ("conv2d", "dense") or len(call.args) != 2 or "kernel_layout" in call.attrs:
        return None
    x, w = call.args
    if not isinstance(w, Constant) or not is_static(x) or x.type.dtype != w.type.dtype:
        return None
    if w.type.dtype == "int8":
        return w.value
    if call.op == "dense" or w.type.dtype not in FLOATS:
        return None
    groups = call.attrs["groups"]
    return w.value if groups == 1 or _is_depthwise(w.type.sizes, groups) else None


def _block(dtype: str, target: Target) -> int:
    """The number of channels in a block."""
    return target.lanes(arithmetic(dtype, target)) if dtype in FLOATS else BLOCK


def _types(call: Call) -> list[TensorType]:
    return [a.type for a in call.args]


def _plans(
    op: str, types: Sequence[TensorType], attrs: Attrs, w: Array, target: Target
) -> Iterator[Plan]:
    return plans(op, types, {**attrs, **known_of_weights(w)}, target)


def _in_blocks(plan: Plan) -> bool:
    """Whether a plan takes whole blocks of channels."""
    return plan.packing is not None and bool(plan.result or plan.op == "dense")


def _pays(graph: Rewriting, call: Call, now: Sequence[Plan], then: Plan) -> bool:
    """Whether to fill up a layer with the plans `now`: always int8. Floats if the plan `then` costs
    less, or if the layer is depthwise and its data are filled up already."""
    if not now or call.args[0].type.dtype not in FLOATS:
        return True
    of_filled = call.attrs["groups"] > 1 and _uncut(graph, call.args[0]) is not None
    return then.cost < now[0].cost or of_filled


def _whole_blocks(
    call: Call, weights: Array, block: int
) -> tuple[Array, dict[str, Any], list[TensorType]]:
    """Weights, attributes and types of the layer filled up to whole blocks."""
    w, attrs, channels = _filled(weights, call, block)
    batch, _, *rest = shape_of(call.args[0])
    dtype = str(w.dtype)
    return w, attrs, [TensorType((batch, channels, *rest), dtype), TensorType(w.shape, dtype)]


# ----------------------------------------------------------------------------------------- weights


def _filled(w: Array, call: Call, block: int) -> tuple[Array, dict[str, Any], int]:
    """Weights, attributes and channels of the data, in whole blocks."""
    attrs = dict(call.attrs)
    if call.op == "dense":
        w = _more(_more(w, 0, block), 1, block)
        return w, attrs, w.shape[1 if attrs["transpose_b"] else 0]
    groups = attrs["groups"]
    if _is_depthwise(w.shape, groups):
        w = _more(w, 0, block)
        return w, {**attrs, "groups": len(w)}, len(w)
    merged = _merged(groups, w.shape[1], len(w) // groups)
    w, groups = _in_fewer_groups(w, groups, merged), groups // merged
    by_group = w.reshape(groups, -1, *w.shape[1:])
    w = _more(_more(by_group, 1, block), 2, block)
    w = w.reshape(-1, *w.shape[2:])
    return w, {**attrs, "groups": groups}, groups * w.shape[1]


def _parts(w: Array, groups: int, after: int) -> int:
    """The number of channel parts that are each filled up: the groups that are left, or 1 for a
    depthwise convolution."""
    return 1 if _is_depthwise(w.shape, groups) else after


def _is_depthwise(shape: Sequence[int], groups: int) -> bool:
    return shape[1] == 1 and shape[0] == groups


def _more(w: Array, axis: int, block: int) -> Array:
    """Weights with an axis filled up with zeros to whole blocks."""
    pads = [(0, -n % block if k == axis else 0) for k, n in enumerate(w.shape)]
    return np.pad(w, pads)


def _merged(groups: int, inputs: int, outputs: int) -> int:
    """How many groups to merge into one; 1 if every choice takes too many products. A group has
    `inputs` and `outputs` channels."""
    numbers = [n for n in range(1, groups + 1) if groups % n == 0]

    def cost(merged: int) -> int:
        total = _products(groups, inputs, outputs, merged)
        moved = sum(n * groups for n in (inputs, outputs) if n * merged % BLOCK)
        return total + (MOVED * moved if merged < groups else 0)

    found = min(numbers, key=cost)
    most = MOST_FILLED * groups * inputs * outputs
    return found if _products(groups, inputs, outputs, found) <= most else 1


def _products(groups: int, inputs: int, outputs: int, merged: int) -> int:
    """Products per tap of a pixel, with `merged` groups made one and channels filled up."""
    i, o = (n * merged + -n * merged % BLOCK for n in (inputs, outputs))
    return groups // merged * i * o


def _in_fewer_groups(w: Array, groups: int, merged: int) -> Array:
    """Weights [O, I, ...] of groups as [O, I * merged, ...], with zeros where an output of one
    group would read inputs of another."""
    inputs, outputs = w.shape[1], len(w) // groups
    wide = np.zeros((len(w), inputs * merged, *w.shape[2:]), w.dtype)
    for group in range(groups):
        first, at = group * outputs, group % merged * inputs
        wide[first : first + outputs, at : at + inputs] = w[first : first + outputs]
    return wide


# -------------------------------------------------------------------------------------------- data


def _with_channels(graph: Rewriting, x: Value, channels: int, parts: int) -> Value:
    """x with more channels, added at the end of each part. Their content is undefined."""
    shape = shape_of(x)
    if shape[1] == channels:
        return x
    cut = _uncut(graph, x)
    if cut is not None and shape_of(cut.whole)[1] == channels and cut.parts == parts:
        return cut.whole
    batch, had, *rest = shape
    if parts == 1:
        pads = [0] * (2 * len(shape))
        pads[len(shape) + 1] = channels - had
        return graph.emit("pad", x, pads=pads, mode="constant", value=0)
    rows = graph.emit("reshape", x, shape=(batch * parts, had // parts * prod(rest)))
    more = (channels - had) // parts * prod(rest)
    rows = graph.emit("pad", rows, pads=[0, 0, 0, more], mode="constant", value=0)
    return graph.emit("reshape", rows, shape=(batch, channels, *rest))


def _filled_up(graph: Rewriting, x: Value, channels: int, parts: int) -> Value:
    """_with_channels of x; of the integers before it if x is dequantized."""
    made = graph.call(x, "dequantize")
    if made is None or not all(
        isinstance(a, Constant) and a.type.elements == 1 for a in made.args[1:]
    ):
        return _with_channels(graph, x, channels, parts)
    q, *how = made.args
    return graph.emit("dequantize", _with_channels(graph, q, channels, parts), *how)


@dataclass(frozen=True, slots=True)
class Cut:
    """A value that holds the first channels of each of `parts` equal parts of `whole`."""

    whole: Value
    parts: int


def _cut(graph: Rewriting, value: Value, out: Value, parts: int) -> Value:
    """As many channels as `out` has: the first of each part."""
    shape = shape_of(out)
    if shape == shape_of(value):
        return value
    if parts > 1:  # the channels of a part are consecutive
        rows = shape[0] * parts
        value = graph.emit("reshape", value, shape=(rows, prod(shape_of(value)) // rows))
        shape = (rows, prod(shape) // rows)
    rank = len(shape)
    value = graph.emit("slice", value, begin=(0,) * rank, step=(1,) * rank, shape=shape)
    return graph.emit("reshape", value, shape=shape_of(out)) if parts > 1 else value


def _uncut(graph: Rewriting, x: Value) -> Cut | None:
    """The wider value that x was cut from: integers in whole blocks, or floats that were filled up
    and are finite."""
    joined = graph.call(x, "reshape")
    call = graph.call(joined.args[0] if joined is not None else x, "slice")
    if call is None or set(call.attrs["begin"]) != {0} or set(call.attrs["step"]) != {1}:
        return None
    source, shape, parts = call.args[0], shape_of(x), 1
    if joined is not None:
        split = graph.call(source, "reshape")
        rows, row = call.attrs["shape"][0], prod(call.attrs["shape"][1:])
        if split is None or rows % shape[0] or shape[1] % (rows // shape[0]):
            return None
        source, parts = split.args[0], rows // shape[0]
        if len(call.attrs["shape"]) != 2 or row * parts != prod(shape[1:]):
            return None
    if not is_static(source) or len(shape_of(source)) < 2:
        return None
    before, after = list(shape_of(source)), list(shape)
    before[1] = after[1] = 0
    if before != after:
        return None
    if source.type.dtype in FLOATS:
        whole = _is_filled(graph, source, shape[1] if parts == 1 else None)
    else:
        blocks = [n % (BLOCK * parts) for n in (shape_of(source)[1], shape[1])]
        whole = blocks[0] == 0 and blocks[1] != 0
    return Cut(source, parts) if whole else None


def _is_filled(graph: Rewriting, value: Value, channels: int | None) -> bool:
    """Whether the added channels of a float value come from zeros or from integers, and are
    finite. channels: the number before filling up; None where it was done by parts."""
    left, seen = [value], {value}
    while left:
        made = graph.binding(left.pop())
        call = made.call if made is not None else None
        if not isinstance(call, Call):
            return False
        match call.op:
            case "conv2d":
                w = call.args[1]
                if channels is None or not isinstance(w, Constant) or w.value[channels:].any():
                    return False
            case "pad":
                had, attrs = shape_of(call.args[0])[1], call.attrs
                if channels is None or attrs["pads"][1] or had > channels:
                    return False
                if attrs["mode"] != "constant" or not np.isfinite(attrs["value"]):
                    return False
            case _:
                of = {a for a in call.args if not isinstance(a, Constant)} - seen
                if all(a.type.dtype not in FLOATS for a in of):  # integers are finite
                    continue
                if not (_by_channel(call) and has(call.op, "stays_finite")):
                    return False
                seen |= of
                left += of
    return True


def _by_channel(call: Call) -> bool:
    """Whether a channel of the result depends only on the same channel of the arguments."""
    return has(call.op, "by_channel") or operator(call.op).pattern == "elementwise"


def _cut_later(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """f(slice(x))   =>   slice(f(x)), where the slice takes the first channels of x or of each part
    of x"""
    if not _by_channel(call) or len(out.type.shape) < 2 or not is_static(out):
        return None
    cuts = [_uncut(graph, a) for a in call.args]
    found = {(shape_of(c.whole)[1], c.parts) for c in cuts if c is not None}
    others = [a for a, c in zip(call.args, cuts, strict=True) if c is None]
    if len(found) != 1 or not all(
        isinstance(a, Constant) or same_shape(a.type.shape, out.type.shape) for a in others
    ):
        return None
    # One channel that broadcasts is not the first of several.
    cut_shapes = [a.type.shape for a, c in zip(call.args, cuts, strict=True) if c is not None]
    shape = out.type.shape
    if any(len(s) != len(shape) or not same_dim(s[1], shape[1]) for s in cut_shapes):
        return None
    ((channels, parts),) = found
    args: list[Value] = []
    for n, (arg, cut) in enumerate(zip(call.args, cuts, strict=True)):
        if cut is not None:
            args.append(cut.whole)
        elif isinstance(arg, Constant):
            is_table = call.op == "lookup" and n > 0
            args.append(arg if is_table else _widened(arg, len(out.type.shape), channels, parts))
        else:
            args.append(_filled_up(graph, arg, channels, parts))
    return _cut(graph, graph.emit(call.op, *args, **call.attrs), out, parts)


def _widened(constant: Constant, rank: int, channels: int, parts: int) -> Constant:
    """A constant for more channels: each added channel repeats the last one of its part."""
    value = constant.value
    axis = value.ndim - rank + 1
    if axis < 0 or value.shape[axis] == 1:
        return constant
    before, had, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
    split = value.reshape(*before, parts, had // parts, *after)
    pads = [(0, (channels - had) // parts if k == axis + 1 else 0) for k in range(split.ndim)]
    wide = np.pad(split, pads, mode="edge").reshape(*before, channels, *after)
    return Constant(wide, constant.name)
