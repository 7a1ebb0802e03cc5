"""Layers of int8 filled up to whole blocks of channels, which is what there are instructions for.

Weights are filled up with zeros at compile time, so it does not matter what the data hold in
channels that are too many: layers hand them on to each other, and what is too much is cut off where
something else reads it. Groups of few channels become fewer and larger ones, whose weights are
zeros where groups meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlc_targets import Target

from ..ops import Array, TensorType, operator
from ..ops.arm_cpu.int8 import BLOCK
from ..ops.strategy import blocked_attrs, packed_attrs
from ..pass_context import optional
from .constants import is_static, shape_of
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

POOLS = ("max_pool", "avg_pool", "sum_pool")
MOST_MERGED = 8  # groups in one: for each product that counts there are so many in all


def fill_channels(target: Target) -> Callable[[Function], Function]:
    """layer(x, w)   =>   slice(layer(pad(x), pad(w))) where channels do not divide into blocks;
    f(slice(x))   =>   slice(f(x)), for f that works channel by channel"""

    def filled(graph: Rewriting, out: Var, call: Call) -> Value | None:
        if call.op not in ("conv2d", "dense") or len(call.args) != 2:
            return None
        x, w = call.args
        if not isinstance(w, Constant) or {x.type.dtype, w.type.dtype} != {"int8"}:
            return None
        if not is_static(x) or "kernel_layout" in call.attrs:
            return None
        asked = blocked_attrs if call.op == "conv2d" else packed_attrs
        if asked(call.op, [x.type, w.type], call.attrs, target) is not None:
            return None
        weights, attrs, channels = _filled(w.value, call)
        more = list(shape_of(x))
        more[1] = channels
        types = [TensorType(tuple(more), "int8"), TensorType(weights.shape, "int8")]
        if asked(call.op, types, attrs, target) is None:
            return None
        x = _with_channels(graph, x, channels)
        return _cut(graph, graph.emit(call.op, x, Constant(weights), **attrs), out)

    @optional(level=2)
    def fill_channels(function: Function) -> Function:
        return rewrite(function, (filled, _cut_later))

    return fill_channels


# ----------------------------------------------------------------------------------------- weights


def _filled(w: Array, call: Call) -> tuple[Array, dict[str, Any], int]:
    """Weights, attributes and channels of the data, in whole blocks."""
    attrs = dict(call.attrs)
    if call.op == "dense":
        w = _more(_more(w, 0), 1)
        return w, attrs, w.shape[1 if attrs["transpose_b"] else 0]
    groups = attrs["groups"]
    if w.shape[1] == 1 and len(w) == groups:  # depthwise
        w = _more(w, 0)
        return w, {**attrs, "groups": len(w)}, len(w)
    merged = _merged(groups, w.shape[1], len(w) // groups)
    w, groups = _in_fewer_groups(w, groups, merged), groups // merged
    if groups == 1:
        w = _more(_more(w, 0), 1)
    return w, {**attrs, "groups": groups}, groups * w.shape[1]


def _more(w: Array, axis: int) -> Array:
    """Zeros where an axis does not end with a whole block."""
    pads = [(0, -n % BLOCK if k == axis else 0) for k, n in enumerate(w.shape)]
    return np.pad(w, pads)


def _merged(groups: int, inputs: int, outputs: int) -> int:
    """How many groups, of so many channels each, make one whose channels are whole blocks; all of
    them where there is no other way."""
    numbers = [n for n in range(1, groups + 1) if groups % n == 0]
    whole = (n for n in numbers if inputs * n % BLOCK == outputs * n % BLOCK == 0)
    found = next(whole, groups)
    return found if found <= MOST_MERGED else 1


def _in_fewer_groups(w: Array, groups: int, merged: int) -> Array:
    """Weights [O, I, ...] of groups as [O, I * merged, ...], zeros where an output of one group
    would read another's inputs."""
    inputs, outputs = w.shape[1], len(w) // groups
    wide = np.zeros((len(w), inputs * merged, *w.shape[2:]), w.dtype)
    for group in range(groups):
        first, at = group * outputs, group % merged * inputs
        wide[first : first + outputs, at : at + inputs] = w[first : first + outputs]
    return wide


# -------------------------------------------------------------------------------------------- data


def _with_channels(graph: Rewriting, x: Value, channels: int) -> Value:
    """x with so many channels, whatever is in those that it had not."""
    shape = shape_of(x)
    if shape[1] == channels:
        return x
    source = _uncut(graph, x)
    if source is not None and shape_of(source)[1] == channels:
        return source
    pads = [0] * (2 * len(shape))
    pads[len(shape) + 1] = channels - shape[1]
    return graph.emit("pad", x, pads=pads, mode="constant", value=0)


def _cut(graph: Rewriting, value: Value, out: Value) -> Value:
    """The channels that `out` has."""
    shape = shape_of(out)
    if shape == shape_of(value):
        return value
    rank = len(shape)
    return graph.emit("slice", value, begin=(0,) * rank, step=(1,) * rank, shape=shape)


def _uncut(graph: Rewriting, x: Value) -> Value | None:
    """What x is the first channels of."""
    call = graph.call(x, "slice")
    if call is None or any(call.attrs["begin"]) or set(call.attrs["step"]) != {1}:
        return None
    source = call.args[0]
    if not is_static(source) or len(shape_of(source)) < 2:
        return None
    before, after = list(shape_of(source)), list(shape_of(x))
    before[1] = after[1] = 0
    whole = shape_of(source)[1] % BLOCK == 0 and shape_of(x)[1] % BLOCK
    return source if before == after and whole else None


def _cut_later(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """f(slice(x))   =>   slice(f(x)), of the first channels of x"""
    by_channel = call.op in ("lookup", *POOLS) or operator(call.op).pattern == "elementwise"
    if not by_channel or len(out.type.shape) < 2 or not is_static(out):
        return None
    sources = [_uncut(graph, a) for a in call.args]
    found = {shape_of(s)[1] for s in sources if s is not None}
    if len(found) != 1:
        return None
    (channels,) = found
    args: list[Value] = []
    for n, (arg, source) in enumerate(zip(call.args, sources, strict=True)):
        if source is not None:
            args.append(source)
        elif not isinstance(arg, Constant):
            return None
        else:
            is_table = call.op == "lookup" and n > 0
            args.append(arg if is_table else _widened(arg, len(out.type.shape), channels))
    return _cut(graph, graph.emit(call.op, *args, **call.attrs), out)


def _widened(constant: Constant, rank: int, channels: int) -> Constant:
    """A constant that broadcasts against more channels: those are given what the last one has."""
    value = constant.value
    axis = value.ndim - rank + 1
    if axis < 0 or value.shape[axis] == 1:
        return constant
    pads = [(0, channels - n if k == axis else 0) for k, n in enumerate(value.shape)]
    return Constant(np.pad(value, pads, mode="edge"), constant.name)
