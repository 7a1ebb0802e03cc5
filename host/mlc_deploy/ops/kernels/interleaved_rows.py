"""Depthwise convolution of 8 bits where the CPU adds up products of neighbours in each channel:
pmaddwd of AVX2 adds two of int16, vpdpbusd of VNNI four of uint8 and int8.

Each task interleaves the rows of a strip once, so that rows become such neighbours. One instruction
then does two or four taps of eight channels, for one result or two neighbouring ones. Groups of
rows begin two rows apart; four, if a window then reaches into no more groups. A row of results that
begins within a group has a filter of its own, shifted down by as many rows:

    rows of the data       r0 r1   r2 r3        r0 r1 r2 r3
    a result from row 0    w0 w1   w2 0         w0 w1 w2 0
    a result from row 1    0  w0   w1 w2        0  w0 w1 w2

The compiler lays filters out so (nn.rows_shifted). Columns are sorted by their phase in the stride,
so that two results read neighbours.

vpdpbusd takes unsigned data. A pass makes int8 data unsigned (graph/signs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape
from ..plan import Packing, Plan
from ..quantize import BLOCK, BYTES
from ..registry import Attrs, TensorType
from ..tile import divisor, even_cut, inline_epilogue, loops_inside, unroll
from .conv2d import in_layouts
from .conv2d_int8 import BLOCKS
from .intrinsics.forms import TILE, begin_with_bias, schedule_sums
from .intrinsics.microkernels import ROWS, Microkernel, has

COLUMNS = 4  # of eight channels, in a vector of bytes
PAIR = 2  # fewest rows of a group
STRIP = 1 << 13  # bytes of data, about, that a task copies: groups take four times as many
TURNED = 8  # groups of rows, about, whose interleaving is unrolled
MOST_VECTORS = 4  # of a tile: their bytes fill one vector or two
GROUPS, WIDE = "int8_grouped_rows", "int8_wide_filters"


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseInterleavedRows(Plan):
    """kernel: takes eight channels, of one pixel or of two. apart: rows from one group to the next.
    shifts: by how many rows neighbouring rows of results begin after their groups. groups: how many
    groups a window reaches into."""

    name = "conv2d_int8_interleaved_rows"

    conv: ConvShape
    kernel: Microkernel
    apart: int
    shifts: tuple[int, ...]
    groups: int

    @property
    def phases(self) -> int:
        """Phases of the stride by which columns are sorted."""
        return self.conv.strides[1] if self.kernel.rows > 1 else 1

    @property
    def near(self) -> int:
        """Columns whose rows an instruction interleaves; 0 where rows may lie apart."""
        return 0 if self.kernel.depth == PAIR else COLUMNS if self.kernel.rows > 1 else 1

    # ------------------------------------------------------------------------------------ stages

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, groups of all rows
        of results, KW, 1, 8, rows of a group]."""
        x, w = inputs
        batch, blocks, *_, lanes = x.shape
        conv, apart, many, phases = self.conv, self.apart, len(self.shifts), self.phases
        pixels, together = self.kernel.rows, self.kernel.depth
        kw, (sh, sw), dilation = conv.kernel[1], conv.strides, conv.dilations[1]
        height, width = conv.out_size
        high, vectors = -(-height // many), -(-width // pixels)
        starts = (high * many - 1) * sh // apart + (self.groups - 1) * together // apart + 1
        reach = (vectors * pixels - 1) * sw + (kw - 1) * dilation + 1
        across = -(-reach // (COLUMNS * phases)) * COLUMNS
        data = self._copied(x, (starts - 1) * apart + together, across * phases)

        def row(b: Expr, c: Expr, n: Expr, phase: Expr, q: Expr, k: Expr, t: Expr) -> Any:
            return data(b, c, n * apart + t, q * phases + phase, k).astype(self.kernel.data)

        shape: tuple[Any, ...] = (batch, blocks, starts, phases, across, lanes, together)
        grouped = te.compute(shape, row, name=GROUPS)
        if self.kernel.data == "int16":
            narrow = w
            w = te.compute(narrow.shape, lambda *i: narrow[i].astype("int16"), name=WIDE)
        n, kx = te.reduce_axis((0, self.groups), "n"), te.reduce_axis((0, kw), "kx")
        t = te.reduce_axis((0, together), "t")

        def element(b: Expr, c: Expr, g: Expr, p: Expr, v: Expr, pixel: Expr, k: Expr) -> Expr:
            start = g * (many * sh // apart) + p * sh // apart + n * (together // apart)
            column = (v * pixels + pixel) * (sw // phases) + kx * dilation // phases
            value = grouped[b, c, start, kx * dilation % phases, column, k, t]
            weight = w[c, p * self.groups + n, kx, 0, k, t]
            return te.sum(value.astype("int32") * weight.astype("int32"), (n, kx, t))

        shape = (batch, blocks, high, many, vectors, pixels, lanes)
        tile = te.compute(shape, element, name=TILE)

        def result(b: Expr, c: Expr, y: Expr, q: Expr, k: Expr) -> Any:
            return tile[b, c, y // many, y % many, q // pixels, q % pixels, k]

        return [te.compute((batch, blocks, height, width, lanes), result, name="depthwise")]

    def _copied(self, x: Tensor, height: int, width: int) -> Callable[..., Any]:
        """Data within their border, as a function of an index. Where an instruction interleaves
        whole groups of columns, the copy has the rows of such a group side by side."""
        batch, blocks, *size, lanes = x.shape
        (top, left, *_), border = self.conv.pads, self.conv.border
        columns = self.near or width

        def element(b: Expr, c: Expr, g: Expr, y: Expr, e: Expr) -> Expr:
            row, at = y - top, (g * columns - left) * lanes + e
            inside = te.all_of(row >= 0, row < size[0], at >= 0, at < size[1] * lanes)
            return te.if_then_else(inside, x[b, c, row, at // lanes, at % lanes], border)

        shape = (batch, blocks, width // columns, height, columns * lanes)
        copy = te.compute(shape, element, name="pad")
        return lambda b, c, y, q, k: copy[b, c, q // columns, y, q % columns * lanes + k]

    # ---------------------------------------------------------------------------------- schedule

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "depthwise")
        (height, width), kw = self.conv.out_size, self.conv.kernel[1]
        pixels = self.kernel.rows
        begin_with_bias(sch, result, self.kernel, {1: "block", 4: "lane"})
        loops: list[str] = list(sch.get_loops(result))
        b, c, y, q, lane = loops
        size = self.conv.size[1] * self.conv.strides[0] * BLOCK
        y, row = sch.split(y, [None, divisor(height, max(1, STRIP // size))])
        vectors = even_cut(-(-width // pixels), MOST_VECTORS)
        q, vector, pixel = sch.split(q, [None, vectors, pixels])
        sch.reorder(b, c, y, row, q, vector, pixel, lane)
        task = sch.fuse(b, c, y)
        if pixels > 1:
            lane = sch.fuse(pixel, lane)
        else:
            vector = sch.fuse(vector, pixel)
        schedule_sums(sch, self.kernel, q, [vector, lane], kw, self.target)
        self._schedule_groups(sch, task)
        sch.compute_at("pad", task)
        *columns, y, element = loops_inside(sch, "pad", task)
        sch.reorder(y, *columns, element)
        most = min(COLUMNS * BLOCK, int(sch.loop(element).extent))  # type: ignore[call-overload]
        parts, element = sch.split(element, [None, most])
        unroll(sch, [*columns, parts])
        sch.vectorize(element)
        if WIDE in sch.get_blocks():
            sch.compute_at(WIDE, task)
            *loops, lane, t = loops_inside(sch, WIDE, task)
            unroll(sch, loops)
            sch.vectorize(sch.fuse(lane, t))
        sch.parallel(task)
        return sch.func

    def _schedule_groups(self, sch: Schedule, task: str) -> None:
        sch.compute_at(GROUPS, task, whole=[4])  # columns in whole registers
        loops: list[str] = list(sch.get_loops(GROUPS))
        *_, phase, q, first, _ = loops
        (read,) = sch.block(GROUPS).reads
        turns = f"quads{self.near}.phases{self.phases}." if self.near else ""
        if self.near > 1:
            q, first = sch.split(q, [None, self.near // self.phases])
        if self.phases > 1:
            sch.reorder(q, phase, first)
            first = phase
        turned = int(sch.loop(q).extent)  # type: ignore[call-overload]
        _, some = sch.split(q, [None, divisor(turned, TURNED)])
        sch.unroll(some)
        sch.tensorize(first, f"x86.interleave.{turns}{read.buffer.dtype}")


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwiseInterleavedRows | None:
    """None unless the target has the instruction, and the rows of a window are neighbours."""
    conv = conv_shape(types, attrs)
    if conv is None or not {t.dtype for t in types} <= set(BYTES):
        return None
    if target.arch != "x86_64" or target.kind == "c":
        return None
    if conv.dilations[0] != 1 or not conv.depthwise or conv.channels % BLOCK:
        return None
    x, w = (t.dtype for t in types[:2])

    def takes(kernel: Microkernel) -> bool:
        signs = kernel.data == "int16" or (x, w) == ("uint8", "int8")
        pairs = kernel.rows == 1 or (conv.out_size[1] > 1 and conv.strides[1] <= kernel.rows)
        return signs and pairs and has(target, kernel)

    kernel = next(filter(takes, ROWS), None)
    if kernel is None:
        return None
    together = kernel.depth
    ways = [(apart, _shifts(conv, apart)) for apart in dict.fromkeys((together, PAIR))]
    reached = [-(-(conv.kernel[0] + max(shifts)) // together) for _, shifts in ways]
    groups = min(reached)
    apart, shifts = ways[reached.index(groups)]
    packing = Packing("OIHW", f"OHWI{BLOCK}o{together}h", shifts=shifts, high=groups * together)
    each = kernel.instructions.of(groups * conv.kernel[1], 1) / kernel.rows
    return DepthwiseInterleavedRows(
        **in_layouts(
            types, attrs, target, packing, BLOCKS, BLOCKS,
            row_shifts=(conv.kernel[0], shifts, groups * together),
        ),
        cost=each * conv.usual.batch * conv.channels // BLOCK * prod(conv.out_size),
        conv=conv,
        kernel=kernel,
        apart=apart,
        shifts=shifts,
        groups=groups,
    )  # fmt: skip


def _shifts(conv: ConvShape, apart: int) -> tuple[int, ...]:
    """By how many rows neighbouring rows of results begin after their groups, until a row begins
    with a group again."""
    every = min(apart // gcd(apart, conv.strides[0]), conv.out_size[0])
    return tuple(n * conv.strides[0] % apart for n in range(every))
