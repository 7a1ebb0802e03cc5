"""conv2d of int8 in blocks of eight channels.

A tile of sums is a few neighbouring pixels against one block of output channels. Where there are
pads, strides or too few pixels, tiles read a copy of the data: with the padding value around it,
and the pixels of a row sorted by their phase in the stride, so that neighbouring results read
neighbouring pixels. Each task copies the rows that it needs. Where tiles do not divide rows well,
there is a copy for each tap of a row instead: of all pixels, one row after the other without a gap,
so that a tile runs on from row to row.

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
from ..tile import inline_epilogue, unroll, vectorize_rows
from .conv2d import PLANES, is_pointwise, output_size
from .int8 import (
    BLOCK,
    NARROW,
    Level,
    Place,
    Tile,
    best_tile,
    chosen,
    compute_sums,
    level_of,
    row_cost,
    schedule_sums,
    tune,
)
from .int8_bias import begin_with_bias

BLOCKS = f"NCHW{BLOCK}c"
COPY = "int8_data"
TASK_ROWS = 8  # at most, that a task copies its data for
FEW_TASKS = 4  # per image, where there are rows enough
CACHED = 3 << 17  # bytes, at most, of copies that each block of output channels reads
FEW_BLOCKS = 3  # of input channels, to which none is added for sums of two products
COPIED = 4  # instructions, about, that copy the channels of a pixel

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
        per_group *= row_width(self.kernel[1]) if self.planes else 1
        return -(-per_group // self.level.depth) * self.level.depth

    @property
    def taps(self) -> int:
        return 1 if self.planes else self.kernel[1]

    @property
    def pointwise(self) -> bool:
        return not self.planes and is_pointwise(self.kernel, self.attrs)

    def rows(self, target: Target) -> tuple[int, int]:
        """(rows, pixels in each) of the result: one of all pixels where rows do not matter."""
        height, width = self.out_size
        flat = self.pointwise or self.flat(target)
        return (1, height * width) if flat else (height, width)

    @property
    def out_blocks(self) -> int:
        """Blocks of output channels of a group."""
        groups: int = self.attrs["groups"]
        return self.out_channels // groups // BLOCK

    @property
    def copied_rows(self) -> int:
        """Rows of the result's width that a flat copy has of each phase of rows."""
        below: int = (self.kernel[0] - 1) * self.attrs["dilations"][0] // self.attrs["strides"][0]
        return self.out_size[0] + below + 1

    def flat(self, target: Target) -> bool:
        """Whether a copy for each tap, with tiles that run on from row to row, is worth while."""
        if self.pointwise or self.planes or self.level.rows == 1:
            return False
        height, width = self.out_size
        by_row = height * self._cost(width, self.taps, target)
        copies: int = self.copied_rows * width * self.attrs["strides"][0] * self.taps
        if copies * self.in_channels * self.attrs["groups"] > CACHED:
            return False
        copying = COPIED * (copies - height * width) / self.kernel[0] / self.out_blocks
        return self._cost(height * width, 1, target) + copying < by_row

    def _cost(self, pixels: int, shared: int, target: Target) -> float:
        tile = best_tile(self.level, pixels, self.out_blocks, shared, target)
        return row_cost(self.level, tile, pixels, self.taps)

    @property
    def copied(self) -> bool:
        if not self.pointwise or self.level.depth != BLOCK or self.level.data != "int8":
            return True
        return self.width % self.level.rows != 0

    def tile(self, target: Target) -> Tile:
        taps = 1 if self.flat(target) else self.taps
        return best_tile(self.level, self.rows(target)[1], self.out_blocks, taps, target)


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
        found["row_taps"] = (kw, channels, row_width(kw))
    sizes = (int(x.shape[0]), *map(int, x.shape[1:]))  # type: ignore[arg-type]
    conv = _conv(sizes, out_channels, (kh, kw), {**attrs, **found}, target)
    if conv is None:
        return None
    if conv.in_channels > per_group and not planes:
        found["in_channels"] = channels
    return {**found, "kernel_layout": f"OHIW{conv.level.weights}"}


def row_width(taps: int) -> int:
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
    if (
        attrs["groups"] == 1 and per_group > FEW_BLOCKS * BLOCK
    ):  # and so is an odd block, if it pays
        per_group += -per_group % (2 * BLOCK)
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
    data = _data(x, conv, target)
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

    rows, pixels = conv.rows(target)
    sums = compute_sums(level, (conv.batch, out_blocks, rows), pixels, one, (ky, c, kx))
    height, width = conv.out_size
    shape = (conv.batch, out_blocks, height, width, BLOCK)
    if rows == 1:
        return [
            te.compute(shape, lambda b, f, y, q, k: sums(b, f, 0, y * width + q, k), name="conv2d")
        ]
    return [te.compute(shape, lambda *i: sums(*i), name="conv2d")]


def _data(x: Tensor, conv: Conv, target: Target) -> Data:
    width = conv.width
    if not conv.copied:
        return lambda b, c, y, q, ky, kx, k: x[b, c, q // width, q % width, k]
    pixels, depth = conv.rows(target)[1], conv.level.depth
    whole = -(-pixels // conv.level.rows) * conv.level.rows
    blocks = conv.in_channels * conv.attrs["groups"] // depth
    known = conv.channels // BLOCK
    odd = blocks * (depth // BLOCK) > known

    def channel(c: Expr, k: Expr) -> tuple[Expr, Expr]:
        if depth == BLOCK:
            return c, k
        at = c * (depth // BLOCK) + k // BLOCK
        return te.minimum(at, known - 1) if odd else at, k % BLOCK  # times weights of zero

    if conv.pointwise:

        def flat(b: Expr, c: Expr, p: Expr, k: Expr) -> Expr:
            c, k = channel(c, k)
            value = x[b, c, p // width, p % width, k]
            value = te.if_then_else(p < pixels, value, 0) if whole > pixels else value
            return value.astype(conv.level.data)

        copy = te.compute((conv.batch, blocks, whole, depth), flat, name=COPY)
        return lambda b, c, y, q, ky, kx, k: copy[b, c, q, k]
    (sh, sw), (dh, dw) = conv.attrs["strides"], conv.attrs["dilations"]
    top, left, *_ = conv.attrs["pads"]
    border = const(conv.attrs.get("pad_value", 0), "int8")
    high = (conv.out_size[0] - 1) * sh + (conv.kernel[0] - 1) * dh + 1
    if conv.planes:
        width = row_width(conv.kernel[1])
        wide = max((whole - 1) * sw + width, conv.width + left)
        around = (0, 0, top, left, 0, 0, high - top - conv.height, wide - left - conv.width)
        rows = padded(x, around, border)

        def taps_of_row(b: Expr, c: Expr, y: Expr, q: Expr, k: Expr) -> Expr:
            tap = c * depth + k
            channel = tap // width
            value = rows[b, te.minimum(channel, conv.channels - 1), y, q * sw + tap % width]
            value = te.if_then_else(channel < conv.channels, value, 0)
            return value.astype(conv.level.data)

        copy = te.compute((conv.batch, blocks, high, whole, depth), taps_of_row, name=COPY)
        return lambda b, c, y, q, ky, kx, k: copy[b, c, y * sh + ky * dh, q, k]

    if conv.flat(target):
        across = conv.out_size[1]

        def tap_by_tap(b: Expr, c: Expr, phase: Expr, tap: Expr, p: Expr, k: Expr) -> Expr:
            row, column = p // across * sh + phase - top, p % across * sw + tap * dw - left
            inside = te.all_of(row >= 0, row < conv.height, column >= 0, column < width)
            c, k = channel(c, k)
            value = te.if_then_else(inside, x[b, c, row, column, k], border)
            return value.astype(conv.level.data)

        shape = (conv.batch, blocks, sh, conv.taps, conv.copied_rows * across, depth)
        copies = te.compute(shape, tap_by_tap, name=COPY)

        def of_tap(b: Expr, c: Expr, y: Expr, q: Expr, ky: Expr, kx: Expr, k: Expr) -> Any:
            tap = ky * dh
            return copies[b, c, tap % sh, kx, q + tap // sh * across, k]

        return of_tap

    def by_phase(b: Expr, c: Expr, y: Expr, phase: Expr, q: Expr, k: Expr) -> Expr:
        row, column = y - top, q * sw + phase - left
        inside = te.all_of(row >= 0, row < conv.height, column >= 0, column < width)
        c, k = channel(c, k)
        value = te.if_then_else(inside, x[b, c, row, column, k], border)
        return value.astype(conv.level.data)

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
    pixels = conv.rows(target)[1]
    tile = chosen(sch, conv.level, conv.tile(target), pixels, conv.out_blocks)
    result = inline_epilogue(sch, "conv2d")
    begin_with_bias(sch, result, conv.level, {1: "block", 4: "lane"})
    b, f, y, q, lane = sch.get_loops(result)
    f, vectors = sch.split(f, [None, tile.blocks])
    if conv.pointwise:
        q = sch.fuse(y, q)
        q, pixel = sch.split(q, [None, tile.pixels])
        inner = [vectors, pixel, lane]
        order = [q, b, f] if conv.copied else [b, f, q]
        tasks = order[:1] if conv.copied else order[:2]
    elif conv.flat(target):
        q = sch.fuse(y, q)
        q, pixel = sch.split(q, [None, tile.pixels])
        inner = [vectors, pixel, lane]
        order = [b, f, q]
        tasks = order[:2]
    else:
        height = conv.out_size[0]
        y, row = sch.split(y, [None, max(1, min(TASK_ROWS, height // FEW_TASKS))])
        q, pixel = sch.split(q, [None, tile.pixels])
        inner = [vectors, pixel, lane]
        order = [b, y, f, row, q]
        tasks = order[:2]
    sch.reorder(*order, *inner)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    outer = task if order[-1] in tasks else order[-1]
    schedule_sums(sch, conv.level, outer, inner, conv.taps, target)
    if conv.flat(target):
        _schedule_copies(sch, conv.out_size[1])
    elif conv.copied:
        _schedule_copy(sch, conv, task)
    sch.parallel(task)
    tune(sch, conv.level, target)
    return sch.func


def _schedule_copy(sch: Schedule, conv: Conv, task: str) -> None:
    sch.compute_at(COPY, task)
    loops = list(sch.get_loops(COPY))
    parts, lane = sch.split(
        loops[-1], [None, BLOCK if not conv.planes else min(BLOCK, row_width(conv.kernel[1]))]
    )
    unroll(sch, [parts])
    sch.vectorize(lane)
    if conv.planes and "pad" in sch.get_blocks():
        sch.compute_at("pad", task)
        vectorize_rows(sch, "pad", 2 * BLOCK)


def _schedule_copies(sch: Schedule, across: int) -> None:
    """For each tap, before all tasks."""
    b, c, _, tap, p, lane = sch.get_loops(COPY)
    _, q = sch.split(p, [None, across])
    parts, lane = sch.split(lane, [None, BLOCK])
    unroll(sch, [tap, q, parts])
    sch.vectorize(lane)
    sch.parallel(sch.fuse(b, c))
