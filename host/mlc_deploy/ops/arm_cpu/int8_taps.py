"""Depthwise convolution of int8 where the CPU sums up products of four neighbouring bytes.

The taps of a row of the window stand in the place of the input channels of other convolutions.
Four neighbouring pixels of eight channels are turned into four taps of each channel, which serve
two pixels of the result: the second with its weights one place on.

    columns      p0 p1 p2 p3
    pixel q      w0 w1 w2 0
    pixel q + 1  0  w0 w1 w2

Data are copied once, in strips of rows, with the padding value around them; weights are turned once
for each strip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..registry import Attrs
from ..tile import inline_epilogue
from .conv2d import output_size
from .int8 import BLOCK, TILE, Level, schedule_sums
from .int8_bias import begin_with_bias
from .int8_windows import STRIP, copy_rows, divisor, rows_of
from .int8_windows import takes_depthwise as takes_blocks
from .windows import even_cut

TOGETHER = 4  # taps
WINDOWS = Level("windows", "aarch64.sdot.windows2", 2, BLOCK, "")
WINDOWS_APART = replace(WINDOWS, intrin="aarch64.sdot.windows1", rows=1)
IN_REGISTERS = 3  # vectors of taps of a window whose weights stay in registers
FEW_REGISTERS = "kryo"  # a scheduling model that leaves the turned weights their registers
BORDERED, TURNED = "int8_bordered_taps", "int8_taps"


@dataclass(frozen=True, slots=True)
class Windows:
    """level: one pixel or two at once. across: how many vectors of taps a row of the window has.
    groups: how many times so many pixels a row of the result has."""

    level: Level
    across: int
    groups: int

    @property
    def columns(self) -> int:
        """Columns that a row of the window is read in."""
        return self.across * TOGETHER


def _windows(width: int, taps: int, stride: int) -> Windows:
    level = WINDOWS if stride == 1 else WINDOWS_APART
    return Windows(level, -(-(taps + level.rows - 1) // TOGETHER), -(-width // level.rows))


def takes_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the target has the instruction, and a row's taps are neighbours."""
    signed = {t.dtype for t in inputs} == {"int8"}
    fits = signed and attrs["dilations"][1] == 1 and takes_blocks(inputs, attrs, target)
    return fits and target.arch == "aarch64" and target.has("dotprod")


def compute_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, KH, KW, 1, 8]."""
    x, w = inputs
    batch, blocks, in_height, in_width, lanes = x.shape
    kh, kw = (int(n) for n in w.shape[1:3])  # type: ignore[arg-type]
    (sh, sw), dilation = attrs["strides"], attrs["dilations"][0]
    height, width = output_size((in_height, in_width), (kh, kw), attrs)
    found = _windows(width, kw, sw)
    pixels = found.level.rows
    top, left, bottom, _ = attrs["pads"]
    beyond = (found.groups - 1) * pixels * sw + found.columns - left - in_width
    pads = (top, left, bottom, max(0, beyond))
    data = rows_of(x, pads, attrs.get("pad_value", 0), always=True)

    def bordered(c: Expr, ky: Expr, at: Expr, l: Expr) -> Expr:  # noqa: E741
        kx = at - (pixels - 1)
        return te.if_then_else(te.all_of(kx >= 0, kx < kw), w[c, ky, kx, 0, l], 0)

    border = te.compute(
        (blocks, kh, found.columns + pixels - 1, lanes), bordered, name=BORDERED
    )

    def tap(c: Expr, ky: Expr, n: Expr, pixel: Expr, l: Expr, t: Expr) -> Expr:  # noqa: E741
        return border[c, ky, n * TOGETHER + t + (pixels - 1) - pixel, l]

    shape = (blocks, kh, found.across, pixels, lanes, TOGETHER)
    taps = te.compute(shape, tap, name=TURNED)
    ky, n = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, found.across), "n")
    t = te.reduce_axis((0, TOGETHER), "t")

    def element(b: Expr, c: Expr, y: Expr, g: Expr, pixel: Expr, l: Expr) -> Expr:  # noqa: E741
        value = data(b, c, y * sh + ky * dilation, g * (pixels * sw) + n * TOGETHER + t, l)
        weight = taps[c, ky, n, pixel, l, t]
        return te.sum(value.astype("int32") * weight.astype("int32"), (ky, n, t))

    tile = te.compute((batch, blocks, height, found.groups, pixels, lanes), element, name=TILE)
    return [
        te.compute(
            (batch, blocks, height, width, lanes),
            lambda b, c, y, q, l: tile[b, c, y, q // pixels, q % pixels, l],
            name="depthwise",
        )
    ]


def schedule_depthwise(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    kh, kw = (int(n) for n in func.buffers[1].shape[1:3])  # type: ignore[arg-type]
    result = inline_epilogue(sch, "depthwise")
    height, width = (int(i.extent) for i in sch.block(result).iters[2:4])  # type: ignore[call-overload]
    stride = attrs["strides"][1]
    found = _windows(width, kw, stride)
    level, turns = found.level, kh * found.across
    begin_with_bias(sch, result, level, {1: "block", 4: "lane"})
    b, c, y, q, lane = sch.get_loops(result)
    size = (width * stride + kw) * attrs["strides"][0] * BLOCK
    rows = divisor(height, max(1, STRIP // size))
    y, row = sch.split(y, [None, rows])
    row, tile_row = sch.split(row, [None, 2 if stride == 1 and rows % 2 == 0 else 1])
    q, pixel = sch.split(q, [None, even_cut(width, 2)])
    inner = [tile_row, pixel, lane]
    sch.reorder(b, c, y, row, q, *inner)
    task = sch.fuse(b, c, y)
    schedule_sums(sch, level, q, inner, turns if turns <= IN_REGISTERS else found.across, target)
    sch.compute_at("pad", task)
    copy_rows(sch, target.lanes("int8"), whole=True)
    for stage in (TURNED, BORDERED):
        sch.compute_at(stage, task)
    *around, _, _ = sch.get_loops(TURNED)
    sch.tensorize(sch.get_loops(TURNED)[-2], "aarch64.transpose.4x8")
    for loop in around[around.index(task) + 1 :]:
        sch.unroll(loop)
    *around, vector = sch.get_loops(BORDERED)
    sch.vectorize(vector)
    for loop in around[around.index(task) + 1 :]:
        sch.unroll(loop)
    sch.parallel(task)
    sch.tune_for(FEW_REGISTERS)
    return sch.func
