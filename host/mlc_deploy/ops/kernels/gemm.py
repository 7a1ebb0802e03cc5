"""Matrix products, and conv2d of planes, in register tiles: weights packed by output channel, one
vector of channels times one element of the data per multiply-accumulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, Reduce
from ...schedule import Schedule
from ...te import Tensor
from ..elementwise import broadcast_shape, element_at
from ..half import arithmetic, tile_sum
from ..plan import Packing, Plan, stated
from ..quantize import product, sum_dtype
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import inline_epilogue, schedule_tile, vectorize_rows
from .shapes import ConvShape, conv_shape, static

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


def sums_alike(op: str, x: TensorType, w: TensorType) -> bool:
    """Whether sums are of the data's own dtype: 8-bit numbers have wider ones."""
    return sum_dtype(op, x.dtype, w.dtype) == x.dtype


# ------------------------------------------------------------------------------------------ dense


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Plan):
    """panels: rows of a tile are laid side by side first."""

    name = "dense_tile"

    channels: int
    tile: Tile
    panels: bool

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        x, w = inputs
        blocks, _, columns = w.shape
        over = te.reduce_axis((0, x.shape[1]), "k")
        kept = arithmetic(x.dtype, self.target)
        x_at = _in_panels(x, self.tile, kept) if self.panels else lambda i, k: x[i, k]

        def element(i: Expr, j: Expr) -> Reduce:
            weight = w[j // columns, over, j % columns]
            return te.sum(product(x_at(i, over.var), weight, kept), over)

        tile = tile_sum((x.shape[0], blocks * columns), element, over, "dense_tile")
        shape = (x.shape[0], self.channels)
        return [te.compute(shape, lambda i, j: tile[i, j].astype(x.dtype), name="dense")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        rows = schedule_tile(
            sch,
            "dense_tile",
            inline_epilogue(sch, "dense"),
            {0: self.tile.rows, 1: self.tile.columns},
            lanes=self.tile.lanes,
            steps=self.tile.steps,
            vector_result=True,
        )
        if self.panels:
            sch.compute_at("panel", rows)
            *_, row, lane = sch.get_loops("panel")
            sch.unroll(row)
            sch.vectorize(lane)
        return sch.func


def plan_dense(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Dense | None:
    """With weights packed in columns of tiles."""
    x, w = types
    if "kernel_layout" in attrs or not static(x, w) or not sums_alike("dense", x, w):
        return None
    (rows, depth), source = x.sizes, "NK" if attrs["transpose_b"] else "KN"
    channels = w.sizes[0 if attrs["transpose_b"] else 1]
    panels = panel_tile(x.dtype, rows, depth, channels, target)
    tile = panels or dense_tile(x.dtype, rows, channels, target)
    packing = Packing(source, f"NK{tile.columns}n")
    return Dense(
        **dense_fields(types, attrs, target, packing, channels),
        channels=channels,
        tile=tile,
        panels=panels is not None,
    )


def dense_fields(
    types: Sequence[TensorType],
    attrs: Attrs,
    target: Target,
    packing: Packing,
    channels: int,
    **more: Any,
) -> dict[str, Any]:
    """The fields of a plan for dense with packed weights; `more` are attributes that state it."""
    how = {"kernel_layout": packing.to, "source_layout": packing.source, "channels": channels}
    return {
        "op": "dense",
        "types": tuple(types),
        "stated": stated(attrs, **how, **more),
        "target": target,
        "packing": packing,
    }


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


# ----------------------------------------------------------------------------------------- matmul


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul(Plan):
    name = "matmul_tile"

    batch: tuple[int, ...]
    tile: Tile

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[..., M, K] times [..., K, N]; the leading dimensions broadcast."""
        a, b = inputs
        over = te.reduce_axis((0, a.shape[-1]), "k")
        shape = (*self.batch, a.shape[-2], b.shape[-1])
        kept = arithmetic(a.dtype, self.target)

        def element(*i: Expr) -> Reduce:
            left = element_at(a, (*i[:-1], over.var))
            return te.sum(product(left, element_at(b, (*i[:-2], over.var, i[-1])), kept), over)

        tile = tile_sum(shape, element, over, "matmul_tile")
        return [te.compute(shape, lambda *i: tile[i].astype(a.dtype), name="matmul")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        rank = len(self.batch) + 2
        schedule_tile(
            sch,
            "matmul_tile",
            inline_epilogue(sch, "matmul"),
            {rank - 2: self.tile.rows, rank - 1: self.tile.columns},
            lanes=self.tile.lanes,
            steps=self.tile.steps,
            vector_result=True,
            tasks=len(self.batch) + 1,
        )
        return sch.func


def plan_matmul(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Matmul | None:
    """Where rows of the second matrix are whole vectors, which need no packing."""
    a, b = types
    if attrs.get("transpose_b") or not static(a, b) or not sums_alike("matmul", a, b):
        return None
    lanes = target.lanes(arithmetic(a.dtype, target))
    if lanes == 1 or b.sizes[-1] % lanes:
        return None
    batch = broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]])
    return Matmul(
        op="matmul",
        types=tuple(types),
        stated=stated(attrs),
        target=target,
        batch=tuple(int(n) for n in batch),  # type: ignore[arg-type]
        tile=dense_tile(a.dtype, a.sizes[-2], b.sizes[-1], target),
    )


# ----------------------------------------------------------------------------------------- conv2d


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPlanes(Plan):
    name = "conv2d_direct"

    conv: ConvShape
    tile: Tile

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Pixels of a row against blocks of channels; of the whole image where a kernel of one
        pixel makes rows and columns one dimension."""
        x, w = inputs
        conv, kept = self.conv, arithmetic(x.dtype, self.target)
        (sh, sw), (dh, dw), (kh, kw) = conv.strides, conv.dilations, conv.kernel
        blocks, *_, columns = w.shape
        height, width = conv.out_size
        shape = (conv.batch, conv.out_channels, height, width)
        c = te.reduce_axis((0, conv.channels), "c")
        if conv.pointwise:

            def pixel(b: Expr, p: Expr, f: Expr) -> Reduce:
                value = x[b, c, p // width, p % width]
                return te.sum(product(value, w[f // columns, c, 0, 0, f % columns], kept), c)

            flat = (conv.batch, height * width, blocks * columns)
            tile = tile_sum(flat, pixel, c, "conv2d_tile")

            def at(b: Expr, f: Expr, y: Expr, q: Expr) -> Any:
                return tile[b, y * width + q, f].astype(x.dtype)

            return [te.compute(shape, at, name="conv2d")]
        top, left, bottom, right = conv.pads
        data = padded(x, (0, 0, top, left, 0, 0, bottom, right), conv.border)
        ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

        def element(b: Expr, y: Expr, q: Expr, f: Expr) -> Reduce:
            value, weight = data[b, c, y * sh + ky * dh, q * sw + kx * dw], (c, ky, kx)
            return te.sum(product(value, w[(f // columns, *weight, f % columns)], kept), weight)

        rows = (conv.batch, height, width, blocks * columns)
        tile = tile_sum(rows, element, c, "conv2d_tile")

        def result(b: Expr, f: Expr, y: Expr, q: Expr) -> Any:
            return tile[b, y, q, f].astype(x.dtype)

        return [te.compute(shape, result, name="conv2d")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "conv2d")
        pixels = 3
        if self.conv.pointwise:
            *_, y, x = sch.get_loops(result)
            sch.fuse(y, x)
            pixels = 2
        schedule_tile(
            sch,
            "conv2d_tile",
            result,
            {1: self.tile.columns, pixels: self.tile.rows},
            lanes=self.tile.lanes,
            steps=self.tile.steps,
            vector_result=False,
        )
        if "pad" in sch.get_blocks():
            vectorize_rows(sch, "pad", self.tile.lanes)
        return sch.func


def plan_conv2d(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvPlanes | None:
    """Of one group, with weights packed by blocks of output channels."""
    conv = conv_shape(types, attrs)
    if conv is None or conv.groups != 1 or not sums_alike("conv2d", *types):
        return None
    tile = conv2d_tile(conv.dtype, target)
    packing = Packing("OIHW", f"OIHW{tile.columns}o")
    how = {"kernel_layout": packing.to, "source_layout": "OIHW", "channels": conv.out_channels}
    return ConvPlanes(
        op="conv2d",
        types=tuple(types),
        stated=stated(attrs, **how),
        target=target,
        packing=packing,
        conv=conv,
        tile=tile,
    )
