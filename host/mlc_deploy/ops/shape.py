"""Operators that move elements: each output element is one input element, or a fill value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import te
from ..ir import Dim, Expr, ExprLike, const, expr, is_const
from ..te import Tensor
from .elementwise import UnlikeExtents, broadcast_shape, element_at, same_extent
from .indices import from_front, inside, inside_array
from .registry import Array, Attrs, Operator, Trait, register, require, simplest

# Operators whose output is the input's memory, read with another shape.
VIEWS = ("reshape", "first", "extent")


def normal_axis(op: str, axis: int, rank: int) -> int:
    """axis counted from the front; ValueError naming op where the tensor has no such axis."""
    require(-rank <= axis < rank, f"{op}: axis {axis} of a tensor with {rank} dimensions")
    return axis % rank


# ----------------------------------------------------------------------- reshape, transpose, …


def unflatten(flat: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """The index of an element by its number in row-major order."""
    index: list[Expr] = []
    for axis, extent in reversed(list(enumerate(shape))):
        index.append(flat % extent if axis else flat)
        flat = flat // extent
    return tuple(reversed(index))


def flatten(index: Sequence[ExprLike], shape: Sequence[Dim]) -> Expr:
    flat: Expr = const(0)
    for i, extent in zip(index, shape, strict=True):
        flat = expr(flat * extent + i)
    return flat


def _compute_reshape(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: shape."""
    (x,) = inputs
    shape = attrs["shape"]
    before = [e for e in x.shape if isinstance(e, int)]
    after = [e for e in shape if isinstance(e, int)]
    if len(before) + len(after) == x.ndim + len(shape):
        fits = math.prod(before) == math.prod(after)
        require(fits, f"reshape: {list(x.shape)} does not have as many elements as {list(shape)}")
    return [
        te.compute(
            shape,
            lambda *i: x[unflatten(flatten(i, shape), x.shape)],
            name="reshape",
        )
    ]


def _compute_transpose(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axes, so that output axis n is input axis axes[n]."""
    (x,) = inputs
    axes = tuple(attrs["axes"])
    fits = sorted(axes) == list(range(x.ndim))
    require(fits, f"transpose: axes {list(axes)} do not permute {x.ndim} dimensions")
    back = [axes.index(axis) for axis in range(x.ndim)]
    return [
        te.compute(
            [x.shape[axis] for axis in axes],
            lambda *i: x[tuple(i[axis] for axis in back)],
            name="transpose",
        )
    ]


def _compute_broadcast(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: shape, which the input's must broadcast to."""
    (x,) = inputs
    shape = tuple(attrs["shape"])
    result = broadcast_shape("broadcast_to", [x.shape, shape])
    fits = len(result) == len(shape) and all(map(same_extent, result, shape))
    require(fits, f"broadcast_to: {list(x.shape)} does not broadcast to {list(shape)}")
    return [te.compute(shape, lambda *i: element_at(x, i), name="broadcast_to")]


def _compute_tile(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: reps, one per dimension."""
    (x,) = inputs
    reps = attrs["reps"]
    require(len(reps) == x.ndim, f"tile: {len(reps)} repeats for {x.ndim} dimensions")
    return [
        te.compute(
            [extent * n for extent, n in zip(x.shape, reps, strict=True)],
            lambda *i: x[tuple(k % extent for k, extent in zip(i, x.shape, strict=True))],
            name="tile",
        )
    ]


def _compute_repeat(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis, times. Along the axis, each element stands `times` times in a row."""
    (x,) = inputs
    axis, times = normal_axis("repeat", attrs["axis"], x.ndim), attrs["times"]
    require(times > 0, f"repeat: {times} times")
    return [
        te.compute(
            [n * times if d == axis else n for d, n in enumerate(x.shape)],
            lambda *i: x[tuple(k // times if d == axis else k for d, k in enumerate(i))],
            name="repeat",
        )
    ]


def _compute_depth_to_space(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: block, the extents of a block of pixels. Of data [N, C, spatial …], or in blocks of
    channels, each pixel becomes such a block: its first C / prod(block) channels are the first
    pixel, and so on."""
    (x,) = inputs
    block = attrs["block"]
    behind, parts = 2 + len(block), math.prod(block)
    channels = x.shape[1]
    fits = x.ndim >= behind and isinstance(channels, int) and channels % parts == 0
    require(fits, f"depth_to_space: {list(x.shape)} in blocks of {list(block)}")
    share = channels // parts

    def element(batch: Expr, channel: Expr, *rest: Expr) -> Expr:
        places, lanes = rest[: len(block)], rest[len(block) :]
        part: Any = 0
        for place, extent in zip(places, block, strict=True):
            part = part * extent + place % extent
        pixel = (place // extent for place, extent in zip(places, block, strict=True))
        return x[(batch, part * share + channel, *pixel, *lanes)]

    grown = (n * extent for n, extent in zip(x.shape[2:behind], block, strict=True))
    shape = (x.shape[0], share, *grown, *x.shape[behind:])
    return [te.compute(shape, element, name="depth_to_space")]


def _evaluate_depth_to_space(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    rank = len(attrs["block"])
    parts, axes = pixels_apart(x.shape[: 2 + rank], attrs["block"])
    behind = x.shape[2 + rank :]
    mixed = x.reshape(*parts, *behind).transpose(*axes, *range(len(axes), len(axes) + len(behind)))
    grown = (n * extent for n, extent in zip(x.shape[2:], attrs["block"], strict=False))
    return [mixed.reshape(x.shape[0], parts[1 + rank], *grown, *behind)]


def pixels_apart(shape: Sequence[Any], block: Sequence[int]) -> tuple[list[Any], list[int]]:
    """The shape in which the data of depth_to_space, [N, C, spatial …], have an axis for each
    extent of a block; and the transpose of that which, with the shape of the result, is it."""
    batch, channels, *spatial = shape
    rank = len(block)
    pairs = (axis for d in range(rank) for axis in (2 + rank + d, 1 + d))
    return [batch, *block, channels // math.prod(block), *spatial], [0, 1 + rank, *pairs]


# ------------------------------------------------------------------------------- concat, slice


def _compute_concat(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis. Inputs have one dtype, and one shape except along that axis."""
    axis = normal_axis("concatenate", attrs["axis"], inputs[0].ndim)
    first = inputs[0]
    for t in inputs:
        what = f"concatenate: {list(first.shape)} and {list(t.shape)} on axis {axis}"
        require(t.ndim == first.ndim, what)
        for k, (a, b) in enumerate(zip(first.shape, t.shape, strict=True)):
            if k != axis and not same_extent(a, b):
                raise UnlikeExtents(what, a, b)
        same = t.dtype == first.dtype
        require(same, f"concatenate: inputs of different dtypes, {first.dtype} and {t.dtype}")
    starts: list[Any] = [0]
    for t in inputs:
        starts.append(starts[-1] + t.shape[axis])

    def element(*i: Expr) -> Expr:
        def read(n: int) -> Expr:
            return inputs[n][tuple(k - starts[n] if d == axis else k for d, k in enumerate(i))]

        value = read(len(inputs) - 1)
        for n in reversed(range(len(inputs) - 1)):
            value = te.if_then_else(i[axis] < starts[n + 1], read(n), value)
        return value

    shape = [starts[-1] if d == axis else extent for d, extent in enumerate(first.shape)]
    return [te.compute(shape, element, name="concatenate")]


def _compute_slice(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: begin, step, shape, per dimension: output[i] = input[begin + i * step]."""
    (x,) = inputs
    begin, step, shape = attrs["begin"], attrs["step"], attrs["shape"]
    require(len(begin) == len(step) == len(shape) == x.ndim, "slice: one begin per dimension")
    for b, s, n, extent in zip(begin, step, shape, x.shape, strict=True):
        inside = (
            is_const(n, 0)
            or not all(isinstance(k, int) for k in (b, n, extent))
            or all(0 <= k < extent for k in (b, b + (n - 1) * s))
        )
        require(inside, f"slice: {n} elements from {b} by {s} leave {list(x.shape)}")
    return [
        te.compute(
            shape,
            lambda *i: x[tuple(k * s + b for b, s, k in zip(begin, step, i, strict=True))],
            name="slice",
        )
    ]


def _compute_first(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The first rows, as many as the second input, int64[], says. attrs: extent, their number as a
    dimension."""
    x, count = inputs
    require(x.ndim > 0 and count.ndim == 0, "first: a tensor, and how many of its rows there are")
    require(count.dtype == "int64", f"first: a number of rows that is {count.dtype}")
    return [te.compute((attrs["extent"], *x.shape[1:]), lambda *i: x[i], name="first")]


def _compute_extent(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The number itself, int64[], which from here on is the size of a dimension. attrs: extent,
    that dimension."""
    (count,) = inputs
    require(count.ndim == 0 and count.dtype == "int64", f"extent: {count.dtype}, {count.ndim}-D")
    return [te.compute((), lambda: count[()], name="extent")]


def _compute_grow(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The input with zeros after it along an axis. attrs: axis; extent, that of the output."""
    (x,) = inputs
    require(x.ndim > 0, "grow: of a number without dimensions")
    axis = normal_axis("grow", attrs["axis"], x.ndim)
    shape = [attrs["extent"] if k == axis else n for k, n in enumerate(x.shape)]

    def element(*i: Expr) -> Expr:
        return te.if_then_else(i[axis] < x.shape[axis], x[i], const(0, x.dtype))

    return [te.compute(shape, element, name="grow")]


def _evaluate_grow(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    axis = normal_axis("grow", attrs["axis"], x.ndim)
    behind = [(0, attrs["extent"] - n if k == axis else 0) for k, n in enumerate(x.shape)]
    return [np.pad(x, behind)]


def _evaluate_slice(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    along = zip(attrs["begin"], attrs["step"], attrs["shape"], strict=True)
    return [inputs[0][np.ix_(*(b + s * np.arange(n) for b, s, n in along))]]


# ---------------------------------------------------------------------------------- pad, gather


def padded(x: Tensor, pads: Sequence[Dim], value: ExprLike, name: str = "pad") -> Tensor:
    """x with a border of value: pads are those at the beginnings, then those at the ends.

    A negative pad cuts off. x itself where nothing is padded.
    """
    before, after = pads[: x.ndim], pads[x.ndim :]
    if not has_border(pads):
        return x

    def element(*i: Expr) -> Expr:
        at = tuple(k - b for k, b in zip(i, before, strict=True))
        guards = []
        for k, b, a, extent in zip(at, before, after, x.shape, strict=True):
            guards += [k >= 0] if isinstance(b, Expr) or b > 0 else []
            guards += [k < extent] if isinstance(a, Expr) or a > 0 else []
        return te.if_then_else(te.all_of(*guards), x[at], expr(value, x.dtype))

    tensor: Tensor = te.compute(_grown(x, pads), element, name=name)
    return tensor


def has_border(pads: Sequence[Dim]) -> bool:
    """Whether something is added, or may be."""
    return any(isinstance(p, Expr) or p for p in pads)


def _grown(x: Tensor, pads: Sequence[Dim]) -> list[Dim]:
    """The shape of x with a border."""
    border = zip(x.shape, pads[: x.ndim], pads[x.ndim :], strict=True)
    return [simplest(extent + b + a) for extent, b, a in border]


def _compute_pad(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: pads (beginnings, then ends), mode (constant, edge, reflect, wrap), value."""
    (x,) = inputs
    pads, mode = attrs["pads"], attrs["mode"]
    require(len(pads) == 2 * x.ndim, f"pad: {len(pads)} pads for {x.ndim} dimensions")
    if mode == "constant":
        if not has_border(pads):
            return [te.compute(x.shape, lambda *i: x[i], name="pad")]
        return [padded(x, pads, const(attrs["value"], x.dtype))]
    before, after = pads[: x.ndim], pads[x.ndim :]
    reach = {"edge": 1, "reflect": 2, "wrap": 1}
    require(mode in reach, f"pad: no mode '{mode}'")
    for b, a, extent in zip(before, after, x.shape, strict=True):
        if not isinstance(a, int) or not isinstance(b, int) or not isinstance(extent, int):
            continue
        require(
            extent >= reach[mode] or max(a, b) <= 0,
            f"pad: {list(x.shape)} is too small for mode '{mode}'",
        )

    def source(k: Expr, extent: Any) -> Any:
        match mode:
            case "edge":
                return te.minimum(te.maximum(k, 0), extent - 1)
            case "wrap":
                return k % extent
        period = 2 * (extent - 1)
        turn = k % (te.maximum(period, 1) if isinstance(period, Expr) else period)
        return te.minimum(turn, period - turn)

    def element(*i: Expr) -> Expr:
        return x[
            tuple(
                source(k - b, extent) if has_border((a, b)) else k
                for k, b, a, extent in zip(i, before, after, x.shape, strict=True)
            )
        ]

    return [te.compute(_grown(x, pads), element, name="pad")]


def _evaluate_pad(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    return [pad_array(x, attrs["pads"], attrs["mode"], attrs.get("value"))]


def _compute_pad_with(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The second input, a scalar, around the first. attrs: pads (beginnings, then ends)."""
    x, value = inputs
    fits = len(attrs["pads"]) == 2 * x.ndim and value.ndim == 0 and value.dtype == x.dtype
    require(fits, f"pad_with: {value.dtype}{list(value.shape)} around {x.dtype}{list(x.shape)}")
    if not has_border(attrs["pads"]):
        return [te.compute(x.shape, lambda *i: x[i], name="pad_with")]
    return [padded(x, attrs["pads"], value[()], name="pad_with")]


def pad_array(x: Array, pads: Sequence[int], mode: str = "constant", value: Any = 0) -> Array:
    if not any(pads):
        return x
    pairs = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    cut = tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pairs, x.shape, strict=True))
    grow = [(max(b, 0), max(a, 0)) for b, a in pairs]
    if mode == "constant":
        return np.pad(x[cut], grow, constant_values=value)
    result: Array = np.pad(x, grow, mode=mode)  # type: ignore[call-overload]
    kept = (slice(max(-b, 0), n + max(b, 0) + a) for (b, a), n in zip(pairs, x.shape, strict=True))
    return result[tuple(kept)]


def _compute_gather(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: axis. Negative indices count from the end; those beyond are clamped."""
    x, indices = inputs
    axis = normal_axis("gather", attrs["axis"], x.ndim)
    extent: Any = x.shape[axis]

    def element(*i: Expr) -> Expr:
        picked = from_front(indices[i[axis : axis + indices.ndim]], extent)
        return x[(*i[:axis], inside(picked, extent), *i[axis + indices.ndim :])]

    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return [te.compute(shape, element, name="gather")]


def _evaluate_gather(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    x, indices = inputs
    axis = attrs["axis"]
    return [np.take(x, inside_array(indices, x.shape[axis]), axis)]


PER_AXIS = ("begin", "step", "shape")  # attributes of slice


def _turned_slice(attrs: Attrs, axes: tuple[int, ...]) -> tuple[dict[str, Any], Sequence[int]]:
    """A slice before a transpose of its argument (registry.Turned)."""
    back = inverse(axes)
    return {key: [attrs[key][n] for n in back] for key in PER_AXIS}, axes


def _turned_pad(attrs: Attrs, axes: tuple[int, ...]) -> tuple[dict[str, Any], Sequence[int]]:
    pads, rank = attrs["pads"], len(axes)
    ends = [pads[at + n] for at in (0, rank) for n in inverse(axes)]
    return {**attrs, "pads": ends}, axes


def inverse(axes: Sequence[int]) -> list[int]:
    """The axes of the transpose that undoes one."""
    return [list(axes).index(axis) for axis in range(len(axes))]


_MOVES: tuple[Trait, ...] = ("moves", "selects", "follows_half")
for _op in (
    Operator(
        "reshape", _compute_reshape, lambda x, a: [x[0].reshape(a["shape"])], "injective", _MOVES
    ),
    Operator(
        "transpose",
        _compute_transpose,
        lambda x, a: [x[0].transpose(a["axes"])],
        "injective",
        _MOVES,
    ),
    Operator(
        "broadcast_to",
        _compute_broadcast,
        lambda x, a: [np.broadcast_to(x[0], a["shape"])],
        "injective",
        _MOVES,
    ),
    Operator(
        "repeat",
        _compute_repeat,
        lambda x, a: [np.repeat(x[0], a["times"], a["axis"])],
        "injective",
        (*_MOVES, "uneven"),
    ),
    Operator(
        "depth_to_space",
        _compute_depth_to_space,
        _evaluate_depth_to_space,
        "injective",
        (*_MOVES, "uneven"),
    ),
    Operator(
        "tile",
        _compute_tile,
        lambda x, a: [np.tile(x[0], a["reps"])],
        "injective",
        (*_MOVES, "uneven"),
    ),
    Operator(
        "concatenate",
        _compute_concat,
        lambda x, a: [np.concatenate(list(x), a["axis"])],
        "injective",
        ("selects", "follows_half", "uneven"),
    ),
    Operator("slice", _compute_slice, _evaluate_slice, "injective", _MOVES, turned=_turned_slice),
    Operator("grow", _compute_grow, _evaluate_grow, "injective"),
    Operator("extent", _compute_extent, lambda x, a: [x[0]], "opaque"),
    Operator("first", _compute_first, lambda x, a: [x[0][: int(x[1])]], "opaque"),
    Operator(
        "pad",
        _compute_pad,
        _evaluate_pad,
        "injective",
        ("selects", "follows_half", "uneven"),
        numbers=("value",),
        turned=_turned_pad,
    ),
    Operator(
        "pad_with",
        _compute_pad_with,
        lambda x, a: [pad_array(x[0], a["pads"], "constant", x[1])],
        "injective",
    ),
    Operator(
        "gather",
        _compute_gather,
        _evaluate_gather,
        "injective",
        ("follows_half", "along", "uneven"),
    ),
):
    register(_op)
