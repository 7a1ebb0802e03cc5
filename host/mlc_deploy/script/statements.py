"""Statements of a script: from syntax trees to loops, blocks and stores.

Scopes are those of the IR: a name that a loop, a block or a `with` binds is known only inside it. A
name that is bound twice makes two variables; the IR calls the second one name_1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..ir import (
    Block,
    Buffer,
    Call,
    Const,
    Dim,
    Evaluate,
    Expr,
    For,
    If,
    IterVar,
    Let,
    Load,
    Region,
    Stmt,
    Store,
    Var,
    addressed,
    const,
    dtype_of,
    expr,
    free_vars,
    seq,
)
from ..ir.build import broadcast
from ..ir.names import Names
from ..ir.nodes import TRUE, ForKind, IterKind
from ..ir.regions import with_guards
from .accesses import block_regions
from .operators import operate
from .source import Source
from .values import BINARY, Phrase, Values, Word, describe, known_dtype, number

LOOPS: dict[str, ForKind] = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorized": "vectorized",
    "unroll": "unrolled",
}
KINDS: dict[str, IterKind] = {"S": "spatial", "R": "reduce"}
SCOPES = ("global", "local")
OUTSIDE_OF_BLOCK = 'inside of `with T.block("…"):`, not in a loop or an if below it'


@dataclass(slots=True)
class BlockFields:
    """The fields of the block, or of the function's root, whose statements are being read."""

    iters: list[IterVar] = field(default_factory=list)
    allocs: list[Buffer] = field(default_factory=list)
    reads: tuple[Region, ...] | None = None
    writes: tuple[Region, ...] | None = None
    init: Stmt | None = None
    predicate: Expr = TRUE
    annotations: dict[str, Any] = field(default_factory=dict)

    def made(
        self, name: str, body: Stmt, reads: tuple[Region, ...], writes: tuple[Region, ...]
    ) -> Block:
        iters, allocs = tuple(self.iters), tuple(self.allocs)
        reads = with_guards(reads, self.predicate)
        return Block(
            name, iters, reads, writes, body, self.init, self.predicate, allocs, self.annotations
        )


@dataclass(frozen=True, slots=True)
class Handle:
    """A T.handle parameter. T.match_buffer gives it a buffer."""

    name: str


class Statements:
    """Reads the statements of a function and gathers its attributes, buffers and symbols."""

    def __init__(self, source: Source, outside: Mapping[str, Any]) -> None:
        self.values = Values(source, outside)
        self.names, self.block_names = Names(), Names({"root"})
        self.matched: dict[str, Buffer] = {}  # the buffers of T.handle parameters
        self.attrs: dict[str, Any] = {}
        self.symbols: dict[Var, ast.AST] = {}  # symbolic dimensions -> their declarations
        self.extents: dict[Var, Expr] = {}  # of the surrounding loops
        self.root = BlockFields()
        self.block: BlockFields | None = self.root  # None inside loops and ifs

    def refuse(self, at: ast.AST, what: str, mend: str = "") -> NoReturn:
        self.values.refuse(at, what, mend)

    # -------------------------------------------------------------------------------- statements

    @contextmanager
    def scope(self, block: BlockFields | None = None) -> Iterator[None]:
        """A scope: names bound inside are unknown after it. Its statements belong to `block`."""
        before = self.values.scope, self.block
        self.values.scope, self.block = self.values.scope.new_child(), block
        yield
        self.values.scope, self.block = before

    def suite(self, statements: Sequence[ast.stmt]) -> Stmt:
        """Statements in sequence. The binding of a variable holds for the statements after it."""
        done: list[tuple[Var, Expr] | Stmt] = []
        for statement in statements:
            done.extend(self.statement(statement))
        tail: list[Stmt] = []
        for item in reversed(done):
            if isinstance(item, tuple):
                tail = [Let(*item, seq(reversed(tail)))]
            else:
                tail.append(item)
        return seq(reversed(tail))

    def statement(self, at: ast.stmt) -> Iterator[tuple[Var, Expr] | Stmt]:
        match at:
            case ast.Pass() | ast.Expr(ast.Constant(str())):
                return
            case ast.For():
                yield self.loop(at)
            case ast.With([item], body):
                yield self.with_statement(item, body)
            case ast.If(test, then, otherwise):
                yield from self.branches(test, then, otherwise)
            case ast.Assign([target], value):
                yield from self.assign(target, value)
            case ast.AnnAssign(ast.Name() as target, annotation, ast.expr() as value):
                yield self.declare(target, annotation, value)
            case ast.AugAssign(ast.Subscript() as target, op, value) if type(op) in BINARY:
                old = self.values.value(target)
                step = self.values.operand(value)
                made = self.values.binary(value, BINARY[type(op)], old, step)
                yield self.store(target, value, made)
            case ast.Expr(ast.Call() as call):
                yield from self.call_statement(call)
            case ast.Return():
                self.refuse(at, "a function of the loop IR returns nothing", "write to a parameter")
            case _:
                self.refuse(
                    at,
                    f"'{ast.unparse(at).splitlines()[0]}' is not part of the script language",
                    "for, if, with T.block, assignments to elements and names, T.evaluate",
                )

    def branches(
        self, test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt]
    ) -> Iterator[tuple[Var, Expr] | Stmt]:
        condition = self.values.condition(test)
        if isinstance(condition, bool):  # known already: only the taken branch remains
            for statement in then if condition else otherwise:
                yield from self.statement(statement)
            return
        with self.scope():
            taken = self.suite(then)
        with self.scope():
            other = self.suite(otherwise) if otherwise else None
        yield If(condition, taken, other)

    def call_statement(self, call: ast.Call) -> Iterator[Stmt]:
        """A call as a statement."""
        match self.values.value(call):
            case Phrase("evaluate", args):
                yield Evaluate(self.values.as_expr(call, args["value"]))
            case Phrase("func_attr", args):
                if self.block is not self.root:
                    self.refuse(call, "T.func_attr belongs at the top of a function")
                self.attrs.update(self.attributes(call, args["attrs"]))
            case Phrase("reads" | "writes" | "where" | "block_attr" as name, args):
                self.about_block(call, name, args)
            case Phrase() as phrase:
                self.refuse(call, f"{phrase.text} is not a statement of its own", _belongs(phrase))
            case Call() as effect:
                yield Evaluate(effect)
            case value:
                self.refuse(call, f"{describe(value)} does nothing here", "T.evaluate(…)")

    def about_block(self, call: ast.Call, name: str, args: Mapping[str, Any]) -> None:
        block = self.this_block(call, f"T.{name}")
        match name:
            case "where":
                predicate = self.values.condition(call.args[0] if call.args else call)
                block.predicate = expr(predicate)
                self.require_loops(call, block, block.predicate)
            case "block_attr":
                block.annotations.update(self.attributes(call, args["attrs"]))
            case "reads":
                block.reads = self.regions(call, args["regions"])
            case "writes":
                block.writes = self.regions(call, args["regions"])

    def this_block(self, at: ast.AST, what: str) -> BlockFields:
        if self.block is None:
            self.refuse(at, f"{what} is in a loop or an if", OUTSIDE_OF_BLOCK)
        return self.block

    def attributes(self, at: ast.AST, attrs: object) -> dict[str, Any]:
        if not isinstance(attrs, dict) or not all(isinstance(key, str) for key in attrs):
            self.refuse(at, "attributes are a dict with strings as keys", '{"name": value}')
        return attrs

    def regions(self, call: ast.Call, given: Sequence[Any]) -> tuple[Region, ...]:
        flat = [r for g in given for r in (g if isinstance(g, (list, tuple)) else (g,))]
        found: list[Region] = []
        for value in flat:
            match value:
                case Region():
                    found.append(value)
                case Load(buffer, indices):
                    found.append(Region(buffer, indices, (const(1),) * len(indices)))
                case Buffer():
                    low = (const(0),) * value.ndim
                    found.append(Region(value, low, tuple(expr(n) for n in value.shape)))
                case _:
                    self.refuse(call, f"no region of a buffer: {describe(value)}", "A[vi, 0:16]")
        return tuple(found)

    # --------------------------------------------------------------------------------- assignment

    def assign(self, target: ast.expr, at: ast.expr) -> Iterator[tuple[Var, Expr] | Stmt]:
        if isinstance(target, ast.Subscript):
            yield self.store(target, at, self.values.value(at))
            return
        value = self.values.value(at)
        match target, value:
            case _, Phrase("axis.remap" | "axis.spatial" | "axis.reduce"):
                self.axes(value, list(_names(target)))
            case ast.Name(name), Phrase("match_buffer"):
                self.match_buffer(value, name)
            case ast.Name(name), Phrase("alloc_buffer"):
                block = self.this_block(at, value.text)
                block.allocs.append(self.buffer(value, self.names.fresh(name)))
                self.values.scope[name] = block.allocs[-1]
            case ast.Name(name), Phrase("var", args):
                symbol = Var(self.names.fresh(name), args["dtype"])
                self.symbols[symbol] = at
                self.values.scope[name] = symbol
            case ast.Name(name), Phrase("meta_var", args):
                self.values.scope[name] = args["value"]
            case _, Phrase():
                self.refuse(at, f"{value.text} has no value to assign", _belongs(value))
            case ast.Name(name), Expr() if not isinstance(value, (Const, Var)):
                yield self.let(name, value)
            case ast.Name(name), _:
                self.values.scope[name] = value
            case ast.Tuple(items), tuple() | list() if isinstance(
                at, (ast.Tuple, ast.List)
            ) and len(items) == len(value):
                for item, part in zip(items, at.elts, strict=True):
                    yield from self.assign(item, part)
            case ast.Tuple(items), tuple() | list() if len(items) == len(value):
                for name, part in zip(_names(target), value, strict=True):
                    self.values.scope[name] = part
            case _:
                self.refuse(target, f"cannot assign {describe(value)} to this")

    def declare(self, target: ast.Name, annotation: ast.expr, at: ast.expr) -> tuple[Var, Expr]:
        """`x: T.int32 = value`"""
        kind = self.values.value(annotation)
        dtype = getattr(kind.target, "dtype", None) if isinstance(kind, Word) else None
        if not isinstance(dtype, str):
            self.refuse(annotation, f"{describe(kind)} is not a dtype", "T.int32, T.float32 …")
        value = self.values.expr(at, dtype)
        if value.dtype != dtype:
            self.refuse(at, f"'{target.id}' is {dtype}, but its value {value.dtype}", _cast(dtype))
        return self.let(target.id, value)

    def let(self, name: str, value: Expr) -> tuple[Var, Expr]:
        variable = Var(self.names.fresh(name), value.dtype)
        self.values.scope[name] = variable
        return variable, value

    def store(self, target: ast.Subscript, at: ast.expr, value: Any) -> Store:
        buffer = self.values.value(target.value)
        if not isinstance(buffer, Buffer):
            self.refuse(target, f"only elements of buffers are written, not of {describe(buffer)}")
        low, extents = self.values.intervals(target, buffer)
        if any(n is not None for n in extents):
            self.refuse(target, "a whole region is written at once", "a loop over its elements")
        place = self.values.apply(target, lambda: buffer[tuple(low)])
        made = self.values.as_expr(at, value, buffer.dtype)
        given, lanes = dtype_of(made.dtype), dtype_of(place.dtype).lanes
        if given.scalar != buffer.dtype:
            self.refuse(
                at,
                f"'{buffer.name}' holds {buffer.dtype}, but '{made}' is {given.scalar}",
                _cast(buffer.dtype),
            )
        if given.lanes != lanes:
            if given.lanes != 1:
                self.refuse(at, f"{given.lanes} lanes are stored to {lanes}")
            made = broadcast(made, lanes)
        return Store(buffer, tuple(low), made)

    # -------------------------------------------------------------------------- buffers and loops

    def buffer(self, phrase: Phrase, name: str) -> Buffer:
        at, args = phrase.at, phrase.args
        if args["scope"] not in SCOPES:
            self.refuse(at, f"there is no scope '{args['scope']}'", '"global" or "local"')
        align = args["align"]
        if not isinstance(align, int) or align < 1:
            self.refuse(at, f"alignment {align} is not a positive number of bytes")
        dtype = self.values.apply(at, known_dtype, args["dtype"])
        shape = self.dims(at, args["shape"])
        strides = None if args["strides"] is None else self.dims(at, args["strides"])
        if strides is not None and len(strides) != len(shape):
            self.refuse(at, f"{len(strides)} strides for {len(shape)} dimensions")
        made: Buffer = self.values.apply(
            at, Buffer, name, shape, dtype, strides, args["scope"], align
        )
        return made

    def dims(self, at: ast.AST, given: Any) -> tuple[Dim, ...]:
        items = given if isinstance(given, (tuple, list)) else (given,)
        for item in items:
            if isinstance(item, str):
                mend = f"{item} = T.int32(), and T.match_buffer on a T.handle parameter"
                self.refuse(at, f"the dimension {item!r} is a string", mend)
            self.values.integer(at, item)
            if isinstance(item, int) and item < 0:
                self.refuse(at, f"the dimension {item} is negative")
        return tuple(items)

    def match_buffer(self, phrase: Phrase, name: str) -> None:
        handle = phrase.args["param"]
        if not isinstance(handle, Handle):
            self.refuse(
                phrase.at,
                f"{phrase.text} is for parameters, not for {describe(handle)}",
                "a parameter of type T.handle",
            )
        if handle.name in self.matched:
            self.refuse(phrase.at, f"parameter '{handle.name}' has its buffer already")
        made = self.buffer(phrase, self.names.fresh(name))
        self.matched[handle.name] = self.values.scope[name] = made

    def loop(self, at: ast.For) -> Stmt:
        phrase = self.values.value(at.iter)
        if not isinstance(phrase, Phrase) or phrase.name not in (*LOOPS, "grid"):
            self.refuse(
                at.iter,
                f"loops do not run over {describe(phrase)}",
                "range, T.serial, T.grid, T.parallel, T.vectorized or T.unroll",
            )
        if at.orelse:
            self.refuse(at.orelse[0], "a loop has no else")
        names = list(_names(at.target))
        notes, dtype = None, None
        if phrase.name == "grid":
            ranges = [(0, extent) for extent in phrase.args.get("extents", ())]
        else:
            start, stop = phrase.args["start"], phrase.args["stop"]
            ranges = [(0, start) if stop is None else (start, stop)]
            if "annotations" in phrase.args:
                notes, dtype = phrase.args["annotations"], phrase.args["dtype"]
        if len(names) != len(ranges) or not names:
            self.refuse(at.target, f"{len(names)} names for {len(ranges)} loops")
        loops: list[tuple[Var, Expr]] = []
        kind = LOOPS.get(phrase.name, "serial")
        annotations = self.attributes(at.iter, {} if notes is None else notes)
        with self.scope():
            values: list[Expr] = []
            for name, (start, stop) in zip(names, ranges, strict=True):
                low, high = (self.values.integer(at.iter, v) for v in (start, stop))
                extent = high if start == 0 and number(start) else high - low
                variable = self.index(at.iter, name, extent.dtype if dtype is None else dtype)
                loops.append((variable, extent))
                values.append(variable if extent is high else operate("+", variable, start))
                self.extents[variable] = extent
            self.values.scope.update(zip(names, values, strict=True))
            body = self.suite(at.body)
        for variable, extent in reversed(loops):
            body = For(variable, extent, kind, body, annotations)
        return body

    def index(self, at: ast.AST, name: str, dtype: object) -> Var:
        """A variable that runs over integers."""
        known = self.values.apply(at, known_dtype, dtype)
        if not dtype_of(known).is_integer:
            self.refuse(at, f"'{name}' runs over integers, not over {known}")
        return Var(self.names.fresh(name), known)

    # ------------------------------------------------------------------------------------- blocks

    def with_statement(self, item: ast.withitem, body: list[ast.stmt]) -> Stmt:
        phrase = self.values.value(item.context_expr)
        match phrase:
            case Phrase("block"):
                return self.block_statement(phrase, body)
            case Phrase("LetStmt", args) if isinstance(item.optional_vars, ast.Name):
                value = self.values.as_expr(item.context_expr, args["value"])
                with self.scope():
                    variable, _ = self.let(item.optional_vars.id, value)
                    return Let(variable, value, self.suite(body))
            case Phrase("LetStmt"):
                self.refuse(item.context_expr, "the variable has no name", "with T.LetStmt(…) as x")
            case Phrase("init"):
                block = self.this_block(item.context_expr, phrase.text)
                if block is self.root or block.init is not None:
                    self.refuse(item.context_expr, "T.init occurs once in a block")
                with self.scope():
                    block.init = self.suite(body)
                return seq(())
        self.refuse(
            item.context_expr,
            f"`with` does not take {describe(phrase)}",
            "T.block, T.init or T.LetStmt",
        )

    def block_name(self, phrase: Phrase) -> str:
        name = phrase.args["name"]
        if not isinstance(name, str):
            self.refuse(phrase.at, f"a block's name is a string, not {describe(name)}")
        if not phrase.at.args and not phrase.at.keywords:
            return self.block_names.fresh(name)
        if self.block_names.fresh(name) != name:
            self.refuse(
                phrase.at, f"two blocks are called '{name}'", "another name for one of them"
            )
        return str(name)

    def block_statement(self, phrase: Phrase, statements: list[ast.stmt]) -> Block:
        name = self.block_name(phrase)
        fields = BlockFields()
        with self.scope(fields):
            body = self.suite(statements)
        reads, writes = fields.reads, fields.writes
        if reads is None or writes is None:
            if addressed(body):
                self.refuse(
                    phrase.at,
                    f"block '{name}' takes addresses, and does not say what is read and "
                    "written through them",
                    "T.reads(A[0:64]) and T.writes(B[0:64]), both, in the block",
                )
            found = block_regions(body, fields.init, tuple(fields.allocs))
            reads = found[0] if reads is None else reads
            writes = found[1] if writes is None else writes
        return fields.made(name, body, reads, writes)

    def axes(self, phrase: Phrase, names: list[str]) -> None:
        """Adds iterations to the block: T.axis.remap, T.axis.spatial, T.axis.reduce."""
        at, args = phrase.at, phrase.args
        block = self.this_block(at, phrase.text)
        if block is self.root:
            self.refuse(at, f"{phrase.text} is outside of a block", OUTSIDE_OF_BLOCK)
        if phrase.name == "axis.remap":
            found = list(self.remapped(phrase))
        else:
            kind: IterKind = "spatial" if phrase.name == "axis.spatial" else "reduce"
            binding = self.values.integer(at, args["binding"])
            found = [(kind, self.domain(at, args["dom"]), binding)]
            self.require_loops(at, block, *found[0][1:])
        if len(names) != len(found):
            self.refuse(at, f"{len(names)} names for {len(found)} iterations")
        dtype = args.get("dtype")
        for name, (kind, extent, binding) in zip(names, found, strict=True):
            variable = self.index(at, name, binding.dtype if dtype is None else dtype)
            block.iters.append(IterVar(variable, extent, kind, binding))
            self.values.scope[name] = variable

    def require_loops(self, at: ast.AST, block: BlockFields, *given: Expr) -> None:
        """Refuses expressions over the loops around a block that use its own iterations."""
        own = {i.var for i in block.iters}
        for inside in sorted(own & set().union(*map(free_vars, given)), key=lambda v: v.name):
            what = f"'{inside.name}' is an iteration of this very block"
            self.refuse(at, what, "the loops that it is bound to")

    def remapped(self, phrase: Phrase) -> Iterator[tuple[IterKind, Expr, Expr]]:
        kinds, bindings = phrase.args["kinds"], phrase.args["bindings"]
        if not isinstance(bindings, (list, tuple)) or not isinstance(kinds, str):
            self.refuse(phrase.at, f"{phrase.text} takes a string and a list", '("SR", [i, k])')
        if len(kinds) != len(bindings) or not set(kinds) <= set(KINDS):
            self.refuse(
                phrase.at,
                f'"{kinds}" does not say what {len(bindings)} loops are',
                "one letter per loop: S (spatial) or R (reduce)",
            )
        for letter, binding in zip(kinds, bindings, strict=True):
            if not isinstance(binding, Var) or binding not in self.extents:
                self.refuse(
                    phrase.at,
                    f"{describe(binding)} is not a loop from 0 on",
                    "v = T.axis.spatial(extent, expression)",
                )
            yield KINDS[letter], self.extents[binding], binding

    def domain(self, at: ast.AST, dom: Any) -> Expr:
        """The extent n of `n` or `(0, n)`."""
        if not isinstance(dom, (tuple, list)):
            return self.values.integer(at, dom)
        if len(dom) != 2 or not number(dom[0]) or dom[0] != 0:
            self.refuse(at, "an iteration runs from 0", "n, or (0, n)")
        return self.values.integer(at, dom[1])


def _names(target: ast.expr) -> Iterator[str]:
    """The names that a target binds."""
    match target:
        case ast.Name(name):
            yield name
        case ast.Tuple(items) | ast.List(items):
            for item in items:
                yield from _names(item)


def _cast(dtype: str) -> str:
    return f'T.cast(…, "{dtype}")'


def _belongs(phrase: Phrase) -> str:
    """The right place for a phrase, as text for a message."""
    match phrase.name:
        case "grid" | "serial" | "parallel" | "vectorized" | "unroll":
            return f"for i in {phrase.text}(…):"
        case "block" | "init" | "LetStmt":
            return f"with {phrase.text}(…):"
        case "Buffer":
            return "a parameter's type, or T.alloc_buffer"
        case "span":
            return "an index in T.reads or T.writes"
        case "evaluate" | "func_attr" | "reads" | "writes" | "where" | "block_attr":
            return f"{phrase.text}(…) as a statement of its own"
    return f"name = {phrase.text}(…)"
