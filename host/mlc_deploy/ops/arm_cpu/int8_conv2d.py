"""conv2d of int8 in blocks of eight channels.

A tile of sums is a few neighbouring pixels against one block of output channels. Where there are
pads, strides or too few pixels, tiles read a copy of the data: with the padding value around it,
and the pixels of a row sorted by their phase in the stride, so that neighbouring results read
neighbouring pixels. Each task copies the rows that it needs.

The first layer of a network, with few channels, takes planes; its copy has the taps of a row in
place of channels, so that its kernel is one pixel wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, const
from ...schedule import Schedule
from ...te import Tensor
from ..layout import layout, plain_sizes
from ..quantize import product
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import inline_epilogue, vectorize_rows
from .conv2d import PLANES, is_pointwise, output_size
from .int8 import (
    BLOCK,
    NARROW,
    Level,
    Place,
    Tile,
    best_tile,
    compute_sums,
    level_of,
    schedule_sums,
    tuned,
)
from .int8_bias import begin_with_bias

BLOCKS = f"NCHW{BLOCK}c"
COPY = "int8_data"
TASK_ROWS = 8  # at most, that a task copies its data for
FEW_TASKS = 4  # per image, where there are rows enough

# (image, block of channels, row of the result, pixel, tap row, tap column, channel of the block)
Data = Callable[[Expr, Expr, Expr, Expr, Expr, Expr, Expr], Any]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution in plain sizes, and what it is computed with. Where it takes planes, the
    kernel's taps in a row count as input channels."""

    level: Level
    batch: int
    channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    planes: bool
    attrs: Attrs

    @property
    def out_size(self) -> tuple[int, int]:
        return output_size((self.height, self.width), self.kernel, self.attrs)

    @property
    def in_channels(self) -> int:
        """Input channels of a group, filled up to what an intrinsic takes."""
        per_group: int = self.channels // self.attrs["groups"]
        per_group *= _row_width(self.kernel[1]) if self.planes else 1
        return -(-per_group // self.level.depth) * self.level.depth

    @property
    def taps(self) -> int:
        return 1 if self.planes else self.kernel[1]

    @property
    def pointwise(self) -> bool:
        return not self.planes and is_pointwise(self.kernel, self.attrs)

    @property
    def rows(self) -> tuple[int, int]:
        """(rows, pixels in each) of the result: one of all pixels where rows do not matter."""
        height, width = self.out_size
        return (1, height * width) if self.pointwise else (height, width)

    @property
    def copied(self) -> bool:
        if not self.pointwise or self.level.depth != BLOCK:
            return True
        return self.width % self.level.rows != 0

    def tile(self, target: Target) -> Tile:
        blocks = self.out_channels // self.attrs["groups"] // BLOCK
        return best_tile(self.level, self.rows[1], blocks, self.taps, target)


def blocked_attrs(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a convolution of int8 (plain data and weights) in blocks; None where the
    target has no instructions for it, or channels do not divide into blocks."""
    x, w = types[:2]
    static = all(isinstance(n, int) for t in (x, w) for n in t.shape)
    if not static or {x.dtype, w.dtype} != {"int8"} or "data_layout" in attrs:
        return None
    channels, (out_channels, per_group, kh, kw) = int(x.shape[1]), map(int, w.shape)  # type: ignore[arg-type]
    groups = attrs["groups"]
    planes = groups == 1 and channels <= PLANES and attrs["dilations"][1] == 1
    if out_channels // groups % BLOCK or (per_group % BLOCK and not planes):
        return None
    found = {
        "channels": out_channels,
        "source_layout": "OIHW",
        "data_layout": "NCHW" if planes else BLOCKS,
        "out_layout": BLOCKS,
    }
    if planes:
        found["row_taps"] = (kw, channels, _row_width(kw))
    sizes = (int(x.shape[0]), *map(int, x.shape[1:]))  # type: ignore[arg-type]
    conv = _conv(sizes, out_channels, (kh, kw), {**attrs, **found}, target)
    return None if conv is None else {**found, "kernel_layout": f"OHIW{conv.level.weights}"}


def _row_width(taps: int) -> int:
    """The taps of a row with what fills them up to a load."""
    return 4 if taps <= 4 else -(-taps // BLOCK) * BLOCK


def _conv(
    sizes: Sequence[int], out_channels: int, kernel: tuple[int, int], attrs: Attrs, target: Target
) -> Conv | None:
    planes = "row_taps" in attrs
    batch, channels, height, width = sizes
    out_size = output_size((height, width), kernel, attrs)
    pixels = out_size[1]
    if not planes and is_pointwise(kernel, attrs):
        pixels *= out_size[0]
    per_group = 2 * BLOCK if planes else channels // attrs["groups"]  # planes are filled up
    level = level_of(target, pixels, per_group, bool(attrs.get(NARROW)))
    if level is None:
        return None
    return Conv(level, batch, channels, height, width, out_channels, kernel, planes, attrs)


def _conv_of(inputs: Sequence[Any], attrs: Attrs, target: Target) -> Conv | None:
    """From data and weights as blocked_attrs lays them out."""
    x, w = inputs[:2]
    sizes = [int(n) for n in plain_sizes(layout(attrs["data_layout"]), x.shape).values()]
    kernel = (int(w.shape[1]), int(attrs["row_taps"][0] if "row_taps" in attrs else w.shape[3]))
    return _conv(sizes, attrs["channels"], kernel, attrs, target)


def takes_blocks(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the attributes are those that blocked_attrs gives."""
    x, w = inputs[:2]
    if {x.dtype, w.dtype} != {"int8"} or attrs.get("out_layout") != BLOCKS:
        return False
    conv = _conv_of(inputs, attrs, target)
    return conv is not None and attrs["kernel_layout"] == f"OHIW{conv.level.weights}"


# ----------------------------------------------------------------------------------------- stages


def compute_conv2d(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """[N, O/8, H, W, 8] of int32."""
    x, w = inputs
    conv = _conv_of(inputs, attrs, target)
    assert conv is not None
    level, out_blocks = conv.level, conv.out_channels // BLOCK
    data = _data(x, conv)
    depth, per_group = conv.in_channels // level.depth, out_blocks // attrs["groups"]
    c = te.reduce_axis((0, depth), "c")
    ky, kx = te.reduce_axis((0, conv.kernel[0]), "ky"), te.reduce_axis((0, conv.taps), "kx")
    tiles = BLOCK // level.channels

    def one(lead: Sequence[Expr], at: Place) -> Expr:
        b, f, y = lead
        of_group = f // per_group * depth + c if attrs["groups"] > 1 else c.var
        weight = w[(f * tiles + at.tile, ky, c, kx, *at.weight)]
        value = data(b, of_group, y, at.pixel, ky.var, kx.var, at.channel)
        return product(value, weight, "int32")

    rows, pixels = conv.rows
    sums = compute_sums(level, (conv.batch, out_blocks, rows), pixels, one, (ky, c, kx))
    height, width = conv.out_size
    shape = (conv.batch, out_blocks, height, width, BLOCK)
    if conv.pointwise:
        return [
            te.compute(shape, lambda b, f, y, q, k: sums(b, f, 0, y * width + q, k), name="conv2d")
        ]
    return [te.compute(shape, lambda *i: sums(*i), name="conv2d")]


def _data(x: Tensor, conv: Conv) -> Data:
    width = conv.width
    if not conv.copied:
        return lambda b, c, y, q, ky, kx, k: x[b, c, q // width, q % width, k]
    pixels, depth = conv.rows[1], conv.level.depth
    whole = -(-pixels // conv.level.rows) * conv.level.rows
    blocks = conv.in_channels * conv.attrs["groups"] // depth

    def channel(c: Expr, k: Expr) -> tuple[Expr, Expr]:
        return (c * (depth // BLOCK) + k // BLOCK, k % BLOCK) if depth > BLOCK else (c, k)

    if conv.pointwise:

        def flat(b: Expr, c: Expr, p: Expr, k: Expr) -> Expr:
            c, k = channel(c, k)
            value = x[b, c, p // width, p % width, k]
            return te.if_then_else(p < pixels, value, 0) if whole > pixels else value

        copy = te.compute((conv.batch, blocks, whole, depth), flat, name=COPY)
        return lambda b, c, y, q, ky, kx, k: copy[b, c, q, k]
    (sh, sw), (dh, dw) = conv.attrs["strides"], conv.attrs["dilations"]
    top, left, *_ = conv.attrs["pads"]
    border = const(conv.attrs.get("pad_value", 0), "int8")
    high = (conv.out_size[0] - 1) * sh + (conv.kernel[0] - 1) * dh + 1
    if conv.planes:
        width = _row_width(conv.kernel[1])
        wide = max((whole - 1) * sw + width, conv.width + left)
        around = (0, 0, top, left, 0, 0, high - top - conv.height, wide - left - conv.width)
        rows = padded(x, around, border)

        def taps_of_row(b: Expr, c: Expr, y: Expr, q: Expr, k: Expr) -> Expr:
            tap = c * depth + k
            channel = tap // width
            value = rows[b, te.minimum(channel, conv.channels - 1), y, q * sw + tap % width]
            return te.if_then_else(channel < conv.channels, value, 0)

        copy = te.compute((conv.batch, blocks, high, whole, depth), taps_of_row, name=COPY)
        return lambda b, c, y, q, ky, kx, k: copy[b, c, y * sh + ky * dh, q, k]

    def by_phase(b: Expr, c: Expr, y: Expr, phase: Expr, q: Expr, k: Expr) -> Expr:
        row, column = y - top, q * sw + phase - left
        inside = te.all_of(row >= 0, row < conv.height, column >= 0, column < width)
        c, k = channel(c, k)
        return te.if_then_else(inside, x[b, c, row, column, k], border)

    shape = (conv.batch, blocks, high, sw, whole + (conv.taps - 1) * dw // sw, depth)
    copy = te.compute(shape, by_phase, name=COPY)

    def data(b: Expr, c: Expr, y: Expr, q: Expr, ky: Expr, kx: Expr, k: Expr) -> Any:
        tap = kx * dw
        return copy[b, c, y * sh + ky * dh, tap % sw, q + tap // sw, k]

    return data


# --------------------------------------------------------------------------------------- schedule


def schedule_conv2d(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    conv = _conv_of(func.buffers, attrs, target)
    assert conv is not None
    tile = conv.tile(target)
    result = inline_epilogue(sch, "conv2d")
    begun = begin_with_bias(sch.func, result, conv.level, {1: "block", 4: "lane"})
    sch = Schedule(begun)
    b, f, y, q, lane = sch.get_loops(result)
    f, vectors = sch.split(f, [None, tile.blocks])
    if conv.pointwise:
        q = sch.fuse(y, q)
        q, pixel = sch.split(q, [None, tile.pixels])
        inner = [vectors, pixel, lane]
        order = [q, b, f] if conv.copied else [b, f, q]
        tasks = order[:1] if conv.copied else order[:2]
    else:
        height = conv.rows[0]
        y, row = sch.split(y, [None, max(1, min(TASK_ROWS, height // FEW_TASKS))])
        q, pixel = sch.split(q, [None, tile.pixels])
        inner = [vectors, pixel, lane]
        order = [b, y, f, row, q]
        tasks = order[:2]
    sch.reorder(*order, *inner)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    outer = task if order[-1] in tasks else order[-1]
    schedule_sums(sch, conv.level, outer, inner, conv.taps, target)
    if conv.copied:
        _schedule_copy(sch, conv, task)
    sch.parallel(task)
    return tuned(sch.func, conv.level, target)


def _schedule_copy(sch: Schedule, conv: Conv, task: str) -> None:
    sch.compute_at(COPY, task)
    loops = list(sch.get_loops(COPY))
    parts, lane = sch.split(
        loops[-1], [None, BLOCK if not conv.planes else min(BLOCK, _row_width(conv.kernel[1]))]
    )
    sch.unroll(parts)
    sch.vectorize(lane)
    if conv.planes and "pad" in sch.get_blocks():
        sch.compute_at("pad", task)
        vectorize_rows(sch, "pad", 2 * BLOCK)
