"""int8 convolutions computed in float32, where this is exact and takes fewer instructions.

Products of int8 are whole numbers, and float32 adds them without rounding while sums stay below
2^24. A float32 kernel takes the first layer of a network, or groups of few channels, as they are.
An int8 kernel copies and fills up channels. Some CPUs multiply no more int8 than float32 numbers at
once. There, filling up costs more than the smaller numbers save.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlc_targets import Target

from ..ops import TensorType, infer_types
from ..ops.strategy import best_plan
from ..passes.context import optional
from .channels import plan_of_blocks
from .constants import is_static
from .nodes import Call, Constant, Function, Value, Var, const
from .rewrite import Rewriting, rewrite
from .signs import costs_less_unsigned

EXACT = 1 << 24  # float32 holds all whole numbers up to this
SPAN = 255  # the largest magnitude of an int8 number less a zero point
CONVERTED = 0.7  # instructions for each conversion to or from float
GAIN = 0.74  # share of the int8 cost to stay below: both are estimates, and layouts change twice


@optional(level=2)
def exact_floats(target: Target) -> Callable[[Function], Function]:
    """conv2d(x, w)   =>   cast(conv2d(cast(x) - zero, cast(w))) + zero * sum(w), for int8, where
    float32 sums are exact and the float32 kernel takes fewer instructions"""

    def rule(graph: Rewriting, out: Var, call: Call) -> Value | None:
        if call.op != "conv2d" or len(call.args) != 2 or "kernel_layout" in call.attrs:
            return None
        x, w = call.args
        if not isinstance(w, Constant) or {x.type.dtype, w.type.dtype} != {"int8"}:
            return None
        if not is_static(x) or costs_less_unsigned(call, target):
            return None
        if not _worth_while(call, w, target):
            return None
        attrs = dict(call.attrs)
        zero = attrs.pop("pad_value", 0)
        data = _less(graph, x, zero)
        weights = Constant(w.value.astype(np.float32), w.name)
        sums = graph.emit("conv2d", data, weights, **attrs)
        sums = graph.emit("cast", sums, dtype="int32")
        if not zero:
            return sums
        more = zero * w.value.astype(np.int32).sum(axis=(1, 2, 3), dtype=np.int32)
        return graph.emit("add", sums, Constant(more.reshape(-1, 1, 1)))

    def exact_floats(function: Function) -> Function:
        return rewrite(function, (rule,))

    return exact_floats


def _less(graph: Rewriting, x: Value, zero: int) -> Value:
    """x - zero as float32. For x = quantize(y), clip(round(y / scale)) saves the conversion to int8
    and back."""
    made = graph.call(x, "quantize")
    if made is not None and made.args[0].type.dtype == "float32":
        y, scale, point = made.args
        whole_tensor = scale.type.sizes in ((), (1,)) and point.type.sizes in ((), (1,))
        if whole_tensor and isinstance(scale, Constant) and isinstance(point, Constant):
            whole = graph.emit("round", graph.emit("divide", y, scale))
            less = zero - point.value.item()
            low, high = -128 - point.value.item(), 127 - point.value.item()
            whole = graph.emit("clip", whole, min=float(low), max=float(high))
            return graph.emit("subtract", whole, const(less, "float32")) if less else whole
    data = graph.emit("cast", x, dtype="float32")
    return graph.emit("subtract", data, const(zero, "float32")) if zero else data


def _worth_while(call: Call, w: Constant, target: Target) -> bool:
    """Whether sums are exact, and a float plan takes fewer instructions."""
    x = call.args[0]
    if w.value.shape[1] == 1 < call.attrs["groups"]:
        return False  # depthwise layers convert as many numbers as they read
    if SPAN * np.abs(w.value.astype(np.int64)).sum(axis=(1, 2, 3)).max(initial=0) > EXACT:
        return False
    given = plan_of_blocks(call, target)
    floats = {k: v for k, v in call.attrs.items() if k != "pad_value"}
    types = [TensorType(t.shape, "float32") for t in (x.type, w.type)]
    plan = best_plan("conv2d", types, floats, target)
    if given is None or not given.cost or plan is None or not plan.result or plan.op != "conv2d":
        return False  # Winograd filtering is not exact
    (out,) = infer_types("conv2d", types, floats)
    pixels = math.prod((out.sizes[0], *out.sizes[2:]))
    read = int(math.prod(call.attrs["strides"])) * x.type.sizes[1]
    cost = plan.cost + CONVERTED * pixels * (read + out.sizes[1])
    return cost < GAIN * given.cost
