"""Converters of ONNX's operators that move elements or make constants; and the table of all."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelWarning
from ..graph.nodes import Constant
from ..ir import Dim, Expr, expr, is_const
from ..ops.elementwise import broadcast_shape
from ..ops.shape import normal_axis
from .extents import larger, product, simplified
from .layers.indices import gather
from .layers.products import scaled
from .layers.shapes import (
    expand,
    filled_up,
    iota,
    joined,
    nonzero,
    part,
    reshape,
    split,
    taken,
    without,
)
from .node import limited
from .onnx_control import CONTROL
from .onnx_decoders import DECODERS
from .onnx_elementwise import ELEMENTWISE
from .onnx_index import INDEXING
from .onnx_layers import LAYERS
from .onnx_ml import LEARNT
from .onnx_node import Converter, OnnxNode
from .onnx_quantize import QUANTIZED
from .onnx_recurrent import RECURRENT
from .onnx_runtime import RUNTIME
from .onnx_sampling import SAMPLING
from .onnx_sequence import SEQUENCES
from .onnx_signal import SIGNAL
from .onnx_training import TRAINING
from .onnx_trees import TREES

# --------------------------------------------------------------------------------------- shapes


def _reshape(n: OnnxNode) -> Any:
    """0 copies the input's dimension (unless allowzero); -1 is the extent that is left."""
    old = n.shape()
    shape = n.dims(1, "shape")
    if not n.attr("allowzero", 0):
        if any(is_const(d, 0) and k >= len(old) for k, d in enumerate(shape)):
            raise ValueError(f"shape {shape} copies a dimension that {list(old)} has not")
        shape = [old[k] if is_const(d, 0) else d for k, d in enumerate(shape)]
    whole: Sequence[Dim] = shape
    if sum(is_const(d, -1) for d in shape) == 1:
        whole = filled_up(shape, old)
    return n.emit("reshape", n.input(0), shape=[n.extents.own(n, d) for d in whole])


def _transpose(n: OnnxNode) -> Any:
    rank = len(n.shape())
    return n.emit("transpose", n.input(0), axes=n.attr("perm", list(reversed(range(rank)))))


def _squeeze(n: OnnxNode) -> Any:
    old, axes = n.shape(), n.ints("axes", 1)
    if axes is None:
        axes = [axis for axis, extent in enumerate(old) if is_const(extent, 1)]
        for extent in (e for e in old if isinstance(e, Expr)):
            what = f"{n.place}: it keeps dimension '{extent}', also in runs where that is 1"
            warnings.warn(what, ModelWarning, stacklevel=2)
    gone, x = {normal_axis(n.op, axis, len(old)) for axis in axes}, n.input(0)
    for axis in gone:
        if isinstance(old[axis], Expr) and n.extents.largest(old[axis]) == 1:
            x = n.emit(
                "grow", x, axis=axis, extent=1
            )  # the last of a tensor's rows, if it has some
        elif not is_const(old[axis], 1):
            raise ValueError(f"axes {sorted(gone)} of {list(old)} are not all 1")
    return without(n, x, sorted(gone))


def _unsqueeze(n: OnnxNode) -> Any:
    axes = n.ints("axes", 1) or []
    shape: list[Dim] = list(n.shape())
    rank = len(shape) + len(axes)
    for axis in sorted({normal_axis(n.op, axis, rank) for axis in axes}):
        shape.insert(axis, 1)
    if len(shape) != rank:
        raise ValueError(f"axes {axes} name a dimension twice")
    return reshape(n, n.input(0), shape)


def _split(n: OnnxNode) -> Any:
    axis, sizes = n.axis(0), n.ints("split", 1)
    if sizes is None:
        extent, parts = n.shape()[axis], n.attr("num_outputs", len(n.outputs))
        share = -(-extent // parts)
        sizes = [share] * (parts - 1) + [extent - share * (parts - 1)]
    return split(n, n.input(0), sizes, axis)


def _slice(n: OnnxNode) -> Any:
    shape = n.shape()
    starts, ends = n.ints("starts", 1) or [], n.ints("ends", 2) or []
    axes, steps = n.ints("axes", 3), n.ints("steps", 4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if 0 in steps:
        raise ValueError("a step is 0")
    along: dict[int, tuple[int, int, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = normal_axis(n.op, axis, len(shape))
        along[axis] = taken(n, shape[axis], start, end, step)
    return part(n, n.input(0), along)


def _expand(n: OnnxNode) -> Any:
    wanted = tuple(n.extents.own(n, d) for d in n.dims(1, "shape"))
    return expand(n, n.input(0), broadcast_shape(n.op, [n.shape(), wanted]))


def _pad(n: OnnxNode) -> Any:
    x, rank = n.input(0), len(n.shape())
    pads, axes = n.ints("pads", 1) or [], n.ints("axes", 3)
    value = n.optional(2)
    if axes is not None:
        half = len(pads) // 2
        every = [0] * (2 * rank)
        for axis, before, after in zip(axes, pads[:half], pads[half:], strict=True):
            axis = normal_axis(n.op, axis, rank)
            every[axis], every[rank + axis] = before, after
        pads = every
    mode = n.attr("mode", "constant")
    if mode == "constant" and value is not None and not isinstance(value, Constant):
        return n.emit("pad_with", x, reshape(n, value, ()), pads=pads)
    fill = n.attr("value", 0.0) if value is None else n.known(2, "value").item()
    return n.emit("pad", x, pads=pads, mode=mode, value=fill)


def _depth_to_space(n: OnnxNode) -> Any:
    batch, channels, height, width = n.shape()
    b = n.attr("blocksize")
    depth = channels // (b * b)
    first = n.attr("mode", "DCR") == "DCR"
    if first and not any(isinstance(extent, Expr) for extent in (height, width)):
        return n.emit("depth_to_space", n.input(0), block=(b, b))
    blocks = (batch, b, b, depth, height, width) if first else (batch, depth, b, b, height, width)
    axes = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
    x = n.emit("transpose", reshape(n, n.input(0), blocks), axes=axes)
    return reshape(n, x, (batch, depth, height * b, width * b))


def _space_to_depth(n: OnnxNode) -> Any:
    batch, channels, height, width = n.shape()
    b = n.attr("blocksize")
    blocks = (batch, channels, height // b, b, width // b, b)
    axes = (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = n.emit("transpose", reshape(n, n.input(0), blocks), axes=axes)
    return reshape(n, x, (batch, channels * b * b, height // b, width // b))


# ------------------------------------------------------------------------------------ constants


def _shape(n: OnnxNode) -> Any:
    shape = n.shape()
    begin, end = n.attr("start", 0), n.attr("end", None)
    return n.extents.vector(n, shape[begin:end])


def _constant(n: OnnxNode) -> Any:
    for key, dtype in (("value_float", "float32"), ("value_int", "int64")):
        for name in (key, f"{key}s"):
            if (value := n.attr(name, None)) is not None:
                return n.constant(value, dtype)
    return n.tensor("value")


def _constant_of_shape(n: OnnxNode) -> Any:
    shape = [n.extents.own(n, d) for d in n.dims(0, "shape")]
    value = n.tensor("value", n.constant(0, "float32"))
    wide = n.emit("broadcast_to", reshape(n, value, ()), shape=shape)
    return n.marked(wide, n.kind_of(value))


def _non_zero(n: OnnxNode) -> Any:
    x = n.input(0)
    if isinstance(x, Constant):
        return n.constant(np.array(np.nonzero(np.atleast_1d(x.value))), "int64")
    found = nonzero(n, x if n.shape() else reshape(n, x, (1,)))
    return n.emit("transpose", found, axes=(1, 0))


def _range(n: OnnxNode) -> Any:
    if any(map(n.extents.is_followed, n.every())):
        (first,), (last,), (step,) = (n.dims(k, "range") for k in range(3))
        if not isinstance(step, int) or is_const(step, 0):
            raise n.refuse("the step of a range of unknown length is not known")
        low, high, stride = (first, last, step) if step > 0 else (last, first, -step)
        count = simplified((expr(high) - low + (stride - 1)) // stride)
        places = scaled(n, iota(n, n.extents.own(n, larger(count, 0)), 1, 0, n.dtype()), step)
        begin = n.extents.value(n, first)
        return places if is_const(first, 0) else n.emit("add", places, n.cast(begin, n.dtype()))
    if not all(isinstance(n.input(k), Constant) for k in (0, 1)):
        return _computed_range(n)
    start, limit, delta = n.known(0, "range"), n.known(1, "range"), n.known(2, "range")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    numbers = np.arange(limited(count, "a range"))
    return n.constant(start + numbers * delta, str(start.dtype))


def _computed_range(n: OnnxNode) -> Any:
    """Numbers from a start or up to a limit that is known only at run time."""
    start, limit = (reshape(n, n.input(k), ()) for k in (0, 1))
    step, dtype = n.known(2, "the step of a range").item(), n.dtype()
    if step == 0:
        raise ValueError("a range with step 0")
    most = n.most(1 if isinstance(start, Constant) else 0, "range")
    apart = n.emit("subtract", limit, start)
    if np.dtype(dtype).kind == "f":
        count = n.cast(n.emit("ceil", n.emit("divide", apart, n.constant(step, dtype))), "int64")
    else:
        way = apart if step > 0 else n.emit("negative", apart)
        wide = n.emit("add", n.cast(way, "int64"), n.constant(abs(step) - 1, "int64"))
        count = n.emit("divide", wide, n.constant(abs(step), "int64"))
    count = n.emit("maximum", count, n.constant(0, "int64"))
    extent = n.extents.add(n, n.outputs[0], count, most)
    return n.emit("add", scaled(n, iota(n, extent, 1, 0, dtype), step), start)


CONVERTERS: dict[str, Converter] = {
    **CONTROL, **DECODERS, **ELEMENTWISE, **INDEXING, **LAYERS, **LEARNT, **QUANTIZED, **RECURRENT,
    **RUNTIME, **SAMPLING, **SEQUENCES, **SIGNAL, **TRAINING, **TREES, "Constant": _constant,
    "ConstantOfShape": _constant_of_shape, "DepthToSpace": _depth_to_space, "Expand": _expand,
    "NonZero": _non_zero, "Pad": _pad, "Range": _range, "Reshape": _reshape, "Shape": _shape,
    "Slice": _slice, "SpaceToDepth": _space_to_depth, "Split": _split, "Squeeze": _squeeze,
    "Transpose": _transpose, "Unsqueeze": _unsqueeze,
    "Concat": lambda n: joined(n, n.every(), n.attr("axis")),
    "Flatten": lambda n: reshape(n, n.input(0), n.two_dimensional(n.attr("axis", 1))),
    "Gather": lambda n: gather(n, n.input(0), n.input(1), n.axis(0)),
    "Identity": lambda n: n.inputs[0],
    "Size": lambda n: n.extents.value(n, product(n.shape())),
    "Tile": lambda n: n.emit("tile", n.input(0), reps=n.ints("repeats", 1)),
}  # fmt: skip
