"""conv2d of int8 in blocks of eight channels.

A tile of sums is a few neighbouring pixels against one block of output channels. Where there are
pads, strides or too few pixels, tiles read a copy of the data. The copy has the padding value
around it. It sorts the pixels of a row by their phase in the stride, so that neighbouring results
read neighbouring pixels. Each task copies the rows that it needs. Where tiles do not divide rows
well, there is one copy for each tap of a row instead. It holds all pixels, row after row without a
gap, so that a tile runs on from row to row.

The first layer of a network, with few channels, takes planes. Its copy has the taps of a row in
place of channels, so that its kernel is one pixel wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, const
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape, in_border, is_open, whole_tiles
from ..plan import NARROW, Packing
from ..quantize import BLOCK, BYTES, product
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import inline_epilogue, loops_inside, unroll, vectorize_rows
from .contraction import Work, best_tile, chosen, cost
from .conv2d import PLANES, Convolution, in_layouts
from .intrinsics.forms import Place, begin_with_bias, compute_sums, in_registers, schedule_sums
from .intrinsics.microkernels import Microkernel, of_int8

BLOCKS = f"NCHW{BLOCK}c"
COPY = "int8_data"
TASK_ROWS = 8  # most rows of the result that a task copies its data for
FEW_TASKS = 4  # per image, where there are rows enough
CACHED = 3 << 17  # bytes, at most, of copies that each block of output channels reads
FEW_BLOCKS = 3  # of input channels; up to so many get no extra block for sums of two products
COPIED = 4  # instructions, about, that copy the channels of a pixel
COPIED_AT_ONCE = 8  # pixels, in an iteration: resnet50_int8 of scripts/bench/models.py decided it
TAP = 4  # instructions, about, that copy one tap of a row

# (image, block of channels, row of the result, pixel, tap row, tap column, channel of the block)
Data = Callable[[Expr, Expr, Expr, Expr, Expr, Expr, Expr], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvInt8(Convolution):
    """planes: data are plain, and the kernel's taps in a row count as input channels. in_channels:
    of a group, filled up to a multiple of the intrinsic's depth. flat: there is a copy for each
    tap, and tiles run on from row to row."""

    name = "conv2d_int8"

    planes: bool
    in_channels: int
    flat: bool

    @property
    def taps(self) -> int:
        return 1 if self.planes else self.conv.kernel[1]

    @property
    def pointwise(self) -> bool:
        return not self.planes and self.conv.flat

    @property
    def rows(self) -> tuple[Any, Any]:
        """(rows, pixels in each) of the sums; one row of all pixels where rows do not matter. Where
        the size is known only at run time, they fill whole tiles."""
        height, width = self.conv.out_size
        if is_open(self.conv.size):
            return height, whole_tiles(width, self.tile.rows)
        return (1, height * width) if self.pointwise or self.flat else (height, width)

    @property
    def out_blocks(self) -> int:
        """Blocks of output channels of a group."""
        return self.conv.out_channels // self.conv.groups // BLOCK

    @property
    def copied(self) -> bool:
        as_given = self.kernel.data == self.types[0].dtype
        if not self.pointwise or self.kernel.depth != BLOCK or not as_given:
            return True
        return self.conv.size[1] % self.kernel.rows != 0

    # ------------------------------------------------------------------------------------ stages

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, O/8, H, W, 8] of int32."""
        x, w = inputs
        conv, kernel = self.conv, self.kernel
        data = self._data(x)
        depth = self.in_channels // kernel.depth
        c = te.reduce_axis((0, depth), "c")
        ky, kx = te.reduce_axis((0, conv.kernel[0]), "ky"), te.reduce_axis((0, self.taps), "kx")
        tiles = BLOCK // kernel.columns

        def one(lead: Sequence[Expr], at: Place) -> Expr:
            b, f, y = lead
            of_group = f // self.out_blocks * depth + c if conv.groups > 1 else c.var
            weight = w[(f * tiles + at.tile, ky, c, kx, *at.weight)]
            value = data(b, of_group, y, at.row, ky.var, kx.var, at.k)
            return product(value, weight, "int32")

        (rows, pixels), blocks = self.rows, conv.out_channels // BLOCK
        sums = compute_sums(kernel, (conv.batch, blocks, rows), pixels, one, (ky, c, kx))
        width = conv.out_size[1]
        shape = (conv.batch, blocks, *conv.out_size, BLOCK)

        def result(b: Expr, f: Expr, y: Expr, q: Expr, k: Expr) -> Any:
            one_row = isinstance(rows, int) and rows == 1
            return sums(b, f, 0, y * width + q, k) if one_row else sums(b, f, y, q, k)

        return [te.compute(shape, result, name="conv2d")]

    def _data(self, x: Tensor) -> Data:
        conv, (in_height, width), depth = self.conv, self.conv.size, self.kernel.depth
        if not self.copied:
            return lambda b, c, y, q, ky, kx, k: x[b, c, q // width, q % width, k]
        pixels = self.rows[1]
        whole = whole_tiles(pixels, self.kernel.rows)
        blocks = self.in_channels * conv.groups // depth
        known = conv.channels // BLOCK
        odd = blocks * (depth // BLOCK) > known

        def channel(c: Expr, k: Expr) -> tuple[Expr, Expr]:
            if depth == BLOCK:
                return c, k
            at = c * (depth // BLOCK) + k // BLOCK
            return te.minimum(at, known - 1) if odd else at, k % BLOCK  # times weights of zero

        (sh, sw), (dh, dw) = conv.strides, conv.dilations
        top, left, *_ = conv.pads
        border = const(0 if self.pointwise else conv.border, x.dtype)
        high = (conv.out_size[0] - 1) * sh + (conv.kernel[0] - 1) * dh + 1
        if self.planes:
            taps = row_width(conv.kernel[1])
            if is_open(conv.size):
                of = conv.kernel[0], taps
                rows = in_border(x, conv.window, of, (conv.out_size[0], whole), conv.border)
            else:
                wide = max((whole - 1) * sw + taps, width + left)
                around = (0, 0, top, left, 0, 0, high - top - in_height, wide - left - width)
                rows = padded(x, around, border)

            def taps_of_row(b: Expr, c: Expr, y: Expr, q: Expr, k: Expr) -> Expr:
                tap = c * depth + k
                channel = tap // taps
                value = rows[b, te.minimum(channel, conv.channels - 1), y, q * sw + tap % taps]
                value = te.if_then_else(channel < conv.channels, value, 0)
                return value.astype(self.kernel.data)

            copy = te.compute((conv.batch, blocks, high, whole, depth), taps_of_row, name=COPY)
            return lambda b, c, y, q, ky, kx, k: copy[b, c, y * sh + ky * dh, q, k]

        def at(b: Expr, c: Expr, row: Expr, column: Expr, k: Expr, inside: Expr) -> Expr:
            c, k = channel(c, k)
            value = te.if_then_else(inside, x[b, c, row, column, k], border)
            return value.astype(self.kernel.data)

        def within(row: Expr, column: Expr) -> Expr:
            return te.all_of(row >= 0, row < in_height, column >= 0, column < width)

        if self.flat or self.pointwise:
            across = conv.out_size[1]
            size = whole if self.pointwise else _copied_rows(conv) * across

            def by_tap(b: Expr, c: Expr, phase: Expr, tap: Expr, p: Expr, k: Expr) -> Expr:
                row, column = p // across * sh + phase - top, p % across * sw + tap * dw - left
                inside = p < pixels if self.pointwise else within(row, column)
                return at(b, c, row, column, k, inside)

            shape: tuple[int, ...] = (conv.batch, blocks, sh, self.taps, size, depth)
            copies = te.compute(shape, by_tap, name=COPY)

            def of_tap(b: Expr, c: Expr, y: Expr, q: Expr, ky: Expr, kx: Expr, k: Expr) -> Any:
                row, phase = ky * dh // sh, ky * dh % sh
                return copies[b, c, phase, kx, q + row * across, k]

            return of_tap

        apart = sh if conv.kernel[0] == 1 else 1  # for one tap, rows between are not copied
        high = (high + apart - 1) // apart

        def by_phase(b: Expr, c: Expr, y: Expr, phase: Expr, q: Expr, k: Expr) -> Expr:
            row, column = y * apart - top, q * sw + phase - left
            return at(b, c, row, column, k, within(row, column))

        shape = (conv.batch, blocks, high, sw, whole + (self.taps - 1) * dw // sw, depth)
        copy = te.compute(shape, by_phase, name=COPY)

        def data(b: Expr, c: Expr, y: Expr, q: Expr, ky: Expr, kx: Expr, k: Expr) -> Any:
            tap = kx * dw
            return copy[b, c, y * (sh // apart) + ky * dh, tap % sw, q + tap // sw, k]

        return data

    # ---------------------------------------------------------------------------------- schedule

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        tile = self.tile
        if not is_open(self.conv.size):  # else sums fill whole tiles of this size
            tile = chosen(sch, self.kernel, tile, Work(self.rows[1], self.out_blocks))
        result = inline_epilogue(sch, "conv2d")
        begin_with_bias(sch, result, self.kernel, {1: "block", 4: "lane"})
        b, f, y, q, lane = sch.get_loops(result)
        f, vectors = sch.split(f, [None, tile.blocks])
        if self.pointwise or self.flat:
            q = sch.fuse(y, q)
            q, pixel = sch.split(q, [None, tile.rows])
            by_pixels = self.pointwise and self.copied
            order = [q, b, f] if by_pixels else [b, f, q]
            tasks = order[: 1 if by_pixels else 2]
        else:
            height, opened = self.conv.out_size[0], is_open(self.conv.size[:1])
            some = 1 if opened else max(1, min(TASK_ROWS, height // FEW_TASKS))
            y, row = sch.split(y, [None, some])
            q, pixel = sch.split(q, [None, tile.rows])
            order = [y, b, f, row, q] if opened else [b, y, f, row, q]
            tasks = order[: 1 if opened and isinstance(self.conv.batch, Expr) else 2]
        sch.reorder(*order, vectors, pixel, lane)
        inner: list[str] = [vectors, pixel, lane]
        if not is_open(self.conv.size) and self.conv.out_size[1] % self.kernel.rows == 0:
            inner[1:] = in_registers(sch, self.kernel, pixel, lane)
        task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
        outer = task if order[-1] in tasks else order[-1]
        schedule_sums(sch, self.kernel, outer, inner, self.taps, self.target)
        if self.flat:
            _schedule_copies(sch, self.conv.out_size[1])
        elif self.copied:
            self._schedule_copy(sch, task)
        sch.parallel(task)
        return sch.func

    def _schedule_copy(self, sch: Schedule, task: str) -> None:
        sch.compute_at(COPY, task)
        together = min(BLOCK, row_width(self.conv.kernel[1])) if self.planes else BLOCK
        *around, lane = loops_inside(sch, COPY, task)
        parts, lane = sch.split(lane, [None, together])
        if around and not self.pointwise:
            _, some = sch.split(around[-1], [None, COPIED_AT_ONCE])
            sch.unroll(some)
        sch.unroll(parts)
        sch.vectorize(lane)
        if self.planes and "pad" in sch.get_blocks():
            sch.compute_at("pad", task)
            vectorize_rows(sch, "pad", 2 * BLOCK)


def _schedule_copies(sch: Schedule, across: int) -> None:
    """Schedules the copies for each tap, before all tasks."""
    b, c, _, tap, p, lane = sch.get_loops(COPY)
    _, q = sch.split(p, [None, across])
    parts, lane = sch.split(lane, [None, BLOCK])
    unroll(sch, [tap, q, parts])
    sch.vectorize(lane)
    sch.parallel(sch.fuse(b, c))


# ------------------------------------------------------------------------------------------- plan


def plan_conv2d(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvInt8 | None:
    """None unless the target has instructions for it, and channels divide into blocks."""
    conv = conv_shape(types, attrs, any_size=True)
    if conv is None or types[0].dtype not in BYTES or types[1].dtype != "int8":
        return None
    groups, inputs = conv.groups, conv.per_group
    planes = groups == 1 and conv.channels <= PLANES and conv.dilations[1] == 1
    if conv.out_channels // groups % BLOCK or (inputs % BLOCK and not planes):
        return None
    height, width = conv.usual.out_size
    pixels = height * width if conv.flat and not planes else width
    filled = 2 * BLOCK if planes else inputs
    if groups == 1 and filled > FEW_BLOCKS * BLOCK:  # an odd block is filled up, too, where it pays
        filled += -filled % (2 * BLOCK)
    narrow = bool(attrs.get(NARROW))
    kernel = of_int8(target, pixels, filled, narrow, data=types[0].dtype)
    if kernel is None:
        return None
    inputs *= row_width(conv.kernel[1]) if planes else 1
    in_channels = -(-inputs // kernel.depth) * kernel.depth
    more: dict[str, Any] = {}
    if planes:
        more["row_taps"] = (conv.kernel[1], conv.channels, row_width(conv.kernel[1]))
    elif in_channels > inputs:
        more["in_channels"] = conv.channels
    packing = Packing("OIHW", f"OHIW{kernel.weights}", row_width(conv.kernel[1]) if planes else 0)
    flat = not (planes or conv.pointwise or is_open(conv.size))
    flat = flat and _runs_on(conv, kernel, in_channels, target)
    shared = 1 if planes or flat else conv.kernel[1]
    pixels = height * width if flat else pixels
    blocks = conv.out_channels // groups // BLOCK
    return ConvInt8(
        **in_layouts(types, attrs, target, packing, "" if planes else BLOCKS, BLOCKS, **more),
        cost=_cost(conv, kernel, in_channels, planes),
        conv=conv,
        kernel=kernel,
        planes=planes,
        in_channels=in_channels,
        flat=flat,
        tile=best_tile(kernel, Work(pixels, blocks, shared), target),
    )


def _cost(conv: ConvShape, kernel: Microkernel, in_channels: int, planes: bool) -> float:
    taps = conv.kernel[0] * (1 if planes else conv.kernel[1])
    of_pixel = in_channels * taps * conv.out_channels / kernel.rate
    if planes:
        of_pixel += TAP * conv.channels * row_width(conv.kernel[1]) * conv.strides[0]
    return conv.usual.batch * prod(conv.usual.out_size) * of_pixel


def row_width(taps: int) -> int:
    """The taps of a row, rounded up to a load."""
    return 4 if taps <= 4 else -(-taps // BLOCK) * BLOCK


def _runs_on(conv: ConvShape, kernel: Microkernel, in_channels: int, target: Target) -> bool:
    """Whether a copy for each tap, with tiles that run on from row to row, is worth while."""
    if kernel.rows == 1:
        return False
    height, width = conv.out_size
    taps, blocks = conv.kernel[1], conv.out_channels // conv.groups // BLOCK

    def summing(pixels: int, shared: int) -> float:
        tile = best_tile(kernel, Work(pixels, blocks, shared), target)
        return cost(kernel, tile, Work(pixels, blocks, taps))

    copies = _copied_rows(conv) * width * conv.strides[0] * taps
    if copies * in_channels * conv.groups > CACHED:
        return False
    copying = COPIED * (copies - height * width) / conv.kernel[0]
    return summing(height * width, 1) + copying < height * summing(width, taps)


def _copied_rows(conv: ConvShape) -> int:
    """Rows that a flat copy has for each phase of rows, each as wide as the result."""
    below = (conv.kernel[0] - 1) * conv.dilations[0] // conv.strides[0]
    return conv.out_size[0] + below + 1
