"""Calls of a module's PrimFuncs, resolved to a function and specialized to known extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..arith import simplify_expr
from ..errors import GraphError
from ..ir import (
    Block,
    Buffer,
    Dim,
    Expr,
    IRModule,
    PrimFunc,
    const,
    free_vars,
    structural_hash,
    walk,
)
from ..ir import Var as Symbol
from ..ir.names import Names
from ..ir.nodes import dim
from ..ir.rewrite import replace_buffers, substitute, with_fields
from ..ops import TensorType
from .definition import definition_of
from .dims import fit
from .nodes import Binding, CallPacked, CallTIR, Function, Value, in_bodies
from .nodes import substitute as rewritten


def resolve_calls(module: IRModule) -> IRModule:
    """call_dps_packed("f", (x,), t)   =>   call_tir(f, (x,), t), where the module has a PrimFunc f:
    functions of the module come before registered ones."""
    functions = {
        name: _resolved(f, module) if isinstance(f, Function) else f
        for name, f in module.functions.items()
    }
    same = all(f is module.functions[name] for name, f in functions.items())
    return module if same else IRModule(functions)


def _resolved(function: Function, module: IRModule) -> Function:
    def resolve(binding: Binding, args: tuple[Value, ...]) -> Binding | None:
        call = binding.call
        if not isinstance(call, CallPacked):
            return None
        if not isinstance(module.functions.get(call.func), PrimFunc):
            return None
        return replace(binding, call=CallTIR(call.func, args, call.types))

    return rewritten(in_bodies(function, lambda body: _resolved(body, module)), resolve)


def specialize(function: Function, module: IRModule) -> tuple[Function, IRModule]:
    """call_tir(f, x)   =>   call_tir(f_1, x), for each shape-polymorphic f called by a function
    without symbolic dimensions: f_1 is f for the extents of this call. Afterwards calls carry the
    definitions of their functions.

    Returns the function, and the module with the functions it calls. Raises GraphError if the
    arguments do not decide every dimension of f.
    """
    functions = dict(module.functions)
    names = Names(functions)
    made: dict[str, str] = {}  # the hash of a specialized function -> its name

    def definite(binding: Binding, args: tuple[Value, ...]) -> Binding | None:
        call = binding.call
        if not isinstance(call, CallTIR):
            return None
        func = functions.get(call.func)
        if not isinstance(func, PrimFunc) or call.definition is not None:
            return None
        if not symbols_of(func) and not call.tir_vars:
            known = definition_of(func, len(args))
            if known is None:
                return None
            return replace(binding, call=replace(call, args=args, definition=known))
        types = [*(a.type for a in call.args), *call.types]
        found = with_extents(with_scalars(func, call.tir_vars), types, str(binding))
        key = structural_hash(found)
        if key not in made:
            made[key] = names.fresh(func.name)
            functions[made[key]] = with_fields(found, name=made[key])
        known = definition_of(functions[made[key]], len(args))
        return replace(binding, call=CallTIR(made[key], args, call.types, definition=known))

    def everywhere(outer: Function) -> Function:
        return rewritten(in_bodies(outer, everywhere), definite)

    return everywhere(function), IRModule(functions)


def symbols_of(func: PrimFunc) -> set[Symbol]:
    """The symbolic dimensions of a PrimFunc's parameters."""
    extents = (e for b in func.buffers for e in (*b.shape, *(b.strides or ())))
    return {v for e in extents if isinstance(e, Expr) for v in free_vars(e)}


def with_extents(func: PrimFunc, types: list[TensorType], where: str = "") -> PrimFunc:
    """The PrimFunc for arguments of these types, with constant shapes. The extents of scratch
    buffers and loops change accordingly."""
    taken = [TensorType(b.shape, b.dtype) for b in func.buffers]
    values, misfit = fit(taken, types)
    left = sorted(v.name for v in symbols_of(func) - values.keys())
    if left:
        raise GraphError(
            f"no argument of '{func.name}' says what '{left[0]}' is",
            where=where,
            mend=f"a tensor of which {left[0]} is a whole dimension",
        )
    if misfit is not None:
        given, wanted = (", ".join(map(str, t)) for t in (types, taken))
        raise GraphError(f"'{func.name}' is not for {given}", where=where, mend=wanted)
    known: dict[Symbol, Expr] = {}
    for symbol, extent in values.items():
        known[symbol] = extent if isinstance(extent, Expr) else const(extent, symbol.dtype)
    return _bound(func, known)


def with_scalars(func: PrimFunc, values: Sequence[Dim]) -> PrimFunc:
    """The PrimFunc with an integer instead of each of its scalar parameters."""
    scalars = [p for p in func.params if isinstance(p, Symbol)]
    known: dict[Symbol, Expr] = {}
    for scalar, value in zip(scalars, values, strict=True):
        known[scalar] = value if isinstance(value, Expr) else const(value, scalar.dtype)
    return _bound(func, known) if known else func


def _bound(func: PrimFunc, known: Mapping[Symbol, Expr]) -> PrimFunc:
    """The PrimFunc with variables replaced by values, and without these parameters."""
    buffers = {b: _sized(b, known) for b in (*func.buffers, *_scratch(func))}
    changed = {b: other for b, other in buffers.items() if other is not b}
    left = (p for p in func.params if isinstance(p, Buffer) or p not in known)
    params = tuple(changed.get(p, p) if isinstance(p, Buffer) else p for p in left)
    body = substitute(replace_buffers(func.body, changed), known)
    return with_fields(func, params=params, body=body)


def _scratch(func: PrimFunc) -> list[Buffer]:
    return [b for n in walk(func.body) if isinstance(n, Block) for b in n.allocs]


def _sized(buffer: Buffer, values: Mapping[Symbol, Expr]) -> Buffer:
    shape = tuple(_extent(e, values) for e in buffer.shape)
    strides = buffer.strides and tuple(_extent(e, values) for e in buffer.strides)
    same = all(a is b for a, b in zip(shape, buffer.shape, strict=True))
    return buffer if same else buffer.replace(shape=shape, strides=strides)


def _extent(extent: Dim, values: Mapping[Symbol, Expr]) -> Dim:
    if not isinstance(extent, Expr):
        return extent
    return dim(simplify_expr(substitute(extent, values), {}))
