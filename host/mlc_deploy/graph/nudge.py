"""How far a model's outputs move when floats that become integers are rounded otherwise.

A float sum is right within its rounding. Where a layer of floats ends in `quantize`, such a sum
next to a tie becomes either of two integers, and later layers hand the step on. So two right
programs may differ by more than float tolerances. How much is measured: by the same model whose
scales of such `quantize` differ by a few units of float32's last place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .nodes import Binding, Call, Constant, Function, Value

NUDGES = (1 - 2e-6, 1 + 2e-6)  # what float sums of some hundred terms may be off by


def rounds_floats(function: Function) -> bool:
    """Whether integers are made of floats that the function computes."""
    return any(_nudgeable(function, b) for b in function.bindings)


def nudged(function: Function, factor: float) -> Function:
    """quantize(x, scale, zero)   =>   quantize(x, scale * factor, zero), for computed x"""
    bindings = []
    for binding in function.bindings:
        if _nudgeable(function, binding):
            assert isinstance(binding.call, Call)
            x, scale, zero = binding.call.args
            assert isinstance(scale, Constant)
            moved = Constant((scale.value * np.asarray(factor, scale.value.dtype)), scale.name)
            args: tuple[Value, ...] = (x, moved, zero)
            binding = replace(binding, call=replace(binding.call, args=args))
        bindings.append(binding)
    return replace(function, bindings=tuple(bindings))


def _nudgeable(function: Function, binding: Binding) -> bool:
    match binding.call:
        case Call("quantize", (x, Constant(), _)):
            return x.type.dtype == "float32" and x not in function.params
    return False
