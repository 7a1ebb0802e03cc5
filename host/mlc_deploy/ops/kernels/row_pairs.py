"""Depthwise convolution of int8 where the CPU adds products of int16 in pairs: pmaddwd of AVX2.

Two rows of the data become pairs of int16, once for each strip of rows; a result takes them from
memory, by one instruction for two taps of eight channels. Pairs begin at even rows. Where rows of
results are an odd number of rows apart, every second one begins within a pair, and has filters of
its own, one row on:

    rows of the data       r0 r1   r2 r3
    a result from row 0    w0 w1   w2 0
    a result from row 1    0  w0   w1 w2

So a row of the data is widened once, not for each row of results that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape
from ..plan import Packing, Plan
from ..quantize import BLOCK
from ..registry import Attrs, TensorType
from ..tile import divisor, even_cut, inline_epilogue
from .conv2d import in_layouts
from .conv2d_int8 import BLOCKS
from .intrinsics.forms import TILE, begin_with_bias, schedule_sums
from .intrinsics.microkernels import ROW_PAIRS, has
from .windows import BYTES, KERNEL, copy_rows, rows_of

COLUMNS = 4  # of a vector of bytes, that rows are copied by
PAIR = 2  # rows that an instruction adds products of
STRIP = 1 << 13  # bytes of data, about, that are copied together: their pairs take twice as many
MOST_PIXELS = 4  # of a tile: their bytes are a vector
BORDERED, PAIRED, ROWS = "int8_bordered_filters", "int8_paired_filters", "int8_paired_rows"
# Instructions of a result of eight channels: of a pair of taps, and beside them: copying, pairing,
# requantizing. scripts/bench/depthwise.py counts them, with LLVM 22.
OF_PAIR, OF_RESULT = 2, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseRowPairs(Plan):
    """phases: how many rows of results have filters of their own. pairs: of rows, that a window
    reaches into."""

    name = "conv2d_int8_row_pairs"

    conv: ConvShape
    phases: int
    pairs: int

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, KH, KW, 1, 8]."""
        x, w = inputs
        batch, blocks, *_, lanes = x.shape
        conv, phases, pairs = self.conv, self.phases, self.pairs
        (kh, kw), (sh, sw), apart = conv.kernel, conv.strides, conv.dilations[1]
        height, width = conv.out_size
        groups, step = -(-height // phases), phases * sh // PAIR
        rows = (groups - 1) * step + (phases - 1) * sh // PAIR + pairs
        across = -(-((width - 1) * sw + (kw - 1) * apart + 1) // COLUMNS)
        top, left, *_ = conv.pads
        bottom = rows * PAIR - top - conv.size[0]
        right = across * COLUMNS - left - conv.size[1]
        pads = (top, left, max(bottom, 0), max(right, 0))
        data = rows_of(x, pads, conv.border, x.dtype)

        def row(b: Expr, c: Expr, n: Expr, g: Expr, q: Expr, l: Expr, t: Expr) -> Any:  # noqa: E741
            return data(b, c, n * PAIR + t, g * COLUMNS + q, l).astype(ROW_PAIRS.data)

        def bordered(c: Expr, r: Expr, e: Expr) -> Any:
            ky, kx = r - (phases - 1), e // lanes
            inside = te.all_of(ky >= 0, ky < kh)
            return te.if_then_else(inside, w[c, ky, kx, 0, e % lanes], 0).astype(w.dtype)

        size = kw * lanes
        border = te.compute((blocks, pairs * PAIR + phases - 1, size), bordered, name=BORDERED)

        def filters(c: Expr, p: Expr, n: Expr, e: Expr, t: Expr) -> Any:
            return border[c, n * PAIR + t - p + (phases - 1), e].astype(ROW_PAIRS.data)

        shape = (batch, blocks, rows, across, COLUMNS, lanes, PAIR)
        paired = te.compute(shape, row, name=ROWS)
        taps = te.compute((blocks, phases, pairs, size, PAIR), filters, name=PAIRED)
        n, kx = te.reduce_axis((0, pairs), "n"), te.reduce_axis((0, kw), "kx")
        t = te.reduce_axis((0, PAIR), "t")

        def element(b: Expr, c: Expr, g: Expr, p: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            at, column = g * step + p * sh // PAIR + n, q * sw + kx * apart
            value = paired[b, c, at, column // COLUMNS, column % COLUMNS, l, t]
            weight = taps[c, p, n, kx * lanes + l, t]
            return te.sum(value.astype("int32") * weight.astype("int32"), (n, kx, t))

        tile = te.compute((batch, blocks, groups, phases, width, lanes), element, name=TILE)

        def result(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Any:  # noqa: E741
            return tile[b, c, y // phases, y % phases, q, l]

        return [te.compute((batch, blocks, height, width, lanes), result, name="depthwise")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "depthwise")
        (height, width), kw = self.conv.out_size, self.conv.kernel[1]
        begin_with_bias(sch, result, ROW_PAIRS, {1: "block", 4: "lane"})
        b, c, y, q, lane = sch.get_loops(result)
        size = self.conv.size[1] * self.conv.strides[0] * BLOCK
        y, row = sch.split(y, [None, divisor(height, max(1, STRIP // size))])
        q, pixel = sch.split(q, [None, even_cut(width, MOST_PIXELS)])
        sch.reorder(b, c, y, row, q, pixel, lane)
        task = sch.fuse(b, c, y)
        schedule_sums(sch, ROW_PAIRS, q, [pixel, lane], kw, self.target)
        for stage in (ROWS, PAIRED):
            sch.compute_at(stage, task)
            *_, column, element, _ = sch.get_loops(stage)
            (read,) = sch.block(stage).reads
            _, element = sch.split(element, [None, BLOCK])
            sch.tensorize(element, f"x86.interleave.{read.buffer.dtype}")
            if stage is ROWS:
                sch.unroll(column)
        sch.compute_at("pad", task)
        copy_rows(sch, COLUMNS * BLOCK, whole=True)
        sch.compute_at(BORDERED, task)
        _, vector = sch.split(sch.get_loops(BORDERED)[-1], [None, BLOCK])
        sch.vectorize(vector)
        sch.parallel(task)
        return sch.func


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwiseRowPairs | None:
    """Where the target has the instruction, and the rows of a window are neighbours."""
    conv = conv_shape(types, attrs)
    if conv is None or not {t.dtype for t in types} <= set(BYTES):
        return None
    if target.arch != "x86_64" or target.kind == "c" or not has(target, ROW_PAIRS):
        return None
    if conv.dilations[0] != 1 or not conv.depthwise or conv.channels % BLOCK:
        return None
    phases = 1 if conv.strides[0] % PAIR == 0 or conv.out_size[0] == 1 else PAIR
    pairs = -(-(conv.kernel[0] + phases - 1) // PAIR)
    each = OF_PAIR * pairs * conv.kernel[1] + OF_RESULT
    return DepthwiseRowPairs(
        **in_layouts(types, attrs, target, Packing("OIHW", KERNEL), BLOCKS, BLOCKS),
        cost=each * conv.batch * conv.channels // BLOCK * prod(conv.out_size),
        conv=conv,
        phases=phases,
        pairs=pairs,
    )
