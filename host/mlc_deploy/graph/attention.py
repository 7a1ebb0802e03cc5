"""Attention written as products and a softmax becomes one call, where this costs less.

    softmax(scale * q @ transpose(k) + bias) @ v   =>   attention(q, k, v, bias)

The kernel reads its operands in place. This replaces calls that exporters write around attention:
repeats of key heads for several query heads, slices of the first rows of a cache, casts of its
dtype, and transposes of heads before rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mlc_targets import Target

from ..ir import Dim
from ..ops import TensorType
from ..ops.attention_sizes import HEADS_FIRST, counted, in_order
from ..ops.convolution import OPEN
from ..ops.strategy import best_plan
from ..passes.context import optional
from .constants import uniform
from .dims import same_dim, same_type
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

SOFTMAX = 58.0  # instructions for each vector of scores: a softmax, its loads and stores, sums
DEFAULT = 1.5  # for each vector of products by the default schedule
MOVED = 1.5  # for each copied element
TURNED = ((0, 2, 1, 3), (0, 2, 3, 1))  # axes: heads before rows; the same and keys transposed
ROWS, HEADS = 2, 1  # dimensions of [batch, heads, rows, width]


@dataclass(frozen=True, slots=True)
class _Operand:
    """Queries, keys or values: the value to read, its layout, and the cost of the copies this
    saves. rows: the number of rows in use, where the value has more."""

    value: Value
    heads_first: bool = True
    rows: Dim | None = None
    moved: float = 0.0
    scales: Value | None = None  # of int8 rows

    @property
    def kept(self) -> Dim:
        return self.value.type.shape[HEADS if self.heads_first else ROWS]


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention as found: the operands, the shape of the scores, the width of a head, and the cost
    of the calls as written."""

    q: _Operand
    k: _Operand
    v: _Operand
    bias: Value | None
    scale: float
    scores: tuple[Dim, ...]
    width: Dim
    cost: float


@optional(level=1)
def recognize_attention(target: Target) -> Callable[[Function], Function]:
    """softmax(scale * q @ transpose(k) + bias) @ v   =>   attention(q, k, v, bias), where the
    target's plan for it costs less"""

    def whole(graph: Rewriting, out: Var, call: Call) -> Value | None:
        found = _found(graph, call, target)
        if found is None:
            return None
        batch, heads, count, length = found.scores
        k, v = found.k, found.v
        if (k.rows is None) != (v.rows is None) or not same_dim(k.kept, v.kept):
            return None
        if (k.scales is None) != (v.scales is None) or found.q.value.type.dtype != out.type.dtype:
            return None
        q, own = found.q, in_order((batch, heads, count, found.width), found.q.heads_first)
        types = [TensorType(own, q.value.type.dtype), k.value.type, v.value.type]
        attrs: dict[str, Any] = {"scale": found.scale}
        first = (q.heads_first, k.heads_first, v.heads_first, True)
        if first != HEADS_FIRST:
            attrs["heads_first"] = first
        if k.rows is not None:
            attrs["rows"] = length
        if found.bias is not None:
            types.append(TensorType(_in_four(found.bias.type.shape), found.bias.type.dtype))
        scales = [x for x in (k.scales, v.scales) if x is not None]
        if scales:
            attrs["scaled"] = True
            types += [x.type for x in scales]
        plan = best_plan("attention", types, attrs, target)
        if plan is None or plan.cost >= found.cost:
            return None
        args = [_shaped(graph, q.value, own), k.value, v.value]
        if found.bias is not None:
            args.append(_shaped(graph, found.bias, types[3].shape))
        y = graph.emit("attention", *args, *scales, **attrs)
        return _shaped(graph, y, out.type.shape)

    def recognize_attention(function: Function) -> Function:
        return rewrite(rewrite(function, (whole,)), (_turned,))

    return recognize_attention


def _turned(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """transpose(attention(q, k, v), (0, 2, 1, 3))   =>   attention(q, k, v), written transposed"""
    if call.op != "transpose" or tuple(call.attrs["axes"]) != TURNED[0]:
        return None
    y = _through(graph, call.args[0])
    made = graph.call(y, "attention")
    if made is None or not graph.once(y) or not same_type(y.type, call.args[0].type):
        return None
    first = made.attrs.get("heads_first", HEADS_FIRST)
    if not first[3]:
        return None
    return graph.emit("attention", *made.args, **{**made.attrs, "heads_first": (*first[:3], False)})


def _found(graph: Rewriting, call: Call, target: Target) -> _Attention | None:
    """The attention that ends in this call, its last product."""
    if call.op != "matmul" or call.attrs or len(call.args[0].type.shape) != 4:
        return None
    parts = _through(graph, call.args[0])
    soft = graph.call(parts, "softmax") or graph.call(parts, "fast_softmax")
    rank = len(parts.type.shape)
    if soft is None or rank != 4 or soft.attrs["axis"] % rank != 3 or not graph.once(parts):
        return None
    x, bias, scale = _scores(graph, soft.args[0])
    product = graph.call(x, "matmul")
    if product is None or product.attrs or not graph.once(x) or len(x.type.shape) != 4:
        return None
    q, more = _times(graph, _through(graph, product.args[0]))
    turned = graph.call(_before_cast(graph, product.args[1]), "transpose")
    if turned is None or tuple(turned.attrs["axes"]) not in ((0, 1, 3, 2), TURNED[1]):
        return None
    kept = tuple(turned.attrs["axes"]) == (0, 1, 3, 2)
    k, of_keys = _times(graph, turned.args[0])
    heads = parts.type.shape[HEADS]
    keys = _operand(graph, k, heads, kept)
    values = _operand(graph, call.args[1], heads)
    if not _alike(parts.type.shape, x.type.shape, keys, values):
        return None
    own = q.type.shape
    apart = len(own) == 4 and all(map(same_dim, own[:3], parts.type.shape[:3]))
    queries = _operand(graph, q, None) if apart else _Operand(q)
    floats = {product.args[0].type.dtype, parts.type.dtype}
    halves = target.arch == "aarch64" and target.float16 == "arithmetic"
    if floats != {"float32"} and not (halves and floats == {"float16"}):
        return None
    cost = _cost_of((product, call), parts.type, (queries, keys, values), target)
    return _Attention(
        queries,
        keys,
        values,
        bias,
        scale * more * of_keys,
        parts.type.shape,
        product.args[0].type.shape[3],
        cost,
    )


def _alike(whole: Sequence[Dim], own: Sequence[Dim], k: _Operand, v: _Operand) -> bool:
    """Whether the shapes fit: the softmax runs over the rows of the keys, and the heads of keys and
    values divide those of the scores."""
    heads = whole[HEADS]
    fits = isinstance(heads, int) and isinstance(k.kept, int) and heads % k.kept == 0
    return fits and same_dim(own[3], whole[3]) and same_dim(k.kept, v.kept)


def _cost_of(
    products: Sequence[Call], scores: TensorType, read: Sequence[_Operand], target: Target
) -> float:
    """Instructions of the calls that attention replaces."""
    total = SOFTMAX * _elements(scores.shape) / target.lanes("float32")
    for call in products:
        plan = best_plan("matmul", [a.type for a in call.args], call.attrs, target)
        shape = (*call.args[0].type.shape, *call.args[1].type.shape[3:])
        multiplied = _elements(shape)
        if plan is None or not plan.cost:
            total += DEFAULT * multiplied / target.lanes("float32")
        else:  # the plan counts a dynamic extent as OPEN, whatever its expression
            total += plan.cost * multiplied / prod(n if isinstance(n, int) else OPEN for n in shape)
    total += MOVED * _elements(products[0].args[1].type.shape)
    return total + sum(operand.moved for operand in read)


def _elements(shape: Sequence[Dim]) -> float:
    return float(prod(map(counted, shape)))


def _through(graph: Rewriting, x: Value) -> Value:
    """The value before calls that change only its shape."""
    while (call := graph.call(x, "reshape")) is not None and graph.once(x):
        x = call.args[0]
    return x


def _scores(graph: Rewriting, x: Value) -> tuple[Value, Value | None, float]:
    """The product that makes the scores, the bias added to it, and the scale."""
    bias: Value | None = None
    call = graph.call(x, "add")
    if call is not None and graph.once(x):
        for own, other in (call.args, call.args[::-1]):
            inner, scale = _times(graph, _through(graph, own))
            inner = _through(graph, inner)
            if graph.call(inner, "matmul") is not None and _is_bias(other, x):
                return inner, other, scale
        return x, None, 1.0
    inner, scale = _times(graph, _through(graph, x))
    return _through(graph, inner), bias, scale


def _is_bias(bias: Value, scores: Value) -> bool:
    """Whether a value broadcasts to the scores."""
    own = _in_four(bias.type.shape)
    fits = all(_is_one(n) or same_dim(n, m) for n, m in zip(own, scores.type.shape, strict=True))
    return fits and bias.type.dtype == scores.type.dtype


def _is_one(extent: Dim) -> bool:
    return isinstance(extent, int) and extent == 1


def _in_four(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return (*(1,) * (4 - len(shape)), *shape)


def _times(graph: Rewriting, x: Value) -> tuple[Value, float]:
    """x = y * scale as (y, scale)."""
    call = graph.call(x, "multiply", "divide")
    if call is None or not graph.once(x):
        return x, 1.0
    y, other = call.args
    if call.op == "multiply" and isinstance(y, Constant):
        y, other = other, y
    number = uniform(other)
    if number is None or not number or not same_type(y.type, x.type):
        return x, 1.0
    return y, 1 / number if call.op == "divide" else number


def _operand(graph: Rewriting, x: Value, heads: Dim | None, heads_first: bool = True) -> _Operand:
    """An operand without the calls whose work the kernel does while it reads."""
    found = _Operand(_before_cast(graph, x), heads_first)
    if heads is not None and heads_first:
        found = _not_repeated(graph, found)
    found = replace(found, value=_before_cast(graph, found.value))
    if heads is not None and heads_first and (scaled := _scaled(graph, found)) is not None:
        return scaled
    if heads_first and (turned := graph.call(found.value, "transpose")) is not None:
        if tuple(turned.attrs["axes"]) == TURNED[0]:
            moved = MOVED * _elements(x.type.shape)
            found = replace(found, value=turned.args[0], heads_first=False, moved=moved)
    if heads is not None and found.heads_first:
        found = _whole(graph, found)
    return found


def _before_cast(graph: Rewriting, x: Value) -> Value:
    """The float before a cast: the kernel reads both dtypes."""
    call = graph.call(x, "cast")
    floats = call is not None and {call.args[0].type.dtype, x.type.dtype} == {"float16", "float32"}
    return call.args[0] if call is not None and floats else x


def _whole(graph: Rewriting, found: _Operand) -> _Operand:
    """slice(cache)[:, :, :n]   =>   the cache, with n rows in use"""
    call = graph.call(found.value, "slice")
    if call is None or any(call.attrs["begin"]) or any(n != 1 for n in call.attrs["step"]):
        return found
    of, to = call.args[0].type.shape, call.attrs["shape"]
    if any(not same_dim(m, n) for d, (m, n) in enumerate(zip(of, to, strict=True)) if d != ROWS):
        return found
    moved = found.moved + MOVED * _elements(found.value.type.shape)
    return replace(found, value=call.args[0], rows=to[ROWS], moved=moved)


def _scaled(graph: Rewriting, found: _Operand) -> _Operand | None:
    """cast(slice(cache)) * slice(scales)   =>   the int8 cache and its scales"""
    call = graph.call(found.value, "multiply")
    cast = graph.call(call.args[0], "cast") if call is not None else None
    if call is None or cast is None or cast.args[0].type.dtype != "int8":
        return None
    rows = _whole(graph, _Operand(cast.args[0]))
    scales = _whole(graph, _Operand(call.args[1]))
    own, of = rows.value.type.shape, scales.value.type.shape
    fits = len(own) == len(of) == 4 and all(map(same_dim, (*own[:3], 1), of))
    if not fits or rows.rows is None or scales.rows is None:
        return None
    if not same_dim(rows.rows, scales.rows):
        return None
    moved = found.moved + 2 * rows.moved
    return replace(found, value=rows.value, rows=rows.rows, moved=moved, scales=scales.value)


def _not_repeated(graph: Rewriting, found: _Operand) -> _Operand:
    """reshape(broadcast_to(reshape(x), [B, K, G, L, D]), [B, K * G, L, D])   =>   x"""
    outer = graph.call(found.value, "reshape")
    wide = graph.call(outer.args[0], "broadcast_to") if outer is not None else None
    inner = graph.call(wide.args[0], "reshape") if wide is not None else None
    if outer is None or wide is None or inner is None:
        return found
    x, to = inner.args[0], outer.args[0].type.shape
    if len(x.type.shape) != 4 or len(to) != 5 or len(found.value.type.shape) != 4:
        return found
    batch, kept, length, width = x.type.shape
    own = (batch, kept, 1, length, width)
    fits = all(map(same_dim, wide.args[0].type.shape, own))
    fits = fits and all(same_dim(to[d], own[d]) for d in (0, 1, 3, 4)) and isinstance(kept, int)
    if not fits or not same_dim(found.value.type.shape[HEADS], kept * to[2]):
        return found
    return replace(found, value=x, moved=found.moved + MOVED * _elements(found.value.type.shape))


def _shaped(graph: Rewriting, x: Value, shape: Sequence[Dim]) -> Value:
    if len(x.type.shape) == len(shape) and all(map(same_dim, x.type.shape, shape)):
        return x
    return graph.emit("reshape", x, shape=tuple(shape))
