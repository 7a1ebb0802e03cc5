"""A model whose inputs and weights are moved by a unit in their last place.

No arithmetic of that precision can tell such models apart: the numbers themselves are rounded by as
much. So outputs cannot be compared more closely than they move from one to the other. Deep networks
with random weights, logarithms of nearly nothing and thresholds move far.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ops import Array
from ..ops.registry import has
from .nodes import Call, Constant, Function, Value, Var, bodies, in_bodies


def moved(array: Array, rng: np.random.Generator, precision: str) -> Array:
    """Each float a unit of the precision up or down, at random; zeros and other dtypes stay."""
    if array.dtype.kind != "f":
        return array
    unit = max(float(np.finfo(dtype).eps) for dtype in (array.dtype, np.dtype(precision)))
    factors = 1 + unit * rng.choice((-1.0, 1.0), array.shape)
    with np.errstate(over="ignore"):
        return np.asarray(array * factors, array.dtype)


def weights_moved(function: Function, rng: np.random.Generator, precision: str) -> Function:
    """The function with the weights of its layers moved. Other constants stay: some are limits,
    and some are whole numbers."""

    def changed(value: Value) -> Value:
        if isinstance(value, Constant) and value.type.dtype.startswith("float"):
            return Constant(moved(value.value, rng, precision), value.name)
        return value

    bindings = [
        replace(b, call=replace(b.call, args=tuple(map(changed, b.call.args))))
        if isinstance(b.call, Call) and has(b.call.op, "products")
        else b
        for b in function.bindings
    ]
    whole = replace(function, bindings=tuple(bindings))
    return in_bodies(whole, lambda body: weights_moved(body, rng, precision))


def computes_in_half(function: Function) -> bool:
    """Whether float16 is a dtype of the computation, and not only of inputs, outputs or weights."""
    return any(
        (
            isinstance(b.call, Call)
            and b.call.op != "cast"
            and any(v.type.dtype == "float16" for v in b.outputs)
            and any(isinstance(a, Var) for a in b.call.args)
        )
        or any(map(computes_in_half, bodies(b.call)))
        for b in function.bindings
    )
