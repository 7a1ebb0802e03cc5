"""Signed instead of unsigned 8-bit numbers, or the other way round.

q - 128 means the same number as q if its zero point is less by 128, too. The sums of a layer are
then smaller by 128 times the sums of its weights, which are added back. Operators that move or
bound numbers work on either sign.

Most instructions multiply int8 by int8, so all numbers become int8 first (quantize.py).
Instructions of x86-64 take unsigned data. For targets with these, the data of layers become
unsigned again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc_targets import Target

from ..ops import TensorType, has, operator
from ..ops.plan import known_of_weights
from ..ops.quantize import OFFSET, SUMS, TOP_BIT
from ..ops.strategy import best_plan
from ..passes.context import optional
from .constants import is_static, shape_of
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, Rule, rewrite
from .simplify import constants_together


@dataclass(frozen=True, slots=True)
class Turned:
    """The change from dtype `of` to the 8-bit dtype of the other sign."""

    of: str

    @property
    def to(self) -> str:
        return OFFSET[self.of]

    @property
    def more(self) -> int:
        """The number added to each element."""
        return TOP_BIT if self.of == "int8" else -TOP_BIT

    def number(self, graph: Rewriting, q: Value) -> Value:
        """q with the other sign."""
        if isinstance(q, Constant):
            return self.constant(q)
        made = graph.call(q, "offset")
        return made.args[0] if made is not None else graph.emit("offset", q)

    def constant(self, q: Constant) -> Constant:
        return Constant((q.value.astype(np.int16) + self.more).astype(self.to), q.name)

    def made(self, graph: Rewriting, out: Var, call: Call) -> Value | None:
        """requantize(sums, s, z)   =>   offset(requantize(sums, s, z')), with the other sign
        inside"""
        match call:
            case Call("quantize" | "requantize" | "rescale" as op, (*given, Constant() as zero)):
                if out.type.dtype == self.of:
                    made = graph.emit(op, *given, self.constant(zero), **call.attrs)
                    return graph.emit("offset", made)
        return None

    def read(self, graph: Rewriting, out: Var, call: Call) -> Value | None:
        """dequantize(offset(q), s, z)   =>   dequantize(q, s, z')"""
        match call:
            case Call("dequantize", (q, scale, Constant() as zero)) if q.type.dtype == self.of:
                return graph.emit("dequantize", self.number(graph, q), scale, self.constant(zero))
        return None

    def moved(self, graph: Rewriting, out: Var, call: Call) -> Value | None:
        """move(offset(q))   =>   offset(move(q))"""
        if not has(call.op, "selects") or out.type.dtype != self.of:
            return None
        known = [graph.call(a, "offset") for a in call.args]
        others = [a for a, k in zip(call.args, known, strict=True) if k is None]
        if len(others) == len(call.args) or not all(isinstance(a, Constant) for a in others):
            return None
        attrs = dict(call.attrs)
        for name in operator(call.op).numbers:
            if attrs.get(name) is not None:
                attrs[name] += self.more
        args = [self.number(graph, a) for a in call.args]
        return graph.emit("offset", graph.emit(call.op, *args, **attrs))

    def layer(self, graph: Rewriting, call: Call) -> Value:
        """layer(x, w)   =>   layer(x', w) - more * sum(w), for x' = x + more"""
        x, w = call.args
        sums = graph.emit(call.op, self.number(graph, x), w, **self.attrs(call))
        less = Constant(np.asarray(-self.more, SUMS))
        return graph.emit("add", sums, graph.emit("multiply", weight_sums(graph, call, w), less))

    def attrs(self, call: Call) -> dict[str, Any]:
        """The attributes of a layer whose data have the other sign."""
        padded = {"pad_value": call.attrs.get("pad_value", 0) + self.more}
        return {**call.attrs, **(padded if call.op.startswith("conv") else {})}


def weight_sums(graph: Rewriting, call: Call, w: Value) -> Value:
    """The sums of the weights of each output, in a shape that broadcasts against the output."""
    whole = graph.emit("cast", w, dtype=SUMS)
    rank = len(w.type.shape)
    if call.op.startswith("conv"):
        total = graph.emit("sum", whole, axes=tuple(range(1, rank)), keepdims=False)
        return graph.emit("reshape", total, shape=(shape_of(w)[0],) + (1,) * (rank - 2))
    turned = bool(call.attrs.get("transpose_b"))
    along = graph.emit("sum", whole, axes=(rank - 1 if turned else rank - 2,), keepdims=True)
    shape = (*shape_of(w)[:-2], 1, shape_of(w)[rank - 2 if turned else rank - 1])
    return graph.emit("reshape", along, shape=shape if call.op == "matmul" else shape[1:])


SIGNED, UNSIGNED = Turned("int8"), Turned("uint8")


@optional(level=1)
def unsigned_data(target: Target) -> Callable[[Function], Function]:
    """layer(q, w)   =>   layer(q + 128, w) - 128 * sum(w), for int8, where the target's kernel for
    unsigned data costs less. Then all calls compute, move and read q + 128 instead of q."""

    def layer(graph: Rewriting, out: Var, call: Call) -> Value | None:
        return SIGNED.layer(graph, call) if costs_less_unsigned(call, target) else None

    def read(graph: Rewriting, out: Var, call: Call) -> Value | None:
        known = call.args and graph.call(call.args[0], "offset")
        return SIGNED.read(graph, out, call) if known else None

    rules: tuple[Rule, ...] = (layer, SIGNED.made, read, SIGNED.moved, constants_together)

    def unsigned_data(function: Function) -> Function:
        calls = (b.call for b in function.bindings if isinstance(b.call, Call))
        if not any(costs_less_unsigned(call, target) for call in calls):
            return function
        return rewrite(function, rules)

    return unsigned_data


def costs_less_unsigned(call: Call, target: Target) -> bool:
    """Whether a call is an int8 layer that costs less with unsigned data on the target."""
    if call.op not in ("conv2d", "dense") or len(call.args) != 2 or "kernel_layout" in call.attrs:
        return False
    x, w = call.args
    if not isinstance(w, Constant) or {x.type.dtype, w.type.dtype} != {"int8"} or not is_static(x):
        return False
    known = known_of_weights(w.value)
    turned = TensorType(x.type.shape, SIGNED.to)
    after = best_plan(call.op, (turned, w.type), {**SIGNED.attrs(call), **known}, target)
    if after is None or not after.cost:
        return False
    before = best_plan(call.op, (x.type, w.type), {**call.attrs, **known}, target)
    return before is None or after.cost < before.cost
