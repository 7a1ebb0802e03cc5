"""Windows over blocks of channels, each channel by itself: depthwise convolution and pooling.

A tile is a few neighbouring pixels of a row, each a vector of channels; what the windows of
neighbours share is loaded once. As in conv2d.py, padding takes no copy.
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
from ..half import arithmetic, sums
from ..plan import Packing, Plan, stated
from ..pool import pool_extents, tap_count
from ..quantize import product
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue, schedule_tile
from .conv2d import BLOCKED, MOST_ROW_TAPS, block, in_layouts, tap
from .shapes import ConvShape, conv_shape, static

MOST_TAPS = 25  # of a window that is unrolled as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(Plan):
    """`stage` is the name of its stages."""

    stage: str
    lanes: int
    kernel: tuple[int, int]
    strides: tuple[int, int]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, self.stage)
        taps = self.kernel[0] * self.kernel[1]
        row = int(sch.block(result).iters[3].extent)  # type: ignore[call-overload]
        schedule_tile(
            sch,
            f"{self.stage}_tile",
            result,
            {3: even_cut(row, self._most_pixels()), 4: self.lanes},
            lanes=self.lanes,
            steps=taps if taps <= MOST_TAPS else min(self.kernel[1], MOST_ROW_TAPS),
            vector_result=True,
            tasks=3,
        )
        return sch.func

    def _most_pixels(self) -> int:
        """How many sums, a row of filters and the data of a row stay in registers, as counted."""
        many = self.target.vector_registers >= 32
        if self.strides[1] > 1:
            return 8 if many else 4
        return 14 if many else 7 if self.kernel[1] <= 3 else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseBlocks(Windows):
    name = "conv2d_depthwise_blocks"

    conv: ConvShape

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Data [N, C/c, H, W, c], filters [C/c, KH, KW, 1, c]."""
        x, w = inputs
        conv, kept = self.conv, arithmetic(x.dtype, self.target)
        ky, kx = (te.reduce_axis((0, n), k) for n, k in zip(self.kernel, ("ky", "kx"), strict=True))

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            (y, q), inside = tap((y, q), (ky, kx), conv.size, conv)
            value = product(x[b, c, y, q, l], w[c, ky, kx, 0, l], kept)
            return te.sum(value, (ky, kx), where=inside)

        shape = (*x.shape[:2], *conv.out_size, self.lanes)
        tile = te.compute(shape, element, name="depthwise_tile")
        return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="depthwise")]


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwiseBlocks | None:
    """Of floats, where the channels divide into blocks."""
    conv = conv_shape(types, attrs)
    if conv is None or conv.dtype not in BLOCKED or types[1].dtype != conv.dtype or conv.border:
        return None
    lanes = block(conv.dtype, target)
    if lanes == 1 or not conv.depthwise or conv.channels % lanes:
        return None
    blocks, packing = f"NCHW{lanes}c", Packing("OIHW", f"OHWI{lanes}o")
    return DepthwiseBlocks(
        **in_layouts(types, attrs, target, packing, blocks, blocks),
        stage="depthwise",
        lanes=lanes,
        kernel=conv.kernel,
        strides=conv.strides,
        conv=conv,
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """A window whose pads at the ends are as large as it reaches, 1 where beyond the data: `tap`
    asks only whether there are any."""

    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBlocks(Windows):
    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op}_blocks"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, C/c, H, W, c]"""
        (x,) = inputs
        average, attrs = self.op == "avg_pool", self.attrs
        taps = [te.reduce_axis((0, k), f"k{n}") for n, k in enumerate(self.kernel)]
        kept = sums(x.dtype) if average else arithmetic(x.dtype, self.target)
        window = reach(x.shape[2:4], attrs)
        reduce = te.sum if average else te.max

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            (y, q), inside = tap((y, q), taps, x.shape[2:4], window)
            return reduce(x[b, c, y, q, l].astype(kept), taps, where=inside)

        shape = (*x.shape[:2], *pool_extents(x.shape[:4], attrs), self.lanes)
        tile = te.compute(shape, element, name="pool_tile")
        if not average:
            return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="pool")]

        def mean(*i: Expr) -> Any:
            value = tile[i] / tap_count(x.shape[:4], attrs, i).astype(kept)
            return value.astype(x.dtype)

        return [te.compute(shape, mean, name="pool")]


def plan_pool(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> PoolBlocks | None:
    """max_pool or avg_pool of floats in two dimensions, where channels divide into blocks."""
    (x,) = types
    lanes = block(x.dtype, target)
    if not static(x) or len(x.shape) != 4 or lanes == 1 or x.dtype not in BLOCKED:
        return None
    if x.sizes[1] % lanes:
        return None
    return PoolBlocks(**pool_fields(op, types, attrs, target, lanes), stage="pool", lanes=lanes)


def pool_fields(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target, lanes: int
) -> dict[str, Any]:
    """The fields of a plan for pooling in blocks of so many channels."""
    blocks = f"NCHW{lanes}c"
    return {
        "op": op,
        "types": tuple(types),
        "stated": stated(attrs, layout=blocks),
        "target": target,
        "data": blocks,
        "result": blocks,
        "kernel": tuple(attrs["kernel"]),
        "strides": tuple(attrs["strides"]),
    }


def reach(size: Sequence[Any], attrs: Attrs) -> Reach:
    rank, strides, dilations = len(size), tuple(attrs["strides"]), tuple(attrs["dilations"])
    ends = []
    for n, extent in enumerate(pool_extents((1, 1, *size), attrs)):
        last = (extent - 1) * strides[n] - attrs["pads"][n]
        last += dilations[n] * (attrs["kernel"][n] - 1)
        ends.append(max(0, last + 1 - size[n]))
    return Reach(strides, dilations, (*attrs["pads"][:rank], *ends))


def even_cut(extent: int, most: int) -> int:
    """The size of the parts, of at most `most`, into which extent is cut as evenly as can be."""
    return -(-extent // -(-extent // most))
