"""Functions of the graph: from the syntax tree of a `def` to a Function.

The user's code never runs. A comment `# layer conv1` after a call names the layer of the call; the
printer writes such comments.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ..graph import Function, TensorType, Value, Var
from ..graph.dims import symbol, tensor_type
from ..graph.printer import (
    BODY,
    EXTENTS,
    INPUT_NAMES,
    LAYER,
    OUTPUT_NAMES,
    PRIMITIVE,
    STATES,
)
from ..graph.shapeless import Shapeless
from ..graph.states import with_states
from ..graph.verify import verify
from ..ir.names import distinct
from ..ir.printer import GLOBAL_SYMBOL
from .function import names_around
from .graph_expressions import STATEMENTS, Around, Expressions, Opaque, Primitive, flattened
from .graph_text import as_text
from .graph_words import TYPE, Words, is_graph_words
from .source import Source, definition_of, parameters_of
from .values import is_vocabulary

# TVM's attributes for its own passes and its machine: they change no number.
IGNORED = frozenset(
    "Codegen Composite WorkspaceSize entry force_pure layout_free num_input num_inputs num_outputs"
    " op_pattern relax.force_pure relax.memory_plan_dynamic_func_output shape_func tir.noalias"
    " relax.rewrite_cuda_graph.capture_symbolic_vars tir_var_upper_bound workspace".split()
)
ATTRIBUTES = (BODY, EXTENTS, GLOBAL_SYMBOL, INPUT_NAMES, OUTPUT_NAMES, PRIMITIVE, STATES)

Parsed = Primitive | Function | Shapeless


def decorated(function: Callable[..., Any], depth: int = 2) -> Function | Primitive | Shapeless:
    """The graph function of a function that is decorated `depth` frames above this one."""
    source, definition = definition_of(function, "@R.function")
    names = names_around(function, depth + 1)
    functions = {key: f for key, f in names.items() if isinstance(f, Parsed)}
    return parse_graph_function(definition, source, Around(names, functions, {}))


def parse_graph_function(
    definition: ast.FunctionDef, source: Source, around: Around
) -> Function | Primitive | Shapeless:
    """The function of a `def`. Raises ScriptError."""
    try:
        reader = _Reader(definition, source, around)
        return reader.shapeless() or reader.read()
    except RecursionError:
        raise source.error(definition, "this function is nested too deeply") from None


def _layers(source: Source) -> dict[int, str]:
    """The layers in comments, by line of the syntax tree."""
    lines = iter(source.lines)
    found: dict[int, str] = {}
    try:
        for token in tokenize.generate_tokens(lambda: next(lines, "")):
            if token.type == tokenize.COMMENT:
                _, layer_mark, layer = token.string.partition(f"# {LAYER}")
                if layer_mark:
                    found[token.start[0]] = layer.strip()
    except (tokenize.TokenError, IndentationError):  # a function out of an indented class
        pass
    return found


class _Reader(Expressions):
    """Reads a function from its syntax tree into a builder."""

    def __init__(
        self,
        definition: ast.FunctionDef,
        source: Source,
        around: Around,
        types: Mapping[str, TensorType] | None = None,
    ) -> None:
        super().__init__(source, around)
        self.definition = definition
        self.types = types or {}  # of parameters without a shape
        self.attrs: dict[str, Any] = {}
        self.layers = _layers(source)

    # ---------------------------------------------------------------------------------- functions

    def shapeless(self) -> Shapeless | None:
        """The function as a text, if a parameter has no shape. Its words are checked now."""
        mend = f"plain parameters, such as {TYPE}"
        args = parameters_of(self.definition, self.source, mend)
        unknown: dict[str, tuple[str | None, int | None]] = {}
        names: list[str] = []
        for arg in args:
            for name, at in self.tensors_of(arg.annotation, arg.arg):
                names.append(name)
                form = self.form(at)
                if form is not None and form.shape is None and form.ndim is None:
                    unknown[name] = (form.dtype, form.ndim)
        if not unknown:
            return None
        parts = [n for n in ast.walk(self.definition) if isinstance(n, ast.Attribute)]
        groups = {id(n.value) for n in parts}  # R.nn of R.nn.conv2d
        for node in parts:
            if id(node) not in groups:
                self.word(node)

        def read(types: Mapping[str, TensorType]) -> Function:
            reader = _Reader(self.definition, self.source, self.around, types)
            made = reader.read()
            return made.function if isinstance(made, Primitive) else made

        text = as_text(self.definition, self.names)
        return Shapeless(self.definition.name, tuple(names), unknown, text, read)

    def tensors_of(self, at: ast.expr | None, name: str) -> Iterator[tuple[str, ast.expr]]:
        """The tensors that a parameter is made of, each with its name and its type."""
        parts = None if at is None else self.parts_of(at)
        if parts is not None:
            for number, part in enumerate(parts):
                yield from self.tensors_of(part, f"{name}_{number}")
        elif at is not None and self.kind(at) != "Object":
            yield name, at

    def read(self) -> Function | Primitive:
        mend = f"plain parameters, such as {TYPE}"
        args = parameters_of(self.definition, self.source, mend)
        body = list(self.attributes(self.definition.body))
        names = self.named(INPUT_NAMES, [a.arg for a in args])
        if len(set(names)) != len(names):
            self.refuse(self.definition, f"{INPUT_NAMES} has a name twice")
        for arg, name in zip(args, names, strict=True):
            self.scope[arg.arg] = self.param(arg, name)
        params = list(flattened(tuple(self.scope.values())))
        symbol = str(self.attrs.get(GLOBAL_SYMBOL, self.definition.name))
        with self.builder.function(symbol, params):
            function = self.statements(body)
        function = self.checked(self.definition, with_states, function, self.states())
        function = replace(function, extents=tuple(self.extents().items()))
        self.checked(self.definition, verify, function)
        is_body = bool(self.attrs.get(BODY))
        inner = is_body or self.attrs.get(PRIMITIVE)
        return Primitive(function, is_body) if inner else function

    def attributes(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Yields the statements that compute, and keeps the attributes."""
        for statement in body:
            match statement:
                case ast.Pass() | ast.Expr(ast.Constant(str())):
                    pass
                case ast.Expr(ast.Call(func, [given], [])) if self.word(func) == "func_attr":
                    attrs = self.values.value(given)
                    if not isinstance(attrs, dict):
                        self.refuse(given, "attributes are a dict")
                    attrs = {key: value for key, value in attrs.items() if key not in IGNORED}
                    for key in attrs:
                        if key not in ATTRIBUTES:
                            near = get_close_matches(str(key), ATTRIBUTES, 2) or ATTRIBUTES
                            self.refuse(
                                given, f"a graph function has no attribute '{key}'", ", ".join(near)
                            )
                    self.attrs.update(attrs)
                case _:
                    yield statement

    def named(self, key: str, default: Sequence[str]) -> list[str]:
        """The names in an attribute, or default."""
        names = self.attrs.get(key, default)
        count = len(default)
        if not isinstance(names, (list, tuple)) or [type(n) for n in names] != [str] * count:
            self.refuse(self.definition, f"{key} is not a list of {count} names")
        return list(names)

    def extents(self) -> dict[str, int]:
        extents = self.attrs.get(EXTENTS, {})
        if not isinstance(extents, dict) or not all(
            isinstance(name, str) and type(most) is int for name, most in extents.items()
        ):
            what = f"{EXTENTS} are not names of dimensions with the most that they can be"
            self.refuse(self.definition, what, '{"n": 100}')
        return extents

    def states(self) -> dict[str, str]:
        states = self.attrs.get(STATES, {})
        words = (*states, *states.values()) if isinstance(states, dict) else (None,)
        if not all(isinstance(word, str) for word in words):
            mend = '{"h": "h_out"}'
            self.refuse(self.definition, f"{STATES} are not names of inputs and outputs", mend)
        return dict(states)

    def param(self, arg: ast.arg, name: str) -> Any:
        """The parameter; of a tuple, one for each of its parts."""
        if arg.annotation is None:
            self.refuse(arg, f"parameter '{arg.arg}' has no type", TYPE)
        return self.of_type(arg.annotation, name, arg.arg)

    def of_type(self, at: ast.expr, name: str, written: str) -> Any:
        parts = self.parts_of(at)
        if parts is not None:
            return tuple(
                self.of_type(part, f"{name}_{n}", f"{written}_{n}") for n, part in enumerate(parts)
            )
        self.refuse_kind(at, written)
        match at:
            case ast.Attribute() | ast.Call(keywords=[]) if self.kind(at) == "Object":
                return Opaque(written)
            case ast.Call(_, [dtype], []) if self.kind(at) == "Prim":
                return Var(name, self.checked(at, tensor_type, (), self.values.value(dtype)))
        form = self.form(at)
        if form is not None and form.shape is None and written in self.types:
            return Var(name, self.types[written])
        if form is not None and form.shape is None and form.ndim is not None:
            form = replace(form, shape=tuple(f"{written}_{n}" for n in range(form.ndim)))
        return Var(name, self.type(at, form))

    # --------------------------------------------------------------------------------- statements

    def statements(self, body: Sequence[ast.stmt]) -> Function:
        for number, statement in enumerate(body):
            match statement:
                case ast.Return(value) if number == len(body) - 1:
                    return self.result(statement, value)
                case ast.Return():
                    self.refuse(body[number + 1], "nothing comes after the return")
                case ast.With([ast.withitem(ast.Call(func, [], []), None)], inner) if (
                    self.word(func) == "dataflow"
                ):
                    self.block(statement, inner)
                case _:
                    self.statement(statement)
        self.refuse(self.definition, f"function '{self.definition.name}' returns nothing", "return")

    def result(self, at: ast.Return, value: ast.expr | None) -> Function:
        outputs = () if value is None else self.values_of(value)
        if self.definition.returns is not None:
            self.held("the function gives", outputs, self.definition.returns)
        known = {id(v): key for key, v in self.scope.items()}
        names = [known.get(id(v), v.name) or f"output{n}" for n, v in enumerate(outputs)]
        names = self.named(OUTPUT_NAMES, distinct(names))
        if len(set(names)) != len(names):
            self.refuse(self.definition, f"{OUTPUT_NAMES} has a name twice")
        function: Function = self.checked(at, self.builder.emit_func_output, outputs, names=names)
        return function

    def block(self, at: ast.With, body: Sequence[ast.stmt]) -> None:
        """A dataflow block. Later statements know only the values that R.output names."""
        outside = dict(self.scope)
        *inner, last = body
        with self.builder.dataflow():
            for statement in inner:
                self.statement(statement)
            match last:
                case ast.Expr(ast.Call(func, args, [])) if self.word(func) == "output":
                    for arg in args:
                        for value in flattened(self.expression(arg)):
                            if isinstance(value, Value):
                                self.checked(arg, self.builder.emit_output, value)
                        if isinstance(arg, ast.Name):
                            outside[arg.id] = self.scope[arg.id]
                case _:
                    self.refuse(last, "a dataflow block ends without R.output", "R.output(…)")
        self.inner |= self.scope.keys() - outside.keys()
        self.scope = outside

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Name("cls")], ast.Name(module)) if module not in self.scope:
                pass  # as TVM writes it
            case ast.Assign([target], value) if self.declares(value):
                self.dimensions(target, value)
            case ast.Assign([ast.Name(name)], value):
                self.bind(statement, name, value, None)
            case ast.FunctionDef(name) if is_decorated(statement, self):
                around = replace(self.around, functions={**self.around.functions, **self.local})
                self.local[name] = parse_graph_function(statement, self.source, around)
            case ast.If(test, then, otherwise) if otherwise:
                self.choice(statement, test, then, otherwise)
            case ast.Pass():
                pass
            case ast.AnnAssign(ast.Name(name), annotation, ast.expr() as value):
                self.bind(statement, name, value, annotation)
            case ast.Assign([ast.Tuple(targets)], value):
                self.bind_several(statement, targets, value)
            case ast.Expr(ast.Call() as value) if self.word(value.func) == "output":
                self.refuse(value, "R.output comes last in a dataflow block")
            case ast.Expr(ast.Constant()):
                pass
            case ast.Expr(ast.Call() as value):
                self.call(value, "", self.layer(statement))
            case _:
                text = ast.unparse(statement).splitlines()[0]
                what = f"'{text}' is not part of the script language of graphs"
                self.refuse(statement, what, STATEMENTS)

    def declares(self, value: ast.expr) -> bool:
        """Whether an expression declares dimensions: `T.int64()`, or a tuple of such calls."""
        match value:
            case ast.Tuple(values):
                return bool(values) and all(map(self.declares, values))
            case ast.Call(ast.Attribute(ast.Name(module), word), [], []):
                return is_vocabulary(self.names.get(module)) and word in ("int32", "int64")
        return False

    def dimensions(self, target: ast.expr, value: ast.expr) -> None:
        """m, n = T.int64(), T.int64(); or m, n = T.int64()"""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        declared = len(value.elts) if isinstance(value, ast.Tuple) else len(targets)
        if not len(names) == len(targets) == declared:
            self.refuse(target, f"{len(targets)} names, for {declared} dimensions")
        self.values.scope.update((name, symbol(name)) for name in names)

    def bind(self, at: ast.stmt, name: str, value: ast.expr, annotation: ast.expr | None) -> None:
        made = self.expression(value, name, self.layer(at))
        found = list(flattened(made))
        if annotation is not None and found and all(isinstance(v, Value) for v in found):
            self.held(f"'{name}' is", found, annotation)
        self.scope[name] = made

    def choice(
        self, at: ast.If, test: ast.expr, then: Sequence[ast.stmt], otherwise: Sequence[ast.stmt]
    ) -> None:
        """`if condition: y = … else: y = …`, where both branches end with the same name."""
        ends = [self.target(branch[-1]) for branch in (then, otherwise)]
        if ends[0] is None or ends[0] != ends[1]:
            what = "the branches of an `if` do not end with a value of one name"
            self.refuse(at, what, "if condition: y = R.… else: y = R.…")
        condition, name = self.value(test), ends[0]

        def run(branch: Sequence[ast.stmt]) -> Callable[[], Sequence[Value]]:
            def emit() -> Sequence[Value]:
                outside = dict(self.scope)
                for statement in branch:
                    self.statement(statement)
                made = [v for v in flattened(self.scope[name]) if isinstance(v, Value)]
                self.scope = outside
                return made

            return emit

        made = self.checked(
            at, self.builder.emit_branch, condition, run(then), run(otherwise), name=name
        )
        self.scope[name] = made[0] if len(made) == 1 else tuple(made)

    @staticmethod
    def target(statement: ast.stmt) -> str | None:
        match statement:
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                return name
        return None

    def bind_several(self, at: ast.stmt, targets: Sequence[ast.expr], value: ast.expr) -> None:
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        made = self.expression(value, names, self.layer(at))
        if not isinstance(made, tuple) or not len(made) == len(names) == len(targets):
            count = len(made) if isinstance(made, tuple) else 1
            self.refuse(value, f"{len(targets)} names, for {count} value{'s' * (count != 1)}")
        self.scope.update(zip(names, made, strict=True))

    def layer(self, at: ast.stmt) -> str:
        return self.layers.get(at.end_lineno or 0, "")


def is_decorated(statement: ast.FunctionDef, words: Words) -> bool:
    """Whether a function within a function is a graph function."""
    found = (d.func if isinstance(d, ast.Call) else d for d in statement.decorator_list)
    return any(
        isinstance(d, ast.Attribute)
        and d.attr == "function"
        and isinstance(d.value, ast.Name)
        and is_graph_words(words.names.get(d.value.id))
        for d in found
    )
