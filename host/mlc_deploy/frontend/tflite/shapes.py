"""Converters of operators that move elements: shapes, parts, images resized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.nodes import Value
from ...ir import is_const
from ...ops.shape import normal_axis
from ..layers.indices import checked, gather, gather_nd, scatter_nd
from ..layers.resize import axes_in_order, interpolated, nearest, source_coordinates
from ..layers.shapes import (
    expand,
    filled_up,
    iota,
    joined,
    part,
    reshape,
    select,
    split,
    stacked,
    taken,
    with_axis,
)
from ..node import limited, shape_of
from .layers import channels_first, channels_last
from .node import Converter, TfliteNode
from .quantized import concatenated, dequantized, quantized, resized_bilinear, same_scales


def _moved(n: TfliteNode) -> Value:
    """The first input. Raises ValueError if the output has another scale."""
    if n.is_quantized() and n.affine(0) != n.affine_out():
        raise ValueError("input and output are quantized differently")
    return n.input(0)


def _reshape(n: TfliteNode) -> Any:
    x = _moved(n)
    if n.optional(1) is not None:
        shape = n.ints(1, "shape")
    else:
        shape = n.option_ints("NewShape")
    if len(shape) == 1 and shape[0] == 0 and is_const(math.prod(shape_of(x)), 1):
        shape = []  # how old files write a scalar
    return reshape(n, x, filled_up(shape, shape_of(x)))


def _squeeze(n: TfliteNode) -> Any:
    x, shape = _moved(n), n.shape()
    axes = {normal_axis(n.op, a, len(shape)) for a in n.option_ints("SqueezeDims")}
    if any(not is_const(shape[axis], 1) for axis in axes):
        raise ValueError(f"axes {sorted(axes)} of {list(shape)} are not all 1")
    gone = axes or {axis for axis, extent in enumerate(shape) if is_const(extent, 1)}
    return reshape(n, x, [extent for axis, extent in enumerate(shape) if axis not in gone])


def _transpose(n: TfliteNode) -> Any:
    axes, rank = n.ints(1, "perm"), len(n.shape())
    if sorted(a % rank if rank else a for a in axes) != list(range(rank)):
        raise ValueError(f"the permutation {axes} of {rank} dimensions")
    return n.emit("transpose", _moved(n), axes=[a % rank for a in axes])


def _concatenation(n: TfliteNode) -> Any:
    axis = normal_axis(n.op, n.option("Axis"), len(n.shape()))
    if n.is_quantized():
        return concatenated(n, axis)
    if n.option("FusedActivationFunction", 0):
        raise ValueError("a fused activation is not supported")
    return joined(n, n.every(), axis)


def _pack(n: TfliteNode) -> Any:
    if n.is_quantized():
        same_scales(n)
    return stacked(n, n.every(), n.option("Axis", 0))


def _unpack(n: TfliteNode) -> Any:
    x, axis = _moved(n), normal_axis(n.op, n.option("Axis", 0), len(n.shape()))
    if not is_const(n.shape()[axis], len(n.made)):
        raise ValueError(f"{len(n.made)} outputs for {n.shape()[axis]} elements")
    return [select(n, x, k, axis) for k in range(len(n.made))]


def _split(n: TfliteNode) -> Any:
    """Inputs: the axis, then the data."""
    x = n.input(1)
    axis = normal_axis(n.op, n.whole(0, "axis"), len(shape_of(x)))
    extent, count = shape_of(x)[axis], len(n.made)
    if not count or extent % count:
        raise ValueError(f"{extent} elements in {count} equal parts")
    return split(n, x, [extent // count] * count, axis)


def _split_v(n: TfliteNode) -> Any:
    x, axis = _moved(n), normal_axis(n.op, n.whole(2, "axis"), len(n.shape()))
    sizes = filled_up_sum(n.ints(1, "sizes"), n.shape()[axis])
    if len(sizes) != len(n.made):
        raise ValueError(f"{len(sizes)} sizes for {len(n.made)} outputs")
    return split(n, x, sizes, axis)


def filled_up_sum(sizes: Sequence[int], total: int) -> list[int]:
    """Sizes that add up to the total; -1 is the remainder."""
    left = total - sum(size for size in sizes if size != -1)
    return [left if size == -1 else size for size in sizes]


def _slice(n: TfliteNode) -> Any:
    x, shape = _moved(n), n.shape()
    begins, sizes = n.ints(1, "begin"), n.ints(2, "size")
    along = {}
    for axis, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        count = shape[axis] - begin if size == -1 else size
        if not 0 <= begin <= begin + count <= shape[axis]:
            raise ValueError(f"begin {begin}, size {size} of {shape[axis]} elements")
        along[axis] = (begin, 1, count)
    return part(n, x, along)


def _strided_slice(n: TfliteNode) -> Any:
    """Python's slices, axis by axis; masks mark bounds that are left out, added axes, and single
    elements."""
    x, shape = _moved(n), n.shape()
    begins, ends, steps = (n.ints(k, w) for k, w in ((1, "begin"), (2, "end"), (3, "strides")))
    masks = {
        name: n.option(f"{name}Mask", 0)
        for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }

    def marked(name: str, entry: int) -> bool:
        return bool(masks[name] >> entry & 1)

    entries = len(begins)
    if not entries == len(ends) == len(steps):
        raise ValueError("begin, end and strides are not equally many")
    fresh = sum(marked("NewAxis", e) for e in range(entries))
    along: dict[int, tuple[int, int, int]] = {}
    result: list[int] = []  # the shape
    axis = 0
    for entry in range(entries):
        if marked("Ellipsis", entry):
            rest = len(shape) - (entries - 1 - fresh)
            result += shape[axis : axis + rest]
            axis += rest
        elif marked("NewAxis", entry):
            result.append(1)
        elif marked("ShrinkAxis", entry):
            at = begins[entry] + (shape[axis] if begins[entry] < 0 else 0)
            if not 0 <= at < shape[axis]:
                raise ValueError(f"element {begins[entry]} of {shape[axis]}")
            along[axis] = (at, 1, 1)
            axis += 1
        else:
            begin = None if marked("Begin", entry) else begins[entry]
            end = None if marked("End", entry) else ends[entry]
            if n.option("Offset", False) and end is not None:
                end += begins[entry]
            along[axis] = taken(n, shape[axis], begin, end, steps[entry])
            result.append(along[axis][2])
            axis += 1
    result += shape[axis:]
    return reshape(n, part(n, x, along), result)


def _pad(n: TfliteNode) -> Any:
    x, pairs = _moved(n), n.known(1, "paddings")
    if pairs.shape != (len(n.shape()), 2) or (pairs < 0).any():
        raise ValueError(f"paddings {pairs.tolist()} of {len(n.shape())} dimensions")
    pads = [int(v) for v in (*pairs[:, 0], *pairs[:, 1])]
    if n.op == "MIRROR_PAD":
        mode = {0: "reflect", 1: "symmetric"}[n.option("Mode")]
        if mode == "symmetric":
            return _mirrored(n, x, pairs)
        return n.emit("pad", x, pads=pads, mode=mode, value=0)
    value = 0
    if n.op == "PADV2":
        given = n.known(2, "constant_values")
        value = given.item()
    elif n.is_quantized():
        value = n.affine_out().zero
    return n.emit("pad", x, pads=pads, mode="constant", value=value)


def _mirrored(n: TfliteNode, x: Value, pairs: Any) -> Value:
    """The border elements are mirrored, too."""
    for axis, (before, after) in enumerate(pairs.tolist()):
        extent = shape_of(x)[axis]
        if max(before, after) > extent:
            raise ValueError(f"{max(before, after)} elements mirrored, of {extent}")
        if before or after:
            places = (
                [*range(before)][::-1] + [*range(extent)] + [extent - 1 - k for k in range(after)]
            )
            x = n.emit("gather", x, n.constant(places, "int64"), axis=axis)
    return x


def _tile(n: TfliteNode) -> Any:
    times = n.ints(1, "multiples")
    limited(math.prod(t * e for t, e in zip(times, n.shape(), strict=True)), "a tensor")
    return n.emit("tile", _moved(n), reps=times)


def _gather(n: TfliteNode) -> Any:
    x, shape = _moved(n), n.shape()
    axis = normal_axis(n.op, n.option("Axis", 0), len(shape))
    batch = n.option("BatchDims", 0)
    index = n.cast(n.input(1), "int64")
    if not batch:
        return gather(n, x, index, axis, from_end=False)
    if batch != 1 or axis != 1 or len(shape_of(index)) != 2:
        raise n.refuse(f"batch_dims {batch} with axis {axis} is not supported")
    rank, index = len(shape), checked(n, index, [shape[axis]], from_end=False)
    wide = reshape(n, index, (*shape_of(index), *(1,) * (rank - 2)))
    return n.emit("gather_elements", x, expand(n, wide, (*shape_of(index), *shape[2:])), axis=1)


def _gather_nd(n: TfliteNode) -> Any:
    return gather_nd(n, _moved(n), n.cast(n.input(1), "int64"), 0, from_end=False)


def _fill(n: TfliteNode) -> Any:
    shape = n.ints(0, "dims")
    limited(math.prod(shape), "a tensor")
    return expand(n, n.input(1), shape)


def _range(n: TfliteNode) -> Any:
    start, limit, delta = (n.known(k, w) for k, w in enumerate(("start", "limit", "delta")))
    if not delta.item():
        raise ValueError("a step of 0")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    limited(count, "an axis")
    values = start + np.arange(count) * delta
    return n.constant(values, n.dtype())


def _zeros_like(n: TfliteNode) -> Any:
    limited(math.prod(n.shape()), "a tensor")
    return n.constant(np.zeros(n.shape()), n.dtype())


def _reverse(n: TfliteNode) -> Any:
    shape = n.shape()
    axes = n.axes(1)
    return part(n, _moved(n), {a: taken(n, shape[a], None, None, -1) for a in axes})


def _one_hot(n: TfliteNode) -> Any:
    depth, places = n.whole(1, "depth"), n.cast(n.input(0), "int64")
    rank = len(shape_of(places)) + 1
    axis = normal_axis(n.op, n.option("Axis", -1), rank)
    limited(depth, "an axis")
    hot = n.emit("equal", with_axis(n, places, axis), iota(n, depth, rank, axis))
    return n.emit("where", hot, n.input(2), n.input(3))


def _scatter_nd(n: TfliteNode) -> Any:
    shape = n.ints(2, "shape")
    limited(math.prod(shape), "a tensor")
    zeros = n.constant(np.zeros(shape), n.dtype(1))
    return scatter_nd(n, zeros, n.cast(n.input(0), "int64"), n.input(1), "add", from_end=False)


# ------------------------------------------------------------------------------ blocks of images


def _image(n: TfliteNode) -> tuple[Value, tuple[int, int, int, int]]:
    x = _moved(n)
    if len(shape_of(x)) != 4:
        raise ValueError(f"data of shape {list(shape_of(x))} has not 4 dimensions")
    b, h, w, c = shape_of(x)
    return x, (b, h, w, c)


def _depth_to_space(n: TfliteNode) -> Any:
    (x, (b, h, w, c)), s = _image(n), n.option("BlockSize")
    if s < 1 or c % (s * s):
        raise ValueError(f"{c} channels in blocks of {s} x {s}")
    y = reshape(n, channels_first(n, x), (b, s, s, c // (s * s), h, w))
    y = n.emit("transpose", y, axes=(0, 3, 4, 1, 5, 2))
    return channels_last(n, reshape(n, y, (b, c // (s * s), h * s, w * s)))


def _space_to_depth(n: TfliteNode) -> Any:
    (x, (b, h, w, c)), s = _image(n), n.option("BlockSize")
    if s < 1 or h % s or w % s:
        raise ValueError(f"{h} x {w} elements in blocks of {s} x {s}")
    y = reshape(n, channels_first(n, x), (b, c, h // s, s, w // s, s))
    y = n.emit("transpose", y, axes=(0, 3, 5, 1, 2, 4))
    return channels_last(n, reshape(n, y, (b, s * s * c, h // s, w // s)))


def _space_to_batch(n: TfliteNode) -> Any:
    x, blocks, pairs = _moved(n), n.ints(1, "block_shape"), n.known(2, "paddings")
    rank, count = len(n.shape()), len(blocks)
    if pairs.shape != (count, 2) or not 0 < count < rank or min(blocks) < 1 or (pairs < 0).any():
        raise ValueError(f"blocks {blocks}, paddings {pairs.tolist()}")
    around = [[0, 0], *pairs.tolist(), *[[0, 0]] * (rank - 1 - count)]
    value = n.affine_out().zero if n.is_quantized() else 0
    pads = [a for a, _ in around] + [b for _, b in around]
    x = n.emit("pad", x, pads=pads, mode="constant", value=value)
    batch, *own = shape_of(x)
    inner, rest = own[:count], own[count:]
    if any(extent % b for extent, b in zip(inner, blocks, strict=True)):
        raise ValueError(f"{inner} elements in blocks of {blocks}")
    pieces = [p for e, b in zip(inner, blocks, strict=True) for p in (e // b, b)]
    y = reshape(n, x, (batch, *pieces, *rest))
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2)]
    y = n.emit("transpose", y, axes=[*order, *range(2 * count + 1, len(shape_of(y)))])
    outer = [e // b for e, b in zip(inner, blocks, strict=True)]
    return reshape(n, y, (batch * math.prod(blocks), *outer, *rest))


def _batch_to_space(n: TfliteNode) -> Any:
    x, blocks, crops = _moved(n), n.ints(1, "block_shape"), n.known(2, "crops")
    (batch, *own), count = n.shape(), len(blocks)
    whole = math.prod(blocks)
    if crops.shape != (count, 2) or not 0 < count < len(n.shape()) or min(blocks) < 1:
        raise ValueError(f"blocks {blocks}, crops {crops.tolist()}")
    if batch % whole or (crops < 0).any():
        raise ValueError(f"a batch of {batch} in blocks of {blocks}")
    inner, rest = own[:count], own[count:]
    y = reshape(n, x, (*blocks, batch // whole, *inner, *rest))
    pairs = [axis for k in range(count) for axis in (count + 1 + k, k)]
    y = n.emit("transpose", y, axes=[count, *pairs, *range(2 * count + 1, len(shape_of(y)))])
    extents = [e * b for e, b in zip(inner, blocks, strict=True)]
    y = reshape(n, y, (batch // whole, *extents, *rest))
    along = {}
    for axis, (extent, (before, after)) in enumerate(zip(extents, crops.tolist(), strict=True), 1):
        if before + after > extent:
            raise ValueError(f"crops {before} and {after} of {extent}")
        along[axis] = (before, 1, extent - before - after)
    return part(n, y, along)


# -------------------------------------------------------------------------------------- resizing


def _resize(n: TfliteNode) -> Any:
    """Inputs: data [batch, height, width, channels] and the size, height and width."""
    x, (_, *extents, _) = _image(n)
    sizes = n.ints(1, "size")
    if len(sizes) != 2 or min(sizes) < 1 or min(extents) < 1:
        raise ValueError(f"{extents} elements resized to {sizes}")
    limited(math.prod(sizes), "an image")
    corners = bool(n.option("AlignCorners", False))
    half = bool(n.option("HalfPixelCenters", False))
    x = channels_first(n, x)
    if n.op == "RESIZE_NEAREST_NEIGHBOR":
        for axis, (extent, size) in enumerate(zip(extents, sizes, strict=True), 2):
            x = nearest(n, x, axis, _nearest(extent, size, corners, half), "floor")
    elif x.type.dtype == "int8":
        x = resized_bilinear(n, x, sizes, half, corners)
    elif x.type.dtype == "float32":
        for k in axes_in_order(extents, sizes):
            x = interpolated(n, x, k + 2, _places(extents[k], sizes[k], corners, half))
    else:
        raise n.refuse(f"it is not supported of {x.type.dtype}")
    return channels_last(n, x)


def _places(extent: int, size: int, corners: bool, half: bool) -> Any:
    if corners and size == 1:
        return np.zeros(1)
    kind = "align_corners" if corners else "half_pixel" if half else "asymmetric"
    return source_coordinates(kind, extent, size, size / extent)


def _nearest(extent: int, size: int, corners: bool, half: bool) -> Any:
    """The elements that a resized axis takes, computed in float32 as LiteRT does."""
    scale = np.float32(extent) / np.float32(size)
    if corners and size > 1:
        scale = np.float32(extent - 1) / np.float32(size - 1)
    offset = np.float32(0.5 if half else 0)
    at = (np.arange(size, dtype=np.float32) + offset) * scale
    index = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.clip(index, 0, extent - 1)


SHAPES: dict[str, Converter] = {
    "BATCH_TO_SPACE_ND": _batch_to_space, "CONCATENATION": _concatenation,
    "DEPTH_TO_SPACE": _depth_to_space, "DEQUANTIZE": dequantized, "FILL": _fill, "GATHER": _gather,
    "GATHER_ND": _gather_nd, "MIRROR_PAD": _pad, "ONE_HOT": _one_hot, "PACK": _pack, "PAD": _pad,
    "PADV2": _pad, "QUANTIZE": quantized, "RANGE": _range, "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize, "RESIZE_NEAREST_NEIGHBOR": _resize, "REVERSE_V2": _reverse,
    "SCATTER_ND": _scatter_nd, "SLICE": _slice, "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _space_to_depth, "SPLIT": _split, "SPLIT_V": _split_v, "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice, "TILE": _tile, "TRANSPOSE": _transpose, "UNPACK": _unpack,
    "ZEROS_LIKE": _zeros_like,
    "BROADCAST_TO": lambda n: expand(n, _moved(n), n.ints(1, "shape")),
    "DENSIFY": _moved,
    "EXPAND_DIMS": lambda n: with_axis(n, _moved(n), n.whole(1, "axis")),
    "RANK": lambda n: n.constant(len(n.shape()), "int32"),
    "SHAPE": lambda n: n.constant(n.shape(), n.made[0].dtype),
}  # fmt: skip
