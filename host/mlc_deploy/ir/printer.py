"""The IR as script: text in the manner of TVMScript, readable without a manual.

The text of a whole PrimFunc or IRModule parses back (`mlc_deploy.script`) to an equal one. Two
rules serve that. Names are unique and valid in Python: a variable that two loops bind is printed
under two names. An int32 constant is printed as a plain number only where parsing gives the node
back; where parsing would fold it away, it is T.int32(number).
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import build
from .dtypes import dtype_of, numpy_dtype
from .extern import NUMBERS, extern_name, is_address
from .names import Names
from .nodes import (
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Evaluate,
    Expr,
    For,
    If,
    IRModule,
    IterVar,
    Let,
    Load,
    Node,
    Not,
    PrimFunc,
    Ramp,
    Reduce,
    Region,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
)
from .parts import named_parts
from .rewrite import given_vars, symbols_of, walk
from .structural import same_expr

# Python's precedence, loosest first; a side is put in parentheses when it binds looser.
PRECEDENCE = {
    "or": 1,
    "and": 2,
    "compare": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "//": 10,
    "%": 10,
}
AS_CALLS = {"min": "T.min", "max": "T.max", "tdiv": "T.truncdiv", "tmod": "T.truncmod"}
ATOM = 20

# Float intrinsics with the dtype of their arguments, and the number of arguments: T has a function
# for each.
FLOAT_CALLS = dict.fromkeys(
    "abs ceil cos erf exp expm1 floor gelu log log1p nearbyint sigmoid silu sin".split()
    + "sqrt tan tanh trunc".split(),
    1,
) | {"fma": 3, "fmod": 2, "pow": 2}
RESERVED = frozenset({*keyword.kwlist, *dir(builtins), "T", "I", "R"})
GLOBAL_SYMBOL = "global_symbol"  # the attribute for a function's name that is not an identifier


def script(n: Node) -> str:
    """The text of any node; functions and modules as whole definitions."""
    match n:
        case PrimFunc():
            return "\n".join(_Printer().function(n, identifier(n.name)))
        case IRModule():
            return "\n".join(_module(n))
        case Stmt():
            return "\n".join(_Printer().stmt(n))
        case Expr():
            p = _Printer()
            return "\n".join([*p.parts_of(n), p.expr(n)])
        case Region():
            return _Printer().region(n)
        case IterVar():
            p = _Printer()
            return f"{n.var.name}: {n.kind} in {p.expr(n.extent)} = {p.expr(n.binding)}"
        case Buffer():
            return n.name
    raise TypeError(f"cannot print {type(n).__name__}")


def loop_header(s: For) -> str:
    """The line that begins a loop, as error messages quote it."""
    return _Printer().loop_header(s)


def identifier(name: str) -> str:
    """A name as Python can have it: "conv1/out:0" -> "conv1_out_0"."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def slice_extent(low: Expr, high: Expr) -> Expr:
    """The extent of the region `low:high`."""
    match low, high:
        case Const(), Const():
            return build.const(int(high) - int(low))
        case _, Binary("+", base, extent) if same_expr(base, low):
            return extent
    return build.const(0) if same_expr(low, high) else high - low


def literal(value: Any) -> str:
    """An annotation's value as Python text: numbers, strings, lists, tuples and dicts of them."""
    match value:
        case str():
            text = repr(value)
            return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case Const():
            return f"T.{value.dtype}({_number(value)})"
        case Buffer():
            return literal(value.name)
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case tuple():
            return tuple_text(list(map(literal, value)))
        case Mapping():
            return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
    return repr(value.item() if hasattr(value, "item") else value)


class _Text:
    """A part of an annotation that is not a Python value, as its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotations(annotations: Mapping[str, Any]) -> str:
    return literal({key: annotations[key] for key in sorted(annotations)})


def tuple_text(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _number(e: Const) -> str:
    if not isinstance(e.value, float):
        return str(e.value)
    if not math.isfinite(e.value):
        return f'"{e.value}"'
    short = str(numpy_dtype(e.dtype).type(e.value))  # 0.1, not 0.10000000149011612
    return short if build.const(float(short), e.dtype).value == e.value else repr(e.value)


def _module(m: IRModule) -> Iterator[str]:
    yield "@I.ir_module"
    yield "class Module:"
    taken = Names(RESERVED)
    names = {key: taken.fresh(identifier(key)) for key in m.functions}
    for number, (key, function) in enumerate(m.functions.items()):
        if number:
            yield ""
        if isinstance(function, PrimFunc):
            lines = _Printer().function(function, names[key])
        else:
            lines = function.module_lines(names[key], names, taken)
        for line in lines:
            yield f"    {line}".rstrip()
    if not m.functions:
        yield "    pass"


class _Printer:
    """The text of a function or of a part of one, with the names of variables and buffers.

    Things that the part does not bind keep their own names.
    """

    def __init__(self) -> None:
        self.names: dict[Var | Buffer, str] = {}
        self.taken = Names(RESERVED)
        self.loops: dict[Var, For] = {}
        self.parts: dict[Expr, str] = {}  # of the statement that is being printed, with their names

    def bind(self, thing: Var | Buffer) -> str:
        self.names[thing] = self.taken.fresh(identifier(thing.name))
        return self.names[thing]

    def name(self, thing: Var | Buffer) -> str:
        return self.names.get(thing, thing.name)

    # ------------------------------------------------------------------------------ expressions

    def expr(self, e: Expr, outer: int = 0) -> str:
        text, level = self.text(e)
        return f"({text})" if level < outer else text

    def typed(self, e: Expr) -> str:
        """e as text that is read as an expression, even if e is a number."""
        return f"T.int32({self.expr(e)})" if _is_plain(e) else self.expr(e)

    def args(self, args: Sequence[Expr]) -> str:
        return ", ".join(self.expr(a) for a in args)

    def parts_of(self, *roots: Node) -> Iterator[str]:
        """Names for the parts of a statement's expressions that are deep or in many places. Each is
        read back as one node."""
        self.parts = {}
        for e in named_parts(roots):
            text = self.expr(e)
            self.parts[e] = self.taken.fresh("t")
            yield f"{self.parts[e]} = T.meta_var({text})"

    def text(self, e: Expr) -> tuple[str, int]:
        if e in self.parts:
            return self.parts[e], ATOM
        match e:
            case Const(value, dtype):
                if _is_plain(e):
                    return str(value), ATOM
                return f"T.{dtype}({_number(e)})", ATOM
            case Var():
                return self.name(e), ATOM
            case Load(buffer, indices):
                return f"{self.name(buffer)}[{self.args(indices) or '()'}]", ATOM
            case Binary(op, a, b):
                write = self.typed_side if _folds(e) else self.expr
                if op in AS_CALLS:
                    return f"{AS_CALLS[op]}({write(a, 0)}, {write(b, 0)})", ATOM
                level = PRECEDENCE[op]
                return f"{write(a, level)} {op} {write(b, level + 1)}", level
            case Compare(op, a, b):
                write = self.typed_side if _folds(e) else self.expr
                level = PRECEDENCE["compare"]
                return f"{write(a, level + 1)} {op} {write(b, level + 1)}", level
            case Not(a):
                return f"not {self.expr(a, 3)}", 3
            case Select(c, a, b):
                return f"T.Select({self.args((c, a, b))})", ATOM
            case Cast(dtype, a):
                return f'T.Cast("{dtype}", {self.typed(a)})', ATOM
            case Call(name, args, dtype):
                if _is_plain_call(e) or is_address(e):
                    return f"T.{name}({self.args(args)})", ATOM
                rest = "".join(f", {self.expr(a)}" for a in args)
                if (function := extern_name(e)) is not None and dtype in NUMBERS:
                    return f'T.call_extern("{dtype}", {literal(function)}{rest})', ATOM
                return f'T.call_intrin("{dtype}", {literal(name)}{rest})', ATOM
            case Ramp(base, stride, lanes):
                return f"T.Ramp({self.expr(base)}, {self.expr(stride)}, {lanes})", ATOM
            case Broadcast(value, lanes):
                return f"T.Broadcast({self.expr(value)}, {lanes})", ATOM
            case Shuffle(vectors, lanes):
                return f"T.Shuffle([{self.args(vectors)}], {list(lanes)})", ATOM
            case Reduce():
                axes = ", ".join(axis.var.name for axis in e.axes)
                return f"T.reduce({e.combine!r}, {self.expr(e.value)}, axis=[{axes}])", ATOM
        raise TypeError(f"cannot print {type(e).__name__}")

    def typed_side(self, e: Expr, outer: int) -> str:
        return self.typed(e) if _is_plain(e) else self.expr(e, outer)

    # ------------------------------------------------------------------------ buffers and regions

    def region(self, r: Region) -> str:
        parts = [self.interval(low, n) for low, n in zip(r.minimum, r.extent, strict=True)]
        return f"{self.name(r.buffer)}[{', '.join(parts) or '()'}]"

    def interval(self, low: Expr, extent: Expr) -> str:
        if build.is_const(extent, 1) and extent.dtype == "int32":
            return self.expr(low)
        if low.dtype == extent.dtype:
            high = low + extent
            if same_expr(slice_extent(low, high), extent):
                return f"{self.expr(low)}:{self.expr(high)}"
        return f"T.span({self.expr(low)}, {self.typed(extent)})"

    def shape(self, shape: Sequence[Dim]) -> str:
        return tuple_text([str(n) if isinstance(n, int) else self.typed(n) for n in shape])

    def buffer_type(self, b: Buffer) -> str:
        """The arguments of T.Buffer, T.match_buffer and T.alloc_buffer."""
        strides = f", strides={self.shape(b.strides)}" if b.strides is not None else ""
        scope = f', scope="{b.scope}"' if b.scope != "global" else ""
        align = f", align={b.alignment}" if b.alignment != 64 else ""
        return f'{self.shape(b.shape)}, "{b.dtype}"{strides}{scope}{align}'

    def alloc(self, b: Buffer) -> str:
        return f"{self.bind(b)} = T.alloc_buffer({self.buffer_type(b)})"

    # --------------------------------------------------------------------------------- functions

    def function(self, f: PrimFunc, name: str) -> Iterator[str]:
        for p in f.params:
            self.bind(p)
        scalars = {p for p in f.params if isinstance(p, Var)}
        symbols = [v for v in given_vars(f) if v not in scalars]
        lines = [f"{self.bind(v)} = T.{v.dtype}()" for v in dict.fromkeys(symbols)]
        params: list[str] = []
        for p in f.params:
            if isinstance(p, Var):
                params.append(f"{self.name(p)}: T.{p.dtype}")
            elif symbols_of(p):
                handle = self.taken.fresh(f"var_{self.name(p)}")
                params.append(f"{handle}: T.handle")
                lines.append(f"{self.name(p)} = T.match_buffer({handle}, {self.buffer_type(p)})")
            else:
                params.append(f"{self.name(p)}: T.Buffer({self.buffer_type(p)})")
        attrs = dict(f.attrs) if f.name == name else {GLOBAL_SYMBOL: f.name, **f.attrs}
        yield "@T.prim_func"
        yield f"def {name}({', '.join(params)}):"
        if attrs:
            yield f"    T.func_attr({_annotations(attrs)})"
        for line in lines:
            yield f"    {line}"
        body = f.body
        if isinstance(body, Block) and _is_implicit_root(body):
            for buffer in body.allocs:
                yield f"    {self.alloc(buffer)}"
            body = body.body
        yield from self.indented(body)

    # -------------------------------------------------------------------------------- statements

    def indented(self, s: Stmt) -> Iterator[str]:
        for line in self.stmt(s):
            yield f"    {line}"

    def stmt(self, s: Stmt, last: bool = True) -> Iterator[str]:
        """The lines of s. last: nothing follows in the suite, so the rest of it is a Let's
        scope."""
        match s:
            case For():
                yield from self.loop(s)
            case Block():
                yield f"with T.block({literal(s.name)}):"
                for line in self.block(s):
                    yield f"    {line}"
            case Store(buffer, indices, value):
                yield from self.parts_of(*indices, value)
                place = f"{self.name(buffer)}[{self.args(indices) or '()'}]"
                yield f"{place} = {self.expr(value)}"
            case If(condition, then, otherwise):
                yield from self.parts_of(condition)
                yield f"if {self.expr(condition)}:"
                yield from self.indented(then)
                if otherwise is not None:
                    yield "else:"
                    yield from self.indented(otherwise)
            case Let(var, value, body):
                yield from self.parts_of(value)
                written = self.expr(value)
                if last:
                    yield f"{self.bind(var)}: T.{var.dtype} = {written}"
                    yield from self.stmt(body)
                else:
                    yield f"with T.LetStmt({self.typed(value)}) as {self.bind(var)}:"
                    yield from self.indented(body)
            case Seq(stmts):
                if not stmts:
                    yield "pass"
                for number, stmt in enumerate(stmts, 1):
                    yield from self.stmt(stmt, last and number == len(stmts))
            case Evaluate(value):
                yield from self.parts_of(value)
                yield f"T.evaluate({self.expr(value)})"
            case _:
                raise TypeError(f"cannot print {type(s).__name__}")

    def annotations(self, annotations: Mapping[str, Any]) -> str:
        """Annotations in which buffers stand by the names that they have here."""

        def named(value: Any) -> Any:
            match value:
                case Buffer() if value in self.names:
                    return _Text(self.names[value])
                case list() | tuple():
                    return type(value)(map(named, value))
                case Mapping():
                    return {k: named(v) for k, v in value.items()}
            return value

        return _annotations(named(annotations))

    def loop_header(self, s: For) -> str:
        notes = f", annotations={self.annotations(s.annotations)}" if s.annotations else ""
        notes += f', dtype="{s.var.dtype}"' if s.var.dtype != s.extent.dtype else ""
        kind = f"T.{s.kind}" if notes or s.kind != "serial" else "range"
        extent = self.expr(s.extent)
        return f"for {self.bind(s.var)} in {kind}({extent}{notes}):"

    def loop(self, s: For) -> Iterator[str]:
        nest = [s]
        while isinstance(inner := nest[-1].body, For) and _is_plain_loop(nest[-1], inner):
            outer = {loop.var for loop in nest}
            if inner.var in outer or any(n in outer for n in walk(inner.extent)):
                break
            nest.append(inner)
        for loop in nest:
            self.loops[loop.var] = loop
        if len(nest) > 1:
            extents = self.args([loop.extent for loop in nest])
            names = ", ".join(self.bind(loop.var) for loop in nest)
            yield f"for {names} in T.grid({extents}):"
        else:
            yield self.loop_header(s)
        yield from self.indented(nest[-1].body)

    def block(self, b: Block) -> Iterator[str]:
        if b.iters and all(self.takes_loop(i) for i in b.iters):
            kinds = "".join(i.kind[0].upper() for i in b.iters)
            bound = self.args([i.binding for i in b.iters])
            names = ", ".join(self.bind(i.var) for i in b.iters)
            yield f'{names} = T.axis.remap("{kinds}", [{bound}])'
        else:
            for i in b.iters:
                dtype = f', dtype="{i.var.dtype}"' if i.var.dtype != i.binding.dtype else ""
                axis = f"T.axis.{i.kind}({self.expr(i.extent)}, {self.expr(i.binding)}{dtype})"
                yield f"{self.bind(i.var)} = {axis}"
        yield from self.parts_of(*b.reads, *b.writes, b.predicate)
        if not build.is_const(b.predicate, True):
            yield f"T.where({self.expr(b.predicate)})"
        for buffer in b.allocs:
            yield self.alloc(buffer)
        yield f"T.reads({', '.join(self.region(r) for r in b.reads)})"
        yield f"T.writes({', '.join(self.region(r) for r in b.writes)})"
        if b.annotations:
            yield f"T.block_attr({self.annotations(b.annotations)})"
        if b.init is not None:
            yield "with T.init():"
            yield from self.indented(b.init)
        yield from self.stmt(b.body)

    def takes_loop(self, i: IterVar) -> bool:
        """Whether the iteration is a whole loop, which T.axis.remap can say."""
        loop = self.loops.get(i.binding) if isinstance(i.binding, Var) else None
        return (
            loop is not None and i.var.dtype == loop.var.dtype and same_expr(i.extent, loop.extent)
        )


def _is_plain(e: Expr) -> bool:
    """Whether a constant is written as a plain number."""
    return isinstance(e, Const) and e.dtype == "int32"


def _folds(e: Binary | Compare) -> bool:
    """Whether e, written with plain numbers, would be read as something simpler."""
    if not _is_plain(e.a) and not _is_plain(e.b):
        return False
    if (isinstance(e.a, Const) and isinstance(e.b, Const)) or e.a.dtype != e.b.dtype:
        return True
    if isinstance(e, Compare):
        return False
    made = build.binary(e.op, e.a, e.b)
    return not (isinstance(made, Binary) and made.a is e.a and made.b is e.b)


def _is_plain_call(e: Call) -> bool:
    """Whether a function of T gives this call, with its dtype."""
    match e:
        case Call("if_then_else", (_, a, b), dtype):
            return a.dtype == b.dtype == dtype
        case Call("likely", (a,), dtype):
            return a.dtype == dtype == "bool"
        case Call(name, args, dtype):
            same = all(a.dtype == dtype for a in args)
            fits = FLOAT_CALLS.get(name) == len(args) and dtype_of(dtype).kind == "float"
            return same and fits
    return False


def _is_implicit_root(b: Block) -> bool:
    """Whether a root block has nothing but allocations."""
    bare = not (b.reads or b.writes or b.annotations) and b.init is None
    return build.is_root(b) and bare and build.is_const(b.predicate, True)


def _is_plain_loop(outer: For, inner: For) -> bool:
    """Whether both loops may stand in one T.grid."""
    return all(
        loop.kind == "serial" and not loop.annotations and loop.var.dtype == loop.extent.dtype
        for loop in (outer, inner)
    )
