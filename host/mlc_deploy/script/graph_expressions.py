"""Expressions of graph functions: from a syntax tree to values of the graph.

An expression is a value, a tuple, or what is known before a run: numbers, texts, dimensions, shapes
(tuples of dimensions). Operators and their signatures are TVM's (graph/relax), and the graph's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NoReturn

import numpy as np

from ..graph import (
    BlockBuilder,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    Constant,
    Function,
    TensorType,
    Value,
)
from ..graph import const as constant
from ..graph.bind import with_dims
from ..graph.dims import bound, bound_dims, fit, parsed, same_type
from ..graph.relax import WORDS, Word, is_own
from ..graph.relax.parts import refused
from ..graph.shapeless import Shapeless
from ..ir import Const, Dim, Expr
from ..ir import Var as Symbol
from ..ops import OPERATORS, frozen_attrs
from .graph_words import Form, Words
from .source import Source
from .values import BUILTINS, is_vocabulary

STATEMENTS = "calls of R.…, with R.dataflow(), a return at the end"
LOOP = "R.loop(cls.step, (state, xs, w), turns=10, states=1, read=[False])"
BRANCH = "R.branch(condition, cls.then, cls.otherwise, (x,))"
LOOP_WORDS: Mapping[str, type] = {
    "turns": int, "states": int, "read": tuple, "written": tuple, "conditional": bool,
    "owned": bool, "counted": bool, "trailing": tuple,
}  # fmt: skip
# Python's operators on tensors are these words.
ARITHMETIC: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
    ast.FloorDiv: "floor_divide", ast.Pow: "power", ast.MatMult: "matmul",
}  # fmt: skip
RELATIONS: Mapping[type[ast.AST], str] = {
    ast.Eq: "equal", ast.NotEq: "not_equal", ast.Lt: "less", ast.LtE: "less_equal",
    ast.Gt: "greater", ast.GtE: "greater_equal",
}  # fmt: skip
OTHERS = "+ - * / // ** @ and comparisons work on tensors"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A function whose calls become one kernel, or the body of a loop or branch. It is not a
    function of the module."""

    function: Function
    body: bool = False


@dataclass(frozen=True, slots=True)
class Around:
    """The values around a function: of names, of the module's functions by their names in the
    script (for a PrimFunc, its key), and of constants by name."""

    names: Mapping[str, Any]
    functions: Mapping[str, str | Primitive | Function | Shapeless]
    constants: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A parameter of R.Object, which a function may pass on. A model has no such inputs and
    outputs."""

    name: str


class Expressions(Words):
    """Reads expressions into a builder."""

    def __init__(self, source: Source, around: Around) -> None:
        super().__init__(source, around.names)
        self.around = around
        self.builder = BlockBuilder()
        self.scope: dict[str, Any] = {}
        self.inner: set[str] = set()  # names local to closed dataflow blocks
        self.local: dict[str, Primitive | Function | Shapeless] = {}  # functions within this one
        self.given: dict[str, Constant] = {}  # constants that the script only names
        self.same: dict[Symbol, Dim] = {}  # dimensions that R.match_cast found equal to others

    # --------------------------------------------------------------------------------- dimensions

    def type(self, at: ast.expr, form: Form | None = None) -> TensorType:
        return bound(super().type(at, form), self.same)

    def plain(self, value: Any) -> Any:
        """A value of Python as an attribute: a constant expression is its number."""
        match value:
            case Const(number):
                return number
            case Expr() if self.same:
                (found,) = bound_dims([value], self.same)
                return found
            case tuple() | list():
                return type(value)(map(self.plain, value))
        return value

    # -------------------------------------------------------------------------------- expressions

    def value(self, at: ast.expr) -> Value:
        made = self.expression(at)
        if isinstance(made, Value):
            return made
        if isinstance(made, tuple) and any(isinstance(v, Value) for v in made):
            self.refuse(at, f"these are {len(made)} values, where one is expected")
        self.no_value(at)

    def no_value(self, at: ast.expr) -> NoReturn:
        mend = 'R.const(1.0, "float32") for numbers, R.add and the like for operators'
        self.refuse(at, f"'{ast.unparse(at)}' is not a value of the graph", mend)

    def expression(self, at: ast.expr, name: str | Sequence[str] = "", source: str = "") -> Any:
        """What an expression is. Calls are emitted under `name`."""
        match at:
            case ast.Name(known) if known in self.scope:
                return self.scope[known]
            case ast.Name(known) if isinstance(self.names.get(known), np.ndarray):
                return Constant(self.names[known], known)
            case ast.Name(known) if known in self.values.scope or known in self.names:
                return self.plain(self.values.value(at))
            case ast.Name(known):
                near = ", ".join(get_close_matches(known, self.scope, 3))
                mend = f"R.output({known}) in its dataflow block" if known in self.inner else near
                self.refuse(at, f"name '{known}' is not defined here", mend)
            case ast.Constant(value):
                return value
            case ast.Tuple(parts) | ast.List(parts):
                return tuple(map(self.expression, parts))
            case ast.Call(ast.Name(word)) if word in BUILTINS and not self.is_function(word):
                return self.plain(self.values.value(at))
            case ast.Call(ast.Attribute(ast.Name(module))) if is_vocabulary(self.names.get(module)):
                return self.plain(self.values.value(at))
            case ast.Call(ast.Attribute(ast.Name(of), "astype"), [dtype], []) if of in self.scope:
                made = Word("astype", (self.scope[of], self.expression(dtype)))
                return self.checked(at, self.builder.emit, made, name=name, source=source)
            case ast.Call():
                return self.call(at, name, source)
            case ast.BinOp(a, op, b) if self.on_tensors(a, b):
                return self.operator(at, ARITHMETIC.get(type(op)), (a, b), name, source)
            case ast.Compare(a, [op], [b]) if self.on_tensors(a, b):
                return self.operator(at, RELATIONS.get(type(op)), (a, b), name, source)
            case ast.UnaryOp(op, a) if self.on_tensors(a):
                minus = "negative" if isinstance(op, ast.USub) else None
                return self.operator(at, minus, (a,), name, source)
            case ast.Subscript(of, ast.Constant() | ast.UnaryOp() as index):
                several, number = self.expression(of), self.values.value(index)
                if isinstance(several, tuple) and -len(several) <= number < len(several):
                    return several[number]
                self.no_value(at)
            case ast.Attribute(ast.Name(of), "shape" | "dtype" as part) if isinstance(
                self.scope.get(of), Value
            ):
                return getattr(self.scope[of].type, part)
        return self.plain(self.values.value(at))

    def on_tensors(self, *parts: ast.expr) -> bool:
        """Whether an operator has a tensor beside it."""
        for part in parts:
            for node in ast.walk(part):
                match node:
                    case ast.Name(name) if _holds_tensor(self.scope.get(name)):
                        return True
                    case ast.Call(func) if self.word(func) in {*WORDS, *OPERATORS, "const"}:
                        return True
        return False

    def operator(
        self,
        at: ast.expr,
        word: str | None,
        parts: Sequence[ast.expr],
        name: str | Sequence[str],
        source: str,
    ) -> Any:
        if word is None:
            self.refuse(at, f"'{ast.unparse(at)}' is not an operator on tensors", OTHERS)
        made = Word(word, tuple(map(self.expression, parts)))
        return self.checked(at, self.builder.emit, made, name=name, source=source)

    def several(self, at: ast.expr) -> list[Value]:
        items = at.elts if isinstance(at, ast.List) else [at]
        return [value for item in items for value in self.values_of(item)]

    def values_of(self, at: ast.expr) -> tuple[Value, ...]:
        """The values of an expression, those of tuples one after the other."""
        made = self.expression(at)
        found = tuple(flattened(made))
        for value in found:
            if not isinstance(value, Value):
                self.no_value(at)
        return found

    # -------------------------------------------------------------------------------------- calls

    def call(self, at: ast.Call, name: str | Sequence[str], source: str) -> Any:
        """Emits a call."""
        if any(k.arg is None for k in at.keywords):
            self.refuse(at, "'**' is not part of the script language", "name=value")
        keywords = {k.arg: k.value for k in at.keywords if k.arg is not None}
        match self.word(at.func), at.args:
            case "const", _:
                return self.constant(at)
            case "tuple", parts if not keywords:
                return tuple(map(self.expression, parts))
            case "shape", [given] if not keywords:
                return self.dims(given)
            case "shape_of", [given] if not keywords:
                return self.value(given).type.shape
            case "dim", [text] if not keywords:
                return self.checked(at, parsed, self.values.value(text))
            case "prim_value" | "str" | "dtype", [given] if not keywords:
                return self.expression(given)
            case "match_cast", [given, wanted] if not keywords:
                return self.match_cast(at, given, wanted)
            case "call_tir" | "call_dps_packed" as word, [func, args, *rest]:
                return self.call_function(at, word, func, args, rest, keywords, name, source)
            case "call_packed" | "call_pure_packed" as word, [func, *args]:
                types = self.results(at, word, keywords)
                values = [v for a in args for v in self.values_of(a)]
                emit, pure = self.builder.call_dps_packed, word == "call_pure_packed"
                named = {"pure": pure, "name": name, "source": source}
                return self.checked(at, emit, self.registered(func), values, types, **named)
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
            case str(word), args if word in OPERATORS or word in WORDS:
                return self.operation(at, word, args, keywords, name, source)
            case str(word), _:
                self.refuse(at.func, f"R.{word} gives no value", STATEMENTS)
            case _, args:
                return self.call_within(at, args, keywords, name, source)

    def operation(
        self,
        at: ast.Call,
        word: str,
        args: Sequence[ast.expr],
        keywords: Mapping[str, ast.expr],
        name: str | Sequence[str],
        source: str,
    ) -> Any:
        """A call of an operator, by its own attributes or by TVM's arguments."""
        attrs = {key: self.expression(v) for key, v in keywords.items()}
        given = [self.expression(a) for a in args]
        if word not in WORDS or is_own(word, given, attrs):
            given = [self.value_of(v, a) for v, a in zip(given, args, strict=True)]
            own = Call(word, tuple(given), frozen_attrs(attrs))
            return self.checked(at, self.builder.emit, own, name=name, source=source)
        made = Word(word, tuple(given), tuple(attrs.items()))
        return self.checked(at, self.builder.emit, made, name=name, source=source)

    def value_of(self, made: Any, at: ast.expr) -> Value:
        if not isinstance(made, Value):
            self.no_value(at)
        return made

    def call_function(
        self,
        at: ast.Call,
        word: str,
        func: ast.expr,
        args: ast.expr,
        rest: Sequence[ast.expr],
        keywords: dict[str, ast.expr],
        name: str | Sequence[str],
        source: str,
    ) -> Any:
        """A call of a PrimFunc or of a registered function."""
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
        return self.checked(at, emit, callee, given, types, name=name, source=source, **named)

    def call_within(
        self,
        at: ast.Call,
        args: Sequence[ast.expr],
        keywords: Mapping[str, ast.expr],
        name: str | Sequence[str],
        source: str,
    ) -> Any:
        """A call of another graph function: its calls stand in this one; those of a Primitive
        become one kernel."""
        called = self.function(at.func)
        if keywords or isinstance(called, str) or (isinstance(called, Primitive) and called.body):
            what = f"'{ast.unparse(at.func)}' is not a function of operators"
            self.refuse(at, what, 'R.call_tir; or R.func_attr({"Primitive": True}) in it')
        inputs = [v for a in args for v in self.values_of(a)]
        if isinstance(called, Shapeless):
            called = self.checked(at, called.of_inputs, [v.type for v in inputs])
        if isinstance(called, Primitive):
            made = CallFused(called.function, tuple(inputs))
            return self.checked(at, self.builder.emit, made, name=name, source=source)
        return self.checked(at, inlined, self.builder, called, inputs, name, source)

    def match_cast(self, at: ast.Call, given: ast.expr, wanted: ast.expr) -> Any:
        """A value whose type is known. Dimensions of the wanted type that have no meaning yet are
        those of the value. Raises ScriptError if another dimension certainly differs."""
        made = self.expression(given)
        if not isinstance(made, Value):
            return self.match_shape(at, made, wanted)
        form = self.form(wanted)
        if form is None:
            self.refuse(wanted, f"'{ast.unparse(wanted)}' is not a type", 'R.Tensor(("n", 16))')
        if form.shape is None:
            self.held("the value is", (made,), wanted)
            return made
        asked = self.type(wanted, form)
        found, misfit = fit([asked], [made.type])
        same = misfit is None
        if not same:
            self.refuse(at, f"the value is {made.type}, not {asked}")
        self.same.update((v, d) for v, d in found.items() if v is not d)
        return made

    def match_shape(self, at: ast.Call, made: Any, wanted: ast.expr) -> Any:
        """Dimensions of R.Shape(["n", 16]) that are those of a known shape."""
        match wanted:
            case ast.Call(func, [listed], []) if self.word(func) == "Shape":
                asked = TensorType(tuple(self.dims(listed)), "int64")
                own = self.checked(at, fit, [asked], [TensorType(tuple(made), "int64")])
                if own[1] is None:
                    self.same.update((v, d) for v, d in own[0].items() if v is not d)
                    return made
        self.refuse(at, f"'{ast.unparse(wanted)}' does not fit {made}", "R.Tensor or R.Shape")

    def loop(self, body: ast.expr, args: ast.expr, keywords: Mapping[str, ast.expr]) -> CallLoop:
        options = {key: self.expression(v) for key, v in keywords.items()}
        for key in options:
            if key not in LOOP_WORDS:
                near = get_close_matches(key, LOOP_WORDS, 2) or LOOP_WORDS
                self.refuse(keywords[key], f"R.loop has no '{key}'", ", ".join(near))
        for key, kind in LOOP_WORDS.items():
            options.setdefault(key, kind())
            open_turns = key == "turns" and isinstance(options[key], Expr)
            if type(options[key]) is not kind and not open_turns:
                self.refuse(
                    keywords[key], f"{key} is {options[key]!r}, not a {kind.__name__}", LOOP
                )
        return CallLoop(self.body(body), tuple(self.several(args)), **options)

    def body(self, at: ast.expr) -> Function:
        found = self.function(at)
        if not isinstance(found, Primitive) or not found.body:
            what = f"'{ast.unparse(at)}' is not a body"
            self.refuse(at, what, 'R.func_attr({"Body": True}) in it')
        return found.function

    def dims(self, at: ast.expr) -> tuple[Any, ...]:
        """The dimensions of R.shape([n, 16]), or of a plain list."""
        match at:
            case ast.Call(func, [listed], []) if self.word(func) == "shape":
                at = listed
        given = self.expression(at)
        if not isinstance(given, (list, tuple)) or any(isinstance(d, Value) for d in given):
            self.refuse(at, "a shape is a list of integers and dimensions", "R.shape([n, 16])")
        return tuple(self.checked(at, parsed, d) if isinstance(d, str) else d for d in given)

    def registered(self, at: ast.expr) -> str:
        name = self.values.value(at)
        if not isinstance(name, str):
            self.refuse(at, "a registered function is called by its name", '"env.linear"')
        return name

    def prim_func(self, at: ast.expr) -> str:
        found = self.function(at)
        if not isinstance(found, str):
            self.refuse(at, f"'{ast.unparse(at)}' is not a T.prim_func", f"{ast.unparse(at)}(x)")
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

    def results(
        self, at: ast.Call, word: str, keywords: Mapping[str, ast.expr]
    ) -> list[TensorType]:
        """The types of a packed function's results, of the keyword sinfo_args."""
        found: list[TensorType] = []
        if keywords.keys() == {"sinfo_args"}:
            given = keywords["sinfo_args"]
            parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
            leaves = [leaf for part in parts for leaf in self.leaves(part)]
            tensors = all(self.kind(leaf) == "Tensor" for leaf in leaves)
            found = [self.type(leaf) for leaf in leaves] if tensors else []
        if not found:
            what = f"R.{word}: a registered function gives tensors whose types are known"
            self.refuse(at, what, 'sinfo_args=R.Tensor((4,), "float32")')
        return found

    def is_function(self, name: str) -> bool:
        return name in self.local or name in self.around.functions

    def function(self, at: ast.expr) -> str | Primitive | Function | Shapeless:
        """The function `cls.f`, `Module.f` or `f`; a PrimFunc is its key in the module."""
        match at:
            case ast.Name(name) if name in self.local:
                return self.local[name]
            case ast.Attribute(ast.Name(), name) | ast.Name(name):
                return self.around.functions.get(name, name)
        self.refuse(at, f"'{ast.unparse(at)}' is not a function of the module", "cls.f")

    # ---------------------------------------------------------------------------------- constants

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
        made = self.given.setdefault(name, Constant(np.asarray(self.around.constants[name]), name))
        if not same_type(made.type, wanted):
            self.refuse(at, f"constant '{name}' is {wanted}, and the array given is {made.type}")
        return made


def flattened(made: Any) -> Iterator[Any]:
    """The values in a tuple of tuples. Opaque ones are left out."""
    if isinstance(made, (tuple, list)):
        for part in made:
            yield from flattened(part)
    elif not isinstance(made, Opaque):
        yield made


def _holds_tensor(made: Any) -> bool:
    return any(isinstance(v, Value) for v in flattened(made))


def inlined(
    builder: BlockBuilder,
    function: Function,
    inputs: Sequence[Value],
    name: str | Sequence[str],
    source: str,
) -> Any:
    """Emits the calls of a function on other inputs. Returns its output, or a tuple of them. Raises
    GraphError if the inputs do not fit."""
    dims, misfit = fit([p.type for p in function.params], [v.type for v in inputs])
    if misfit is not None:
        what = f"'{function.name}' takes {len(function.params)} values"
        if misfit < min(len(inputs), len(function.params)):
            param = function.params[misfit]
            what = f"'{function.name}' takes {param.type} as '{param.name}'"
            what += f", not {inputs[misfit].type}"
        raise refused(what)
    values: dict[Any, Value] = dict(zip(function.params, inputs, strict=True))
    last = set(function.outputs)
    for binding in function.bindings:
        args = tuple(values.get(a, a) for a in binding.call.args)
        called = name if len(function.outputs) == 1 and last & {*binding.outputs} else ""
        call = replace(with_dims(binding.call, dims), args=args)
        made = builder.emit(call, name=called, source=source)
        outputs = made if isinstance(made, tuple) else (made,)
        values.update(zip(binding.outputs, outputs, strict=True))
    results = tuple(values.get(v, v) for v in function.outputs)
    return results[0] if len(results) == 1 else results
