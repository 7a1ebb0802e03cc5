"""The graph as script, in the style of the loop IR.

The text of a whole Function or IRModule parses back (`mlc_deploy.script`) to one that prints the
same. Constants of more than a few elements are printed by name. `named_constants` gives their
values.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..ir import Const, Dim, Expr, IRModule
from ..ir.names import Names
from ..ir.printer import GLOBAL_SYMBOL, RESERVED, identifier, literal, tuple_text
from ..ops import Array
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
    TensorType,
    Value,
    Var,
    bodies,
    is_pure,
)
from .shapeless import Shapeless

SHOWN_ELEMENTS = 4  # constants up to this size print their values

# Attributes of a function in script.
PRIMITIVE = "Primitive"  # its calls are one kernel
BODY = "Body"  # a loop or branch runs it
INPUT_NAMES = "input_names"  # if they are not identifiers
OUTPUT_NAMES = "output_names"  # if they are not the names of the variables
EXTENTS = "extents"  # names of dynamic dimensions -> their maxima
STATES = "states"  # names of inputs -> names of the outputs that hold their next values

LAYER = "layer "  # begins the comment with a binding's source
WORDS = frozenset({*keyword.kwlist, "T", "R", "I", "cls", "float"})


def script(node: Any) -> str:
    """The text of any node. A function is a whole definition, after the functions it calls."""
    match node:
        case Function():
            return "\n".join(module_lines(node, identifier(node.name), {}, Names(RESERVED)))
        case Binding():
            return _Printer().binding(node)
        case Call() | CallTIR() | CallPacked() | CallFused() | CallLoop() | CallBranch():
            return _Printer().call(node)
        case Var(name):
            return identifier(name)
        case Constant():
            return _Printer().value(node)
    raise TypeError(f"cannot print {type(node).__name__}")


def named_constants(node: Function | Shapeless | IRModule) -> dict[str, Array]:
    """The constants of a function or module that are printed by name."""
    found: dict[str, Constant] = {}
    taken = Names(RESERVED)
    functions = node.functions if isinstance(node, IRModule) else {node.name: node}
    names = {key: taken.fresh(identifier(key)) for key in functions}
    for key, function in functions.items():
        if isinstance(function, Function):
            for _ in module_lines(function, names[key], names, taken, found):
                pass
    return {name: constant.value for name, constant in found.items()}


def module_lines(
    function: Function,
    name: str,
    names: Mapping[str, str],
    taken: Names,
    found: dict[str, Constant] | None = None,
) -> Iterator[str]:
    """The lines of a function named `name`, after the functions that its calls contain. `names`
    has the printed names of the module's functions.

    `taken` collects the names of the module's functions and constants. `found` collects the
    constants that are printed by name.
    """
    inner = dict(_inner(function))
    printer = _Printer(names, taken, {} if found is None else found)
    if not names:
        taken.fresh(name)
    printer.inner = {f: taken.fresh(identifier(f.name)) for f in inner}
    for f, attribute in inner.items():
        yield from printer.function(f, printer.inner[f], {attribute: True})
        yield ""
    yield from printer.function(function, name, {})


def _inner(function: Function) -> Iterator[tuple[Function, str]]:
    """The functions within a function, innermost first, each with its attribute."""
    for binding in function.bindings:
        match binding.call:
            case CallFused(fused):
                yield fused, PRIMITIVE
            case call:
                for body in bodies(call):
                    yield from _inner(body)
                    yield body, BODY


def type_text(t: TensorType) -> str:
    """R.Tensor((1, "m"), "float32")"""
    return f'R.Tensor({tuple_text(list(map(_dim, t.shape)))}, "{t.dtype}")'


def _dim(d: Dim) -> str:
    return f'"{d}"' if isinstance(d, Expr) else str(d)


def _types_text(types: Sequence[TensorType]) -> str:
    texts = [type_text(t) for t in types]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _numbers(array: Array) -> str:
    """The shortest text that reads back as the same numbers."""
    if array.ndim:
        return f"[{', '.join(map(_numbers, array))}]"
    item = array.item()
    if isinstance(item, float) and item - item == 0:
        return str(array[()])
    return literal(item)


class _Printer:
    """Prints one function: holds the names of its variables and constants."""

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        taken: Names | None = None,
        found: dict[str, Constant] | None = None,
    ) -> None:
        self.names = names or {}
        self.taken = taken
        self.found = found
        self.inner: dict[Function, str] = {}
        self.variables: dict[Var, str] = {}
        self.constants: dict[Constant, str] = {}

    # ------------------------------------------------------------------------------------- values

    def value(self, v: Value) -> str:
        if isinstance(v, Var):
            return self.variables.get(v, identifier(v.name))
        if 0 < v.value.size <= SHOWN_ELEMENTS:
            return f'R.const({_numbers(v.value)}, "{v.value.dtype}")'
        name = self.constant(v)
        return f"R.const({type_text(v.type)}" + (f", name={literal(name)})" if name else ")")

    def constant(self, c: Constant) -> str:
        """The printed name of a constant; its own name if no whole function is printed."""
        if self.taken is None or self.found is None:
            return c.name
        if c not in self.constants:
            name = self.taken.fresh(c.name or "constant")
            self.constants[c] = name
            self.found[name] = c
        return self.constants[c]

    def call(self, call: AnyCall) -> str:
        args = [self.value(a) for a in call.args]
        match call:
            case Call(op, _, attrs):
                args += [f"{key}={_attribute(value)}" for key, value in attrs.items()]
                return f"R.{op}({', '.join(args)})"
            case CallTIR(func, _, types, tir_vars):
                name = self.names.get(func, identifier(func))
                rest = f", tir_vars=R.shape([{', '.join(map(_dim, tir_vars))}])" if tir_vars else ""
                return f"R.call_tir(cls.{name}, {tuple_text(args)}, {_types_text(types)}{rest})"
            case CallPacked(func, _, types, pure):
                rest = "" if pure else ", pure=False"
                name = literal(func)
                return f"R.call_dps_packed({name}, {tuple_text(args)}, {_types_text(types)}{rest})"
            case CallFused(function):
                return f"{self.within(function)}({', '.join(args)})"
            case CallLoop(body, turns=turns, states=states):
                options: dict[str, Any] = {"turns": turns, "states": states, "read": call.read}
                options |= {"written": call.written, "conditional": call.conditional}
                options |= {"owned": call.owned, "counted": call.counted, "trailing": call.trailing}
                named = [
                    f"{key}={_attribute(v)}"
                    for key, v in options.items()
                    if isinstance(v, Expr) or v
                ]
                return f"R.loop({', '.join((self.within(body), tuple_text(args), *named))})"
            case CallBranch(then, otherwise):
                both = f"{self.within(then)}, {self.within(otherwise)}"
                return f"R.branch({args[0]}, {both}, {tuple_text(args[1:])})"

    def within(self, function: Function) -> str:
        """The printed name of a function within this one."""
        return f"cls.{self.inner.get(function, identifier(function.name))}"

    def binding(self, b: Binding) -> str:
        comment = f"  # {LAYER}{' '.join(b.source.split())}" if b.source.strip() else ""
        text = f"{self.call(b.call)}{comment}"
        match b.outputs:
            case ():
                return text
            case (out,):
                return f"{self.value(out)}: {type_text(out.type)} = {text}"
        return f"{', '.join(map(self.value, b.outputs))} = {text}"

    # ---------------------------------------------------------------------------------- functions

    def function(self, f: Function, name: str, attrs: dict[str, Any]) -> Iterator[str]:
        taken = Names(WORDS)
        params = [taken.fresh(identifier(v.name)) for v in f.params]
        self.variables = dict(zip(f.params, params, strict=True))
        for v in (v for b in f.bindings for v in b.outputs):
            self.variables[v] = taken.fresh(identifier(v.name))
        typed = (f"{self.value(v)}: {type_text(v.type)}" for v in f.params)
        yield "@R.function"
        yield f"def {name}({', '.join(typed)}):"
        written = _attributes(f, name, params, [self.value(v) for v in f.outputs]) | attrs
        if written:
            yield f"    R.func_attr({literal(written)})"
        for block, after in _blocks(f):
            indent = "    "
            if after is not None:
                yield "    with R.dataflow():"
                indent = "        "
            for binding in block:
                yield indent + self.binding(binding)
            if after is not None:
                given = [self.value(v) for b in block for v in b.outputs if v in after]
                yield f"{indent}R.output({', '.join(given)})"
        yield f"    return {', '.join(map(self.value, f.outputs)) or '()'}"


def _attributes(
    f: Function, name: str, params: Sequence[str], outputs: Sequence[str]
) -> dict[str, Any]:
    """Attributes for the parts of a function that its text does not show."""
    written: dict[str, Any] = {}
    if f.name != name:
        written[GLOBAL_SYMBOL] = f.name
    inputs = [v.name for v in f.params]
    if inputs != list(params):
        written[INPUT_NAMES] = inputs
    if list(f.output_names) != list(outputs):
        written[OUTPUT_NAMES] = list(f.output_names)
    if f.states:
        written[STATES] = dict(f.states)
    if f.extents:
        written[EXTENTS] = dict(f.extents)
    return written


def _attribute(value: Any) -> str:
    """An attribute as text; it may hold dimensions."""
    match value:
        case Expr() if not isinstance(value, Const):
            return f'R.dim("{value}")'
        case tuple() if any(isinstance(v, Expr) for v in value):
            return f"({', '.join(map(_attribute, value))}{',' if len(value) == 1 else ''})"
    return literal(value)


def _blocks(f: Function) -> Iterator[tuple[list[Binding], set[Value] | None]]:
    """Runs of bindings: dataflow blocks, with all values read after them, and calls with side
    effects, with None."""
    block: list[Binding] = []
    for number, binding in enumerate(f.bindings):
        if not is_pure(binding):
            if block:
                yield block, _read(f, f.bindings[number:])
            yield [binding], None
            block = []
        else:
            block.append(binding)
    if block:
        yield block, _read(f, ())


def _read(f: Function, bindings: Iterable[Binding]) -> set[Value]:
    return {*f.outputs, *(a for b in bindings for a in b.call.args)}
