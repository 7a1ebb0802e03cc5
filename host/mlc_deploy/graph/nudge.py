"""How far a model's outputs move when floats that become integers are rounded differently, and when
numbers are rounded to float16.

A float sum is correct within its rounding error. If a float layer ends in `quantize`, a sum next to
a tie may become either of two integers, and later layers pass the step on. So two correct programs
may differ by more than float tolerances. The same model with nudged scales measures by how much:
the scales of such `quantize` differ by a few units in float32's last place.

A tighter check would compare each integer with its float: an integer may differ by one only if the
float lies next to a tie. But a board returns only the model's outputs, and its layers keep such
floats in registers. So only the outputs can be checked.

The check misses an error that moves the outputs by less than this slack. In
tests/quantize/test_nudge.py it finds seven wrong constants of one small residual net (a scale 1 %
off, a zero point 1 off, a channel left out, ...), on four inputs each. Nothing is shown for deep
models, whose slack is wider. MOST bounds the slack, so no model accepts every board.

float16 sums are rounded at every step, and the network passes the errors on. An output that is the
difference of larger numbers moves by more than a fixed share of itself. The model with rounded
weights shows by how much.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from .nodes import Binding, Call, Constant, Function, Value, Var, bodies, in_bodies, taken_names

# Factors of a scale. An addition rounds by at most 2^-24 of its sum, and n roundings of random sign
# add up to about sqrt(n) times this: 2e-6 for a sum of 1,100 terms of one sign.
NUDGES = (1 - 2e-6, 1 + 2e-6)
# Measured by `scripts/bench/nudges.py` on eleven trained models, x86-64 against the reference:
# outputs differ by at most 0.94 times the effect of the nudges. The rest is for other machines.
TIMES = 3
# A share of an output's largest element. In the same measurement, the nudges move outputs by at
# most 1.96 % (wake_embedding), and outputs differ by at most 0.65 % (face_output).
MOST = 0.05
# A share of an output's elements. In a text detector (text_detection), the nudges move 0.55 % of
# the elements by more than MOST, all at the edges of letters, and boards move 0.45 %.
MOST_ELEMENTS = 0.02


def rounds_floats(function: Function) -> bool:
    """Whether the function quantizes floats that it computes."""
    return _rounds(function, function.params)


def _rounds(function: Function, given: Collection[Value]) -> bool:
    return any(
        _nudgeable(b, given) or any(_rounds(body, ()) for body in bodies(b.call))
        for b in function.bindings
    )


def nudged(function: Function, factor: float) -> Function:
    """quantize(x, scale, zero)   =>   quantize(x, scale * factor, zero), for computed x"""
    return _nudged(function, factor, function.params)


def _nudged(function: Function, factor: float, given: Collection[Value]) -> Function:
    names = taken_names(function)
    bindings: list[Binding] = []
    for binding in function.bindings:
        if _nudgeable(binding, given):
            assert isinstance(binding.call, Call)
            x, scale, zero = binding.call.args
            moved = Var(names.fresh("scale"), scale.type)
            times = Constant(np.asarray(factor, scale.type.dtype))
            bindings.append(Binding((moved,), Call("multiply", (scale, times), {})))
            binding = replace(binding, call=replace(binding.call, args=(x, moved, zero)))
        bindings.append(binding)
    nudged = replace(function, bindings=tuple(bindings))
    return in_bodies(nudged, lambda body: _nudged(body, factor, ()))


def rounded_to_half(function: Function) -> Function:
    """The function with float32 constants rounded to float16. The error of each product is about
    the same as with rounded data. Numbers beyond float16 stay as they are."""

    def rounded(value: Value) -> Value:
        if not isinstance(value, Constant) or value.type.dtype != "float32":
            return value
        with np.errstate(over="ignore"):
            half = value.value.astype(np.float16).astype(np.float32)
        return Constant(np.where(np.isfinite(half), half, value.value), value.name)

    bindings = [
        replace(b, call=replace(b.call, args=tuple(map(rounded, b.call.args))))
        for b in function.bindings
    ]
    return replace(function, bindings=tuple(bindings))


def _nudgeable(binding: Binding, given: Collection[Value]) -> bool:
    match binding.call:
        case Call("quantize", (x, *_)):
            return x.type.dtype == "float32" and x not in given
    return False
