"""Functions of a script: from the syntax tree of a `def` to a PrimFunc."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir import Block, Buffer, Expr, PrimFunc, Var, addressed, free_vars, walk
from ..ir.printer import GLOBAL_SYMBOL, identifier
from ..ir.verify import verify
from .source import Source, definition_of, parameters_of
from .statements import Handle, Statements
from .values import Phrase, Word, describe

TYPES = 'T.Buffer((16, 16), "float32"), T.handle, or a dtype such as T.int32'


def decorated(function: Callable[..., Any], depth: int = 2) -> PrimFunc:
    """The PrimFunc of a function that is decorated `depth` frames above this one.

    Free names have their values in the function, or in the scope that defines it, where Python
    evaluates annotations. Raises ScriptError.
    """
    source, definition = definition_of(function, "@T.prim_func")
    return parse_function(definition, source, names_around(function, depth + 1))[1]


def names_around(function: Callable[..., Any], depth: int) -> dict[str, Any]:
    """The values of names in a function that is decorated `depth` frames above this one."""
    around = sys._getframe(depth).f_locals
    return {**function.__globals__, **around, **_closure(function)}


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """The values that the function takes from the functions around it, if they are set already."""
    found: dict[str, Any] = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # assigned after the function is defined
            continue
    return found


def parse_function(
    definition: ast.FunctionDef, source: Source, outside: Mapping[str, Any]
) -> tuple[str, PrimFunc]:
    """The key in a module and the PrimFunc of a `def`. Raises ScriptError."""
    try:
        return _parse(definition, Statements(source, outside))
    except RecursionError:
        raise source.error(definition, "this function is nested too deeply") from None


def _parse(definition: ast.FunctionDef, reader: Statements) -> tuple[str, PrimFunc]:
    args = parameters_of(definition, reader.values.source, "plain parameters, each with a type")
    params = [_parameter(reader, arg) for arg in args]
    fields = reader.root
    body = reader.suite(_in_root(definition.body))
    if addressed(body) and not any(isinstance(n, Block) for n in walk(body)):
        mend = 'with T.block("call"): T.reads(…); T.writes(…), and the call below them'
        reader.refuse(definition, "an address is taken outside of a block", mend)
    root = fields.made("root", body, fields.reads or (), fields.writes or ())
    for arg, param in zip(args, params, strict=True):
        if isinstance(param, Handle) and param.name not in reader.matched:
            mend = f'A = T.match_buffer({arg.arg}, (16, 16), "float32")'
            reader.refuse(arg, f"nothing says which buffer '{arg.arg}' is", mend)
    known = tuple(reader.matched[p.name] if isinstance(p, Handle) else p for p in params)
    name = str(reader.attrs.pop(GLOBAL_SYMBOL, definition.name))
    func = PrimFunc(name, known, root, reader.attrs)
    _check_symbols(func, reader, definition)
    stands_in = not name.isidentifier() and identifier(name) == definition.name
    return name if stands_in else definition.name, verify(func, "parsing")


def _parameter(reader: Statements, arg: ast.arg) -> Buffer | Var | Handle:
    if arg.annotation is None:
        reader.refuse(arg, f"parameter '{arg.arg}' has no type", TYPES)
    kind = reader.values.value(arg.annotation)
    made: Buffer | Var | Handle
    match kind:
        case Phrase("Buffer"):
            made = reader.buffer(kind, reader.names.fresh(arg.arg))
        case Word(target=target) if isinstance(getattr(target, "dtype", None), str):
            made = Var(reader.names.fresh(arg.arg), target.dtype)
        case Word(text) if text.rpartition(".")[2] == "handle":
            made = Handle(arg.arg)
        case _:
            what = f"parameter '{arg.arg}' is of no known type: {describe(kind)}"
            reader.refuse(arg.annotation, what, TYPES)
    reader.values.scope[arg.arg] = made
    return made


def _in_root(statements: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    """A function's statements, and those of its root block if that is written out.

    The block may come last, after statements about the arguments.
    """
    *others, last = statements
    match last:
        case ast.With([ast.withitem(ast.Call(ast.Attribute(_, "block"), [ast.Constant("root")]))]):
            if all(isinstance(s, (ast.Assign, ast.Expr)) for s in others):
                return [*others, *last.body]
    return statements


def _check_symbols(func: PrimFunc, reader: Statements, definition: ast.FunctionDef) -> None:
    """Refuses variables that no argument gives a value."""
    known = {p for p in func.params if isinstance(p, Var)}
    for buffer in func.buffers:
        for extent in (*buffer.shape, *(buffer.strides or ())):
            known |= free_vars(extent) if isinstance(extent, Expr) else set()
    used = free_vars(func.body)
    for buffer in reader.root.allocs:
        used = used.union(*(free_vars(n) for n in buffer.shape if isinstance(n, Expr)))
    for symbol in sorted(used - known, key=lambda v: v.name):
        reader.refuse(
            reader.symbols.get(symbol, definition),
            f"no argument says what '{symbol.name}' is",
            f"the shape of a T.match_buffer, or a parameter {symbol.name}: T.{symbol.dtype}",
        )
