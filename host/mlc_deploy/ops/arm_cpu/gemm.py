"""dense and conv2d in register tiles: weights packed by output channel, one vector of channels
times one element of the data per multiply-accumulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc
from ...schedule import Schedule
from ...te import Tensor
from ..nn import window_extent
from ..registry import Attrs, TensorType
from ..tile import schedule_tile


def rows_per_tile(rows: int, most: int) -> int:
    """The largest divisor of `rows` up to `most`."""
    return next(n for n in range(min(rows, most), 0, -1) if rows % n == 0)


def tile_shape(dtype: str, target: Target) -> tuple[int, int, int]:
    """(rows, columns, lanes): as many sums as leave registers for a row of weights and the data."""
    lanes = target.lanes(dtype)
    if target.vector_registers >= 32:
        return 8, 2 * lanes, lanes
    return (4, 2 * lanes, lanes) if lanes > 1 else (4, 4, 1)


def static(*types: Tensor | TensorType) -> bool:
    return all(isinstance(n, int) for t in types for n in t.shape)


# ------------------------------------------------------------------------------------------ dense


def dense_layout(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a dense whose weights are packed in columns of tiles."""
    x, w = types
    if "kernel_layout" in attrs or not static(x, w):
        return None
    columns = tile_shape(x.dtype, target)[1]
    source = "NK" if attrs["transpose_b"] else "KN"
    channels = w.shape[0 if attrs["transpose_b"] else 1]
    return {"kernel_layout": f"NK{columns}n", "source_layout": source, "channels": channels}


def takes_packed(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    return "kernel_layout" in attrs and static(*inputs)


def compute_dense(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    x, w = inputs
    blocks, depth, columns = w.shape
    over = te.reduce_axis((0, depth), "k")
    padded = (x.shape[0], blocks * columns)
    tile = te.compute(
        padded,
        lambda i, j: te.sum(x[i, over] * w[j // columns, over, j % columns], over),
        name="dense_tile",
    )
    shape = (x.shape[0], attrs["channels"])
    return [te.compute(shape, lambda i, j: tile[i, j], name="dense")]


def schedule_dense(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x, w, _ = func.buffers
    most, _, lanes = tile_shape(x.dtype, target)
    rows = rows_per_tile(int(x.shape[0]), most)  # type: ignore[arg-type]
    schedule_tile(
        sch,
        "dense_tile",
        "dense",
        {0: rows, 1: int(w.shape[2])},  # type: ignore[arg-type]
        lanes=lanes,
        steps=4,
        vector_result=True,
    )
    return sch.func


# ----------------------------------------------------------------------------------------- conv2d


def conv2d_layout(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a convolution whose weights are packed by blocks of output channels."""
    x, w = types
    if "kernel_layout" in attrs or attrs["groups"] != 1 or not static(x, w):
        return None
    columns = tile_shape(x.dtype, target)[1]
    return {"kernel_layout": f"OIHW{columns}o", "source_layout": "OIHW", "channels": w.shape[0]}


def compute_conv2d(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    x, w = inputs
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    top, left, bottom, right = attrs["pads"]
    n, channels, height, width = x.shape
    blocks, _, kh, kw, columns = w.shape
    out_height = window_extent(height + top + bottom, kh, sh, dh)
    out_width = window_extent(width + left + right, kw, sw, dw)
    across = _across(out_width, x.dtype, target)
    tiled_width = -(-out_width // across) * across
    needed = (tiled_width - 1) * sw + (kw - 1) * dw + 1  # what whole tiles read of a row
    data = _padded(x, top, left, bottom, max(needed - width - left, 0))
    c = te.reduce_axis((0, channels), "c")
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

    def element(b: Expr, y: Expr, x: Expr, f: Expr) -> Expr:
        value = data[b, c, y * sh + ky * dh, x * sw + kx * dw]
        return te.sum(value * w[f // columns, c, ky, kx, f % columns], (c, ky, kx))

    tile = te.compute((n, out_height, tiled_width, blocks * columns), element, name="conv2d_tile")
    shape = (n, attrs["channels"], out_height, out_width)
    return [te.compute(shape, lambda b, f, y, x: tile[b, y, x, f], name="conv2d")]


def _across(out_width: int, dtype: str, target: Target) -> int:
    """How many results of a row one tile holds: the size that leaves the least of the row over."""
    most = tile_shape(dtype, target)[0]
    return min(
        range(most, max(most // 2, 1) - 1, -1), key=lambda n: -(-out_width // n) * n / n**0.1
    )


def _padded(x: Tensor, top: int, left: int, bottom: int, right: int) -> Tensor:
    """x within zeros, as a stage of its own; x itself where there is nothing to add."""
    if top == left == bottom == right == 0:
        return x
    n, channels, height, width = x.shape

    def element(b: Expr, c: Expr, y: Expr, z: Expr) -> Expr:
        inside = te.all_of(y >= top, y < height + top, z >= left, z < width + left)
        return te.if_then_else(inside, x[b, c, y - top, z - left], 0)

    shape = (n, channels, height + top + bottom, width + left + right)
    padded: Tensor = te.compute(shape, element, name="pad")
    return padded


def schedule_conv2d(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x, w, out = func.buffers
    lanes = tile_shape(x.dtype, target)[2]
    across = _across(int(out.shape[3]), x.dtype, target)  # type: ignore[arg-type]
    schedule_tile(
        sch,
        "conv2d_tile",
        "conv2d",
        {1: int(w.shape[4]), 3: across},  # type: ignore[arg-type]
        lanes=lanes,
        steps=4,
        vector_result=False,
    )
    return sch.func
