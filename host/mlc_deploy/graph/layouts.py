"""The layout pass: operators in the layouts that the target computes them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlc_targets import Target

from ..ops import infer_types
from ..ops.strategy import packed_attrs
from ..pass_context import optional
from .nodes import Binding, Call, Constant, Function, TensorType, Value, Var

Pass = Callable[[Function], Function]
WEIGHTS = 1  # the argument that every operator with packed weights takes them as


@optional(level=2)
def pack_weights(target: Target) -> Pass:
    """op(x, w)   =>   op(x, layout_transform(w)), where the strategy wants packed constants.

    Weights that are no constants stay as they are: packing them would cost a pass over them in
    every run.
    """

    def pack_weights(function: Function) -> Function:
        bindings: list[Binding] = []
        for binding in function.bindings:
            bindings.extend(_packed(binding, target))
        same = len(bindings) == len(function.bindings)
        return function if same else replace(function, bindings=tuple(bindings))

    return pack_weights


def _packed(binding: Binding, target: Target) -> tuple[Binding, ...]:
    call = binding.call
    if not isinstance(call, Call) or len(call.args) <= WEIGHTS:
        return (binding,)
    weights = call.args[WEIGHTS]
    types = [a.type for a in call.args]
    wanted = packed_attrs(call.op, types, call.attrs, target)
    if wanted is None or not isinstance(weights, Constant):
        return (binding,)
    how = {"source": wanted["source_layout"], "to": wanted["kernel_layout"]}
    (type_,) = infer_types("layout_transform", [weights.type], how)
    packed = Var(f"{binding.outputs[0].name}.packed", TensorType(type_.shape, type_.dtype))
    args: tuple[Value, ...] = (*call.args[:WEIGHTS], packed, *call.args[WEIGHTS + 1 :])
    return (
        Binding((packed,), Call("layout_transform", (weights,), how), binding.source),
        Binding(binding.outputs, Call(call.op, args, {**call.attrs, **wanted}), binding.source),
    )
