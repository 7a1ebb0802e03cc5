"""Binding: symbolic dimensions get extents, and known parameters become constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from operator import is_
from typing import Any, TypeVar, cast, overload

import numpy as np

from ..errors import GraphError
from ..ir import Dim, Expr, IRModule
from ..ir import Var as Symbol
from ..ops import Array, TensorType
from ..ops.plan import Plan
from .dims import bound, bound_dims, fit, symbol, symbols
from .evaluate import type_of
from .extents import known, opened
from .nodes import (
    AnyCall,
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
)

M = TypeVar("M", Function, IRModule)
Change = Callable[[Function], Function]


def bind_params(graph: M, params: Mapping[str, Array], function: str = "main") -> M:
    """The function, or the module's `function`, with parameters made constants.

    The arrays also decide the symbolic dimensions of these parameters. Raises GraphError for an
    unknown name, and for arrays that do not fit.
    """
    return _changed(graph, function, lambda f: _with_params(f, params))


def bind_dims(graph: M, dims: Mapping[str, int], function: str = "main") -> M:
    """The function, or the module's `function`, with extents for symbolic dimensions.

    Raises GraphError for an unknown dimension, and for a negative extent.
    """
    return _changed(graph, function, lambda f: _with_extents(f, dims))


def static(
    function: Function,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, Dim | str] | None = None,
) -> Function:
    """The function with every dimension known. `dims` has extents by the dimension's name, `shapes`
    has shapes by the parameter's. A dimension with "<=n" is dynamic: its extent is known at run
    time, up to n. One with another's symbol is the same. Raises GraphError if a dimension stays
    unknown, and for shapes that do not fit."""
    same = {symbol(name): n for name, n in (dims or {}).items() if isinstance(n, Expr)}
    function = rebuilt(function, {}, same) if same else function
    extents = {name: n for name, n in (dims or {}).items() if not isinstance(n, (str, Expr))}
    function = opened(function, {n: v for n, v in (dims or {}).items() if isinstance(v, str)})
    decided = dict(function.extents)
    params = {p.name: p for p in function.params}
    for name, shape in (shapes or {}).items():
        if name not in params:
            near = get_close_matches(name, params, 3, 0.5) or list(params)[:5]
            raise GraphError(f"'{function.name}' has no input '{name}'", mend=", ".join(near))
        wanted, given = params[name].type, TensorType(tuple(shape), params[name].type.dtype)
        values, misfit = fit([wanted], [given])
        if misfit is not None:
            raise GraphError(f"input '{name}' is {wanted}, which {list(shape)} does not fit")
        for dim, extent in values.items():
            if extents.setdefault(dim.name, int(extent)) != int(extent):  # type: ignore[arg-type]
                raise GraphError(f"dimension '{dim.name}' is {extents[dim.name]} and {extent}")
    left = [
        v.name
        for v in symbols([p.type for p in function.params])
        if v.name not in extents and v.name not in decided
    ]
    if left:
        raise GraphError(
            f"'{function.name}' has dimensions that are not known: {', '.join(left)}",
            mend=f"dims={dict.fromkeys(left, 1)}",
        )
    return bind_dims(function, extents) if extents else function


@overload
def _changed(graph: Function, name: str, change: Change) -> Function: ...
@overload
def _changed(graph: IRModule, name: str, change: Change) -> IRModule: ...
def _changed(graph: Function | IRModule, name: str, change: Change) -> Function | IRModule:
    if isinstance(graph, IRModule):
        return IRModule({**graph.functions, name: change(graph_function(graph, name))})
    return change(graph)


def _with_params(function: Function, params: Mapping[str, Array]) -> Function:
    names = [p.name for p in function.params]
    for name in params:
        if name not in names:
            near = get_close_matches(name, names, 3, 0.5) or names[:5]
            raise GraphError(
                f"bind_params: '{function.name}' has no parameter '{name}'",
                mend=", ".join(near) or "none: it takes none",
            )
    known = {p: np.asarray(params[p.name]) for p in function.params if p.name in params}
    types = [p.type for p in known]
    dims, misfit = fit(types, [type_of(a) for a in known.values()])
    if misfit is not None:
        param, array = list(known.items())[misfit]
        raise GraphError(
            f"bind_params: '{param.name}' is {bound(param.type, dims)}, and the array given is "
            f"{type_of(array)}",
            mend="array.astype(...) or array.reshape(...)",
        )
    constants: dict[Value, Value] = {p: Constant(a, p.name) for p, a in known.items()}
    kept = replace(
        function,
        params=tuple(p for p in function.params if p not in known),
        states=tuple(state for state in function.states if state[0] not in params),
    )
    return rebuilt(kept, constants, dims)


def _with_extents(function: Function, dims: Mapping[str, int]) -> Function:
    there = [v.name for v in symbols([p.type for p in function.params])]
    for name, extent in dims.items():
        if name not in there:
            raise GraphError(
                f"bind_dims: '{function.name}' has no dimension '{name}'",
                mend=", ".join(there) or "none: all its shapes are known",
            )
        if extent < 0:
            raise GraphError(f"bind_dims: {name} = {extent} is negative")
    return rebuilt(function, {}, {symbol(name): extent for name, extent in dims.items()})


def graph_function(module: IRModule, name: str = "main") -> Function:
    """A module's graph function. If there is none, raises GraphError with the names there are."""
    found = module.functions.get(name)
    if not isinstance(found, Function):
        known = [key for key, f in module.functions.items() if isinstance(f, Function)]
        raise GraphError(
            f"the module has no graph function '{name}'",
            mend=", ".join(known) or "a module with one: @R.function, or BlockBuilder",
        )
    return found


def rebuilt(
    function: Function, values: Mapping[Value, Value], dims: Mapping[Symbol, Dim]
) -> Function:
    """The function with variables replaced by `values`, and symbols by `dims`."""
    made = dict(values)

    def variable(var: Var) -> Var:
        t = bound(var.type, dims)
        made[var] = kept = var if t is var.type else Var(var.name, t)
        return kept

    def bindings() -> Iterator[Binding]:
        for binding in function.bindings:
            args = tuple(made.get(a, a) for a in binding.call.args)
            call = with_dims(replace(binding.call, args=args), dims)
            yield Binding(tuple(map(variable, binding.outputs)), call, binding.source)

    return replace(
        function,
        params=tuple(map(variable, function.params)),
        bindings=tuple(bindings()),
        outputs=tuple(made.get(v, v) for v in function.outputs),
    )


def _plan_with(plan: Plan | None, dims: Mapping[Symbol, Dim]) -> Plan | None:
    """A plan with `dims` in place of symbols, in its fields and in fields of these."""

    def changed(value: Any) -> Any:
        match value:
            case TensorType():
                return bound(value, dims)
            case Expr():
                return bound_dims([value], dims)[0]
            case tuple():
                made = tuple(map(changed, value))
                return value if all(map(is_, made, value)) else made
            case _ if is_dataclass(value):
                own = {f.name: getattr(value, f.name) for f in fields(value)}
                others = {key: changed(v) for key, v in own.items()}
                same = all(others[key] is v for key, v in own.items())
                return value if same else replace(value, **others)  # type: ignore[type-var]
        return value

    return None if plan is None else cast(Plan, changed(plan))


def with_dims(call: AnyCall, dims: Mapping[Symbol, Dim]) -> AnyCall:
    """A call with dimensions replaced."""
    match call:
        case CallTIR(types=types, tir_vars=tir_vars):
            types = tuple(bound(t, dims) for t in types)
            return replace(call, types=types, tir_vars=bound_dims(tir_vars, dims))
        case CallPacked():
            return replace(call, types=tuple(bound(t, dims) for t in call.types))
        case Call(attrs=attrs, plan=plan) if dims:
            plan = _plan_with(plan, dims)
            return replace(call, attrs={key: known(v, dims) for key, v in attrs.items()}, plan=plan)
        case CallFused() if dims:
            return replace(call, function=rebuilt(call.function, {}, dims))
        case CallLoop(body, turns=turns) if dims:
            (turns,) = bound_dims([turns], dims)
            return replace(call, body=rebuilt(body, {}, dims), turns=turns)
        case CallBranch(then, otherwise) if dims:
            then, otherwise = (rebuilt(f, {}, dims) for f in (then, otherwise))
            return replace(call, then=then, otherwise=otherwise)
    return call
