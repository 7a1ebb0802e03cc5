"""Converters of ATen's operators that move elements, choose them, or make constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import Expr, is_const, same_shape
from ..ops.shape import normal_axis
from .extents import larger, simplified
from .layers.indices import checked, gather, gather_elements, scatter_elements, scatter_nd
from .layers.shapes import (
    expand,
    filled_up,
    from_front,
    iota,
    joined,
    nonzero,
    part,
    reshape,
    rows,
    select,
    split,
    stacked,
    taken,
    with_axis,
    without,
)
from .node import limited, shape_of
from .torch_node import Converter, TorchNode, axes_of

# --------------------------------------------------------------------------------------- shapes


def _sizes(n: TorchNode, sizes: Sequence[Any]) -> list[Any]:
    """Extents as kernels compute with them."""
    return [n.extents.own(n, e) if isinstance(e, Expr) else int(e) for e in sizes]


def _view(n: TorchNode, x: Any, size: Sequence[int]) -> Any:
    if n.overload == "dtype":
        raise n.refuse("a tensor's bits as another dtype are not supported")
    wanted = _sizes(n, filled_up(list(size), shape_of(x)))
    return n.emit("reshape", x, shape=wanted)


def _transpose(n: TorchNode, x: Any, first: int = -2, second: int = -1) -> Any:
    axes = list(range(len(shape_of(x))))
    if len(axes) < 2:
        return x
    axes[first], axes[second] = axes[second], axes[first]
    return n.emit("transpose", x, axes=axes)


def _squeeze(n: TorchNode, x: Any, dims: Any = None) -> Any:
    shape = shape_of(x)
    axes = axes_of(x, dims) if shape else []
    return without(n, x, [axis for axis in axes if is_const(shape[axis], 1)])


def _expand(n: TorchNode, x: Any, size: Sequence[int], *_: Any) -> Any:
    own = (1,) * (len(size) - len(shape_of(x))) + shape_of(x)
    wanted = [o if is_const(e, -1) else e for o, e in zip(own, size, strict=True)]
    return expand(n, x, _sizes(n, wanted))


def _repeat(n: TorchNode, x: Any, repeats: Sequence[int]) -> Any:
    shape = (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x)
    return n.emit("tile", reshape(n, x, shape), reps=list(repeats))


def _cat(n: TorchNode, tensors: Sequence[Any], dim: int = 0) -> Any:
    """torch joins tensors of the shape (0,) with any other; they add nothing."""
    parts = [n.tensor(t, n.dtype) for t in tensors if not same_shape(shape_of(t), (0,))]
    if not parts:
        return n.tensor(tensors[0], n.dtype)
    return joined(n, parts, dim)


def _unfold(n: TorchNode, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along an axis; their elements are a further, last dimension."""
    (axis,) = axes_of(x, dim)
    count = (shape_of(x)[axis] - size) // step + 1
    places = np.arange(limited(count * size, "a table of windows") // size)[:, None] * step
    windows = n.emit("gather", x, n.constant(places + np.arange(size), "int64"), axis=axis)
    order = [*range(len(shape_of(windows)))]
    order.append(order.pop(axis + 1))
    return n.emit("transpose", windows, axes=order)


def _slice(
    n: TorchNode, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    (axis,) = axes_of(x, dim)
    return part(n, x, {axis: taken(n, shape_of(x)[axis], start, end, step)})


def _select(n: TorchNode, x: Any, dim: int, index: int) -> Any:
    (axis,) = axes_of(x, dim)
    extent: Any = shape_of(x)[axis]
    if isinstance(extent, Expr) and index < 0:
        return select(n, x, simplified(extent + index), axis)  # type: ignore[arg-type]
    at = index if isinstance(extent, Expr) else normal_axis("select", index, extent)
    return select(n, x, at, axis)


def _split(n: TorchNode, x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    return split(n, x, sizes, axes_of(x, dim)[0])


def _scatter_rows(n: TorchNode, x: Value, source: Value, axis: int, begin: int) -> Any:
    """x with its rows from `begin` on replaced by source, along an axis."""
    end, extent = begin + shape_of(source)[axis], shape_of(x)[axis]
    around = rows(n, x, 0, begin, axis), source, rows(n, x, end, extent - end, axis)
    return joined(n, [p for p in around if shape_of(p)[axis]], axis)


def _slice_scatter(
    n: TorchNode, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Any:  # fmt: skip
    (axis,) = axes_of(x, dim)
    begin, step, count = taken(n, shape_of(x)[axis], start, end, step)
    if not count:
        return x
    if step != 1:
        raise n.refuse(f"writing every {step}th element is not supported")
    return _scatter_rows(n, x, n.tensor(source, n.dtype), axis, begin)


def _select_scatter(n: TorchNode, x: Any, source: Any, dim: int, index: int) -> Any:
    (axis,) = axes_of(x, dim)
    at = normal_axis("select", index, shape_of(x)[axis])
    return _scatter_rows(n, x, with_axis(n, n.tensor(source, n.dtype), axis), axis, at)


def _flip(n: TorchNode, x: Any, dims: Sequence[int]) -> Any:
    shape = shape_of(x)
    return part(
        n, x, {axis: (max(shape[axis] - 1, 0), -1, shape[axis]) for axis in axes_of(x, dims)}
    )


def _roll(n: TorchNode, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:  # torch rolls the flat tensor
        flat = reshape(n, x, (math.prod(shape_of(x)),))
        return reshape(n, _roll(n, flat, shifts, [0]), shape_of(x))
    for shift, axis in zip(shifts, axes_of(x, list(dims)), strict=True):
        extent = shape_of(x)[axis]
        cut = -shift % extent if extent else 0
        if cut:
            parts = (cut, 1, extent - cut), (0, 1, cut)
            x = n.emit("concatenate", *(part(n, x, {axis: p}) for p in parts), axis=axis)
    return x


def _copy(n: TorchNode, x: Any, source: Any, *_: Any) -> Any:
    """The source overwrites all of x."""
    return _expand(n, n.tensor(source, n.dtype), shape_of(x))


def _diagonal(n: TorchNode, x: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    axes = axes_of(x, [first, second])
    rest = [axis for axis in range(len(shape_of(x))) if axis not in axes]
    last = n.emit("transpose", x, axes=[*rest, *axes])
    *front, rows, columns = shape_of(last)
    row = np.arange(max(-offset, 0), max(min(rows, columns - offset), 0))
    flat = n.emit("reshape", last, shape=(*front, rows * columns))
    return n.emit("gather", flat, Constant(row * columns + row + offset), axis=len(front))


def _pad(n: TorchNode, x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """pad: (before, after) of the last dimension, then of the one before it, and so on."""
    rank = len(shape_of(x))
    before, after = [0] * rank, [0] * rank
    for number, (b, a) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        before[rank - number], after[rank - number] = int(b), int(a)
    mode = {"reflection": "reflect", "replication": "edge"}.get(n.aten.split("_")[0], "constant")
    return n.emit("pad", x, pads=[*before, *after], mode=mode, value=value)


# -------------------------------------------------------------------------------------- indices


def _index(n: TorchNode, x: Any, indices: Sequence[Any]) -> Any:
    """x[i, j, :] becomes one gather: i and j make one index into their dimensions, flattened."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(i.type.dtype in ("bool", "uint8") for i in given):
        if len(given) > 1 or axes != [0]:
            raise n.refuse(
                "a mask of inner dimensions, or beside indices, is not supported", "torch.where"
            )
        return _masked(n, x, given[0])
    if axes != list(range(axes[0], axes[-1] + 1)):  # torch puts these dimensions first
        rest = [axis for axis in range(len(shape_of(x))) if axis not in axes]
        x = n.emit("transpose", x, axes=[*axes, *rest])
        axes = list(range(len(axes)))
    if len(axes) == 1:
        return gather(n, x, given[0], axes[0])
    shape = shape_of(x)
    extents = shape[axes[0] : axes[-1] + 1]
    flat: Value = n.constant(0, "int64")
    for index, extent in zip(given, extents, strict=True):
        i = from_front(n, n.cast(checked(n, n.tensor(index, "int64"), [extent]), "int64"), extent)
        flat = n.emit("add", n.emit("multiply", flat, n.constant(extent, "int64")), i)
    flattened = (*shape[: axes[0]], math.prod(extents), *shape[axes[-1] + 1 :])
    return n.emit("gather", reshape(n, x, flattened), flat, axis=axes[0])


def _masked(n: TorchNode, x: Any, mask: Any) -> Any:
    """x[mask], for a mask of x's first dimensions; the number of rows is known at run time."""
    rank, shape = len(shape_of(mask)), shape_of(x)
    count = math.prod(shape[:rank])
    flat = reshape(n, x, (count, *shape[rank:]))
    places = nonzero(n, reshape(n, n.tensor(mask, "bool"), (count,)))
    return n.emit("gather", flat, reshape(n, places, shape_of(places)[:1]), axis=0)


def _masked_select(n: TorchNode, x: Any, mask: Any) -> Any:
    shape = np.broadcast_shapes(shape_of(x), shape_of(mask))
    return _masked(n, _expand(n, x, shape), _expand(n, mask, shape))


def _nonzero(n: TorchNode, x: Any) -> Any:
    """The index tuples of elements that are not zero."""
    return nonzero(n, n.tensor(x, "bool"))


def _gather(n: TorchNode, x: Any, dim: int, index: Any, *_: Any) -> Any:
    return gather_elements(n, x, index, axes_of(x, dim)[0])


def _scatter(n: TorchNode, x: Any, dim: int, index: Any, source: Any, *_: Any) -> Any:
    updates = n.tensor(source, n.dtype)
    if not isinstance(source, Value):
        updates = expand(n, updates, shape_of(index))
    else:
        updates = part(n, updates, {a: (0, 1, e) for a, e in enumerate(shape_of(index))})
    reduction = "add" if n.aten == "scatter_add" else "none"
    (axis,) = axes_of(x, dim)
    return scatter_elements(n, x, index, updates, axis, reduction)


def _index_put(
    n: TorchNode, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    """x[:, i, j] = values, for integer indices of adjacent dimensions."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [indices[axis] for axis in axes]
    if axes != [*range(axes[0], axes[-1] + 1)]:
        raise n.refuse("writing at indices of dimensions apart is not supported")
    if any(i.type.dtype in ("bool", "uint8") for i in given):
        if axes == [0] and len(shape_of(given[0])) <= len(shape_of(x)) and not shape_of(values):
            mask = _filled_mask(n, given[0], len(shape_of(x)))
            return n.emit("where", mask, n.tensor(values, n.dtype), x)
        raise n.refuse("writing where a mask says so is not supported", "torch.where")
    shape, first, count = shape_of(x), axes[0], len(axes)
    front = np.broadcast_shapes(*(shape_of(index) for index in given))
    updates = _expand(n, n.tensor(values, n.dtype),
                      (*shape[:first], *front, *shape[first + count :]))  # fmt: skip
    order = [*axes, *range(first), *range(first + count, len(shape))]
    moved = [*range(first, first + len(front)), *range(first),
             *range(first + len(front), len(shape_of(updates)))]  # fmt: skip
    x, updates = _turned(n, x, order), _turned(n, updates, moved)
    columns = [_expand(n, n.tensor(index, "int64"), front) for index in given]
    places = stacked(n, columns, -1)
    if accumulate and isinstance(places, Constant):
        written = _added(n, x, places.value, updates)
    else:
        how = "add" if accumulate else "none"
        written = scatter_nd(n, x, places, updates, how)
    return _turned(n, written, [order.index(axis) for axis in range(len(order))])


def _turned(n: TorchNode, x: Any, order: Sequence[int]) -> Any:
    return x if list(order) == sorted(order) else n.emit("transpose", x, axes=order)


def _filled_mask(n: TorchNode, mask: Any, rank: int) -> Any:
    own = shape_of(mask)
    return n.tensor(reshape(n, mask, (*own, *[1] * (rank - len(own)))), "bool")


def _added(n: TorchNode, x: Any, places: Any, updates: Any) -> Any:
    """x with updates added at known places. Each element of x gathers its own updates, so the cost
    grows with the sum of both sizes, not with their product."""
    size = places.shape[-1]
    whole, rest = math.prod(shape_of(x)[:size]), shape_of(x)[size:]
    strides = np.cumprod([1, *shape_of(x)[1:size][::-1]])[::-1]
    flat = (np.where(places < 0, places + shape_of(x)[:size], places) * strides).sum(-1).ravel()
    order = np.argsort(flat, kind="stable")
    often = np.bincount(flat, minlength=whole)
    behind = np.arange(flat.size) - np.repeat(np.cumsum(often) - often, often)
    table = np.full((whole, max(int(often.max(initial=0)), 1)), flat.size)  # one row of zeros
    table[flat[order], behind] = order
    rows = reshape(n, updates, (flat.size, *rest))
    zero = n.constant(np.zeros((1, *rest)), n.dtype)
    found = n.emit("gather", joined(n, [rows, zero]), n.constant(table, "int64"), axis=0)
    total = n.emit("sum", found, axes=[1], keepdims=False)
    return n.emit("add", x, reshape(n, total, shape_of(x)))


# ------------------------------------------------------------------------------------ constants


def _filled(n: TorchNode, value: Any, shape: Sequence[int]) -> Any:
    return expand(n, n.tensor(value, n.dtype), _sizes(n, shape))


def _full_like(n: TorchNode, x: Any, value: Any, *_: Any) -> Any:
    return _filled(n, value, shape_of(x))


def _zeros(n: TorchNode, size: Any, *_: Any) -> Any:
    """zeros, ones and empty: an empty tensor may hold any value, so it holds 0."""
    shape = shape_of(size) if isinstance(size, Value) else size
    return _filled(n, int(n.aten.startswith("ones")), shape)


def _new(n: TorchNode, x: Any, size: Sequence[int], *rest: Any) -> Any:
    value = {"new_ones": 1, "new_full": rest[0] if rest else 0}.get(n.aten, 0)
    return _filled(n, value, size)


def _arange(n: TorchNode, *arguments: Any) -> Any:
    """The overload says which of start, end and step are given."""
    bounds = arguments[: {"default": 1, "start": 2, "start_step": 3}[n.overload]]
    if not any(isinstance(b, Expr) for b in bounds):
        return n.constant(np.arange(*bounds), n.dtype)
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step != 1:
        raise n.refuse(
            f"numbers {step} apart, as many as are known at run time", "torch.arange(end)"
        )
    (extent,) = _sizes(n, [larger(simplified(end - start), 0)])
    count = iota(n, extent, 1, 0)
    begin = n.extents.value(n, start)
    return n.cast(count if start == 0 else n.emit("add", count, begin), n.dtype)


def _triangle(n: TorchNode, x: Any, diagonal: int = 0) -> Any:
    shape = shape_of(x)
    keep = getattr(np, n.aten)(np.ones(shape[-2:], bool), diagonal)
    return n.emit("where", Constant(keep), x, n.constant(0, n.dtype))


SHAPES: dict[str, Converter] = {
    **dict.fromkeys(("scatter", "scatter_add"), _scatter),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _view),
    **dict.fromkeys(("full_like", "fill"), _full_like),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _new),
    **dict.fromkeys(("zeros", "ones", "empty", "zeros_like", "ones_like", "empty_like"), _zeros),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(
        (f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)), _pad
    ),
    **dict.fromkeys(("t", "transpose"), _transpose),
    **{
        converter.__name__.removeprefix("_"): converter
        for converter in (
            _arange, _cat, _copy, _diagonal, _expand, _flip, _gather, _index_put, _masked_select,
            _nonzero, _repeat, _roll, _select, _select_scatter, _slice, _slice_scatter, _squeeze,
            _unfold,
        )
    },
    "constant_pad_nd": _pad,
    "embedding": lambda n, weight, indices, *_: gather(n, weight, indices, 0),
    "full": lambda n, size, value, *_: _filled(n, value, size),
    "index_select": lambda n, x, dim, at: gather(n, x, at, axes_of(x, dim)[0]),
    "linspace": lambda n, first, last, count, *_: n.constant(
        np.linspace(first, last, count), n.dtype
    ),
    "permute": lambda n, x, dims: n.emit(
        "transpose", x, axes=axes_of(x, list(dims)) if dims else []
    ),
    "scalar_tensor": lambda n, value, *_: n.constant(value, n.dtype),
    "split_with_sizes": _split,
    "unsqueeze": with_axis,
}  # fmt: skip
