"""Depthwise convolution: rows of neighbouring pixels in vectors, the channel's filter in registers.

A tile is several rows high, so that a row of the data that is loaded serves every row of results
that it reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..half import arithmetic
from ..plan import Plan, stated
from ..quantize import product
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import inline_epilogue, schedule_tile, vectorize_rows
from .conv2d import MOST_ROW_TAPS
from .products import sums_alike
from .shapes import ConvShape, conv_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwisePlanes(Plan):
    name = "conv2d_depthwise"

    conv: ConvShape
    lanes: int

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        x, w = inputs
        conv, kept = self.conv, arithmetic(self.conv.dtype, self.target)
        (sh, sw), (dh, dw), (kh, kw) = conv.strides, conv.dilations, conv.kernel
        top, left, bottom, _ = conv.pads
        height, width = conv.out_size
        whole = -(-width // self.lanes) * self.lanes  # whole vectors, so that no lane has a guard
        beyond = max((whole - 1) * sw + (kw - 1) * dw + 1 - conv.size[1] - left, 0)
        data = padded(x, (0, 0, top, left, 0, 0, bottom, beyond), 0)
        ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

        def element(b: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
            value = data[b, c, y * sh + ky * dh, x * sw + kx * dw]
            return te.sum(product(value, w[c, 0, ky, kx], kept), (ky, kx))

        tile = te.compute((*x.shape[:2], height, whole), element, name="depthwise_tile")

        def result(*i: Expr) -> Any:
            return tile[i].astype(x.dtype)

        return [te.compute((*x.shape[:2], height, width), result, name="depthwise")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "depthwise")
        kh, kw = self.conv.kernel
        channel = schedule_tile(
            sch,
            "depthwise_tile",
            result,
            {2: 8 if self.target.vector_registers >= 32 else 4, 3: self.lanes},
            lanes=self.lanes,
            steps=kh * kw if kh * kw <= 25 else min(kw, MOST_ROW_TAPS),
            vector_result=True,
        )
        if "pad" in sch.get_blocks():
            sch.compute_at("pad", channel)
            vectorize_rows(sch, "pad", self.lanes)
        return sch.func


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwisePlanes | None:
    """Of data in planes, where every channel has a filter of its own, and one result."""
    conv = conv_shape(types, attrs)
    if conv is None or not conv.depthwise or not sums_alike("conv2d", *types):
        return None
    if target.lanes(conv.dtype) == 1:
        return None
    return DepthwisePlanes(
        op="conv2d",
        types=tuple(types),
        stated=stated(attrs),
        target=target,
        conv=conv,
        lanes=target.lanes(arithmetic(conv.dtype, target)),
    )
