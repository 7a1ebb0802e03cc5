"""Transposes and reshapes, moved after other calls until they cancel or reach the outputs.

A model written for NHWC and exported for NCHW has a transpose before and after every convolution. A
matrix product on more than two dimensions has a reshape before and after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ..ir import Dim, Expr, same_shape
from ..ir import Var as Symbol
from ..ops import operator
from ..ops.shape import inverse
from ..passes.context import optional
from .constants import is_static, shape_of
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, Rule, rewrite
from .simplify import MEETINGS

D = TypeVar("D", int, Dim)

# Mersenne primes. Extents are below 2^31, so no product of extents has one of these as a factor.
PRIMES = (2**61 - 1, 2**89 - 1, 2**107 - 1, 2**127 - 1)

# ----------------------------------------------------------------------------------- transposes


@optional(level=2)
def canonicalize_transposes(function: Function) -> Function:
    """f(transpose(x), transpose(y))   =>   transpose(f(x, y)), until transposes meet and cancel.

    The result is kept only if it transposes fewer elements.
    """
    moved = rewrite(function, (*TRANSPOSES, *MEETINGS))
    return moved if transposed_elements(moved) < transposed_elements(function) else function


def transposed_elements(function: Function) -> int:
    """The number of elements moved by transposes. A transpose of symbolic shape counts as 1."""
    calls = (b for b in function.bindings if isinstance(b.call, Call) and b.call.op == "transpose")
    outputs = [b.outputs[0] for b in calls]
    return sum(math.prod(shape_of(v)) if is_static(v) else 1 for v in outputs)


def _behind_elementwise(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """f(transpose(x), c)   =>   transpose(f(x, c')), for elementwise f"""
    if operator(call.op).pattern != "elementwise":
        return None
    rank = len(out.type.shape)
    turned = [graph.call(a, "transpose") for a in call.args if len(a.type.shape) == rank]
    ways = {tuple(t.attrs["axes"]) for t in turned if t is not None}
    if len(ways) != 1:
        return None
    (axes,) = ways
    args = [_turned_back(graph, a, axes) for a in call.args]
    if any(a is None for a in args):
        return None
    plain = [a for a in args if a is not None]
    return _turned(graph, graph.emit(call.op, *_emitted(graph, plain), **call.attrs), axes)


Shaped = tuple[Value, tuple[Dim, ...] | None]  # a value, and the shape to reshape it to


def _turned_back(graph: Rewriting, arg: Value, axes: Sequence[int]) -> Shaped | None:
    """The argument as it was before the transpose; None if this would cost a copy."""
    turned = graph.call(arg, "transpose")
    if turned is not None and tuple(turned.attrs["axes"]) == tuple(axes):
        return turned.args[0], None
    if not is_static(arg):
        return None
    shape = shape_of(arg)
    if math.prod(shape) == 1:
        return (arg, (1,) * len(axes)) if shape else (arg, None)
    full = (1,) * (len(axes) - len(shape)) + shape
    back = inverse(axes)
    if isinstance(arg, Constant):
        return Constant(arg.value.reshape(full).transpose(back), arg.name), None
    order = [axis for axis in back if full[axis] != 1]
    return (arg, tuple(full[axis] for axis in back)) if order == sorted(order) else None


def _emitted(graph: Rewriting, args: Sequence[Shaped]) -> list[Value]:
    return [v if shape is None else graph.emit("reshape", v, shape=shape) for v, shape in args]


def _turned(graph: Rewriting, value: Value, axes: Sequence[int]) -> Value:
    return graph.emit("transpose", value, axes=axes)


def _behind_concat(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """concatenate(transpose(x), transpose(y))   =>   transpose(concatenate(x, y))"""
    if call.op != "concatenate":
        return None
    turned = [graph.call(a, "transpose") for a in call.args]
    ways = {None if t is None else tuple(t.attrs["axes"]) for t in turned}
    (axes,) = ways if len(ways) == 1 else (None,)
    if axes is None:
        return None
    parts = [t.args[0] for t in turned if t is not None]
    return _turned(graph, graph.emit("concatenate", *parts, axis=axes[call.attrs["axis"]]), axes)


def _behind_others(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """f(transpose(x))   =>   transpose(f'(x)), for operators that define f' (`turned`)"""
    turn = operator(call.op).turned
    turned = graph.call(call.args[0], "transpose") if turn is not None else None
    if turn is None or turned is None:
        return None
    attrs, axes = turn(call.attrs, tuple(turned.attrs["axes"]))
    return _turned(graph, graph.emit(call.op, *turned.args, **attrs), axes)


def _flatten_into_weights(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """dense(reshape(transpose(x)), w)   =>   dense(reshape(x), w'), for constant w, where the
    reshape makes one row of each image"""
    match call:
        case Call("dense", (flat, Constant(w, name)), attrs) if "kernel_layout" not in attrs:
            reshape = graph.call(flat, "reshape")
            turned = graph.call(reshape.args[0], "transpose") if reshape else None
            if turned is None or not is_static(flat):
                return None
            axes, (x,) = tuple(turned.attrs["axes"]), turned.args
            shape = shape_of(x)
            if axes[0] != 0 or shape_of(flat) != (shape[0], math.prod(shape[1:])):
                return None
            rows = w if attrs["transpose_b"] else w.T
            images = rows.reshape(-1, *(shape[axis] for axis in axes[1:]))
            plain = np.ascontiguousarray(images.transpose(inverse(axes))).reshape(rows.shape)
            weights = Constant(plain if attrs["transpose_b"] else plain.T, name)
            return graph.emit(
                "dense", graph.emit("reshape", x, shape=shape_of(flat)), weights, **attrs
            )
    return None


TRANSPOSES: tuple[Rule, ...] = (
    _behind_elementwise,
    _behind_concat,
    _behind_others,
    _flatten_into_weights,
)


# ------------------------------------------------------------------------------------- reshapes


@optional(level=2)
def sink_reshapes(function: Function) -> Function:
    """f(reshape(x), y)   =>   reshape(f(x, reshape(y))), for elementwise f after a matrix product
    or convolution x, so that x and f can be fused"""
    return rewrite(function, (_reshape_behind, *MEETINGS))


def _reshape_behind(graph: Rewriting, out: Var, call: Call) -> Value | None:
    if operator(call.op).pattern != "elementwise":
        return None
    for arg in call.args:
        same = same_shape(arg.type.shape, out.type.shape)
        reshape = graph.call(arg, "reshape") if same else None
        if reshape is None or not graph.once(arg) or not _of_anchor(graph, reshape.args[0]):
            continue
        source = reshape.args[0]
        args = [_before_reshape(graph, a, arg, source) for a in call.args]
        if any(a is None for a in args):
            continue
        plain = [a for a in args if a is not None]
        made = graph.emit(call.op, *_emitted(graph, plain), **call.attrs)
        return graph.emit("reshape", made, shape=out.type.shape)
    return None


def _of_anchor(graph: Rewriting, value: Value) -> bool:
    """Whether the value comes from an anchor, such as a convolution, through elementwise calls of
    one shape, and each value on the way has one reader."""
    while graph.once(value):
        made = graph.binding(value)
        if made is None or not isinstance(made.call, Call):
            return False
        match operator(made.call.op).pattern:
            case "anchor":
                return True
            case "elementwise":
                same = [a for a in made.call.args if same_shape(a.type.shape, value.type.shape)]
                value = next((a for a in same if graph.call(a, "reshape") is None), value)
                if value in made.outputs:
                    return False
            case _:
                return False
    return False


def _before_reshape(graph: Rewriting, arg: Value, like: Value, source: Value) -> Shaped | None:
    """The argument, reshaped to broadcast against source as it does against `like`, a reshape of
    source. None if this is impossible, or if the argument comes from an anchor, too."""
    if arg is like:
        return source, None
    reshape = graph.call(arg, "reshape")
    if reshape is not None and same_shape(reshape.args[0].type.shape, source.type.shape):
        return reshape.args[0], None
    before = reshape.args[0] if reshape else arg
    if _of_anchor(graph, before):
        return None
    shape = broadcast_before(arg.type.shape, like.type.shape, source.type.shape)
    return None if shape is None else (arg, shape)


def broadcast_before(
    shape: Sequence[D], after: Sequence[D], before: Sequence[D]
) -> tuple[D, ...] | None:
    """The shape in which a tensor broadcasts against `before` as it does against `after`, a reshape
    of `before`; None if there is no such shape.

    Where the reshape merges or splits dimensions, the tensor must have all of them or none.
    """
    numbers = _numbers((1,) * (len(after) - len(shape)) + tuple(shape), after, before)
    if numbers is None:
        return None
    result: list[D] = []
    full, outer, inner = numbers
    a = b = 0
    while a < len(outer) or b < len(inner):
        begin_a, begin_b = a, b
        size_a = size_b = 1
        while a == begin_a or size_a != size_b:
            if a < len(outer) and (size_a <= size_b or b == len(inner)):
                size_a, a = size_a * outer[a], a + 1
            elif b < len(inner):
                size_b, b = size_b * inner[b], b + 1
            else:
                break
        if a == len(outer):
            size_b, b = size_b * math.prod(inner[b:]), len(inner)
        mine, whole = full[begin_a:a], tuple(outer[begin_a:a])
        if all(n == 1 for n in mine):
            result += [1] * (b - begin_b)
        elif mine == whole:
            result += before[begin_b:b]
        else:
            return None
    return tuple(result)


def _numbers(*shapes: Sequence[Dim]) -> list[tuple[int, ...]] | None:
    """Shapes with a prime for each symbol; None if there are more symbols than PRIMES, or computed
    dimensions. Two products of these numbers are equal only if they are equal for all sizes."""
    every = [n for shape in shapes for n in shape]
    found = dict.fromkeys(n for n in every if isinstance(n, Symbol))
    known = dict(zip(found, PRIMES, strict=False))
    if len(found) > len(PRIMES) or any(isinstance(n, Expr) and n not in known for n in every):
        return None
    return [tuple(n if isinstance(n, int) else known[n] for n in shape) for shape in shapes]  # type: ignore[index]
