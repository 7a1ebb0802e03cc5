"""Normalizations over very many elements: their statistics become separate reductions.

The kernels of layer_norm and rms_norm add one element after the other. Global normalization of
sound has rows of millions, where float32 then loses too much: the error is 5e-6 of the largest
result at 65,536 elements, 2e-4 at a million and 5e-3 at ten million. `mean` adds in parts: the
error is 1e-5 at a million, 1e-4 at ten million. (Uniform data on x86-64,
tests/graph/test_long_norms.py.)
"""

from __future__ import annotations

import math

import numpy as np

from ..ops.half import sums
from ..passes.context import optional
from .constants import is_static
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

LONG = 1 << 16  # elements of a row; longer ones are split (see above)


@optional(level=1)
def split_long_norms(function: Function) -> Function:
    """layer_norm(x), rms_norm(x) over long rows   =>   their definitions, with mean"""
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
