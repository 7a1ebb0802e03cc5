"""Normalizations over very many elements: their statistics are reductions of their own.

The kernels of layer_norm and rms_norm add up one element after the other. For a row of millions, as
global normalization of sound has, float32 loses too much that way: an error of 5e-6 of the largest
result at 65,536 elements, of 2e-4 at a million and of 5e-3 at ten million. `mean` adds up in parts:
1e-5 at a million, 1e-4 at ten million. (Uniform data on x86-64, tests/graph/test_long_norms.py.)
"""

from __future__ import annotations

import math

import numpy as np

from ..ops.half import sums
from ..passes.context import optional
from .constants import is_static
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

LONG = 1 << 16  # elements of a row; what longer ones lose is said above


@optional(level=1)
def split_long_norms(function: Function) -> Function:
    """layer_norm(x), rms_norm(x) over long rows   =>   their definitions, by mean"""
    return rewrite(function, (_split,))


def _split(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer_norm(x)   =>   (x - mean(x)) / sqrt(mean((x - mean(x)) ^ 2) + e)"""
    match call:
        case Call("layer_norm" | "rms_norm" as op, (x,), attrs):
            axes, dtype = attrs["axes"], x.type.dtype
            if not is_static(x) or math.prod(x.type.sizes[a] for a in axes) <= LONG:
                return None

            def mean(value: Value) -> Value:
                return graph.emit("mean", value, axes=axes, keepdims=True)

            wide = sums(dtype)  # squares of float16 overflow
            x = x if wide == dtype else graph.emit("cast", x, dtype=wide)
            if op == "layer_norm":
                x = graph.emit("subtract", x, mean(x))
            power = mean(graph.emit("multiply", x, x))
            epsilon = Constant(np.asarray(attrs["epsilon"], wide))
            root = graph.emit("sqrt", graph.emit("add", power, epsilon))
            y = graph.emit("divide", x, root)
            return y if wide == dtype else graph.emit("cast", y, dtype=dtype)
    return None
