"""conv2d of floats: in blocks of channels, and of planes.

In blocks, a pixel is a vector, whatever the stride and the width. A tile of sums is a few
neighbouring pixels against a few vectors of output channels. The data of a pixel come as one vector
of input channels, whose lanes multiply a vector of weights each. Padding takes no copy: taps
outside of the data are left out of the sum. So whole rows of the kernel are skipped, and only the
tiles at the ends of a row have code of their own. The first layer of a network, with few channels,
reads planes and gives blocks.

Where channels do not divide into blocks, data and results are planes. Then vectors of pixels are
loaded, and padding takes a copy. Weights known only at run time are packed in each run, for planes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, PrimFunc, Reduce, dtype_of
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape, is_open
from ..half import PART, arithmetic, part_sizes, spare_registers, tile_sum
from ..plan import Packing, fields
from ..quantize import product, sums_alike
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import FEW_TASKS, inline_epilogue, schedule_tile, vectorize_rows
from .contraction import Contraction, Tile, Work, best_tile, cost, prefetch_weights, turns_together
from .intrinsics.microkernels import Microkernel, of_floats

BLOCKED = ("float32", "float16")
PLANES = 4  # channels up to which planes are read, in layers that are not in blocks
FEW_PIXELS = 16  # below which packing weights in each run is not worthwhile
MOST_UNROLLED = (
    192  # about how many multiply-accumulates there are in an iteration of the reduction
)
MOST_ROW_TAPS = 32  # taps of a kernel's row to unroll: at a row's ends each has its own guard
SHORT_TURNS = 8  # most iterations that are unrolled into one, where the kernel is one pixel wide
SPARE_APART = 4  # registers to leave free, where float16 taps share no data: as counted
STEPS = 4  # unrolled steps of the reduction over channels of planes
FILLED = "filters"  # the stage that packs weights
TURNED = 8  # most elements of a vector that is transposed in registers (lower/machine)
# Instructions for an element of a result, beside its sum, where vectors are longer: `mlc-deploy
# --emit asm` shows at least so many for 24 to 144 channels with a bias and ReLU (AVX-512, LLVM 22).
ALONE = 3


Tap = Callable[[Sequence[Expr], Sequence[te.IterVar]], tuple[list[Expr], Expr]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Contraction):
    """A tile's rows are pixels."""

    conv: ConvShape

    @property
    def kept(self) -> str:
        """The dtype of products and of their sums."""
        return arithmetic(self.conv.dtype, self.target)


# ----------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvBlocks(Convolution):
    """work: decided the tile. planes: data are plain, of few channels."""

    name = "conv2d_blocks"

    planes: bool
    work: Work

    @property
    def apart(self) -> bool:
        """Whether each tap is summed up over all channels before the next."""
        return not _taps_share(self.conv, self.planes, self.kernel)

    @property
    def depth(self) -> int:
        """Blocks of a group's input channels; channels, where data are planes."""
        return self.conv.per_group // (1 if self.planes else self.kernel.lanes)

    def fills_parts(self, depth: int) -> bool:
        """Whether the channels of a tap, in `depth` blocks, fill a part of a sum, or several."""
        return self.apart and depth * self.kernel.lanes >= PART

    def part(self, depth: int) -> int:
        """Of how many of `depth` blocks of channels a part of a sum is."""
        long = None if self.fills_parts(depth) else 2
        return part_sizes(self.kept, (*self.conv.kernel, depth, self.kernel.lanes), long)[2]

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, O/c, H, W, c]; the tile's pixels are one dimension where rows do not matter."""
        x, w = inputs
        conv, lanes, vectors = self.conv, self.kernel.lanes, self.tile.blocks
        _, kh, depth, kw, *_ = w.shape
        out_blocks, width = conv.out_channels // lanes, conv.size[1]
        c, ky, kx = (te.reduce_axis((0, n), k) for n, k in ((depth, "c"), (kh, "ky"), (kw, "kx")))
        lane = te.reduce_axis((0, 1 if self.planes else lanes), "lane")
        over: tuple[te.IterVar, ...] = (ky, c, kx, lane)
        if self.kernel.by_number:
            over = (ky, c, lane, kx)
        elif self.apart:
            over = (ky, kx, c, lane)

        data, tap, rows = self.read(x)

        def element(b: Expr, f: Expr, *of: Expr) -> Reduce:
            *pixel, l = of  # noqa: E741
            place, inside = tap(pixel, (ky, kx))
            weight, column = (f // vectors, ky, c, kx), f % vectors * lanes + l
            if self.planes:
                term = product(data[(b, c, *place)], w[(*weight, column)], self.kept)
            else:
                of_group = f // self.work.blocks * depth + c if conv.groups > 1 else c
                value = data[(b, of_group, *place, lane)]
                term = product(value, w[(*weight, lane, column)], self.kept)
            return te.sum(term, over, where=inside)

        long = None if self.fills_parts(int(depth)) else c  # type: ignore[arg-type]
        tile = tile_sum((conv.batch, out_blocks, *rows, lanes), element, long, "conv2d_tile")

        def result(b: Expr, f: Expr, y: Expr, q: Expr, l: Expr) -> Any:  # noqa: E741
            pixel = (y * width + q,) if conv.flat else (y, q)
            return tile[(b, f, *pixel, l)].astype(x.dtype)

        shape = (conv.batch, out_blocks, *conv.out_size, lanes)
        return [te.compute(shape, result, name="conv2d")]

    def read(self, x: Tensor) -> tuple[Tensor, Tap, tuple[Any, ...]]:
        """Data as taps read them; the index that a tap of a pixel reads, and whether it is inside
        the data; and the pixels' extents."""
        conv, (height, width) = self.conv, self.conv.out_size
        if conv.flat:
            pixels = (height * width,)
            return x, lambda at, _: ([at[0] // width, at[0] % width], te.all_of()), pixels
        return x, lambda at, kernel: conv.window.tap(at, kernel, conv.size), (height, width)

    def steps(self, depth: int) -> int:
        """About how many steps of the reduction are unrolled into an iteration. depth: iterations
        over channels."""
        kw, taps = self.conv.kernel[1], self.work.taps
        together = 1 if self.planes else self.kernel.lanes
        row_taps, steps = min(kw, MOST_ROW_TAPS), taps * together
        if taps > MOST_ROW_TAPS:
            steps = row_taps if self.planes else together
        if self.planes:
            steps *= depth if self.target.arch == "arm" else 1
        elif (
            taps == 1
        ):  # iterations are short; unrolled whole, they load all weights, and spill them
            part = self.part(depth)
            sums = self.tile.rows * self.tile.blocks * together
            turns = turns_together(sums, min(SHORT_TURNS, max(1, part // 2)))
            if part < depth and self.target.arch == "aarch64":
                turns = part  # so that its sums begin with products, not with zeros
            steps *= turns
        if self.kernel.by_number:  # elsewhere the lanes of a vector have to be seen together
            steps = min(steps, max(row_taps, MOST_UNROLLED // (self.tile.rows * self.tile.blocks)))
        return steps

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "conv2d")
        sch.fuse_reduction_epilogue("conv2d_tile", result)
        pixels, vectors, lanes = self.tile.rows, self.tile.blocks, self.kernel.lanes
        cuts, tasks = {1: vectors, 3: pixels, 4: lanes}, 3
        if self.conv.flat:
            b, f, y, q, _ = sch.get_loops(result)
            all_pixels = sch.fuse(y, q)
            cuts, tasks = {1: vectors, 2: pixels, 3: lanes}, 2
            if self.work.blocks // vectors < FEW_TASKS:  # filters stay in the cache for all pixels
                sch.reorder(all_pixels, b, f)
                cuts, tasks = {0: pixels, 2: vectors, 3: lanes}, 1
        task = schedule_tile(
            sch,
            "conv2d_tile",
            result,
            cuts,
            lanes=lanes,
            steps=self.steps(self.depth),
            vector_result=True,
            tasks=tasks,
            row_by_row=self.kernel.by_number,
        )
        prefetch_weights(sch, task, func, self.kernel)
        if model := scheduling_model("conv2d", self.target):
            sch.tune_for(model)
        return sch.func


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a convolution is cut into tiles, in blocks of channels. planes: data are plain, of few
    channels."""

    conv: ConvShape
    kernel: Microkernel
    planes: bool
    work: Work
    tile: Tile

    @property
    def products(self) -> float:
        """Instructions that compute the sums."""
        conv, (height, width) = self.conv.usual, self.conv.usual.out_size
        together = self.work.taps * (1 if self.planes else self.kernel.lanes)
        turns = conv.per_group * prod(conv.kernel) / together
        rows = conv.batch * conv.groups * height * width / self.work.rows
        return rows * turns * cost(self.kernel, self.tile, self.work)


def blocks_of(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Blocks | None:
    """For floats; None if channels do not divide into blocks, or the convolution is depthwise."""
    conv = conv_shape(types, attrs, any_size=True)
    if conv is None or conv.dtype not in BLOCKED or types[1].dtype != conv.dtype or conv.border:
        return None
    lanes, groups = block(conv.dtype, target), conv.groups
    if lanes == 1 or conv.depthwise or conv.out_channels // groups % lanes:
        return None
    planes = groups == 1 and conv.channels <= PLANES and conv.channels % lanes != 0
    if not planes and conv.per_group % lanes:
        return None
    kernel = of_floats(target, lanes, 1 if planes else lanes)
    work = _work(conv.usual, kernel, planes, target)
    return Blocks(conv, kernel, planes, work, best_tile(kernel, work, target))


def in_blocks(
    types: Sequence[TensorType], attrs: Attrs, target: Target, blocks: Blocks, cost: float
) -> dict[str, Any]:
    """The fields of ConvBlocks."""
    lanes = blocks.kernel.lanes
    data, result = "" if blocks.planes else f"NCHW{lanes}c", f"NCHW{lanes}c"
    columns = blocks.tile.blocks * lanes
    weights = f"OHIW{columns}o" if blocks.planes else f"OHIW{lanes}i{columns}o"
    return {
        **in_layouts(types, attrs, target, Packing("OIHW", weights), data, result),
        "cost": cost,
        "conv": blocks.conv,
        "kernel": blocks.kernel,
        "tile": blocks.tile,
        "planes": blocks.planes,
        "work": blocks.work,
    }


def plan_blocks(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvBlocks | None:
    """For data that are read where they are: their width is known, and their height where rows
    matter."""
    blocks = blocks_of(types, attrs, target)
    if blocks is None:
        return None
    conv = blocks.conv
    if is_open(conv.size[1:] if conv.pointwise else conv.size):
        return None
    return ConvBlocks(**in_blocks(types, attrs, target, blocks, blocks.products))


def block(dtype: str, target: Target) -> int:
    """How many channels are in a block: the lanes of a vector of the dtype that computes them."""
    return target.lanes(arithmetic(dtype, target))


def in_layouts(
    types: Sequence[TensorType],
    attrs: Attrs,
    target: Target,
    packing: Packing | None,
    data: str = "",
    result: str = "",
    **more: Any,
) -> dict[str, Any]:
    """The fields of a plan for a convolution in these layouts, "" for plain ones; `more` are
    attributes that state it, too."""
    if result:
        more |= {"data_layout": data or "NCHW", "out_layout": result}
    if packing is not None:
        more["channels"] = types[1].shape[0]
    return fields("conv2d", types, attrs, target, packing, data, result, **more)


def _work(conv: ConvShape, kernel: Microkernel, planes: bool, target: Target) -> Work:
    height, width = conv.out_size
    taps = conv.kernel[1] if _taps_share(conv, planes, kernel) else 1
    blocks = conv.out_channels // conv.groups // kernel.lanes
    products = conv.per_group * conv.kernel[0] * conv.kernel[1]
    spare = spare_registers(conv.dtype, products, target)
    if kernel.by_number or (target.arch == "arm" and taps == 1):
        spare = 0
    elif taps == 1 and not conv.flat:
        spare = min(spare, SPARE_APART)
    weights = products * kernel.lanes * dtype_of(conv.dtype).bytes
    unrolled = 1
    if taps == 1 and not planes:
        unrolled = max(1, min(SHORT_TURNS, conv.per_group // kernel.lanes // 2))
    rows, apart = height * width if conv.flat else width, conv.strides[1] > 1
    return Work(rows, blocks, taps, spare, weights, unrolled, apart)


def _taps_share(conv: ConvShape, planes: bool, kernel: Microkernel) -> bool:
    """Whether neighbouring taps are unrolled together, since they read mostly the same data. With a
    stride they share too little for the registers that this takes."""
    return planes or conv.strides[1] == 1 or kernel.by_number


# ----------------------------------------------------------------------------------------- planes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPlanes(Convolution):
    """Without `packing`, weights are packed in each run."""

    name = "conv2d_direct"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Pixels of a row against blocks of channels; of the whole image where a kernel of one
        pixel makes rows and columns one dimension."""
        x, w = inputs
        conv = self.conv
        (sh, sw), (dh, dw), (kh, kw) = conv.strides, conv.dilations, conv.kernel
        w = self._packed(w) if self.packing is None else w
        blocks, *_, columns = w.shape
        height, width = conv.out_size
        top, left, bottom, right = conv.pads
        data = padded(x, (0, 0, top, left, 0, 0, bottom, right), conv.border)
        c, ky, kx = (
            te.reduce_axis((0, n), k) for n, k in ((conv.channels, "c"), (kh, "ky"), (kw, "kx"))
        )
        over = (c,) if conv.flat else (c, ky, kx)

        def element(*i: Expr) -> Reduce:
            b, *pixel, f = i
            if conv.flat:
                (p,) = pixel
                value, weight = (
                    x[b, c, p // width, p % width],
                    w[f // columns, c, 0, 0, f % columns],
                )
            else:
                y, q = pixel
                value = data[b, c, y * sh + ky * dh, q * sw + kx * dw]
                weight = w[f // columns, c, ky, kx, f % columns]
            return te.sum(product(value, weight, self.kept), over)

        rows = (height * width,) if conv.flat else (height, width)
        tile = tile_sum((conv.batch, *rows, blocks * columns), element, c, "conv2d_tile")

        def result(b: Expr, f: Expr, y: Expr, q: Expr) -> Any:
            pixel = (y * width + q,) if conv.flat else (y, q)
            return tile[(b, *pixel, f)].astype(x.dtype)

        shape = (conv.batch, conv.out_channels, height, width)
        return [te.compute(shape, result, name="conv2d")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, "conv2d")
        pixels, lanes = 3, self.kernel.lanes
        if self.conv.flat:
            *_, y, x = sch.get_loops(result)
            sch.fuse(y, x)
            pixels = 2
        schedule_tile(
            sch,
            "conv2d_tile",
            result,
            {1: self.tile.blocks * lanes, pixels: self.tile.rows},
            lanes=lanes,
            steps=STEPS,
            vector_result=False,
        )
        if "pad" in sch.get_blocks():
            vectorize_rows(sch, "pad", lanes)
        if self.packing is None:
            tiles, *over, column = sch.get_loops(FILLED)
            sch.parallel(sch.fuse(tiles, over[0]))
            column, lane = sch.split(column, [None, lanes])
            sch.unroll(column)
            sch.vectorize(lane)
        return sch.func

    def _packed(self, w: Tensor) -> Tensor:
        """[O / columns, C, H, W, columns]: filters side by side, and zeros at the end."""
        filters, columns = self.conv.out_channels, self.tile.blocks * self.kernel.lanes

        def element(tile: Expr, c: Expr, ky: Expr, kx: Expr, inside: Expr) -> Expr:
            f = tile * columns + inside
            value = w[f, c, ky, kx]
            return te.if_then_else(f < filters, value, 0) if filters % columns else value

        shape = (-(-filters // columns), self.conv.channels, *self.conv.kernel, columns)
        packed: Tensor = te.compute(shape, element, name=FILLED)
        return packed


def plan_planes(
    packed: bool, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> ConvPlanes | None:
    """For one group, with weights packed by blocks of output channels: at compile time if `packed`,
    else in each run, where many pixels and whole vectors of filters pay for it."""
    conv = conv_shape(types, attrs, any_size=True)
    if conv is None or conv.groups != 1 or not sums_alike("conv2d", *types):
        return None
    lanes = block(conv.dtype, target)
    few = prod(conv.usual.out_size) < FEW_PIXELS or conv.out_channels < lanes
    if not packed and (few or lanes == 1):
        return None
    rows, blocks = {32: (12, 2), 16: (4, 2)}.get(target.vector_registers, (4, 4))
    packing, tile = Packing("OIHW", f"OIHW{blocks * lanes}o"), Tile(rows, blocks)
    usual = conv.usual
    work = Work(usual.batch * prod(usual.out_size), -(-conv.out_channels // lanes))
    turns = conv.channels * prod(conv.kernel) / STEPS
    alone = ALONE * work.rows * conv.out_channels if lanes > TURNED else 0
    return ConvPlanes(
        **in_layouts(types, attrs, target, packing if packed else None),
        cost=turns * cost(of_floats(target, lanes, STEPS), tile, work) + alone,
        conv=conv,
        kernel=of_floats(target, lanes),
        tile=tile,
    )
