"""How far a model's outputs move when floats that become integers are rounded otherwise, and when
numbers are rounded to float16.

A float sum is right within its rounding. Where a layer of floats ends in `quantize`, such a sum
next to a tie becomes either of two integers, and later layers hand the step on. So two right
programs may differ by more than float tolerances. How much is measured: by the same model whose
scales of such `quantize` differ by a few units of float32's last place.

It would be tighter to hold each integer to the float it was made of: an integer may differ by one
where that float lies next to a tie. A board gives the model's outputs alone, and its layers keep
such floats in registers, so the outputs are what can be held to something.

An error that moves the outputs by less than this slack is missed. tests/quantize/test_nudge.py
shows that seven wrong constants of one small residual net are found (a scale 1 % off, a zero point
1 off, a channel left out, ...), on four inputs each. Nothing is shown for deep models, whose slack
is wider. MOST bounds it, so no model makes every board right.

Sums of float16 are rounded at every step, and a network hands on what that moves: outputs that are
differences of larger numbers move by more than a share of themselves. Rounded weights show by how
much.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..ir.names import Names
from .nodes import Binding, Call, Constant, Function, Value, Var, bodies, in_bodies

# Factors of a scale. An addition rounds by at most 2^-24 of its sum, and n such roundings of random
# sign make about sqrt(n) of that: 2e-6 for a sum of 1,100 terms of one sign.
NUDGES = (1 - 2e-6, 1 + 2e-6)
# Measured by `scripts/bench/nudges.py` on eleven trained models, x86-64 against the reference:
# outputs differ by at most 0.94 of what the nudges move them by. The rest is for other machines.
TIMES = 3
# In shares of an output's largest element. Measured so, too: the nudges move outputs by at most
# 1.96 % (wake_embedding), and they differ by at most 0.65 % (face_output).
MOST = 0.05
# In shares of an output's elements: of the text that a detector sees (text_detection), the nudges
# move 0.55 % by more than MOST, all of them at the edges of letters, and boards 0.45 %.
MOST_ELEMENTS = 0.02


def rounds_floats(function: Function) -> bool:
    """Whether integers are made of floats that the function computes."""
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
    names = Names(v.name for b in function.bindings for v in b.outputs)
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
    """The function with constants of float32 rounded to float16. Each product is then off by about
    as much as where the data are rounded, too; numbers beyond float16 stay as they are."""

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
