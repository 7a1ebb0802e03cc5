"""The reference: a graph function computed by numpy, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

import numpy as np

from ..errors import InputError
from ..ir import Dim, IRModule, PrimFunc
from ..ir import Var as Symbol
from ..ir.interp import run
from ..ops import Array, TensorType
from ..ops import evaluate as evaluate_op
from ..ops.indices import OutsideError
from .control import run_branch, run_loop
from .dims import bound, bound_dims, fit, same_type
from .extents import defined_by, known
from .external import call_external, passable, reference_of
from .nodes import (
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    Value,
    Var,
    uses,
)
from .shapeless import Shapeless

INDICES_MEND = "--input with indices within the axis"

Observer = Callable[[Binding, tuple[Array, ...]], None]


def evaluate(
    function: Function | Shapeless,
    inputs: Mapping[str, Array] | Sequence[Array],
    observe: Observer | None = None,
    module: IRModule | None = None,
    around: Mapping[Symbol, Dim] | None = None,
) -> dict[str, Array]:
    """The outputs by name. `inputs` are by the parameters' names, or in their order. They decide
    the symbolic dimensions.

    observe(binding, values) sees every binding's outputs as they appear. Values that no later call
    reads are dropped. `around` has the dimensions of the surrounding function. Calls of PrimFuncs
    are interpreted, and need their module. Registered functions are called. Raises ValueError for
    an input that is missing, unknown, or of another shape or dtype, InputError for an index outside
    of its axis, and ExternalError.
    """
    if isinstance(function, Shapeless):
        given = inputs if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        types = {name: type_of(np.asarray(array)) for name, array in given.items()}
        by_name = isinstance(inputs, Mapping)
        function = function.of(types) if by_name else function.of_inputs([*types.values()])  # type: ignore[arg-type]
    arrays = _given(function, inputs)
    values: dict[Var, Array] = dict(zip(function.params, arrays, strict=True))
    dims = _dims(function, arrays, around or {})
    left = uses(function)

    def read(value: Value) -> Array:
        return value.value if isinstance(value, Constant) else values[value]

    for binding in function.bindings:
        args = [read(a) for a in binding.call.args]
        results = _call(binding, args, dims, module)
        extent = defined_by(binding)
        if extent is not None:
            dims[extent] = int(results[0])
        for var, array in zip(binding.outputs, results, strict=True):
            assert same_type(type_of(array), bound(var.type, dims)), (
                f"{binding} gives {type_of(array)}"
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


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, str(array.dtype))


def _given(function: Function, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Array]:
    """The arrays in the parameters' order."""
    most = dict(function.extents)
    names = [p.name for p in function.params]
    if not isinstance(inputs, Mapping):
        names = [name for name in names if name not in most]
        if len(inputs) != len(names):
            raise ValueError(f"{len(inputs)} inputs for {len(names)}: {', '.join(names)}")
        inputs = dict(zip(names, inputs, strict=True))
    for name in inputs:
        if name not in names:
            near = get_close_matches(name, names, 3, 0.5) or names
            raise ValueError(f"no input '{name}'\n  try: one of {', '.join(near)}")
    own = [p for p in function.params if p.name in inputs]
    decided, _ = fit([p.type for p in own], [type_of(np.asarray(inputs[p.name])) for p in own])
    extents = {v.name: np.array(n, np.int64) for v, n in decided.items() if v.name in most}
    inputs = {**extents, **inputs}
    for param in function.params:
        if param.name not in inputs:
            raise ValueError(f"input '{param.name}' ({param.type}) is missing")
    return [np.asarray(inputs[p.name]) for p in function.params]


def _dims(
    function: Function, arrays: Sequence[Array], around: Mapping[Symbol, Dim]
) -> dict[Symbol, Dim]:
    """The values of symbolic dimensions. Raises ValueError if an array does not fit."""
    wanted = [bound(p.type, around) for p in function.params]
    dims, misfit = fit(wanted, [type_of(a) for a in arrays])
    if misfit is not None:
        param, given = function.params[misfit], type_of(arrays[misfit])
        taken = bound(param.type, dims)
        where = "" if same_type(taken, param.type) else f", here {taken}"
        what = f"input '{param.name}' is {given}, the model takes {param.type}{where}"
        raise ValueError(what)
    return {**around, **dims}


def _call(
    binding: Binding, args: list[Array], dims: Mapping[Symbol, Dim], module: IRModule | None
) -> tuple[Array, ...]:

    def run_body(function: Function, values: Sequence[Array]) -> list[Array]:
        return list(evaluate(function, values, None, module, dims).values())

    match binding.call:
        case Call(op, _, attrs):
            try:
                return evaluate_op(op, args, {key: known(v, dims) for key, v in attrs.items()})
            except OutsideError as error:
                raise InputError(
                    str(error), where=binding.source or str(binding), mend=INDICES_MEND
                ) from error
        case CallTIR(func, _, types, tir_vars, definition):
            called = definition.func if definition else module and module.functions.get(func)
            if not isinstance(called, PrimFunc):
                raise ValueError(f"call_tir of '{func}' needs the module that holds it")
            outputs = _outputs(types, dims)
            integers = (int(n) for n in bound_dims(tir_vars, dims))  # type: ignore[arg-type]
            externs = partial(reference_of, str(binding))
            run(called, *map(passable, args), *outputs, *integers, externs=externs)
            return outputs
        case CallPacked(func, _, types):
            outputs = _outputs(types, dims)
            call_external(func, list(map(passable, args)), outputs, str(binding))
            return outputs
        case CallFused(function):
            return tuple(run_body(function, args))
        case CallLoop(turns=turns) as loop:
            (turns,) = bound_dims([turns], dims)
            made = [bound(v.type, dims) for v in binding.outputs]
            return run_loop(replace(loop, turns=turns), args, made, run_body)
        case CallBranch() as branch:
            return run_branch(branch, args, run_body)


def _outputs(types: Sequence[TensorType], dims: Mapping[Symbol, Dim]) -> tuple[Array, ...]:
    known = [bound(t, dims) for t in types]
    return tuple(np.empty([int(d) for d in t.shape], t.dtype) for t in known)  # type: ignore[arg-type]
