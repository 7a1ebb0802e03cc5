"""Functions of the graph: from the syntax tree of a `def` to a Function.

The user's code never runs. A comment `# layer conv1` behind a call names the layer of the call; the
printer writes such comments.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..graph import (
    BlockBuilder,
    CallBranch,
    CallFused,
    CallLoop,
    Constant,
    Function,
    TensorType,
    Value,
    Var,
    op,
)
from ..graph import const as constant
from ..graph.dims import parsed, same_type, symbol
from ..graph.printer import (
    BODY,
    EXTENTS,
    INPUT_NAMES,
    LAYER,
    OUTPUT_NAMES,
    PRIMITIVE,
    STATES,
)
from ..graph.states import with_states
from ..graph.verify import verify
from ..ir import Expr
from ..ir.names import distinct
from ..ir.printer import GLOBAL_SYMBOL
from ..ops import OPERATORS
from .function import names_around
from .graph_words import TYPE, Words
from .source import Source, definition_of, parameters_of
from .values import is_vocabulary

IGNORED = ("num_input",)  # an attribute of TVM's: the number of parameters that are no weights
ATTRIBUTES = (BODY, EXTENTS, GLOBAL_SYMBOL, INPUT_NAMES, OUTPUT_NAMES, PRIMITIVE, STATES)
STATEMENTS = "calls of R.…, with R.dataflow(), a return at the end"
LOOP = "R.loop(cls.step, (state, xs, w), turns=10, states=1, read=[False])"
BRANCH = "R.branch(condition, cls.then, cls.otherwise, (x,))"
LOOP_WORDS: Mapping[str, type] = {
    "turns": int, "states": int, "read": tuple, "written": tuple, "conditional": bool,
    "owned": bool, "counted": bool, "trailing": tuple,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Primitive:
    """A function whose calls become one kernel, or the body of a loop or branch. It is no function
    of the module."""

    function: Function
    body: bool = False


@dataclass(frozen=True, slots=True)
class Around:
    """The values around a function: of names, of the module's functions by their names in the
    script (for a PrimFunc, its key), and of constants by name."""

    names: Mapping[str, Any]
    functions: Mapping[str, str | Primitive]
    constants: Mapping[str, Any]


def decorated(function: Callable[..., Any], depth: int = 2) -> Function | Primitive:
    """The graph function of a function that is decorated `depth` frames above this one."""
    source, definition = definition_of(function, "@R.function")
    names = names_around(function, depth + 1)
    functions = {key: f for key, f in names.items() if isinstance(f, Primitive)}
    return parse_graph_function(definition, source, Around(names, functions, {}))


def parse_graph_function(
    definition: ast.FunctionDef, source: Source, around: Around
) -> Function | Primitive:
    """The function of a `def`. Raises ScriptError."""
    try:
        return _Reader(definition, source, around).read()
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


class _Reader(Words):
    """Reads a function from its syntax tree into a builder."""

    def __init__(self, definition: ast.FunctionDef, source: Source, around: Around) -> None:
        super().__init__(source, around.names)
        self.definition = definition
        self.around = around
        self.builder = BlockBuilder()
        self.scope: dict[str, Value | tuple[Value, ...]] = {}
        self.inner: set[str] = set()  # names local to closed dataflow blocks
        self.attrs: dict[str, Any] = {}
        self.layers = _layers(source)

    # ---------------------------------------------------------------------------------- functions

    def read(self) -> Function | Primitive:
        mend = f"plain parameters, such as {TYPE}"
        args = parameters_of(self.definition, self.source, mend)
        body = list(self.attributes(self.definition.body))
        names = self.named(INPUT_NAMES, [a.arg for a in args])
        if len(set(names)) != len(names):
            self.refuse(self.definition, f"{INPUT_NAMES} has a name twice")
        params = [self.param(arg, name) for arg, name in zip(args, names, strict=True)]
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
            self.refuse(self.definition, f"{key} is no list of {count} names")
        return list(names)

    def extents(self) -> dict[str, int]:
        extents = self.attrs.get(EXTENTS, {})
        if not isinstance(extents, dict) or not all(
            isinstance(name, str) and type(most) is int for name, most in extents.items()
        ):
            what = f"{EXTENTS} are no names of dimensions with the most that they can be"
            self.refuse(self.definition, what, '{"n": 100}')
        return extents

    def states(self) -> dict[str, str]:
        states = self.attrs.get(STATES, {})
        words = (*states, *states.values()) if isinstance(states, dict) else (None,)
        if not all(isinstance(word, str) for word in words):
            mend = '{"h": "h_out"}'
            self.refuse(self.definition, f"{STATES} are no names of inputs and outputs", mend)
        return dict(states)

    def param(self, arg: ast.arg, name: str) -> Var:
        if arg.annotation is None:
            self.refuse(arg, f"parameter '{arg.arg}' has no type", TYPE)
        form = self.form(arg.annotation)
        if form is not None and form.shape is None and form.ndim is not None:
            form = replace(form, shape=tuple(f"{arg.arg}_{n}" for n in range(form.ndim)))
        var = Var(name, self.type(arg.annotation, form))
        self.scope[arg.arg] = var
        return var

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
                        for value in self.values_of(arg):
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
            case ast.AnnAssign(ast.Name(name), annotation, ast.expr() as value):
                self.bind(statement, name, value, annotation)
            case ast.Assign([ast.Tuple(targets)], value):
                self.bind_several(statement, targets, value)
            case ast.Expr(ast.Call() as value) if self.word(value.func) == "output":
                self.refuse(value, "R.output comes last in a dataflow block")
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
        if annotation is not None:
            self.held(f"'{name}' is", made if isinstance(made, tuple) else (made,), annotation)
        self.scope[name] = made

    def bind_several(self, at: ast.stmt, targets: Sequence[ast.expr], value: ast.expr) -> None:
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        made = self.expression(value, names, self.layer(at))
        if not isinstance(made, tuple) or not len(made) == len(names) == len(targets):
            count = len(made) if isinstance(made, tuple) else 1
            self.refuse(value, f"{len(targets)} names, for {count} value{'s' * (count != 1)}")
        self.scope.update(zip(names, made, strict=True))

    def layer(self, at: ast.stmt) -> str:
        return self.layers.get(at.end_lineno or 0, "")

    # -------------------------------------------------------------------------------- expressions

    def value(self, at: ast.expr) -> Value:
        made = self.expression(at)
        if isinstance(made, tuple):
            self.refuse(at, f"these are {len(made)} values, where one is expected")
        return made

    def expression(
        self, at: ast.expr, name: str | Sequence[str] = "", source: str = ""
    ) -> Value | tuple[Value, ...]:
        """The values of an expression. Calls are emitted under `name`."""
        match at:
            case ast.Name(known) if known in self.scope:
                return self.scope[known]
            case ast.Name(known) if isinstance(self.names.get(known), np.ndarray):
                return Constant(self.names[known], known)
            case ast.Name(known):
                near = ", ".join(get_close_matches(known, self.scope, 3))
                mend = f"R.output({known}) in its dataflow block" if known in self.inner else near
                self.refuse(at, f"name '{known}' is not defined here", mend)
            case ast.Call(func) if self.word(func) == "const":
                return self.constant(at)
            case ast.Tuple(parts):
                return tuple(map(self.value, parts))
            case ast.Call(func, parts, []) if self.word(func) == "tuple":
                return tuple(map(self.value, parts))
            case ast.Call():
                made: Value | tuple[Value, ...] = self.call(at, name, source)
                return made
            case ast.Subscript(of, ast.Constant(int(number))):
                several = self.expression(of)
                if isinstance(several, tuple) and 0 <= number < len(several):
                    return several[number]
        self.refuse(
            at,
            f"'{ast.unparse(at)}' is no value of the graph",
            'R.const(1.0, "float32") for numbers, R.add and the like for operators',
        )

    def call(self, at: ast.Call, name: str | Sequence[str], source: str) -> Any:
        """Emits a call."""
        if any(k.arg is None for k in at.keywords):
            self.refuse(at, "'**' is not part of the script language", "name=value")
        keywords = {k.arg: k.value for k in at.keywords if k.arg is not None}
        match self.word(at.func), at.args:
            case "call_tir" | "call_dps_packed" as word, [func, args, *rest]:
                pure = keywords.pop("pure", None) if word == "call_dps_packed" else None
                named: dict[str, Any] = {}
                if pure is not None:
                    named["pure"] = bool(self.values.value(pure))
                if word == "call_tir" and "tir_vars" in keywords:
                    named["tir_vars"] = self.dims(keywords.pop("tir_vars"))
                types = self.out(at, rest, keywords)
                callee = self.prim_func(func) if word == "call_tir" else self.registered(func)
                emit = getattr(self.builder, word)
                given = self.several(args)
                return self.checked(
                    at, emit, callee, given, types, name=name, source=source, **named
                )
            case "call_tir" | "call_dps_packed" as word, _:
                what = f"R.{word} takes a function, arguments, and types of outputs"
                self.refuse(at, what, f'R.{word}(f, (x,), R.Tensor((1, 16), "float32"))')
            case "loop", [body, args]:
                loop = self.loop(body, args, keywords)
                return self.checked(at, self.builder.emit, loop, name=name, source=source)
            case "branch", [condition, then, otherwise, args] if not keywords:
                bodies = self.body(then), self.body(otherwise)
                branch = CallBranch(*bodies, (self.value(condition), *self.several(args)))
                return self.checked(at, self.builder.emit, branch, name=name, source=source)
            case "loop", _:
                self.refuse(at, "R.loop takes a body and a tuple of arguments", LOOP)
            case "branch", _:
                self.refuse(at, "R.branch takes a condition, two bodies and arguments", BRANCH)
            case str(word), args if word in OPERATORS:
                inputs = [self.value(a) for a in args]
                attrs = {key: self.attribute(v) for key, v in keywords.items()}
                made = getattr(op, word)(*inputs, **attrs)
                return self.checked(at, self.builder.emit, made, name=name, source=source)
            case str(word), _:
                self.refuse(at.func, f"R.{word} gives no value", STATEMENTS)
            case _, args:
                fused = self.function(at.func)
                if not isinstance(fused, Primitive) or fused.body or keywords:
                    what = f"'{ast.unparse(at.func)}' is no function of operators"
                    self.refuse(at, what, 'R.call_tir; or R.func_attr({"Primitive": True}) in it')
                inputs = [self.value(a) for a in args]
                made = CallFused(fused.function, tuple(inputs))
                return self.checked(at, self.builder.emit, made, name=name, source=source)

    def loop(self, body: ast.expr, args: ast.expr, keywords: Mapping[str, ast.expr]) -> CallLoop:
        options = {key: self.attribute(v) for key, v in keywords.items()}
        for key in options:
            if key not in LOOP_WORDS:
                near = get_close_matches(key, LOOP_WORDS, 2) or LOOP_WORDS
                self.refuse(keywords[key], f"R.loop has no '{key}'", ", ".join(near))
        for key, kind in LOOP_WORDS.items():
            if type(options.setdefault(key, kind())) is list:
                options[key] = tuple(options[key])
            open_turns = key == "turns" and isinstance(options[key], Expr)
            if type(options[key]) is not kind and not open_turns:
                self.refuse(
                    keywords[key], f"{key} is {options[key]!r}, not a {kind.__name__}", LOOP
                )
        return CallLoop(self.body(body), tuple(self.several(args)), **options)

    def body(self, at: ast.expr) -> Function:
        found = self.function(at)
        if not isinstance(found, Primitive) or not found.body:
            what = f"'{ast.unparse(at)}' is no body"
            self.refuse(at, what, 'R.func_attr({"Body": True}) in it')
        return found.function

    def several(self, at: ast.expr) -> list[Value]:
        items = at.elts if isinstance(at, ast.List) else [at]
        return [value for item in items for value in self.values_of(item)]

    def values_of(self, at: ast.expr) -> tuple[Value, ...]:
        made = self.expression(at)
        return made if isinstance(made, tuple) else (made,)

    def attribute(self, at: ast.expr) -> Any:
        """An operator's attribute: a value, R.dim("n * 2"), or a tuple of both."""
        match at:
            case ast.Call(func, [text], []) if self.word(func) == "dim":
                return self.checked(at, parsed, self.values.value(text))
            case ast.Tuple(parts):
                return tuple(map(self.attribute, parts))
        return self.values.value(at)

    def dims(self, at: ast.expr) -> list[Any]:
        """The dimensions of R.shape([n, 16]), or of a plain list."""
        match at:
            case ast.Call(func, [listed], []) if self.word(func) == "shape":
                at = listed
        given = self.values.value(at)
        if not isinstance(given, (list, tuple)):
            self.refuse(at, "tir_vars is a list of integers and dimensions", "R.shape([n, 16])")
        return list(given)

    def registered(self, at: ast.expr) -> str:
        name = self.values.value(at)
        if not isinstance(name, str):
            self.refuse(at, "a registered function is called by its name", '"env.linear"')
        return name

    def prim_func(self, at: ast.expr) -> str:
        found = self.function(at)
        if isinstance(found, Primitive):
            self.refuse(at, f"'{ast.unparse(at)}' is no T.prim_func", f"{ast.unparse(at)}(x)")
        return found

    def out(
        self, at: ast.Call, rest: Sequence[ast.expr], keywords: dict[str, ast.expr]
    ) -> list[TensorType]:
        """The types of a call's outputs: the third argument, or TVM's keyword."""
        given = [*rest, *(keywords.pop(k) for k in ("out", "out_sinfo") if k in keywords)]
        if len(given) != 1 or keywords:
            self.refuse(at, "the types of the outputs are the third argument, and the last",
                        'R.Tensor((1, 16), "float32"), or a list of such')  # fmt: skip
        many = isinstance(given[0], (ast.List, ast.Tuple))
        return [self.type(t) for t in (given[0].elts if many else given)]  # type: ignore[attr-defined]

    def function(self, at: ast.expr) -> str | Primitive:
        """The function `cls.f`, `Module.f` or `f`; a PrimFunc is its key in the module."""
        match at:
            case ast.Attribute(ast.Name(), name) | ast.Name(name):
                return self.around.functions.get(name, name)
        self.refuse(at, f"'{ast.unparse(at)}' is no function of the module", "cls.f")

    def constant(self, at: ast.Call) -> Constant:
        """R.const(1.0, "float32"), R.const(array), R.const(R.Tensor((64,), "float32"), name="w")"""
        keywords = {k.arg: self.values.value(k.value) for k in at.keywords}
        name = str(keywords.pop("name", ""))
        match at.args:
            case [ast.Call() as kind] if self.word(kind.func) == "Tensor" and not keywords:
                return self.supplied(at, name, self.type(kind))
            case [ast.Name(known)] if isinstance(self.names.get(known), np.ndarray):
                return Constant(self.names[known], name or known)
            case [value, *rest] if len(rest) + len(keywords) <= 1 and keywords.keys() <= {"dtype"}:
                dtype = self.values.value(rest[0]) if rest else keywords.get("dtype")
                numbers = self.values.value(value)
                made: Constant = self.checked(at, constant, numbers, dtype, name)
                return made
        self.refuse(at, "R.const takes numbers and a dtype, or a type and a name",
                    'R.const(1.0, "float32")')  # fmt: skip

    def supplied(self, at: ast.Call, name: str, wanted: TensorType) -> Constant:
        """A constant that the script only names."""
        if name not in self.around.constants:
            near = get_close_matches(name, self.around.constants, 3)
            mend = ", ".join(near) or f'from_script(text, constants={{"{name}": array}})'
            self.refuse(at, f"nothing says what the constant '{name}' is", mend)
        made = Constant(np.asarray(self.around.constants[name]), name)
        if not same_type(made.type, wanted):
            self.refuse(at, f"constant '{name}' is {wanted}, and the array given is {made.type}")
        return made
