"""The verifier of graph functions, which runs after the front end and after each pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_

from ..errors import GraphError
from ..ir import Dim, IRModule, PrimFunc
from ..ir import Var as Symbol
from ..ops import infer_types
from .control import given_types, listed
from .dims import bound, fit, same_types, symbol, symbols
from .extents import defined_by
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
    TensorType,
    Var,
    bodies,
)
from .printer import script
from .states import with_states

Where = Callable[[], str]  # the line that an error quotes


def verify(
    function: Function,
    module: IRModule | None = None,
    around: Collection[Symbol] = (),
    most: Mapping[str, int] | None = None,
) -> None:
    """Raises ValueError, quoting the line, unless all of this holds. Every variable is defined
    once, before its use, with a unique name. Outputs have unique names. The outputs of every call
    have the inferred types. Every symbolic dimension comes from a parameter, from an extent of the
    function, or from the function around it, which has the dimensions `around` and the extents
    `most`. Calls of PrimFuncs fit the module's PrimFuncs, if a module is given."""
    defined: set[Var] = set()
    names: set[str] = set()

    def define(var: Var, where: Where) -> None:
        _hold(var not in defined, f"'{var.name}' is defined twice", where)
        _hold(var.name not in names, f"two variables are called '{var.name}'", where)
        defined.add(var)
        names.add(var.name)

    for param in function.params:
        define(param, lambda: f"the parameters of {function.name}")
    bounded = {**(most or {}), **dict(function.extents)}
    own = (symbol(p.name) for p in function.params if p.name in bounded)
    known = {*symbols([p.type for p in function.params]), *own, *around}
    for binding in function.bindings:
        line = _line(binding)
        for arg in binding.call.args:
            there = not isinstance(arg, Var) or arg in defined
            _hold(there, f"'{arg.name}' is used before it is defined", line)
        _check_types(binding, module, known, bounded, line)
        for var in binding.outputs:
            define(var, line)
        extent = defined_by(binding)
        if extent is not None:
            _hold(extent not in known, f"dimension '{extent.name}' is defined twice", line)
            _hold(extent.name in bounded, f"nothing says how large '{extent.name}' can be", line)
            known.add(extent)
        integers = binding.call.tir_vars if isinstance(binding.call, CallTIR) else ()
        for dim in symbols([*(v.type for v in binding.outputs), TensorType(integers, "int64")]):
            _hold(dim in known, f"no parameter defines dimension '{dim.name}'", line)
    last = _returned(function)
    for value in function.outputs:
        there = not isinstance(value, Var) or value in defined
        _hold(there, f"'{value.name}' is returned but not defined", last)
    count = len(function.outputs)
    _hold(count == len(function.output_names), f"{count} outputs, but not as many names", last)
    for number, name in enumerate(function.output_names):
        again = name in function.output_names[:number]
        _hold(not again, f"two outputs are called '{name}'", last)
    try:
        with_states(function, dict(function.states))
    except GraphError as error:
        raise ValueError(f"{error.what}\n  in:  {last()}") from error


def _line(node: Binding) -> Where:
    return lambda: script(node)


def _returned(function: Function) -> Where:
    return lambda: f"return {', '.join(str(v) for v in function.outputs)}"


def _hold(condition: bool, message: str, where: Where) -> None:
    if not condition:
        raise ValueError(f"{message}\n  in:  {where()}")


def _check_types(
    binding: Binding,
    module: IRModule | None,
    known: Collection[Symbol],
    most: Mapping[str, int],
    line: Where,
) -> None:
    given = tuple(v.type for v in binding.outputs)
    args = [a.type for a in binding.call.args]
    match binding.call:
        case Call(op, _, attrs):
            try:
                expected: tuple[TensorType, ...] = infer_types(op, args, attrs)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{error.args[0]}\n  in:  {line()}") from error
        case CallTIR(func, _, expected, tir_vars):
            if module is not None:
                _check_signature(module, func, [*args, *expected], tir_vars, line)
        case CallPacked(_, _, expected, pure):
            _hold(bool(expected) or not pure, "a pure call has no result", line)
        case CallFused(function):
            expected = tuple(v.type for v in function.outputs)
            _check_fused(function, args, known, line)
        case CallLoop() | CallBranch() as control:
            try:
                expected = given_types(control)
            except ValueError as error:
                raise ValueError(f"{error}\n  in:  {line()}") from error
            for function in bodies(control):
                verify(function, module, known, most)
    _hold(
        same_types(given, expected),
        f"the call returns {listed(expected)}, not {listed(given)}",
        line,
    )


def _check_signature(
    module: IRModule, name: str, types: Sequence[TensorType], tir_vars: Sequence[Dim], line: Where
) -> None:
    func = module.functions.get(name)
    if not isinstance(func, PrimFunc):
        raise ValueError(f"the module has no PrimFunc '{name}'\n  in:  {line()}")
    integers = tuple(p for p in func.params if isinstance(p, Symbol))
    last = all(map(is_, func.params, (*func.buffers, *integers)))
    _hold(last, f"'{name}' has integer parameters before tensors; a graph passes them last", line)
    names = ", ".join(p.name for p in integers)
    what = f"'{name}' takes {'the integers ' + names if names else 'no integers'}"
    as_many = len(integers) == len(tir_vars)
    _hold(as_many, f"{what}, and tir_vars gives {len(tir_vars)}", line)
    given = dict(zip(integers, tir_vars, strict=True))
    taken = [bound(TensorType(b.shape, b.dtype), given) for b in func.buffers]
    fits = fit(taken, types)[1] is None
    _hold(fits, f"'{name}' takes {listed(taken)}, not {listed(types)}", line)


def _check_fused(
    function: Function, args: Sequence[TensorType], known: Collection[Symbol], line: Where
) -> None:
    """Checks that a fused function holds only calls of operators and functions, has only scalar
    constants, and takes args."""
    for binding in function.bindings:
        is_call = isinstance(binding.call, Call | CallTIR)
        _hold(
            is_call, f"'{function.name}' fuses something that is not an operator: {binding}", line
        )
        for arg in binding.call.args:
            scalar = not isinstance(arg, Constant) or arg.value.size == 1
            _hold(
                scalar, f"'{function.name}' holds a constant that is not a scalar: {binding}", line
            )
    params = [p.type for p in function.params]
    fits = same_types(params, args)
    _hold(fits, f"'{function.name}' takes {listed(params)}, not {listed(args)}", line)
    verify(function, None, known)
