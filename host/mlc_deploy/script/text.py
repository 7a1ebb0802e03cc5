"""Scripts as text: the output of `script()`, or a file of functions and modules."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ..errors import ScriptError
from ..graph import Function
from ..graph.shapeless import Shapeless
from ..graph.specialize import resolve_calls
from ..ir import IRModule, PrimFunc
from . import graph, ir, tir
from .function import parse_function
from .graph_expressions import Around, Primitive
from .graph_function import parse_graph_function
from .ir import check
from .source import Source
from .values import Values

Parsed = PrimFunc | Function | Primitive | Shapeless


def from_script(
    text: str, file: str = "<script>", constants: Mapping[str, Any] | None = None
) -> PrimFunc | Function | Shapeless | IRModule:
    """The function or the module that a text defines.

    Several functions without a class are a module, too. Imports of `T`, `R` and `I` and assignments
    of constants may come before them. `constants` has the values of constants that graph functions
    only name; graph.named_constants makes it. Raises ScriptError.
    """
    source = Source(file, tuple(text.splitlines(keepends=True)))
    scope = _Scope(source, {"T": tir, "I": ir, "R": graph}, constants or {})
    modules: list[IRModule] = []
    for statement in source.parse().body:
        if isinstance(statement, ast.ClassDef):
            _require_decorator(statement, source, ("ir_module",))
            inside = _Scope(source, dict(scope.names), scope.constants)
            for inner in statement.body:
                inside.take(inner)
            modules.append(IRModule(inside.functions(whole=True)))
        else:
            scope.take(statement)
    functions = scope.functions()
    if len(modules) + bool(functions) != 1:
        raise ScriptError(
            f"{len(modules)} modules and {len(functions)} functions, where one is expected",
            where=file,
            mend="one class with @I.ir_module, or functions with @T.prim_func or @R.function",
        )
    if modules:
        return modules[0]
    return IRModule(functions) if len(functions) > 1 else next(iter(functions.values()))


class _Scope:
    """Functions of one scope, and the values of names around them."""

    def __init__(self, source: Source, names: dict[str, Any], constants: Mapping[str, Any]) -> None:
        self.source = source
        self.names = names
        self.constants = constants
        self._definitions: list[tuple[ast.FunctionDef, str]] = []  # with the decorator

    def take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef):
            kind = _require_decorator(statement, self.source, ("prim_func", "function"))
            self._definitions.append((statement, kind))
        else:
            _constant(statement, self.source, self.names)

    def functions(self, *, whole: bool = False) -> dict[str, PrimFunc | Function | Shapeless]:
        """The functions by their keys in a module. PrimFuncs are read before their callers. A whole
        module must hold every function that is called."""
        made: dict[str, Parsed] = {}  # by their names in the script
        keys: dict[str, str] = {}
        known: dict[str, str | Primitive | Function | Shapeless] = {}
        around = Around(self.names, known, self.constants)
        for definition, kind in self._in_order():
            name = keys[definition.name] = definition.name
            if name in made:
                raise self.source.error(definition, f"two functions are called '{name}'")
            if kind == "prim_func":
                keys[name], made[name] = parse_function(definition, self.source, self.names)
                known[name] = keys[name]
            else:
                known[name] = made[name] = parse_graph_function(definition, self.source, around)
        found: dict[str, PrimFunc | Function | Shapeless] = {}
        for definition, _ in self._definitions:
            function = made[definition.name]
            if not isinstance(function, Primitive):
                found[keys[definition.name]] = function
        if not whole and len(found) == 1:
            return found
        module = resolve_calls(IRModule(found))
        for definition, _ in self._definitions:
            key = keys[definition.name]
            self._check(definition, module.functions.get(key, made[definition.name]), module)
        return dict(module.functions)

    def _in_order(self) -> list[tuple[ast.FunctionDef, str]]:
        """PrimFuncs first, then graph functions, each after those that it calls."""
        graphs = [d for d, kind in self._definitions if kind != "prim_func"]
        named = {d.name: d for d in graphs}
        ordered = [(d, kind) for d, kind in self._definitions if kind == "prim_func"]
        entered: set[int] = set()

        def visit(definition: ast.FunctionDef) -> None:
            if id(definition) in entered:
                return
            entered.add(id(definition))
            for node in ast.walk(definition):
                match node:
                    case ast.Call(ast.Attribute(ast.Name(), name) | ast.Name(name)):
                        if name in named:
                            visit(named[name])
            ordered.append((definition, "function"))

        for definition in graphs:
            visit(definition)
        return ordered

    def _check(self, definition: ast.FunctionDef, function: Parsed, module: IRModule) -> None:
        try:
            check(function, module)
        except ValueError as error:
            what = str(error).partition("\n  in:  ")[0]
            raise self.source.error(definition, what) from None


def _require_decorator(
    definition: ast.FunctionDef | ast.ClassDef, source: Source, wanted: Sequence[str]
) -> str:
    """The decorator of the definition that is one of `wanted`. Raises ScriptError without one."""
    for decorator in definition.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(called).rpartition(".")[2]
        if name in wanted:
            return name
    letters = {"prim_func": "@T.prim_func", "function": "@R.function", "ir_module": "@I.ir_module"}
    mend = f"{' or '.join(letters[w] for w in wanted)} above it"
    raise source.error(definition, f"'{definition.name}' is not decorated", mend)


def _constant(statement: ast.stmt, source: Source, names: dict[str, Any]) -> None:
    """Reads an import of T, R or I, an assignment of a constant, or a docstring."""
    words: dict[str, ModuleType] = {"tir": tir, "ir": ir, "graph": graph, "relax": graph}
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(module), word))) if (
            names.get(module) is ir and word in ir.WITHOUT_EFFECT
        ):
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
                "functions with @T.prim_func or @R.function, a class with @I.ir_module, constants",
            )
