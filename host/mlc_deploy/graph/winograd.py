"""Convolutions of 3 x 3 by Winograd's filtering, where that is faster."""

from __future__ import annotations

from collections.abc import Callable

from mlc_targets import Target

from ..ops.arm_cpu.winograd import decide
from ..ops.winograd import transformed_weights
from ..passes.context import PassContext, option, optional
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite


@optional(level=2)
def choose_winograd(target: Target) -> Callable[[Function], Function]:
    """conv2d(x, w)   =>   winograd_conv2d(x, G w G^T), where the target's rule finds it worth while

    The rule is ops.arm_cpu.winograd.decide, which gives its reason. Weights grow by 1.8 (tiles of
    2 x 2 results) to 7.1 (of 6 x 6), and errors to some 1e-5 of the largest result;
    PassContext(disabled_pass=["choose_winograd"]) computes every product instead, and so do the
    layers for which the option graph.layouts names a layout.
    """
    direct: set[Value] = set()

    def rule(graph: Rewriting, out: Var, call: Call) -> Value | None:
        if call.op != "conv2d" or not isinstance(call.args[1], Constant) or out in direct:
            return None
        plan = decide([a.type for a in call.args], call.attrs, target).plan
        if plan is None:
            return None
        x, w = call.args
        assert isinstance(w, Constant)
        weights = Constant(transformed_weights(w.value, plan.tile), w.name)
        attrs = {"tile": plan.tile, "pads": call.attrs["pads"]}
        return graph.emit("winograd_conv2d", x, weights, **attrs)

    def choose_winograd(function: Function) -> Function:
        if not PassContext.current().runs("choose_layouts"):
            return function  # the kernels are in blocks of channels
        asked = option("graph.layouts")
        direct.update(v for b in function.bindings if b.source in asked for v in b.outputs)
        return rewrite(function, (rule,))

    return choose_winograd
