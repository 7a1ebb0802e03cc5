"""Calls of PrimFuncs become calls of operators, where operators can compute all of it. Every pass
knows operators."""

from __future__ import annotations

from ..ir import Binary, Buffer, Const, Expr, Load, Reduce, loads
from ..ir import Var as Index
from ..ir.names import Names
from ..ir.nodes import Node
from ..ir.rewrite import bottom_up, children
from ..ops import frozen_attrs
from ..ops.pointwise import FUNCTION, NAME, Step, step_of
from ..passes.context import optional
from ..te.read_back import ReadStage
from .definition import Definition, is_elementwise, is_whole
from .nodes import (
    Binding,
    Call,
    CallTIR,
    Function,
    TensorType,
    Value,
    Var,
    taken_names,
    with_bindings,
)

MOST_STEPS = 64  # the longest expression to convert; longer ones stay functions


@optional(level=1)
def recognize_functions(function: Function) -> Function:
    """call_tir(f, x, w, b)   =>   pointwise(dense(x, w), b, steps), where f computes this: each of
    its stages is elementwise, transposes a tensor, or multiplies matrices"""
    names = taken_names(function)
    bindings: list[Binding] = []
    for binding in function.bindings:
        match binding.call:
            case CallTIR(definition=Definition() as definition):
                bindings += _operators(binding, definition, names) or [binding]
            case _:
                bindings.append(binding)
    return with_bindings(function, bindings)


def _operators(binding: Binding, definition: Definition, names: Names) -> list[Binding]:
    """The operators that compute a function; none if one of its stages is not an operator."""
    call, stages = binding.call, definition.stages
    assert isinstance(call, CallTIR)
    values: dict[Buffer, Value] = dict(zip(definition.func.buffers, call.args, strict=False))
    made: list[Binding] = []
    for stage in stages:
        name = call.func if len(stages) == 1 else stage.name
        found = _operator(stage, values, name)
        if found is None:
            return []
        out = binding.outputs[0]
        if stage is not stages[-1]:
            type_ = TensorType(stage.buffer.shape, stage.buffer.dtype)
            out = Var(names.fresh(f"{out.name}.{stage.name}"), type_)
        values[stage.buffer] = out
        made.append(Binding((out,), found, binding.source))
    return made


def _operator(stage: ReadStage, values: dict[Buffer, Value], name: str) -> Call | None:
    """The call of an operator that computes a stage, or None."""
    if is_elementwise(stage):
        inputs = dict.fromkeys(load.buffer for load in loads(stage.value))
        steps = _steps(stage.value, {b: n for n, b in enumerate(inputs)})
        attrs = frozen_attrs({FUNCTION: name, "steps": steps})
        return Call(NAME, tuple(values[b] for b in inputs), attrs) if steps else None
    match stage.value:
        case Load(buffer, indices) as load if len(set(indices)) == len(stage.axis):
            own = {axis.var: number for number, axis in enumerate(stage.axis)}
            read = [stage.axis[own[at]] for at in indices if isinstance(at, Index) and at in own]
            if is_whole(load, read):
                place = {axis: n for n, axis in enumerate(read)}
                axes = tuple(place[axis] for axis in stage.axis)
                return Call("transpose", (values[buffer],), {"axes": axes})
        case Reduce("+", Binary("*", Load() as a, Load() as b), (k,), identity=Const(0)) if (
            len(stage.axis) == 2 and stage.value.dtype == "float32"
        ):
            i, j = stage.axis
            for x, w in ((a, b), (b, a)):
                for transposed, way in ((False, (k, j)), (True, (j, k))):
                    if is_whole(x, (i, k)) and is_whole(w, way):
                        args = values[x.buffer], values[w.buffer]
                        return Call("dense", args, {"transpose_b": transposed})
    return None


def _steps(value: Expr, inputs: dict[Buffer, int]) -> list[Step]:
    """The expression as steps; none if it is a single load, too long, or has a part that is not
    a step."""
    steps: list[Step] = []
    numbers: dict[Expr, int] = {}
    for part in bottom_up(value, numbers, _operands):
        if isinstance(part, Load):
            numbers[part] = inputs[part.buffer]
            continue
        step = step_of(part, numbers)
        if step is None or len(steps) == MOST_STEPS:
            return []
        numbers[part] = len(inputs) + len(steps)
        steps.append(step)
    return steps


def _operands(e: Node) -> tuple[Node, ...]:
    return () if isinstance(e, Load) else children(e)
