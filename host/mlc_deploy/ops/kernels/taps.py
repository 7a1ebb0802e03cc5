"""Depthwise convolution of int8 where the CPU sums up products of neighbours: sdot.

The taps of a row of the window take the place of input channels. The kernel transposes four
neighbouring pixels of eight channels into four taps of each channel. They serve two pixels of the
result; the second's weights are shifted by one.

    columns      p0 p1 p2 p3
    pixel q      w0 w1 w2 0
    pixel q + 1  0  w0 w1 w2

Each task copies a strip of rows, with the padding value around it, and transposes the weights once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape
from ..plan import Packing, Plan
from ..quantize import BLOCK
from ..registry import Attrs, TensorType
from ..tile import divisor, even_cut, inline_epilogue, loops_inside, unroll
from .conv2d import in_layouts
from .conv2d_int8 import BLOCKS
from .intrinsics.forms import TILE, begin_with_bias, schedule_sums
from .intrinsics.microkernels import TAPS, Microkernel, has
from .windows import KERNEL, STRIP, copy_rows, rows_of

# Instructions for a tap of a block: scripts/bench/kernels.py on a Cortex-A76, with LLVM 22.
OF_TAP = 2.6
BORDERED, TURNED = "int8_bordered_taps", "int8_taps"


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseTaps(Plan):
    """kernel: for one pixel or two. across: vectors of taps in a row of the window. groups: of as
    many pixels, in a row of the result."""

    name = "conv2d_int8_taps"

    conv: ConvShape
    kernel: Microkernel
    across: int
    groups: int

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, KH, KW, 1, 8]."""
        x, w = inputs
        conv, kernel = self.conv, self.kernel
        batch, blocks, *_, lanes = x.shape
        (kh, kw), (sh, sw), dilation = conv.kernel, conv.strides, conv.dilations[0]
        height, width = conv.out_size
        pixels, together, columns = kernel.rows, kernel.depth, self.across * kernel.depth
        top, left, bottom, _ = conv.pads
        beyond = (self.groups - 1) * pixels * sw + columns - left - conv.size[1]
        data = rows_of(x, (top, left, bottom, max(0, beyond)), conv.border, kernel.data)

        def bordered(c: Expr, ky: Expr, at: Expr, l: Expr) -> Any:  # noqa: E741
            kx = at - (pixels - 1)
            weight = te.if_then_else(te.all_of(kx >= 0, kx < kw), w[c, ky, kx, 0, l], 0)
            return weight.astype(kernel.data)

        border = te.compute((blocks, kh, columns + pixels - 1, lanes), bordered, name=BORDERED)

        def tap(c: Expr, ky: Expr, n: Expr, pixel: Expr, l: Expr, t: Expr) -> Any:  # noqa: E741
            return border[c, ky, n * together + t + (pixels - 1) - pixel, l]

        shape = (blocks, kh, self.across, pixels, lanes, together)
        taps = te.compute(shape, tap, name=TURNED)
        ky, n = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, self.across), "n")
        t = te.reduce_axis((0, together), "t")

        def element(b: Expr, c: Expr, y: Expr, g: Expr, pixel: Expr, l: Expr) -> Expr:  # noqa: E741
            value = data(b, c, y * sh + ky * dilation, g * (pixels * sw) + n * together + t, l)
            weight = taps[c, ky, n, pixel, l, t]
            return te.sum(value.astype("int32") * weight.astype("int32"), (ky, n, t))

        tile = te.compute((batch, blocks, height, self.groups, pixels, lanes), element, name=TILE)

        def result(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Any:  # noqa: E741
            return tile[b, c, y, q // pixels, q % pixels, l]

        return [te.compute((batch, blocks, height, width, lanes), result, name="depthwise")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "depthwise")
        (height, width), (kh, kw) = self.conv.out_size, self.conv.kernel
        stride = self.conv.strides[1]
        way, turns = TAPS[self.target.arch], kh * self.across
        begin_with_bias(sch, result, self.kernel, {1: "block", 4: "lane"})
        b, c, y, q, lane = sch.get_loops(result)
        size = (width * stride + kw) * self.conv.strides[0] * BLOCK
        rows = divisor(height, max(1, STRIP // size))
        y, row = sch.split(y, [None, rows])
        row, tile_row = sch.split(row, [None, 2 if stride == 1 and rows % 2 == 0 else 1])
        q, pixel = sch.split(q, [None, even_cut(width, 2)])
        inner = [tile_row, pixel, lane]
        sch.reorder(b, c, y, row, q, *inner)
        task = sch.fuse(b, c, y)
        unrolled = turns if turns <= way.unrolled else self.across
        schedule_sums(sch, self.kernel, q, inner, unrolled, self.target)
        sch.compute_at("pad", task)
        copy_rows(sch, 2 * BLOCK, whole=True)
        for stage in (TURNED, BORDERED):
            sch.compute_at(stage, task)
        *turned, matrix, _ = loops_inside(sch, TURNED, task)
        sch.tensorize(matrix, way.transpose)
        *bordered, vector = loops_inside(sch, BORDERED, task)
        sch.vectorize(vector)
        for around in (turned, bordered):
            unroll(sch, around)
        sch.parallel(task)
        if model := scheduling_model("taps", self.target):
            sch.tune_for(model)
        return sch.func


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwiseTaps | None:
    """None unless the target has the instruction, and a row's taps are neighbours."""
    conv = conv_shape(types, attrs)
    if conv is None or {t.dtype for t in types} != {"int8"} or target.lanes("int8") < BLOCK:
        return None
    way = TAPS.get(target.arch)
    if way is None or way.key not in target.keys or not has(target, way.kernels[0]):
        return None
    if conv.dilations[1] != 1 or not conv.depthwise or conv.channels % BLOCK:
        return None
    width = conv.out_size[1]
    pixels = 2 if conv.strides[1] == 1 and width > 1 else 1
    kernel, blocks = way.kernels[pixels - 1], conv.usual.batch * conv.channels // BLOCK
    return DepthwiseTaps(
        **in_layouts(types, attrs, target, Packing("OIHW", KERNEL), BLOCKS, BLOCKS),
        cost=OF_TAP * blocks * prod(conv.out_size) * prod(conv.kernel),
        conv=conv,
        kernel=kernel,
        across=-(-(conv.kernel[1] + pixels - 1) // kernel.depth),
        groups=-(-width // pixels),
    )
