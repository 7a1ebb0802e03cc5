"""Relax's words that move elements: other shapes and orders, parts, joins, indices, products."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ...ir import Expr, dtype_of, is_const
from ...ops.elementwise import same_extent
from ...ops.shape import normal_axis
from ..nodes import Constant, Value
from .parts import (
    Emits,
    Made,
    Number,
    as_dtype,
    axes_of,
    axis_of,
    call,
    cast_to,
    extent,
    extents,
    fixed,
    flat,
    integer,
    integers,
    is_static,
    number,
    operands,
    product,
    rank_of,
    refused,
    reshaped,
    shape_of,
    shown,
    tensor,
)

MOST_ELEMENTS = 1 << 24  # of a range that is a constant
BEYOND = 1 << 30  # an index that means the end of an axis


def reshape(e: Emits, x: Any, shape: Any) -> Made:
    x = tensor("reshape", x)
    wanted = list(extents("reshape", shape))
    if sum(is_const(n, -1) for n in wanted) > 1:
        raise refused(f"R.reshape: {tuple(wanted)} has more than one -1")
    for d, n in enumerate(wanted):
        empty = any(is_const(own, 0) for own in shape_of(x))
        if is_const(n, 0) and not empty and d < rank_of(x):
            wanted[d] = shape_of(x)[d]  # 0 takes over the dimension
    if any(is_const(n, -1) for n in wanted):
        known = product([n for n in wanted if not is_const(n, -1)])
        whole: Any = product(shape_of(x))
        if is_static((known, whole)) and (not known or whole % known):
            raise refused(f"R.reshape: {whole} elements do not fill {tuple(wanted)}")
        rest = extent(whole // known)
        wanted = [rest if is_const(n, -1) else n for n in wanted]
    return call("reshape", x, shape=tuple(wanted))


def flatten(e: Emits, x: Any) -> Made:
    x = tensor("flatten", x)
    return call("reshape", x, shape=(product(shape_of(x)),))


def permute_dims(e: Emits, x: Any, axes: Any = None) -> Made:
    x = tensor("permute_dims", x)
    order = axes_of("permute_dims", x, axes)
    return call("transpose", x, axes=order if axes is not None else order[::-1])


def expand_dims(e: Emits, x: Any, axis: Any) -> Made:
    x = tensor("expand_dims", x)
    given = integers("expand_dims", "axis", axis)
    rank = rank_of(x) + len(given)
    added = {normal_axis("R.expand_dims", a, rank) for a in given}
    if len(added) != len(given):
        raise refused(f"R.expand_dims: axis {tuple(given)} has an axis twice")
    own = iter(shape_of(x))
    return call("reshape", x, shape=tuple(1 if d in added else next(own) for d in range(rank)))


def squeeze(e: Emits, x: Any, axis: Any = None) -> Made:
    x = tensor("squeeze", x)
    if axis is None:
        gone = [d for d, n in enumerate(shape_of(x)) if is_const(n, 1)]
    else:
        gone = axes_of("squeeze", x, axis)
        for d in gone:
            if not is_const(shape_of(x)[d], 1):
                raise refused(f"R.squeeze: axis {d} of {x.type} is not 1 long")
    return call("reshape", x, shape=tuple(n for d, n in enumerate(shape_of(x)) if d not in gone))


def broadcast_to(e: Emits, x: Any, shape: Any) -> Made:
    return call("broadcast_to", tensor("broadcast_to", x), shape=extents("broadcast_to", shape))


def concat(e: Emits, tensors: Any, axis: Any = 0) -> Made:
    if not isinstance(tensors, (list, tuple)):
        tensors = (tensors,)
    parts = [tensor("concat", t) for t in tensors]
    if not parts:
        raise refused("R.concat joins no tensor", "R.concat((x, y), axis=1)")
    if axis is None:
        parts, axis = [flat(e, t) for t in parts], 0
    at = axis_of("concat", parts[0], axis)
    return call("concatenate", *parts, axis=at) if len(parts) > 1 else call("copy", parts[0])


def split(e: Emits, x: Any, indices_or_sections: Any, axis: int = 0) -> Made:
    x = tensor("split", x)
    at = axis_of("split", x, axis)
    whole: Any = shape_of(x)[at]
    if isinstance(indices_or_sections, (list, tuple)):
        ends = [extent(n) for n in indices_or_sections]
        if is_static((*ends, whole)):
            ends = [min(max(n, 0), whole) for n in ends]
        bounds: list[Any] = [0, *ends, whole]
    else:
        count = integer("split", "indices_or_sections", indices_or_sections)
        if count < 1:
            raise refused(f"R.split: {count} parts")
        size: Any = extent((whole + count - 1) // count)
        bounds = [size * n for n in range(count)] + [whole]
        if is_static((whole,)):
            bounds = [min(n, whole) for n in bounds]
    parts = []
    for begin, end in pairwise(bounds):
        length = extent(end - begin)
        if isinstance(length, int):
            length = max(length, 0)
        parts.append(_part(x, {at: (extent(begin), 1, length)}))
    return tuple(parts)


def _part(x: Value, along: dict[int, tuple[Any, int, Any]]) -> Made:
    """x cut along some axes: begin, step, length."""
    every = [along.get(d, (0, 1, n)) for d, n in enumerate(shape_of(x))]
    begin, step, shape = (tuple(own) for own in zip(*every, strict=True))
    return call("slice", x, begin=begin, step=step, shape=shape)


def strided_slice(
    e: Emits,
    x: Any,
    axes: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    assume_inbound: bool = False,
) -> Made:
    x = tensor("strided_slice", x)
    at = axes_of("strided_slice", x, axes)
    begins, ends = _indices("begin", begin), _indices("end", end)
    steps = [1] * len(at) if strides is None else integers("strided_slice", "strides", strides)
    if not len(at) == len(begins) == len(ends) == len(steps):
        what = f"R.strided_slice: {len(at)} axes, {len(begins)} begins, {len(ends)} ends"
        raise refused(what, "one of each for an axis")
    along = {
        d: _taken(shape_of(x)[d], b, n, s, assume_inbound)
        for d, b, n, s in zip(at, begins, ends, steps, strict=True)
    }
    return _part(x, along)


def _indices(name: str, given: Any) -> list[Any]:
    if isinstance(given, Constant):
        return [int(n) for n in given.value.reshape(-1)]
    listed = given if isinstance(given, (tuple, list)) else [given]
    if any(isinstance(n, Value) and not isinstance(n, Constant) for n in listed):
        raise refused(f"R.strided_slice: {name} is computed at run time", "numbers and dimensions")
    return [int(n.value.item()) if isinstance(n, Constant) else extent(n) for n in listed]


def _taken(whole: Any, begin: Any, end: Any, step: int, inbound: bool) -> tuple[Any, int, Any]:
    """begin, step and length of the elements from begin to end."""
    if not step:
        raise refused("R.strided_slice: a stride of 0")
    if is_static((whole, begin, end)):
        places = range(whole)[begin if begin != -1 - whole else 0 : _stop(end, step, whole) : step]
        return (places.start if places else 0, step, len(places))
    if isinstance(end, int) and end >= BEYOND:
        end = whole
    if isinstance(begin, int) and begin < 0:
        begin = extent(whole + begin)
    if isinstance(end, int) and end < 0:
        end = extent(whole + end)
    known = inbound or (isinstance(end, Expr | int) and same_extent(extent(end), whole))
    if step < 1 or not known:
        what = f"R.strided_slice: from {begin} to {end} of a dimension '{whole}'"
        raise refused(what, "assume_inbound=True, if all of it lies within")
    return begin, step, extent((end - begin + (step - 1)) // step)


def _stop(end: int, step: int, whole: int) -> int | None:
    """The end as Python's slices take it: before the first element is None there."""
    return None if step < 0 and end < -whole else end


def dynamic_strided_slice(e: Emits, x: Any, begin: Any, end: Any, strides: Any) -> Made:
    x = tensor("dynamic_strided_slice", x)
    return strided_slice(e, x, list(range(rank_of(x))), begin, end, strides)


def flip(e: Emits, data: Any, axis: Any) -> Made:
    x = tensor("flip", data)
    at = axis_of("flip", x, axis)
    whole: Any = shape_of(x)[at]
    return _part(x, {at: (extent(whole - 1), -1, whole)})


def take(e: Emits, x: Any, indices: Any, axis: Any = None) -> Made:
    x = tensor("take", x)
    at = number(indices, "int64") if isinstance(indices, Number) else tensor("take", indices)
    if axis is None:
        if rank_of(x) != 1:
            raise refused(f"R.take from {rank_of(x)} dimensions needs an axis", "axis=0")
        axis = 0
    return call("gather", x, at, axis=axis_of("take", x, axis))


def repeat(e: Emits, data: Any, repeats: int, axis: Any = None) -> Made:
    x = tensor("repeat", data)
    if axis is None:
        x, axis = flat(e, x), 0
    times = integer("repeat", "repeats", repeats)
    return call("repeat", x, axis=axis_of("repeat", x, axis), times=times)


def tile(e: Emits, data: Any, repeats: Any) -> Made:
    x, reps = tensor("tile", data), integers("tile", "repeats", repeats)
    reps = [1] * (rank_of(x) - len(reps)) + reps
    shape = [1] * (len(reps) - rank_of(x)) + list(shape_of(x))
    return call("tile", reshaped(e, x, shape), reps=reps)


def arange(e: Emits, start: Any, end: Any = None, step: Any = 1, dtype: str | None = None) -> Made:
    begin, stop = (0, start) if end is None else (start, end)
    if not all(isinstance(n, Number) for n in (begin, stop, step)):
        what = f"R.arange needs numbers, not {shown((begin, stop, step))}"
        raise refused(what, "a parameter with the numbers")
    whole = all(isinstance(n, (int, np.integer)) for n in (begin, stop, step))
    made = np.arange(begin, stop, step)
    if made.size > MOST_ELEMENTS:
        raise refused(f"R.arange: {made.size} elements", f"at most {MOST_ELEMENTS}")
    return Constant(made.astype(dtype or ("int64" if whole else "float32")))


REDUCTIONS = {"update": "none"}


def _reduction(word: str, name: str) -> str:
    known = ("update", "add", "mul", "max", "min", "none")
    if name not in known:
        raise refused(f"R.{word}: no reduction '{name}'", ", ".join(known[:-1]))
    return REDUCTIONS.get(name, name)


def scatter_elements(
    e: Emits, data: Any, indices: Any, updates: Any, axis: int = 0, reduction: str = "update"
) -> Made:
    values = [tensor("scatter_elements", t) for t in (data, indices, updates)]
    how = _reduction("scatter_elements", reduction)
    return call("scatter_elements", *values, axis=integer("scatter_elements", "axis", axis),
                reduction=how)  # fmt: skip


def scatter_nd(e: Emits, data: Any, indices: Any, updates: Any, reduction: str = "update") -> Made:
    values = [tensor("scatter_nd", t) for t in (data, indices, updates)]
    return call("scatter_nd", *values, reduction=_reduction("scatter_nd", reduction))


def view(
    e: Emits, data: Any, shape: Any = None, dtype: Any = None, relative_byte_offset: Any = None
) -> Made:
    """The same memory: as many elements of equal size."""
    x = tensor("memory.view", data)
    if relative_byte_offset:
        raise refused("R.memory.view of a part of the memory is not supported", "R.strided_slice")
    to = x.type.dtype if dtype is None else dtype_of(dtype).name
    if dtype_of(to).bits != dtype_of(x.type.dtype).bits:
        raise refused(f"R.memory.view of {x.type.dtype} as {to}, of another size", "R.astype")
    if to != x.type.dtype:
        x = e.emit("bitcast", x, dtype=to)
    return call("copy", x) if shape is None else reshape(e, x, shape)


def shape_to_tensor(e: Emits, expr: Any) -> Made:
    sizes = fixed("shape_to_tensor", extents("shape_to_tensor", expr))
    return Constant(np.array(sizes, "int64"))


# -------------------------------------------------------------------------------------- products


def matmul(e: Emits, x1: Any, x2: Any, out_dtype: str | None = None) -> Made:
    """As numpy's: vectors become matrices, and lose the added dimension in the result."""
    out_dtype = None if out_dtype == "void" else out_dtype
    a, b = operands("matmul", x1, x2)
    if not rank_of(a) or not rank_of(b):
        raise refused(f"R.matmul of {a.type} and {b.type}", "R.multiply for numbers")
    if out_dtype and dtype_of(out_dtype).kind == "float":
        a, b = as_dtype(e, a, out_dtype), as_dtype(e, b, out_dtype)
    left = a if rank_of(a) > 1 else reshaped(e, a, (1, *shape_of(a)))
    right = b if rank_of(b) > 1 else reshaped(e, b, (*shape_of(b), 1))
    made = call("matmul", left, right)
    if left is not a or right is not b:
        value = e.emit(made)
        kept = list(value.type.shape)
        if right is not b:
            del kept[-1]
        if left is not a:
            del kept[len(kept) - 1 - (right is b)]
        made = call("reshape", value, shape=tuple(kept))
    if out_dtype and dtype_of(out_dtype).kind != "float":
        value = e.emit(made)
        return call("copy", value) if value.type.dtype == out_dtype else call(
            "cast", value, dtype=out_dtype)  # fmt: skip
    return made


def linear(
    e: Emits, data: Any, weight: Any, bias: Any = None, out_dtype: str | None = None
) -> Made:
    w = tensor("linear", weight)
    turned = e.emit("transpose", w, axes=tuple(range(rank_of(w)))[::-1]) if rank_of(w) > 1 else w
    made = matmul(e, data, turned, out_dtype)
    return made if bias is None else call("add", e.emit(made), tensor("linear", bias))


def einsum(e: Emits, operands: Any, subscripts: str) -> Made:
    values = [tensor("einsum", t) for t in operands]
    text = subscripts.replace(" ", "")
    if "..." in text:
        raise refused("R.einsum takes a letter for each dimension, not '...'")
    if "->" not in text:
        letters = text.replace(",", "")
        text += "->" + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return call("einsum", *values, equation=text)


# ------------------------------------------------------------------------------------- quantized


def quantize(
    e: Emits,
    data: Any,
    scale: Any,
    zero_point: Any,
    axis: int = -1,
    out_dtype: str | None = None,
) -> Made:
    """out_dtype defaults to the zero point's dtype."""
    x = tensor("quantize", data)
    scale, zero = (_along(e, "quantize", v, x, axis) for v in (scale, zero_point))
    return call("quantize", x, scale, as_dtype(e, zero, out_dtype))


def dequantize(
    e: Emits,
    data: Any,
    scale: Any,
    zero_point: Any,
    axis: int = -1,
    out_dtype: str | None = None,
) -> Made:
    """out_dtype defaults to the scale's dtype."""
    q = tensor("dequantize", data)
    scale, zero = (_along(e, "dequantize", v, q, axis) for v in (scale, zero_point))
    made = call("dequantize", q, scale, as_dtype(e, zero, q.type.dtype))
    return cast_to(scale, made, out_dtype, e)


def _along(e: Emits, word: str, v: Any, x: Value, axis: int) -> Value:
    """A vector along an axis of x; a tensor of another rank as it is."""
    own = tensor(word, v)
    if rank_of(own) != 1 or rank_of(x) < 2 or is_const(shape_of(own)[0], 1):
        return own
    after = [1] * (rank_of(x) - 1 - axis_of(word, x, axis))
    return reshaped(e, own, [*shape_of(own), *after]) if after else own


def table() -> dict[str, Any]:
    return {
        "arange": arange,
        "broadcast_to": broadcast_to,
        "concat": concat,
        "dequantize": dequantize,
        "dynamic_strided_slice": dynamic_strided_slice,
        "einsum": einsum,
        "expand_dims": expand_dims,
        "flatten": flatten,
        "flip": flip,
        "linear": linear,
        "matmul": matmul,
        "memory.view": view,
        "permute_dims": permute_dims,
        "quantize": quantize,
        "repeat": repeat,
        "reshape": reshape,
        "scatter_elements": scatter_elements,
        "scatter_nd": scatter_nd,
        "shape_to_tensor": shape_to_tensor,
        "split": split,
        "squeeze": squeeze,
        "strided_slice": strided_slice,
        "take": take,
        "tile": tile,
        "transpose": permute_dims,
    }
