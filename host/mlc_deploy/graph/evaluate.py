"""The reference: a graph function computed by numpy, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import IRModule
from ..ir.interp import run
from ..ops import Array
from ..ops import evaluate as evaluate_op
from .nodes import Binding, Call, CallTIR, Constant, Function, Value, Var, uses

Observer = Callable[[Binding, tuple[Array, ...]], None]


def evaluate(
    function: Function,
    inputs: Mapping[str, Array] | Sequence[Array],
    observe: Observer | None = None,
    module: IRModule | None = None,
) -> dict[str, Array]:
    """The outputs by name. `inputs` are by the parameters' names, or in their order.

    observe(binding, values) sees every binding's outputs as they appear; what no later call reads
    is forgotten. Calls of PrimFuncs are interpreted, and need their module. Raises ValueError for
    an input that is missing, unknown, or of another shape or dtype.
    """
    values: dict[Var, Array] = dict(zip(function.params, _bound(function, inputs), strict=True))
    left = uses(function)

    def read(value: Value) -> Array:
        return value.value if isinstance(value, Constant) else values[value]

    for binding in function.bindings:
        args = [read(a) for a in binding.call.args]
        results = _call(binding.call, args, module)
        for var, array in zip(binding.outputs, results, strict=True):
            assert array.shape == var.type.shape and array.dtype == var.type.dtype, (
                f"{binding} gives {array.dtype}{list(array.shape)}"
            )
            values[var] = array
        if observe is not None:
            observe(binding, results)
        for arg in binding.call.args:
            left[arg] -= 1
            if not left[arg] and isinstance(arg, Var):
                del values[arg]
    return {
        name: np.asarray(read(v), order="C")
        for name, v in zip(function.output_names, function.outputs, strict=True)
    }


def _bound(function: Function, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Array]:
    names = [p.name for p in function.params]
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise ValueError(f"{len(inputs)} inputs for {len(names)}: {', '.join(names)}")
        inputs = dict(zip(names, inputs, strict=True))
    for name in inputs:
        if name not in names:
            raise ValueError(f"no input '{name}'\n  try: one of {', '.join(names)}")
    arrays: list[Array] = []
    for param in function.params:
        if param.name not in inputs:
            raise ValueError(f"input '{param.name}' ({param.type}) is missing")
        array = np.asarray(inputs[param.name])
        if array.shape != param.type.shape or array.dtype != param.type.dtype:
            given = f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"input '{param.name}' is {given}, the model takes {param.type}")
        arrays.append(array)
    return arrays


def _call(call: Call | CallTIR, args: list[Array], module: IRModule | None) -> tuple[Array, ...]:
    match call:
        case Call(op, _, attrs):
            return evaluate_op(op, args, attrs)
        case CallTIR(func, _, types):
            if module is None:
                raise ValueError(f"call_tir of '{func}' needs the module that holds it")
            dims: list[Any] = [t.shape for t in types]
            outputs = tuple(np.empty(d, t.dtype) for d, t in zip(dims, types, strict=True))
            run(module[func], *(np.ascontiguousarray(a) for a in args), *outputs)
            return outputs
