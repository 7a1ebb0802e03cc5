"""Expressions of a script: from syntax trees to values. The user's code never runs.

A value is an expression of the IR, a buffer, a region, a word of `T`, a phrase (the call of a word
that only statements understand), or a Python number, string, tuple, list or dict. Python numbers
stay Python numbers until they meet an expression.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from ..ir import Buffer, Expr, Region, address_of, call_extern, cast, const, dtype_of, load
from ..ir.build import FOLD
from ..ir.build import number as constant_of
from ..ir.printer import slice_extent
from .operators import choose_lazily, invert, operate, relate
from .source import Source

BINARY: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
COMPARE: dict[type[ast.AST], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
BUILTINS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (abs, bool, float, int, len, max, min, round)
}
MOST_SHIFTED = 64  # most bits of a shift between Python numbers

# Words whose calls only statements understand.
PHRASES = frozenset(
    "Buffer LetStmt alloc_buffer axis.reduce axis.remap axis.spatial block block_attr evaluate"
    " func_attr grid init match_buffer meta_var parallel reads serial span unroll var vectorized"
    " where writes".split()
)
# TVM's words that have another name here or are not for CPUs -> what to write.
ELSEWHERE = {
    "Assert": "leave it out: arguments are checked when a kernel is called",
    "Let": "with T.LetStmt(value) as x",
    "allocate": "T.alloc_buffer",
    "buffer_decl": "T.alloc_buffer",
    "decl_buffer": "T.alloc_buffer",
    "launch_thread": "T.parallel: there are no thread axes on a CPU",
    "sblock": "T.block",
    "thread_binding": "T.parallel: there are no thread axes on a CPU",
}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of T, or a Python builtin."""

    text: str
    target: Any


@dataclass(frozen=True, slots=True)
class Phrase:
    """A call of a word that only statements understand, with its arguments by name."""

    name: str
    args: Mapping[str, Any]
    at: ast.Call

    @property
    def text(self) -> str:
        return ast.unparse(self.at.func)


def number(value: object) -> bool:
    """Whether a value is a Python number."""
    return isinstance(value, (bool, int, float))


def known_dtype(name: object) -> str:
    """A dtype's name. Raises TypeError for other values, ValueError for unknown names."""
    if not isinstance(name, str):
        raise TypeError(f'a dtype is expected, not {describe(name)}\n  try: "float32"')
    return dtype_of(name).name


def is_vocabulary(value: object) -> bool:
    """Whether a value is the module `T` itself."""
    return isinstance(value, ModuleType) and value.__name__ == f"{__package__}.tir"


def _range(start: Any, stop: Any = None) -> None:
    """The signature of `range`, as far as loops support it."""


class Values:
    """The values of names at a place of a script, and of expressions over them.

    `scope` holds the names that the script binds, `outside` the names around the function.
    """

    def __init__(self, source: Source, outside: Mapping[str, Any]) -> None:
        self.source = source
        self.outside = outside
        self.scope: ChainMap[str, Any] = ChainMap()

    # ---------------------------------------------------------------------------------- refusals

    def refuse(self, at: ast.AST, what: str, mend: str = "") -> NoReturn:
        raise self.source.error(at, what, mend)

    def apply(self, at: ast.AST, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The function's result. Its errors point at the tree."""
        try:
            return function(*args, **named)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            what, _, mend = str(error).partition("\n  try: ")
            what = f"there is no {what}" if isinstance(error, KeyError) else what
            mend = mend.replace("te.", "T.")  # functions of the same names
            raise self.source.error(at, what, mend) from None

    # ------------------------------------------------------------------------------- conversions

    def expr(self, at: ast.AST, dtype: str | None = None) -> Expr:
        """The expression at `at`; a number becomes a constant of `dtype`."""
        return self.as_expr(at, self.value(at), dtype)

    def as_expr(self, at: ast.AST, value: Any, dtype: str | None = None) -> Expr:
        if isinstance(value, Expr):
            return value
        if number(value):
            if dtype is not None and isinstance(value, float) and dtype_of(dtype).kind != "float":
                self.refuse(at, f"{value} where {dtype} is expected", "an integer")
            made: Expr = self.apply(at, constant_of, value, dtype)
            return made
        self.refuse(at, f"an expression is expected, not {describe(value)}")

    def integer(self, at: ast.AST, value: Any) -> Expr:
        made = self.as_expr(at, value)
        if not dtype_of(made.dtype).is_integer:
            self.refuse(at, f"an integer is expected, not '{made}', which is {made.dtype}")
        return made

    def condition(self, at: ast.AST) -> Expr | bool:
        """A condition; a Python bool if it is known already."""
        value = self.value(at)
        if isinstance(value, (Phrase, Word, Region, Buffer)):
            self.refuse(at, f"a condition is expected, not {describe(value)}")
        if not isinstance(value, Expr):
            return bool(value)
        if dtype_of(value.dtype).kind != "bool":
            self.refuse(
                at,
                f"a condition is expected, not '{value}', which is {value.dtype}",
                f"a comparison, such as {value} != 0",
            )
        return value

    # ------------------------------------------------------------------------------- expressions

    def value(self, at: ast.AST) -> Any:
        match at:
            case ast.Constant(None | bool() | int() | float() | str() as constant):
                return constant
            case ast.Name(name):
                return self.lookup(at, name)
            case ast.Tuple(items):
                return tuple(self.values(items))
            case ast.List(items):
                return list(self.values(items))
            case ast.Dict(keys, values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self.value(k): self.value(v) for k, v in pairs if k is not None}
            case ast.UnaryOp():
                return self.unary(at)
            case ast.BinOp(a, op, b) if type(op) in BINARY:
                return self.binary(at, BINARY[type(op)], self.value(a), self.value(b))
            case ast.BoolOp():
                return self.logical(at)
            case ast.Compare():
                return self.comparison(at)
            case ast.IfExp(test, a, b):
                taken = self.condition(test)
                if isinstance(taken, bool):
                    return self.value(a if taken else b)
                return self.apply(at, choose_lazily, taken, self.operand(a), self.operand(b))
            case ast.Subscript():
                return self.subscript(at)
            case ast.Attribute():
                return self.attribute(at)
            case ast.Call():
                return self.call(at)
        self.refuse(
            at,
            f"'{ast.unparse(at)}' is not part of the script language",
            "numbers, names, operators, T.…, buffer[…]; compute other values outside the function",
        )

    def values(self, items: Sequence[ast.expr]) -> Iterator[Any]:
        for item in items:
            if isinstance(item, ast.Starred):
                yield from self.sequence(item.value)
            else:
                yield self.value(item)

    def sequence(self, at: ast.AST) -> Sequence[Any]:
        value = self.value(at)
        if not isinstance(value, (tuple, list)):
            self.refuse(at, f"a tuple or list is expected, not {describe(value)}")
        return value

    def lookup(self, at: ast.AST, name: str) -> Any:
        if name in self.scope:
            return self.scope[name]
        if name in self.outside:
            return self.taken(at, name, self.outside[name])
        if name == "range":
            return Word(name, _range)
        if name in BUILTINS:
            return Word(name, BUILTINS[name])
        near = difflib.get_close_matches(name, [*self.scope, *self.outside], 3)
        self.refuse(at, f"name '{name}' is not defined here", ", ".join(near))

    def taken(self, at: ast.AST, name: str, value: Any) -> Any:
        """A value from outside of the function. Refuses kinds that scripts do not accept."""
        if isinstance(value, (np.bool_, np.integer, np.floating)):
            return value.item()
        known = value is None or isinstance(value, (str, tuple, list, dict, Expr, Word))
        if known or number(value) or is_vocabulary(value):
            return value
        self.refuse(
            at,
            f"'{name}' is {describe(value)}, defined outside of the function",
            "only numbers, strings, expressions, and tuples, lists and dicts of them are taken",
        )

    def operand(self, at: ast.AST) -> Any:
        """A number or an expression."""
        value = self.value(at)
        return value if number(value) else self.as_expr(at, value)

    def unary(self, at: ast.UnaryOp) -> Any:
        value = self.operand(at.operand)
        match at.op:
            case ast.UAdd():
                return value
            case ast.USub():
                return -value if number(value) else self.apply(at, operate, "-", 0, value)
            case ast.Not():
                return not value if number(value) else self.apply(at, invert, value)
        self.refuse(at, "'~' is not part of the script language", "x ^ -1, or `not` for conditions")

    def binary(self, at: ast.AST, op: str, a: Any, b: Any) -> Any:
        for side in (a, b):
            if not number(side):
                self.as_expr(at, side)
        if number(a) and number(b):
            if op == "<<" and b > MOST_SHIFTED:
                self.refuse(at, f"a shift by {b} bits")
            if op in ("/", "//", "%") and not b:
                self.refuse(at, "a division by zero")
            return self.apply(at, FOLD[op], a, b)
        return self.apply(at, operate, op, a, b)

    def logical(self, at: ast.BoolOp) -> Any:
        op = "and" if isinstance(at.op, ast.And) else "or"
        result = self.operand(at.values[0])
        for item in at.values[1:]:
            if number(result):
                if bool(result) != (op == "and"):
                    return result
                result = self.operand(item)
            else:
                result = self.apply(item, operate, op, result, self.operand(item))
        return result

    def comparison(self, at: ast.Compare) -> Any:
        result: Any = True
        left = self.value(at.left)
        for op, item in zip(at.ops, at.comparators, strict=True):
            right = self.value(item)
            if type(op) not in COMPARE:
                self.refuse(at, f"'{ast.unparse(at)}': only == != < <= > >= compare")
            sign = COMPARE[type(op)]
            if isinstance(left, Expr) or isinstance(right, Expr):
                for where, side in ((at.left, left), (item, right)):
                    if not number(side):
                        self.as_expr(where, side)
                one = self.apply(at, relate, sign, left, right)
            else:
                one = self.apply(at, FOLD[sign], left, right)
            result = one if result is True else self.apply(at, operate, "and", result, one)
            left = right
        return result

    # -------------------------------------------------------------------- elements and attributes

    def subscript(self, at: ast.Subscript) -> Any:
        base = self.value(at.value)
        if not isinstance(base, Buffer):
            if not isinstance(base, (tuple, list, dict, str)):
                self.refuse(at.value, f"a buffer is expected, not {describe(base)}")
            return self.apply(at, operator.getitem, base, self.value(at.slice))
        low, extents = self.intervals(at, base)
        if all(n is None for n in extents):
            return self.apply(at, load, base, low)
        one = const(1)
        return Region(base, tuple(low), tuple(one if n is None else n for n in extents))

    def intervals(self, at: ast.Subscript, buffer: Buffer) -> tuple[list[Expr], list[Expr | None]]:
        """The starts of an access per dimension, and its extents (None for one element)."""
        parts = at.slice.elts if isinstance(at.slice, ast.Tuple) else [at.slice]
        low: list[Expr] = []
        extents: list[Expr | None] = []
        for part in parts:
            if isinstance(part, ast.Slice):
                if part.step is not None:
                    self.refuse(part, "a region has no step")
                size = buffer.shape[len(low)] if len(low) < buffer.ndim else 1
                first = self.integer(part, 0 if part.lower is None else self.value(part.lower))
                last = self.integer(part, size if part.upper is None else self.value(part.upper))
                low.append(first)
                extents.append(self.apply(part, slice_extent, first, last))
                continue
            for value in self.values([part]):
                if isinstance(value, Phrase) and value.name == "span":
                    low.append(self.integer(part, value.args["minimum"]))
                    extents.append(self.integer(part, value.args["extent"]))
                else:
                    low.append(self.integer(part, value))
                    extents.append(None)
        if len(low) != buffer.ndim:
            self.refuse(
                at, f"buffer '{buffer.name}' has {buffer.ndim} dimensions, indexed with {len(low)}"
            )
        return low, extents

    def attribute(self, at: ast.Attribute) -> Any:
        base = self.value(at.value)
        match base, at.attr:
            case Expr() | Buffer(), "dtype":
                return base.dtype
            case Expr(), "astype":
                return Word(ast.unparse(at), lambda dtype: cast(known_dtype(dtype), base))
            case Buffer(), "shape":
                return base.shape
            case Buffer(), "data":
                return self.apply(at, address_of, base[(const(0),) * base.ndim])
            case Buffer(), "access_ptr":
                whole = self.apply(at, address_of, base[(const(0),) * base.ndim])
                return Word(ast.unparse(at), lambda access_mask="rw": whole)
        if is_vocabulary(base):
            holder, known = base, base.__all__
        elif isinstance(base, Word) and base.target.__name__ == "axis":
            holder, known = base.target, [n for n in vars(base.target) if n[0] != "_"]
        else:
            self.refuse(at, f"{describe(base)} has no attribute '{at.attr}' here")
        if at.attr in known:
            return Word(ast.unparse(at), getattr(holder, at.attr))
        if holder is base and re.fullmatch(r"(u?int|float|bool)\d*x\d+", at.attr):
            vector = type(at.attr, (base.Scalar,), {"dtype": at.attr})
            return Word(ast.unparse(at), vector)
        near = difflib.get_close_matches(at.attr, known, 3) or known[: 3 * (holder is not base)]
        mend = ELSEWHERE.get(at.attr, ", ".join(f"{ast.unparse(at.value)}.{n}" for n in near))
        self.refuse(at, f"there is no {ast.unparse(at)}", mend)

    def call(self, at: ast.Call) -> Any:
        word = self.value(at.func)
        if not isinstance(word, Word):
            self.refuse(
                at.func,
                f"'{ast.unparse(at.func)}' cannot be called in a script",
                "T.…; call other functions outside, and use their results",
            )
        if any(k.arg is None for k in at.keywords):
            self.refuse(at, "'**' is not part of the script language", "name=value")
        args = tuple(self.values(at.args))
        named = {k.arg: self.value(k.value) for k in at.keywords if k.arg is not None}
        if word.target in BUILTINS.values():
            if any(isinstance(a, Expr) for a in args):
                self.refuse(
                    at, f"'{word.text}' takes numbers, not expressions", _instead(word.text)
                )
            return self.apply(at, word.target, *args, **named)
        if hasattr(word.target, "dtype") and not args and not named:
            return Phrase("var", {"dtype": word.target.dtype}, at)
        name = "serial" if word.text == "range" else getattr(word.target, "__qualname__", "")
        if name not in PHRASES:
            refused = (Phrase, Region, Word, *(() if word.target is call_extern else (Buffer,)))
            for value, where in zip(args, at.args, strict=False):
                if isinstance(value, refused):
                    self.as_expr(where, value)
            return self.apply(at, word.target, *args, **named)
        try:
            bound = inspect.signature(word.target).bind(*args, **named)
        except TypeError as error:
            takes = ", ".join(p for p in inspect.signature(word.target).parameters)
            self.refuse(at, f"{word.text}: {error}", f"{word.text}({takes})")
        bound.apply_defaults()
        return Phrase(name, bound.arguments, at)


def _instead(builtin: str) -> str:
    return {"int": "x.astype", "float": "x.astype", "bool": "x != 0"}.get(builtin, f"T.{builtin}")


def describe(value: object) -> str:
    """A description of a value, for messages."""
    match value:
        case Phrase():
            return f"{value.text}(…), which has no value"
        case Word():
            return f"{value.text} itself"
        case Region():
            return f"the region '{value}' (a slice, for T.reads and T.writes)"
        case Buffer():
            return f"buffer '{value.name}'"
        case Expr():
            return f"the expression '{value}'"
        case None | bool() | int() | float() | str():
            return repr(value)
    return f"a {type(value).__name__}"
