"""How far a model's outputs move when floats that become integers are rounded otherwise.

A float sum is right within its rounding. Where a layer of floats ends in `quantize`, such a sum
next to a tie becomes either of two integers, and later layers hand the step on. So two right
programs may differ by more than float tolerances. How much is measured: by the same model whose
scales of such `quantize` differ by a few units of float32's last place.

It would be tighter to hold each integer to the float it was made of: an integer may differ by one
where that float lies next to a tie. A board gives the model's outputs alone, and its layers keep
such floats in registers, so the outputs are what can be held to something.

The measure stays narrow. A small residual net moves by at most 0.02 % of its largest output, and
each wrong constant that changes an output by more than the float tolerance is found (a scale 1 %
off, a zero point 1 off, a channel left out: tests/quantize/test_nudge.py). Deep trained models
move by up to 4 %. MOST bounds it, so no model makes every board right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .nodes import Binding, Call, Constant, Function, Value

NUDGES = (1 - 2e-6, 1 + 2e-6)  # what float sums of some hundred terms may be off by
TIMES = 3  # a board's ties are others than the two nudges', about as many
MOST = 0.05  # of an output's largest element: the widest that outputs may differ for ties


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
