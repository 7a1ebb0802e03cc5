"""Depthwise convolution: rows of neighbouring pixels in vectors, the channel's filter in registers.

A tile is several rows high, so that a row of the data that is loaded serves every row of results
that it reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..half import arithmetic
from ..nn import window_extent
from ..quantize import product
from ..registry import Attrs
from ..shape import padded
from ..tile import inline_epilogue, schedule_tile, vectorize_rows
from .conv2d import MOST_ROW_TAPS
from .gemm import tiled


def is_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether every channel has a filter of its own, and one result."""
    x, w = inputs
    single = attrs["groups"] == x.shape[1] == w.shape[0] and w.shape[1] == 1
    return w.ndim == 4 and single and tiled(x, w) and target.lanes(x.dtype) > 1


def compute_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    x, w = inputs
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    n, channels, height, width = x.shape
    kh, kw = w.shape[2:]
    top, left, bottom, right = attrs["pads"]
    out_height = window_extent(height + top + bottom, kh, sh, dh)
    out_width = window_extent(width + left + right, kw, sw, dw)
    kept = arithmetic(x.dtype, target)
    lanes = target.lanes(kept)
    whole = -(-out_width // lanes) * lanes  # rows of whole vectors, so that no lane needs a guard
    beyond = max((whole - 1) * sw + (kw - 1) * dw + 1 - width - left, 0)
    data = padded(x, (0, 0, top, left, 0, 0, bottom, beyond), 0)
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

    def element(b: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        value = data[b, c, y * sh + ky * dh, x * sw + kx * dw]
        return te.sum(product(value, w[c, 0, ky, kx], kept), (ky, kx))

    tile = te.compute((n, channels, out_height, whole), element, name="depthwise_tile")
    shape = (n, channels, out_height, out_width)

    def result(*i: Expr) -> Any:
        return tile[i].astype(x.dtype)

    return [te.compute(shape, result, name="depthwise")]


def schedule_depthwise(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x, w = func.buffers[:2]
    result = inline_epilogue(sch, "depthwise")
    lanes = target.lanes(arithmetic(x.dtype, target))
    rows = 8 if target.vector_registers >= 32 else 4
    taps = int(w.shape[2]) * int(w.shape[3])  # type: ignore[arg-type]
    channel = schedule_tile(
        sch,
        "depthwise_tile",
        result,
        {2: rows, 3: lanes},
        lanes=lanes,
        steps=taps if taps <= 25 else min(int(w.shape[3]), MOST_ROW_TAPS),  # type: ignore[arg-type]
        vector_result=True,
    )
    if "pad" in sch.get_blocks():
        sch.compute_at("pad", channel)
        vectorize_rows(sch, "pad", lanes)
    return sch.func
