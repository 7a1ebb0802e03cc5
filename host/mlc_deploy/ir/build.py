"""Makers of expressions: they match dtypes, fold constants, and leave out x + 0, x * 1 …"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from . import numbers
from .dtypes import DType, dtype_of, numpy_dtype, value_range, with_lanes
from .nodes import (
    FALSE,
    TRUE,
    Arithmetic,
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    ExprLike,
    For,
    IterVar,
    Load,
    Not,
    Select,
    Seq,
    Stmt,
    Var,
    dim,
)

INDEX = "int32"
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def const(value: int | float | bool, dtype: str | None = None) -> Const:
    """A constant; Python ints are int32 (int64 where they need it), floats float32. Integers wrap
    around, as arithmetic does; `number` refuses those outside of the dtype."""
    dtype = natural_dtype(value) if dtype is None else dtype
    kind = dtype_of(dtype)
    if kind.kind == "float":
        with np.errstate(over="ignore"):
            return Const(float(numpy_dtype(dtype).type(value)), dtype)
    if kind.kind == "bool":
        return Const(bool(value), dtype)
    low, high = value_range(dtype)
    whole = int(value)
    if not low <= whole <= high:
        whole = (whole - int(low)) % (1 << kind.bits) + int(low)
    return Const(whole, dtype)


def number(value: int | float | bool, dtype: str | None = None) -> Const:
    """A constant that a program names. Raises ValueError for a number that the dtype has not."""
    made = const(value, dtype)
    kind = dtype_of(made.dtype)
    if kind.is_integer and made.value != value:
        low, high = value_range(made.dtype)
        raise ValueError(
            f"{value} is no {kind.scalar}: those go from {low} to {high}\n"
            "  try: a wider dtype, or .astype on an expression"
        )
    return made


def natural_dtype(value: object) -> str:
    """The dtype of a number that stands alone: int32, int64 where it needs that; float32."""
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int32" if -(1 << 31) <= int(value) < 1 << 31 else "int64"
    if isinstance(value, (float, np.floating)):
        return "float32"
    raise TypeError(f"no expression or number but {type(value).__name__}: {value!r}")


def expr(value: ExprLike, dtype: str | None = None) -> Expr:
    """An expression from a Python number; expressions pass as they are."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, IterVar):
        return value.as_expr()
    own = natural_dtype(value)
    given: Any = value
    return const(given, own if dtype is None else dtype)


def is_const(e: Dim, value: int | float | bool) -> bool:
    """Whether an expression or a dimension is this number."""
    return (isinstance(e, Const) and e.value == value) if isinstance(e, Expr) else e == value


def promoted(a: ExprLike, b: ExprLike, op: str = "select") -> tuple[Expr, Expr]:
    """Both sides of `a op b` in one dtype, as TVM has it: a scalar is broadcast to a vector's
    lanes, the dtype is that of `common`. A Python number is an int32, or an int64 where it needs
    that, so that `x + 1` of an int8 is an int32. It takes the dtype of an expression that holds it
    where this is a float, or where the result is the same number in a wider dtype."""
    if not isinstance(a, Arithmetic):
        y = expr(b)
        x: Expr = _beside(a, y.dtype, op)
    elif not isinstance(b, Arithmetic):
        x = expr(a)
        y = _beside(b, x.dtype, op)
    else:
        x, y = expr(a), expr(b)
    if x.dtype == y.dtype:
        return x, y
    one, other = dtype_of(x.dtype), dtype_of(y.dtype)
    if one.lanes != other.lanes:
        if one.lanes == 1:
            return promoted(broadcast(x, other.lanes), y, op)
        if other.lanes == 1:
            return promoted(x, broadcast(y, one.lanes), op)
        raise TypeError(
            f"'{x}' has {one.lanes} lanes and '{y}' {other.lanes}\n  try: vectors of one length"
        )
    dtype = common(one.scalar, other.scalar)
    return cast(dtype, x), cast(dtype, y)


@cache
def common(a: str, b: str) -> str:
    """The dtype of `x + y` for scalars of two dtypes: the float, the wider of two floats or of two
    integers, the unsigned one of two integers of one width."""
    x, y = dtype_of(a), dtype_of(b)
    if (x.kind == "float") != (y.kind == "float"):
        return a if x.kind == "float" else b
    wide = {"bool": 1}
    if (rank := wide.get(x.kind, x.bits)) != (other := wide.get(y.kind, y.bits)):
        return a if rank > other else b
    return a if x.kind == "uint" else b


# Operators whose integer results may be outside of the dtype of both sides.
GROWING = frozenset(("+", "-", "*", "<<", "//", "tdiv"))


def _beside(value: Any, dtype: str, op: str) -> Const:
    """A Python number beside an expression of `dtype`."""
    own, kind = natural_dtype(value), dtype_of(dtype)
    if own == "bool" or kind.kind == "bool":
        return number(value, own)
    if kind.kind == "float":
        fits = not math.isfinite(value) or abs(value) <= value_range(kind.scalar)[1]
        single = abs(value) <= value_range("float32")[1]
        return number(value, kind.scalar if fits else "float32" if single else "float64")
    if own == "float32":
        return number(value, own)
    low, high = value_range(kind.scalar)
    if op not in GROWING and low <= value <= high:
        return number(value, kind.scalar)
    if kind.kind == "uint" and kind.bits >= 32:
        wide = kind.bits == 64 or value < 0
        return number(value, kind.scalar if wide or own == "int32" else own)
    return number(value, common(own, kind.scalar))


def _left(a: int, by: int) -> int:
    return a << by if 0 <= by < MOST_BITS else 0


def _right(a: int, by: int) -> int:
    return a >> (by if 0 <= by < MOST_BITS else MOST_BITS)


FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": numbers.floor_quotient,
    "%": numbers.floor_remainder,
    "tdiv": numbers.quotient,
    "tmod": numbers.remainder,
    "min": min,
    "max": max,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": _left,
    ">>": _right,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MOST_BITS = 64  # of an integer
DIVISIONS = ("//", "%", "tdiv", "tmod")


def _fold_floats(op: str, a: float, b: float, dtype: str) -> Const:
    x, y = numpy_dtype(dtype).type(a), numpy_dtype(dtype).type(b)
    with np.errstate(all="ignore"):
        if op == "min":
            return const(float(np.minimum(x, y)), dtype)
        if op == "max":
            return const(float(np.maximum(x, y)), dtype)
        if op == "/":
            return const(float(np.divide(x, y)), dtype)
        return const(float(FOLD[op](x, y)), dtype)


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b`, folded. Raises TypeError for an operator that the dtype has not."""
    if op in ("and", "or"):
        return _logical(op, expr(a), expr(b))
    if isinstance(a, Expr) and isinstance(b, Expr) and a.dtype == b.dtype:
        x, y = a, b
    else:
        x, y = promoted(a, b, op)
    kind = require_operator(op, x, y)
    if isinstance(x, Const) and isinstance(y, Const):
        if kind.kind == "float":
            return _fold_floats(op, float(x.value), float(y.value), x.dtype)
        return const(FOLD[op](x.value, y.value), x.dtype)
    if kind.is_integer and kind.lanes == 1:
        found = _integer_identity(op, x, y)
        if found is not None:
            return found
    return Binary(op, x, y, x.dtype)


def require_operator(op: str, x: Expr, y: Expr) -> DType:
    """The dtype of `x op y`; TypeError where it has no such operator."""
    kind = dtype_of(x.dtype)
    if op == "/" and kind.kind != "float":
        raise TypeError(
            f"'/' on {x.dtype}: '{x} / {y}'\n  try: // (rounds down), te.truncdiv, or .astype"
        )
    if kind.kind == "float" and op in (*DIVISIONS, "&", "|", "^", "<<", ">>"):
        raise TypeError(f"'{op}' on {x.dtype}: '{x} {op} {y}'\n  try: te.floor, te.fmod or .astype")
    return kind


def _integer_identity(op: str, a: Expr, b: Expr) -> Expr | None:
    left = a.value if isinstance(a, Const) else None
    right = b.value if isinstance(b, Const) else None
    if left is None and right is None:
        return a if op in ("min", "max") and a is b else None
    match op:
        case "+":
            return b if left == 0 else a if right == 0 else None
        case "-" | "<<" | ">>":
            return a if right == 0 else None
        case "*":
            if left == 0 or right == 0:
                return const(0, a.dtype)
            return b if left == 1 else a if right == 1 else None
        case "//" | "tdiv":
            return a if right == 1 else a if left == 0 else None
        case "%" | "tmod":
            return const(0, a.dtype) if right == 1 else a if left == 0 else None
        case "min" | "max":
            return a if a is b else None
    return None


def _logical(op: str, a: Expr, b: Expr) -> Expr:
    neutral = op == "and"
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if bool(x.value) == neutral else x
    if dtype_of(a.dtype).lanes != dtype_of(b.dtype).lanes:
        a, b = promoted(a, b)
    return Binary(op, a, b, a.dtype)


def all_of(*conditions: Expr) -> Expr:
    """The conjunction; TRUE for none."""
    result: Expr = TRUE
    for condition in conditions:
        result = _logical("and", result, condition)
    return result


def any_of(*conditions: Expr) -> Expr:
    result: Expr = FALSE
    for condition in conditions:
        result = _logical("or", result, condition)
    return result


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    found: dict[Expr, None] = {}
    left = [condition]
    while left:
        e = left.pop()
        if isinstance(e, Binary) and e.op == "and":
            left += (e.b, e.a)
        else:
            found[e] = None
    return list(found)


def compare(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b`, folded. Raises TypeError where one of them is not an expression or number."""
    x, y = promoted(a, b, op)
    if x is y and dtype_of(x.dtype).kind != "float" and dtype_of(x.dtype).lanes == 1:
        return TRUE if FOLD[op](0, 0) else FALSE
    if isinstance(x, Const) and isinstance(y, Const):
        return TRUE if FOLD[op](x.value, y.value) else FALSE
    return Compare(op, x, y, with_lanes("bool", dtype_of(x.dtype).lanes))


def not_(a: Expr) -> Expr:
    match a:
        case Const():
            return FALSE if a.value else TRUE
        case Not():
            return a.a
        case Compare(op, x, y) if dtype_of(x.dtype).kind != "float":
            return Compare(NEGATED[op], x, y, a.dtype)
    return Not(a, a.dtype)


def select(condition: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """a where condition, else b; both are evaluated."""
    x, y = promoted(a, b)
    test = expr(condition)
    if isinstance(test, Const):
        return x if test.value else y
    lanes = max(dtype_of(test.dtype).lanes, dtype_of(x.dtype).lanes)
    return Select(test, broadcast(x, lanes), broadcast(y, lanes), with_lanes(x.dtype, lanes))


def if_then_else(condition: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """a where condition, else b; only the one taken is evaluated."""
    x, y = promoted(a, b)
    test = expr(condition)
    if isinstance(test, Const):
        return x if test.value else y
    return Call("if_then_else", (test, x, y), x.dtype)


def cast(dtype: str, a: ExprLike) -> Expr:
    """Conversion to a (scalar) dtype, keeping the lanes."""
    if not isinstance(a, Arithmetic):
        return const(a, dtype)
    value = expr(a)
    kind = dtype_of(value.dtype)
    dtype = with_lanes(dtype, kind.lanes)
    if value.dtype == dtype:
        return value
    if isinstance(value, Const):
        if dtype_of(dtype).is_integer and isinstance(value.value, float):
            whole = numbers.converted(np.float64(value.value), numpy_dtype(dtype))
            return const(int(whole), dtype)
        return const(value.value, dtype)
    return Cast(dtype, value)


def broadcast(value: Expr, lanes: int) -> Expr:
    kind = dtype_of(value.dtype)
    if kind.lanes == lanes:
        return value
    assert kind.lanes == 1, f"{value} has {kind.lanes} lanes already"
    return Broadcast(value, lanes, with_lanes(value.dtype, lanes))


def load(buffer: Buffer, indices: Sequence[ExprLike]) -> Expr:
    given = tuple(expr(index) for index in indices)
    if len(given) != buffer.ndim:
        raise IndexError(
            f"buffer '{buffer.name}' has {buffer.ndim} dimensions {shape_text(buffer.shape)}, "
            f"indexed with {len(given)}"
        )
    for index in given:
        if not dtype_of(index.dtype).is_integer:
            raise TypeError(f"index '{index}' of buffer '{buffer.name}' is {index.dtype}")
    lanes = max((dtype_of(i.dtype).lanes for i in given), default=1)
    return Load(buffer, given, with_lanes(buffer.dtype, lanes))


def call(name: str, dtype: str, *args: ExprLike) -> Expr:
    return Call(name, tuple(expr(a) for a in args), dtype)


def seq(stmts: Iterable[Stmt]) -> Stmt:
    """A sequence, flattened; one statement stands for itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmts_of(stmt))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def stmts_of(s: Stmt) -> tuple[Stmt, ...]:
    """The statements of a sequence; another statement alone."""
    return s.stmts if isinstance(s, Seq) else (s,)


def loop_nest(loops: Sequence[tuple[Var, Expr]], body: Stmt) -> Stmt:
    """Serial loops around body, the first outermost."""
    for var, extent in reversed(loops):
        body = For(var, extent, "serial", body)
    return body


def shape_text(shape: Sequence[Dim]) -> str:
    inside = ", ".join(str(extent) for extent in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def strides_of(buffer: Buffer) -> tuple[Dim, ...]:
    """The strides in elements; row-major where the buffer has none."""
    if buffer.strides is not None:
        return buffer.strides
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(buffer.shape):
        strides.append(step)
        step = extent * step
    return tuple(reversed(strides))


def span_of(buffer: Buffer) -> Dim:
    """The number of elements from the first to the last."""
    size: Dim = 1
    if buffer.strides is None:
        for extent in buffer.shape:
            size = extent * size
        return size
    for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
        size = size + (extent - 1) * stride
    return dim(size)


def is_root(block: Block) -> bool:
    return not block.iters
