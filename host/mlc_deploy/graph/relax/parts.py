"""What the words of Relax share: calls, numbers as tensors, shapes, axes and layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ...arith import simplify_expr
from ...errors import GraphError
from ...ir import Const, Dim, Expr, dtype_of, same_shape
from ...ir.nodes import dim
from ...ops import frozen_attrs
from ...ops.shape import normal_axis
from ..dims import parsed
from ..nodes import Call, Constant, Value

# The result of a word: a value, a call that the caller emits under a name, or several.
Made = Any
Number = (bool, int, float, np.bool_, np.integer, np.floating)


class Emits(Protocol):
    """A BlockBuilder, as far as the words know it."""

    def emit(self, op: str | Call, *args: Value, **attrs: Any) -> Any: ...


def call(op: str, *args: Value, **attrs: Any) -> Call:
    """A call for the caller to emit."""
    return Call(op, args, frozen_attrs(attrs))


def refused(what: str, mend: str = "") -> GraphError:
    return GraphError(what, mend=mend)


def tensor(word: str, x: Any) -> Value:
    """x, which must be one tensor. Raises GraphError."""
    if isinstance(x, Value):
        return x
    if isinstance(x, Number):
        return number(x)
    raise refused(f"R.{word} takes a tensor, not {shown(x)}", 'R.const(1.0, "float32") for numbers')


def shown(x: Any) -> str:
    match x:
        case tuple() | list() if any(isinstance(v, Value) for v in x):
            return f"{len(x)} values"
        case str():
            return f"'{x}'"
    return str(x)


def number(x: Any, dtype: str | None = None) -> Constant:
    """A number as a tensor without dimensions. Raises GraphError if it does not fit the dtype."""
    value = x.item() if isinstance(x, np.generic) else x
    if dtype is None:
        dtype = "bool" if type(value) is bool else "int32" if type(value) is int else "float32"
    kind = dtype_of(dtype).kind
    made = np.asarray(value).astype(dtype)
    if kind in ("int", "uint") and (not float(value).is_integer() or int(made) != int(value)):
        raise refused(f"the number {value} is not of {dtype}", f"R.const({value}, …), or R.astype")
    return Constant(made)


def operands(word: str, *xs: Any) -> list[Value]:
    """The tensors of an elementwise word. Numbers take the dtype of the tensor beside them."""
    dtypes = [x.type.dtype for x in xs if isinstance(x, Value)]
    known = dtypes[0] if dtypes else None
    return [number(x, known) if isinstance(x, Number) else tensor(word, x) for x in xs]


def shape_of(x: Value) -> tuple[Dim, ...]:
    return x.type.shape


def rank_of(x: Value) -> int:
    return len(x.type.shape)


def extents(word: str, shape: Any) -> tuple[Dim, ...]:
    """A shape: a tuple of numbers and dimensions, where a text is the dimension of that name."""
    if isinstance(shape, (int, Expr, str)):
        shape = (shape,)
    if not isinstance(shape, (tuple, list)) or any(isinstance(e, Value) for e in shape):
        what = f"R.{word} takes a shape that is known when a model is compiled, not {shown(shape)}"
        raise refused(what, '(1, 16), or (1, "m")')
    return tuple(extent(e) for e in shape)


def extent(e: Any) -> Dim:
    if isinstance(e, str):
        return parsed(e)
    if isinstance(e, np.integer):
        return int(e)
    if not isinstance(e, Expr):
        return dim(e)
    made = dim(simplify_expr(e, {}))
    if isinstance(made, Expr):
        parsed(str(made))  # a dimension is written as its text
    return made


def integer(word: str, name: str, value: Any) -> int:
    """A number that is known when a model is compiled. Raises GraphError."""
    if isinstance(value, Constant) and value.value.size == 1:
        value = value.value.item()
    if isinstance(value, Const):
        value = value.value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise refused(f"R.{word}: {name} is {shown(value)}, not an integer", f"{name}=1")


def integers(word: str, name: str, value: Any) -> list[int]:
    if isinstance(value, Constant):
        value = value.value.reshape(-1).tolist()
    given = value if isinstance(value, (tuple, list)) else [value]
    return [integer(word, name, v) for v in given]


def axes_of(word: str, x: Value, axis: Any) -> list[int]:
    """Axes counted from the front; every axis for None."""
    if axis is None:
        return list(range(rank_of(x)))
    found = [normal_axis(f"R.{word}", a, rank_of(x)) for a in integers(word, "axis", axis)]
    if len(set(found)) != len(found):
        raise refused(f"R.{word}: axis {axis} has an axis twice")
    return found


def axis_of(word: str, x: Value, axis: Any) -> int:
    return normal_axis(f"R.{word}", integer(word, "axis", axis), rank_of(x))


def product(dims: Sequence[Dim]) -> Dim:
    made: Any = 1
    for d in dims:
        made = made * d
    return extent(made)


def fixed(word: str, dims: Sequence[Dim]) -> list[int]:
    """Dimensions that must be numbers. Raises GraphError."""
    for d in dims:
        if not isinstance(d, int):
            raise refused(f"R.{word} needs a size that is a number, not '{d}'")
    return [d for d in dims if isinstance(d, int)]


def reshaped(e: Emits, x: Value, shape: Sequence[Dim]) -> Value:
    made: Value = x if same_shape(shape_of(x), shape) else e.emit("reshape", x, shape=tuple(shape))
    return made


def flat(e: Emits, x: Value) -> Value:
    return reshaped(e, x, [product(shape_of(x))])


def along(e: Emits, x: Value, axes: Sequence[int], rank: int) -> Value:
    """x, with a dimension for each of some axes, in the shape that broadcasts along these axes."""
    place = dict(zip(axes, shape_of(x), strict=True))
    return reshaped(e, x, [place.get(d, 1) for d in range(rank)])


def as_dtype(e: Emits, x: Value, dtype: str | None) -> Value:
    if not dtype or dtype == "void" or x.type.dtype == dtype:
        return x
    made: Value = e.emit("cast", x, dtype=dtype)
    return made


def cast_to(x: Value, made: Value | Call, dtype: str | None, e: Emits) -> Value | Call:
    """A result as another dtype, if one is asked for."""
    if not dtype or dtype == "void" or dtype == x.type.dtype:
        return made
    value = e.emit(made) if isinstance(made, Call) else made
    return call("cast", value, dtype=dtype)


def several(word: str, name: str, value: Any, count: int) -> list[int]:
    """A number for each of `count` dimensions; a single one holds for all."""
    given = integers(word, name, value)
    given = given * count if len(given) == 1 else given
    if len(given) != count:
        raise refused(f"R.{word}: {name} is {tuple(given)}, for {count} dimensions")
    return given


def pads_of(word: str, padding: Any, count: int) -> list[int]:
    """Pads at the beginnings, then at the ends. TVM gives one number, one for each dimension, or
    the beginnings and the ends."""
    given = integers(word, "padding", padding)
    if len(given) == 1:
        return given * (2 * count)
    if len(given) == 2 * count:
        return given
    if len(given) == count or (count == 1 and len(set(given)) == 1):
        return given[:count] * 2
    raise refused(f"R.{word}: padding is {tuple(given)}, for {count} dimensions")


def in_order(e: Emits, word: str, x: Value, layout: str, wanted: str) -> Value:
    """x, whose axes have the letters `layout`, with its axes in the order `wanted`."""
    if sorted(layout) != sorted(wanted) or len(layout) != rank_of(x):
        what = f"R.{word}: the layout '{layout}' of data with {rank_of(x)} dimensions"
        raise refused(what, f'"{wanted}", or its letters in another order')
    axes = tuple(layout.index(letter) for letter in wanted)
    made: Value = x if layout == wanted else e.emit("transpose", x, axes=axes)
    return made


def result_in(layout: str, plain: str, made: Call, e: Emits) -> Call:
    """A result in the order `plain`, in another one."""
    if layout == plain:
        return made
    axes = tuple(plain.index(letter) for letter in layout)
    return call("transpose", e.emit(made), axes=axes)


def is_static(dims: Sequence[Dim]) -> bool:
    return all(isinstance(d, int) for d in dims)


def root(n: int) -> float:
    return 1.0 / math.sqrt(n)
