"""Scripts as text: what `script()` prints, or a file of functions and modules."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

from ..errors import ScriptError
from ..ir import IRModule, PrimFunc
from . import ir, tir
from .function import parse_function
from .source import Source
from .values import Values


def from_script(text: str, file: str = "<script>") -> PrimFunc | IRModule:
    """The function or the module that a text defines.

    Several functions without a class are a module too. Before them may stand imports of `T` and `I`
    and assignments of constants. Raises ScriptError.
    """
    source = Source(file, tuple(text.splitlines(keepends=True)))
    names: dict[str, Any] = {"T": tir, "I": ir}
    functions: dict[str, PrimFunc] = {}
    modules: list[IRModule] = []
    for statement in source.parse().body:
        match statement:
            case ast.ClassDef():
                modules.append(_module(statement, source, names))
            case ast.FunctionDef():
                _add(statement, source, names, functions)
            case _:
                _constant(statement, source, names)
    if len(modules) + bool(functions) != 1:
        raise ScriptError(
            f"{len(modules)} modules and {len(functions)} functions, where one is expected",
            where=file,
            mend="one class with @I.ir_module, or functions with @T.prim_func",
        )
    if modules:
        return modules[0]
    return IRModule(functions) if len(functions) > 1 else next(iter(functions.values()))


def _module(definition: ast.ClassDef, source: Source, names: dict[str, Any]) -> IRModule:
    _require_decorator(definition, source, "ir_module")
    inside = dict(names)
    functions: dict[str, PrimFunc] = {}
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef):
            _add(statement, source, inside, functions)
        else:
            _constant(statement, source, inside)
    return IRModule(functions)


def _add(
    definition: ast.FunctionDef,
    source: Source,
    names: dict[str, Any],
    functions: dict[str, PrimFunc],
) -> None:
    _require_decorator(definition, source, "prim_func")
    key, func = parse_function(definition, source, names)
    if key in functions:
        raise source.error(definition, f"two functions are called '{key}'")
    functions[key] = func


def _require_decorator(
    definition: ast.FunctionDef | ast.ClassDef, source: Source, wanted: str
) -> None:
    for decorator in definition.decorator_list:
        name = ast.unparse(decorator)
        if name.rpartition(".")[2] == wanted:
            return
        if name == "R.function":
            raise source.error(
                decorator,
                "functions of the graph are printed, but not read",
                "a model file; loops are read from @T.prim_func functions",
            )
    letter = "T" if wanted == "prim_func" else "I"
    raise source.error(
        definition, f"'{definition.name}' is not decorated", f"@{letter}.{wanted} above it"
    )


def _constant(statement: ast.stmt, source: Source, names: dict[str, Any]) -> None:
    """An import of T or I, an assignment of a constant, a docstring."""
    words: dict[str, ModuleType] = {"tir": tir, "ir": ir}
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return
        case ast.ImportFrom("__future__"):
            return
        case ast.ImportFrom(module, aliases) if (
            module and module.endswith("script") and all(a.name in words for a in aliases)
        ):
            names.update({a.asname or a.name: words[a.name] for a in aliases})
        case ast.Assign([ast.Name(name)], value):
            names[name] = Values(source, names).value(value)
        case _:
            raise source.error(
                statement,
                f"'{ast.unparse(statement).splitlines()[0]}' is not part of the script language",
                "functions with @T.prim_func, a class with @I.ir_module, constants",
            )
