"""Matrix products, and conv2d of planes, in register tiles: weights packed by output channel, one
vector of channels times one element of the data per multiply-accumulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Buffer, Expr, PrimFunc, Reduce
from ...schedule import Schedule
from ...te import Tensor
from ..elementwise import broadcast_shape, element_at
from ..half import arithmetic, tile_sum
from ..nn import window_extent
from ..quantize import product, sum_dtype
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import inline_epilogue, schedule_tile, vectorize_rows

PANEL = 8  # rows of a tile at most, where they are packed
MANY_COLUMNS = 64  # for which that pays


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of sums that stays in registers: `rows` elements of the data against `columns` output
    channels, in vectors of `lanes` channels; the reduction is unrolled by `steps`."""

    rows: int
    columns: int
    lanes: int
    steps: int


def dense_tile(dtype: str, rows: int, channels: int, target: Target) -> Tile:
    """Where each row of the data has a vector of its own, of neighbours along k. Of a single row
    every weight is used once, so that many columns make up for what a turn costs."""
    lanes = target.lanes(arithmetic(dtype, target))
    if rows == 1 and target.vector_registers:
        vectors = -(-channels // lanes)
        best = min(range(4, 9), key=lambda n: (-(-vectors // n) * (n + 1), -n))
        return Tile(1, best * lanes, lanes, max(4, lanes) if target.arch != "x86_64" else 4)
    match target.vector_registers:
        case 32:
            return Tile(5, 4 * lanes, lanes, 8)
        case 16:
            return Tile(4, 2 * lanes, lanes, 16)
    return Tile(4, 4, 1, 4)


def panel_tile(dtype: str, rows: int, depth: int, channels: int, target: Target) -> Tile | None:
    """Where it is worth while to lay the rows of a tile side by side first, vector by vector: two
    are then loaded at once, and they are read for every tile of columns. None elsewhere."""
    lanes = target.lanes(arithmetic(dtype, target))
    few = rows < 2 * PANEL or channels < MANY_COLUMNS or depth % lanes
    if target.arch != "aarch64" or lanes == 1 or few:
        return None
    return Tile(-(-rows // -(-rows // PANEL)), 2 * lanes, lanes, 4 * lanes)


def conv2d_tile(dtype: str, target: Target) -> Tile:
    """Where the rows are neighbouring pixels, which on ARM come as whole vectors of four."""
    lanes = target.lanes(arithmetic(dtype, target))
    match target.vector_registers:
        case 32:
            return Tile(12, 2 * lanes, lanes, 4)
        case 16:
            return Tile(4, 2 * lanes, lanes, 4)
    return Tile(4, 4, 1, 4)


def static(*types: Tensor | TensorType) -> bool:
    return all(isinstance(n, int) for t in types for n in t.shape)


def tiled(x: Tensor | TensorType, w: Tensor | TensorType) -> bool:
    """Whether tiles of sums in the data's own dtype are meant: 8-bit numbers have wider sums."""
    return static(x, w) and sum_dtype("conv2d", x.dtype, w.dtype) == x.dtype


# ------------------------------------------------------------------------------------------ dense


def dense_layout(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a dense whose weights are packed in columns of tiles."""
    x, w = types
    if "kernel_layout" in attrs or not tiled(x, w):
        return None
    source = "NK" if attrs["transpose_b"] else "KN"
    channels = int(w.shape[0 if attrs["transpose_b"] else 1])  # type: ignore[arg-type]
    columns = _dense_tile(x, channels, target).columns
    return {"kernel_layout": f"NK{columns}n", "source_layout": source, "channels": channels}


def takes_packed(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    return "kernel_layout" in attrs and "out_layout" not in attrs and static(*inputs)


def compute_dense(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    x, w = inputs
    blocks, _, columns = w.shape
    over = te.reduce_axis((0, x.shape[1]), "k")
    kept = arithmetic(x.dtype, target)
    rows, depth = (int(n) for n in x.shape)  # type: ignore[arg-type]
    panels = panel_tile(x.dtype, rows, depth, attrs["channels"], target)
    x_at = _in_panels(x, panels, kept) if panels else lambda i, k: x[i, k]

    def element(i: Expr, j: Expr) -> Reduce:
        return te.sum(product(x_at(i, over.var), w[j // columns, over, j % columns], kept), over)

    tile = tile_sum((x.shape[0], blocks * columns), element, over, "dense_tile")
    shape = (x.shape[0], attrs["channels"])
    return [te.compute(shape, lambda i, j: tile[i, j].astype(x.dtype), name="dense")]


def _dense_tile(x: Buffer | TensorType, channels: int, target: Target) -> Tile:
    rows, depth = (int(n) for n in x.shape)  # type: ignore[arg-type]
    found = panel_tile(x.dtype, rows, depth, channels, target)
    return found or dense_tile(x.dtype, rows, channels, target)


def _in_panels(x: Tensor, tile: Tile, kept: str) -> Callable[[Expr, Expr], Expr]:
    """x's elements by row and k, from panels of a tile's rows in which vectors of neighbours along
    k stand side by side."""
    rows, depth = x.shape
    height, lanes = tile.rows, tile.lanes

    def element(p: Expr, k: Expr, i: Expr, l: Expr) -> Expr:  # noqa: E741
        value = x[p * height + i, k * lanes + l].astype(kept)
        return value if rows % height == 0 else te.if_then_else(p * height + i < rows, value, 0)

    shape = (-(-rows // height), depth // lanes, height, lanes)
    panel = te.compute(shape, element, name="panel")
    return lambda i, k: panel[i // height, k // lanes, i % height, k % lanes]


def schedule_dense(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x = func.buffers[0]
    tile = _dense_tile(x, attrs["channels"], target)
    rows = schedule_tile(
        sch,
        "dense_tile",
        inline_epilogue(sch, "dense"),
        {0: tile.rows, 1: tile.columns},
        lanes=tile.lanes,
        steps=tile.steps,
        vector_result=True,
    )
    if "panel" in sch.get_blocks():
        sch.compute_at("panel", rows)
        *_, row, lane = sch.get_loops("panel")
        sch.unroll(row)
        sch.vectorize(lane)
    return sch.func


# ----------------------------------------------------------------------------------------- matmul


def takes_matmul(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether rows of the second matrix are whole vectors, which need no packing."""
    if attrs.get("transpose_b"):
        return False
    a, b = inputs
    lanes = target.lanes(arithmetic(a.dtype, target))
    same = static(a, b) and sum_dtype("matmul", a.dtype, b.dtype) == a.dtype
    return bool(same and lanes > 1 and b.shape[-1] % lanes == 0)


def compute_matmul(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """[..., M, K] times [..., K, N]; the leading dimensions broadcast."""
    a, b = inputs
    over = te.reduce_axis((0, a.shape[-1]), "k")
    shape = (*broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1])

    kept = arithmetic(a.dtype, target)

    def element(*i: Expr) -> Reduce:
        left = element_at(a, (*i[:-1], over.var))
        return te.sum(product(left, element_at(b, (*i[:-2], over.var, i[-1])), kept), over)

    tile = tile_sum(shape, element, over, "matmul_tile")
    return [te.compute(shape, lambda *i: tile[i].astype(a.dtype), name="matmul")]


def schedule_matmul(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    result = inline_epilogue(sch, "matmul")
    *batch, rows, columns = (int(i.extent) for i in sch.block(result).iters)  # type: ignore[call-overload]
    tile = dense_tile(func.buffers[0].dtype, rows, columns, target)
    rank = len(batch) + 2
    schedule_tile(
        sch,
        "matmul_tile",
        result,
        {rank - 2: tile.rows, rank - 1: tile.columns},
        lanes=tile.lanes,
        steps=tile.steps,
        vector_result=True,
        tasks=len(batch) + 1,
    )
    return sch.func


# ----------------------------------------------------------------------------------------- conv2d


def conv2d_layout(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a convolution whose weights are packed by blocks of output channels."""
    x, w = types
    if "kernel_layout" in attrs or attrs["groups"] != 1 or not tiled(x, w):
        return None
    columns = conv2d_tile(x.dtype, target).columns
    return {"kernel_layout": f"OIHW{columns}o", "source_layout": "OIHW", "channels": w.shape[0]}


def compute_conv2d(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """Pixels of a row against blocks of channels; of the whole image where a kernel of one pixel
    makes rows and columns one dimension."""
    x, w = inputs
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    n, channels, height, width = x.shape
    blocks, _, kh, kw, columns = w.shape
    top, left, bottom, right = attrs["pads"]
    out_height = window_extent(height + top + bottom, kh, sh, dh)
    out_width = window_extent(width + left + right, kw, sw, dw)
    shape = (n, attrs["channels"], out_height, out_width)
    c = te.reduce_axis((0, channels), "c")
    kept = arithmetic(x.dtype, target)
    if is_pointwise(attrs, w):

        def pixel(b: Expr, p: Expr, f: Expr) -> Reduce:
            value = x[b, c, p // width, p % width]
            return te.sum(product(value, w[f // columns, c, 0, 0, f % columns], kept), c)

        flat = (n, out_height * out_width, blocks * columns)
        tile = tile_sum(flat, pixel, c, "conv2d_tile")

        def at(b: Expr, f: Expr, y: Expr, q: Expr) -> Any:
            return tile[b, y * width + q, f].astype(x.dtype)

        return [te.compute(shape, at, name="conv2d")]
    data = padded(x, (0, 0, top, left, 0, 0, bottom, right), 0)
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

    def element(b: Expr, y: Expr, q: Expr, f: Expr) -> Reduce:
        value = data[b, c, y * sh + ky * dh, q * sw + kx * dw]
        return te.sum(product(value, w[f // columns, c, ky, kx, f % columns], kept), (c, ky, kx))

    rows = (n, out_height, out_width, blocks * columns)
    tile = tile_sum(rows, element, c, "conv2d_tile")

    def result(b: Expr, f: Expr, y: Expr, q: Expr) -> Any:
        return tile[b, y, q, f].astype(x.dtype)

    return [te.compute(shape, result, name="conv2d")]


def is_pointwise(attrs: Attrs, w: Buffer) -> bool:
    """Whether every output pixel needs just the pixel of the same place."""
    return w.shape[2:4] == (1, 1) and attrs["strides"] == (1, 1) and not any(attrs["pads"])


def schedule_conv2d(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    tile = conv2d_tile(func.buffers[0].dtype, target)
    result = inline_epilogue(sch, "conv2d")
    pixels = 3
    if is_pointwise(attrs, func.buffers[1]):
        *_, y, x = sch.get_loops(result)
        sch.fuse(y, x)
        pixels = 2
    schedule_tile(
        sch,
        "conv2d_tile",
        result,
        {1: tile.columns, pixels: tile.rows},
        lanes=tile.lanes,
        steps=tile.steps,
        vector_result=False,
    )
    if "pad" in sch.get_blocks():
        vectorize_rows(sch, "pad", tile.lanes)
    return sch.func
