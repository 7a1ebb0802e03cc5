"""Symbolic dimensions: the meaning of `R.Tensor((1, "m"), "float32")`, and equality of types.

A symbolic dimension is a variable of the loop IR, one per name, so "m" is the same everywhere. A
dimension computed from it is an expression.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache

from ..arith import equal, simplify_expr
from ..ir import Dim, Expr, ExprLike, Var, binary, dtype_of, free_vars, substitute
from ..ir.nodes import dim
from ..ops import TensorType
from ..ops.registry import simplest

OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
FUNCTIONS = {"T.min": "min", "T.max": "max", "T.truncdiv": "tdiv", "T.truncmod": "tmod"}


@cache
def symbol(name: str) -> Var:
    """The dimension with this name."""
    return Var(name)


def tensor_type(shape: Sequence[Dim | str], dtype: str = "float32") -> TensorType:
    """The type of tensors of a shape, where "m" and "m * 2" are symbolic dimensions. Raises
    ValueError for an unknown dtype, a negative extent, or text that is not a dimension."""
    extents = tuple(parsed(d) if isinstance(d, str) else dim(d) for d in shape)
    for extent in extents:
        if isinstance(extent, int) and extent < 0:
            raise ValueError(f"the extent {extent} is negative")
    return TensorType(extents, dtype_of(dtype).name)


def parsed(text: str) -> Dim:
    """The dimension written in a text: a number, a name, or + - * // % of them."""
    try:
        return dim(_parsed(ast.parse(text.strip(), mode="eval").body))  # type: ignore[arg-type]
    except (SyntaxError, ValueError):
        what = f"'{text}' is not a dimension"
        raise ValueError(f'{what}\n  try: a number, a name such as "m", or "m * 2"') from None


def _parsed(tree: ast.AST) -> ExprLike:
    match tree:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return symbol(name)
        case ast.BinOp(a, op, b) if type(op) in OPERATORS:
            return binary(OPERATORS[type(op)], _parsed(a), _parsed(b))
        case ast.Call(func, [a, b]) if ast.unparse(func) in FUNCTIONS:
            return binary(FUNCTIONS[ast.unparse(func)], _parsed(a), _parsed(b))
    raise ValueError


def simplified(t: TensorType) -> TensorType:
    """t with its dimensions in their simplest form."""
    if all(isinstance(d, int) for d in t.shape):
        return t
    return TensorType(tuple(map(simplest, t.shape)), t.dtype)


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly equal."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        return a is b or equal(a, b)
    return not isinstance(a, Expr) and not isinstance(b, Expr) and a == b


def same_type(a: TensorType, b: TensorType) -> bool:
    return a is b or (
        a.dtype == b.dtype and len(a.shape) == len(b.shape) and all(map(same_dim, a.shape, b.shape))
    )


def same_types(a: Sequence[TensorType], b: Sequence[TensorType]) -> bool:
    return len(a) == len(b) and all(map(same_type, a, b))


def bound(t: TensorType, values: Mapping[Var, Dim]) -> TensorType:
    """t with symbols replaced by `values`."""
    if all(isinstance(d, int) for d in t.shape):
        return t
    return TensorType(bound_dims(t.shape, values), t.dtype)


def bound_dims(dims: Sequence[Dim], values: Mapping[Var, Dim]) -> tuple[Dim, ...]:
    """dims with symbols replaced by `values`, in their simplest form."""
    known = {v: d if isinstance(d, Expr) else binary("+", d, 0) for v, d in values.items()}
    return tuple(
        dim(simplify_expr(substitute(d, known), {})) if isinstance(d, Expr) else d for d in dims
    )


def fit(
    taken: Sequence[TensorType], given: Sequence[TensorType]
) -> tuple[dict[Var, Dim], int | None]:
    """(the symbolic dimensions of `taken` when `given` is passed, the number of the first type that
    does not fit, or None)."""
    values: dict[Var, Dim] = {}
    for wanted, actual in zip(taken, given, strict=False):
        if len(wanted.shape) == len(actual.shape):
            for extent, size in zip(wanted.shape, actual.shape, strict=True):
                if isinstance(extent, Var):
                    values.setdefault(extent, size)
    for number, (wanted, actual) in enumerate(zip(taken, given, strict=False)):
        if not same_type(bound(wanted, values), actual):
            return values, number
    shorter = min(len(taken), len(given))
    return values, None if len(taken) == len(given) else shorter


def symbols(types: Sequence[TensorType]) -> list[Var]:
    """The symbolic dimensions of the types, each once."""
    found: dict[Var, None] = {}
    for t in types:
        for extent in t.shape:
            if isinstance(extent, Expr):
                found.update(dict.fromkeys(sorted(free_vars(extent), key=lambda v: v.name)))
    return list(found)
