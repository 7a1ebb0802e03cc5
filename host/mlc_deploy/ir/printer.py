"""The IR as script: text in the manner of TVMScript, readable without a manual."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from . import build
from .dtypes import dtype_of
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


def script(n: Node) -> str:
    """The text of any node; functions and modules as whole definitions."""
    match n:
        case PrimFunc():
            return "\n".join(_function(n))
        case IRModule():
            return "\n\n".join(str(f) for f in n.functions.values())
        case Stmt():
            return "\n".join(_stmt(n))
        case Expr():
            return _expr(n, 0)
        case Region():
            return _region(n)
        case IterVar():
            return f"{n.var.name}: {n.kind} in {_expr(n.extent, 0)} = {_expr(n.binding, 0)}"
        case Buffer():
            return n.name
    raise TypeError(f"cannot print {type(n).__name__}")


def _expr(e: Expr, outer: int) -> str:
    text, level = _text(e)
    return f"({text})" if level < outer else text


def _text(e: Expr) -> tuple[str, int]:
    match e:
        case Const():
            return _const(e)
        case Var(name):
            return name, ATOM
        case Load(buffer, indices):
            return f"{buffer.name}[{_indices(indices)}]", ATOM
        case Binary(op, a, b):
            if op in AS_CALLS:
                return f"{AS_CALLS[op]}({_expr(a, 0)}, {_expr(b, 0)})", ATOM
            level = PRECEDENCE[op]
            return f"{_expr(a, level)} {op} {_expr(b, level + 1)}", level
        case Compare(op, a, b):
            level = PRECEDENCE["compare"]
            return f"{_expr(a, level + 1)} {op} {_expr(b, level + 1)}", level
        case Not(a):
            return f"not {_expr(a, 3)}", 3
        case Select(c, a, b):
            return f"T.Select({_args((c, a, b))})", ATOM
        case Cast(dtype, a):
            return f'T.Cast("{dtype}", {_expr(a, 0)})', ATOM
        case Call(name, args):
            return f"T.{name}({_args(args)})", ATOM
        case Ramp(base, stride, lanes):
            return f"T.Ramp({_expr(base, 0)}, {_expr(stride, 0)}, {lanes})", ATOM
        case Broadcast(value, lanes):
            return f"T.Broadcast({_expr(value, 0)}, {lanes})", ATOM
        case Shuffle(vectors, lanes):
            return f"T.Shuffle([{_args(vectors)}], {list(lanes)})", ATOM
        case Reduce():
            axes = ", ".join(axis.var.name for axis in e.axes)
            return f"T.reduce({e.combine!r}, {_expr(e.value, 0)}, axis=[{axes}])", ATOM
    raise TypeError(f"cannot print {type(e).__name__}")


def _const(e: Const) -> tuple[str, int]:
    if e.dtype == "bool":
        return ("T.bool(True)" if e.value else "T.bool(False)"), ATOM
    if e.dtype == "int32":
        return str(e.value), ATOM if e.value >= 0 else 11
    value = repr(e.value)
    if isinstance(e.value, float) and not math.isfinite(e.value):
        value = f'"{e.value}"'
    return f"T.{e.dtype}({value})", ATOM


def _args(args: tuple[Expr, ...]) -> str:
    return ", ".join(_expr(a, 0) for a in args)


def _indices(indices: tuple[Expr, ...]) -> str:
    return ", ".join(_expr(i, 0) for i in indices) or "()"


def _region(r: Region) -> str:
    parts = []
    for low, extent in zip(r.minimum, r.extent, strict=True):
        if build.is_const(extent, 1):
            parts.append(_expr(low, 0))
        else:
            parts.append(f"{_expr(low, 0)}:{_expr(low + extent, 0)}")
    return f"{r.buffer.name}[{', '.join(parts) or '()'}]"


def _shape(shape: tuple[Dim, ...]) -> str:
    inside = ", ".join(str(extent) for extent in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _buffer_type(b: Buffer) -> str:
    extra = f", strides={_shape(b.strides)}" if b.strides is not None else ""
    extra += f', scope="{b.scope}"' if b.scope != "global" else ""
    extra += f", align={b.alignment}" if b.alignment != 64 else ""
    return f'T.Buffer({_shape(b.shape)}, "{b.dtype}"{extra})'


def _annotations(annotations: Mapping[str, Any]) -> str:
    return ", ".join(f'"{key}": {value!r}' for key, value in sorted(annotations.items()))


def _function(f: PrimFunc) -> Iterator[str]:
    params = ", ".join(
        f"{p.name}: {_buffer_type(p)}" if isinstance(p, Buffer) else f"{p.name}: T.{p.dtype}"
        for p in f.params
    )
    yield "@T.prim_func"
    yield f"def {f.name}({params}):"
    if f.attrs:
        yield f"    T.func_attr({{{_annotations(f.attrs)}}})"
    body = f.body
    if isinstance(body, Block) and build.is_root(body) and not body.annotations:
        for buffer in body.allocs:
            yield f"    {_alloc(buffer)}"
        body = body.body
    for line in _stmt(body):
        yield f"    {line}"


def _alloc(b: Buffer) -> str:
    return f"{b.name} = T.alloc_buffer({_buffer_type(b)[len('T.Buffer(') : -1]})"


def _indented(s: Stmt) -> Iterator[str]:
    for line in _stmt(s):
        yield f"    {line}"


def _stmt(s: Stmt) -> Iterator[str]:
    match s:
        case For():
            yield from _loop(s)
        case Block():
            yield f'with T.block("{s.name}"):'
            for line in _block(s):
                yield f"    {line}"
        case Store(buffer, indices, value):
            yield f"{buffer.name}[{_indices(indices)}] = {_expr(value, 0)}"
        case If(condition, then, otherwise):
            yield f"if {_expr(condition, 0)}:"
            yield from _indented(then)
            if otherwise is not None:
                yield "else:"
                yield from _indented(otherwise)
        case Let(var, value, body):
            yield f"{var.name}: T.{var.dtype} = {_expr(value, 0)}"
            yield from _stmt(body)
        case Seq(stmts):
            if not stmts:
                yield "pass"
            for stmt in stmts:
                yield from _stmt(stmt)
        case Evaluate(value):
            yield f"T.evaluate({_expr(value, 0)})"
        case _:
            raise TypeError(f"cannot print {type(s).__name__}")


def loop_header(s: For) -> str:
    """The line that begins a loop, as error messages quote it."""
    kind = "range" if s.kind == "serial" else f"T.{s.kind}"
    notes = f", annotations={{{_annotations(s.annotations)}}}" if s.annotations else ""
    if notes and kind == "range":
        kind = "T.serial"
    return f"for {s.var.name} in {kind}({_expr(s.extent, 0)}{notes}):"


def _loop(s: For) -> Iterator[str]:
    nest = [s]
    while _plain(nest[-1]) and isinstance(nest[-1].body, For) and _plain(nest[-1].body):
        inner = nest[-1].body
        if any(v is outer.var for outer in nest for v in _vars(inner.extent)):
            break
        nest.append(inner)
    if len(nest) > 1:
        names = ", ".join(loop.var.name for loop in nest)
        yield f"for {names} in T.grid({', '.join(_expr(loop.extent, 0) for loop in nest)}):"
    else:
        yield loop_header(s)
    yield from _indented(nest[-1].body)


def _plain(s: For) -> bool:
    return s.kind == "serial" and not s.annotations and s.var.dtype == "int32"


def _vars(e: Expr) -> Iterator[Var]:
    from .rewrite import walk

    return (n for n in walk(e) if isinstance(n, Var))


def _block(b: Block) -> Iterator[str]:
    if b.iters and all(isinstance(i.binding, Var) for i in b.iters) and _remappable(b):
        names = ", ".join(i.var.name for i in b.iters)
        kinds = "".join(i.kind[0].upper() for i in b.iters)
        bound = ", ".join(_expr(i.binding, 0) for i in b.iters)
        yield f'{names} = T.axis.remap("{kinds}", [{bound}])'
    else:
        for i in b.iters:
            extent, binding = _expr(i.extent, 0), _expr(i.binding, 0)
            yield f"{i.var.name} = T.axis.{i.kind}({extent}, {binding})"
    if not build.is_const(b.predicate, True):
        yield f"T.where({_expr(b.predicate, 0)})"
    yield f"T.reads({', '.join(_region(r) for r in b.reads)})"
    yield f"T.writes({', '.join(_region(r) for r in b.writes)})"
    if b.annotations:
        yield f"T.block_attr({{{_annotations(b.annotations)}}})"
    for buffer in b.allocs:
        yield _alloc(buffer)
    if b.init is not None:
        yield "with T.init():"
        yield from _indented(b.init)
    yield from _stmt(b.body)


def _remappable(b: Block) -> bool:
    """remap says nothing of extents or dtypes: only for int32 iterations of their loop's extent."""
    return all(dtype_of(i.var.dtype).name == "int32" for i in b.iters)
