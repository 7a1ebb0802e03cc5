"""What must hold of every graph function, after the front end and after each pass."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import IRModule, PrimFunc
from ..ops import infer_types
from .nodes import Binding, Call, CallTIR, Function, TensorType, Var
from .printer import script


def verify(function: Function, module: IRModule | None = None) -> None:
    """Raises ValueError, quoting the line: every variable is defined once, before its use, with a
    name of its own; every call's outputs have the types that inference gives. Calls of PrimFuncs
    are held against the module's, where one is given."""
    defined: set[Var] = set()
    names: set[str] = set()

    def define(var: Var, where: str) -> None:
        _hold(var not in defined, f"'{var.name}' is defined twice", where)
        _hold(var.name not in names, f"two variables are called '{var.name}'", where)
        defined.add(var)
        names.add(var.name)

    for param in function.params:
        define(param, f"the parameters of {function.name}")
    for binding in function.bindings:
        line = script(binding)
        for arg in binding.call.args:
            known = not isinstance(arg, Var) or arg in defined
            _hold(known, f"'{arg.name}' is used before it is defined", line)
        _check_types(binding, module, line)
        for var in binding.outputs:
            define(var, line)
    last = f"return {', '.join(str(v) for v in function.outputs)}"
    for value in function.outputs:
        known = not isinstance(value, Var) or value in defined
        _hold(known, f"'{value.name}' is returned but not defined", last)
    count = len(function.outputs)
    _hold(count == len(function.output_names), f"{count} outputs, but not as many names", last)


def _hold(condition: bool, message: str, line: str) -> None:
    if not condition:
        raise ValueError(f"{message}\n  in:  {line}")


def _check_types(binding: Binding, module: IRModule | None, line: str) -> None:
    given = tuple(v.type for v in binding.outputs)
    args = [a.type for a in binding.call.args]
    match binding.call:
        case Call(op, _, attrs):
            try:
                expected = infer_types(op, args, attrs)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{error}\n  in:  {line}") from error
        case CallTIR(func, _, expected):
            if module is not None:
                _check_signature(module, func, [*args, *expected], line)
    _hold(given == expected, f"the call gives {_list(expected)}, not {_list(given)}", line)


def _check_signature(module: IRModule, name: str, types: Sequence[TensorType], line: str) -> None:
    func = module.functions.get(name)
    if not isinstance(func, PrimFunc):
        raise ValueError(f"the module has no PrimFunc '{name}'\n  in:  {line}")
    taken = [TensorType(b.shape, b.dtype) for b in func.buffers]
    _hold(taken == list(types), f"'{name}' takes {_list(taken)}, not {_list(types)}", line)


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(str(t) for t in types)
