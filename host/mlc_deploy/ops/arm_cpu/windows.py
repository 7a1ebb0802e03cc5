"""Windows over blocks of channels, each channel by itself: depthwise convolution and pooling.

A tile is a few neighbouring pixels of a row, each a vector of channels; what the windows of
neighbours share is loaded once. As in conv2d.py, padding takes no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..half import arithmetic, sums
from ..pool import pool_extents, tap_count
from ..quantize import product
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue, schedule_tile
from .conv2d import BLOCKED, MOST_ROW_TAPS, block, output_size, tap

MOST_TAPS = 25  # of a window that is unrolled as a whole


def takes_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the attributes are those that conv2d.blocked_attrs gives for depthwise ones."""
    lanes = block(inputs[0].dtype, target)
    return attrs.get("kernel_layout") == f"OHWI{lanes}o" and "out_layout" in attrs


def compute_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """Data [N, C/c, H, W, c], filters [C/c, KH, KW, 1, c]."""
    x, w = inputs
    batch, blocks, height, width, lanes = x.shape
    kernel, kept = w.shape[1:3], arithmetic(x.dtype, target)
    ky, kx = (te.reduce_axis((0, n), k) for n, k in zip(kernel, ("ky", "kx"), strict=True))

    def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
        (y, q), inside = tap((y, q), (ky, kx), (height, width), attrs)
        value = product(x[b, c, y, q, l], w[c, ky, kx, 0, l], kept)
        return te.sum(value, (ky, kx), where=inside)

    shape = (batch, blocks, *output_size((height, width), kernel, attrs), lanes)
    tile = te.compute(shape, element, name="depthwise_tile")
    return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="depthwise")]


def schedule_depthwise(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    kernel = [int(n) for n in func.buffers[1].shape[1:3]]  # type: ignore[arg-type]
    return _schedule(func, "depthwise", kernel, attrs, target)


def pool_layout(types: Sequence[TensorType], attrs: Attrs, target: Target) -> dict[str, Any] | None:
    """The attributes of two-dimensional pooling in blocks; None where the channels do not divide
    into blocks."""
    (x,) = types
    lanes = block(x.dtype, target)
    static = all(isinstance(n, int) for n in x.shape)
    if not static or len(x.shape) != 4 or "layout" in attrs or lanes == 1:
        return None
    if x.dtype not in BLOCKED:
        return None
    return None if x.shape[1] % lanes else {"layout": f"NCHW{lanes}c"}


def takes_pool(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    return attrs.get("layout") == f"NCHW{block(inputs[0].dtype, target)}c"


def compute_pool(
    reduce: Callable[..., Expr], average: bool
) -> Callable[[Sequence[Tensor], Attrs, Target], Sequence[Tensor]]:
    """Pooling by te.max or te.sum, [N, C/c, H, W, c]."""

    def compute(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
        (x,) = inputs
        taps = [te.reduce_axis((0, k), f"k{n}") for n, k in enumerate(attrs["kernel"])]
        size = x.shape[2:4]
        kept = sums(x.dtype) if average else arithmetic(x.dtype, target)
        over = {**attrs, "pads": reach(size, attrs)}

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            (y, q), inside = tap((y, q), taps, size, over)
            return reduce(x[b, c, y, q, l].astype(kept), taps, where=inside)

        shape = (*x.shape[:2], *pool_extents(x.shape[:4], attrs), x.shape[4])
        tile = te.compute(shape, element, name="pool_tile")
        if not average:
            return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="pool")]

        def mean(*i: Expr) -> Any:
            value = tile[i] / tap_count(x.shape[:4], attrs, i).astype(kept)
            return value.astype(x.dtype)

        return [te.compute(shape, mean, name="pool")]

    return compute


def reach(size: Sequence[Any], attrs: Attrs) -> tuple[int, ...]:
    """attrs' pads with those at the ends as large as windows reach, 1 where beyond the data: tap
    asks only whether there are any."""
    rank = len(size)
    ends = []
    for n, extent in enumerate(pool_extents((1, 1, *size), attrs)):
        last = (extent - 1) * attrs["strides"][n] - attrs["pads"][n]
        last += attrs["dilations"][n] * (attrs["kernel"][n] - 1)
        ends.append(max(0, last + 1 - size[n]))
    return (*attrs["pads"][:rank], *ends)


def schedule_pool(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    return _schedule(func, "pool", attrs["kernel"], attrs, target)


def _schedule(
    func: PrimFunc, name: str, kernel: Sequence[int], attrs: Attrs, target: Target
) -> PrimFunc:
    sch = Schedule(func)
    result = inline_epilogue(sch, name)
    lanes = block(func.buffers[0].dtype, target)
    taps = kernel[0] * kernel[1]
    row = int(sch.block(result).iters[3].extent)  # type: ignore[call-overload]
    pixels = even_cut(row, _most_pixels(kernel, attrs["strides"], target))
    schedule_tile(
        sch,
        f"{name}_tile",
        result,
        {3: pixels, 4: lanes},
        lanes=lanes,
        steps=taps if taps <= MOST_TAPS else min(kernel[1], MOST_ROW_TAPS),
        vector_result=True,
        tasks=3,
    )
    return sch.func


def _most_pixels(kernel: Sequence[int], strides: Sequence[int], target: Target) -> int:
    """How many sums, a row of filters and the data of a row stay in registers, as counted."""
    many = target.vector_registers >= 32
    if strides[1] > 1:
        return 8 if many else 4
    return 14 if many else 7 if kernel[1] <= 3 else 4


def even_cut(extent: int, most: int) -> int:
    """The size of the parts, of at most `most`, into which extent is cut as evenly as can be."""
    return -(-extent // -(-extent // most))
