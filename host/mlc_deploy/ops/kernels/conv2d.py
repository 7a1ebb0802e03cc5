"""conv2d in blocks of channels: a pixel is a vector, whatever the stride and the width.

A tile of sums is a few neighbouring pixels against a few vectors of output channels. The data of a
pixel comes as one vector of input channels, whose lanes multiply a vector of weights each. Padding
takes no copy: what lies outside of the data is left out of the sum, so that whole rows of the
kernel are passed over, and only the tiles at the ends of a row are code of their own.

The first layer of a network, with few channels, reads them as planes and gives blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, PrimFunc, Reduce
from ...schedule import Schedule
from ...te import Tensor
from ..half import arithmetic, part_sizes, spare_registers, tile_sum
from ..plan import Packing, Plan, stated
from ..quantize import product
from ..registry import Attrs, TensorType
from ..tile import FEW_TASKS, inline_epilogue, schedule_tile
from .shapes import ConvShape, conv_shape

BLOCKED = ("float32", "float16")
PLANES = 4  # channels up to which planes are read, in layers that are not in blocks
MOST_UNROLLED = 192  # about how many multiply-accumulates there are in a turn of the reduction
MOST_ROW_TAPS = 32  # of a row of the kernel, unrolled: at a row's ends each has a guard of its own
SHORT_TURNS = 8  # of a kernel one pixel wide are made one
TURN = 5  # instructions of a turn beside loads and multiply-accumulates


# ------------------------------------------------------------------------------------------ tiles


@dataclass(frozen=True, slots=True)
class Sums:
    """What decides a tile: the result's pixels per row (all pixels where rows do not matter),
    blocks of output channels per group, taps in a row that are unrolled, channels read together,
    and registers that are to be left free."""

    row: int
    blocks: int
    taps: int
    together: int
    spare: int = 0


def block(dtype: str, target: Target) -> int:
    """How many channels are in a block: as many as a vector holds of what they are computed in."""
    return target.lanes(arithmetic(dtype, target))


def best_tile(sums: Sums, lanes: int, target: Target) -> tuple[int, int]:
    """(pixels, vectors of output channels) of the tile that takes fewest instructions for a row."""
    most = target.vector_registers
    tiles = [
        (pixels, vectors)
        for pixels in range(1, min(most, sums.row) + 1)
        for vectors in range(1, sums.blocks + 1)
        if sums.blocks % vectors == 0 and _registers(pixels, vectors, sums, target) <= most
    ]
    cost = {(p, v): row_cost(p, v, sums, lanes, target) / v for p, v in tiles}
    return min(tiles, key=lambda tile: (cost[tile], tile)) if tiles else (1, 1)


def _registers(pixels: int, vectors: int, sums: Sums, target: Target) -> int:
    held = pixels * vectors
    if target.arch == "x86_64":  # multiplies a vector by a number in memory, given a register
        return held + vectors + 1
    if target.arch == "arm" and sums.taps == 1:  # weights come in pairs of registers
        return held + pixels + 4
    return held + pixels + min(2, sums.taps - 1) + 2 + sums.spare


def row_cost(pixels: int, vectors: int, sums: Sums, lanes: int, target: Target) -> float:
    """Instructions for a row of pixels and so many vectors of output channels, of one turn."""
    whole, rest = divmod(sums.row, pixels)
    cost = whole * _turn_cost(pixels, vectors, sums, lanes, target)
    return cost + (_turn_cost(rest, vectors, sums, lanes, target) if rest else 0)


def _turn_cost(pixels: int, vectors: int, sums: Sums, lanes: int, target: Target) -> float:
    steps = sums.taps * sums.together
    products = pixels * vectors * steps
    if target.arch == "x86_64":
        return products + (pixels + vectors) * steps + TURN
    loads = (pixels + sums.taps - 1) * max(1, sums.together // lanes) + vectors * steps
    return products + loads / 2 + TURN


# ------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvBlocks(Plan):
    """A tile of `pixels` against `vectors` of output channels, which `sums` decided. planes: data
    are plain, of few channels."""

    name = "conv2d_blocks"

    conv: ConvShape
    lanes: int
    planes: bool
    sums: Sums
    pixels: int
    vectors: int

    @property
    def kept(self) -> str:
        return arithmetic(self.conv.dtype, self.target)

    @property
    def taps_share(self) -> bool:
        return taps_share(self.conv, self.planes, self.target)

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, O/c, H, W, c]; the tile's pixels are one dimension where rows do not matter."""
        x, w = inputs
        conv, lanes, vectors = self.conv, self.lanes, self.vectors
        _, kh, depth, kw, *_ = w.shape
        out_blocks, width = conv.out_channels // lanes, conv.size[1]
        per_group = out_blocks // conv.groups
        c, ky, kx = (te.reduce_axis((0, n), k) for n, k in ((depth, "c"), (kh, "ky"), (kw, "kx")))
        lane = te.reduce_axis((0, 1 if self.planes else lanes), "lane")
        over: tuple[te.IterVar, ...] = (ky, c, kx, lane)
        if self.target.arch == "x86_64":
            over = (ky, c, lane, kx)
        elif not self.taps_share:
            over = (ky, kx, c, lane)

        def term(b: Expr, f: Expr, l: Expr, y: Expr, q: Expr) -> Expr:  # noqa: E741
            weight = (f // vectors, ky, c, kx)
            column = f % vectors * lanes + l
            if self.planes:
                return product(x[b, c, y, q], w[(*weight, column)], self.kept)
            of_group = f // per_group * depth + c if conv.groups > 1 else c
            return product(x[b, of_group, y, q, lane], w[(*weight, lane, column)], self.kept)

        shape = (conv.batch, out_blocks, *conv.out_size, lanes)
        if conv.pointwise:
            flat = (conv.batch, out_blocks, conv.size[0] * width, lanes)

            def pixel(b: Expr, f: Expr, p: Expr, l: Expr) -> Reduce:  # noqa: E741
                return te.sum(term(b, f, l, p // width, p % width), over)

            tile = tile_sum(flat, pixel, c, "conv2d_tile")

            def at(b: Expr, f: Expr, y: Expr, q: Expr, l: Expr) -> Any:  # noqa: E741
                return tile[b, f, y * width + q, l].astype(x.dtype)

            return [te.compute(shape, at, name="conv2d")]

        def element(b: Expr, f: Expr, y: Expr, q: Expr, l: Expr) -> Reduce:  # noqa: E741
            (y, q), inside = tap((y, q), (ky, kx), conv.size, conv)
            return te.sum(term(b, f, l, y, q), over, where=inside)

        tile = tile_sum(shape, element, c, "conv2d_tile")
        return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="conv2d")]

    def steps(self, depth: int) -> int:
        """About how many steps of the reduction are one turn, of so many turns over channels."""
        (kh, kw), sums = self.conv.kernel, self.sums
        row_taps, steps = min(kw, MOST_ROW_TAPS), sums.taps * sums.together
        if sums.taps > MOST_ROW_TAPS:
            steps = row_taps if self.planes else sums.together
        if self.planes:
            steps *= depth if self.target.arch == "arm" else 1
        elif (
            sums.taps == 1
        ):  # turns are short; of one alone, all weights would be loaded, and spilled
            depth = part_sizes(self.kept, (kh, kw, depth, sums.together), 2)[2]
            steps *= min(SHORT_TURNS, max(1, depth // 2))
        if self.target.arch == "x86_64":  # elsewhere the lanes of a vector have to be seen together
            steps = min(steps, max(row_taps, MOST_UNROLLED // (self.pixels * self.vectors)))
        return steps

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        depth = int(func.buffers[1].shape[2])  # type: ignore[arg-type]
        result = inline_epilogue(sch, "conv2d")
        sch.fuse_reduction_epilogue("conv2d_tile", result)
        pixels, vectors = self.pixels, self.vectors
        if self.conv.pointwise:
            b, f, y, q, _ = sch.get_loops(result)
            all_pixels = sch.fuse(y, q)
            cuts, tasks = {1: vectors, 2: pixels, 3: self.lanes}, 2
            if self.sums.blocks // vectors < FEW_TASKS:  # filters stay in the cache for all pixels
                sch.reorder(all_pixels, b, f)
                cuts, tasks = {0: pixels, 2: vectors, 3: self.lanes}, 1
        else:
            cuts, tasks = {1: vectors, 3: pixels, 4: self.lanes}, 3
        schedule_tile(
            sch,
            "conv2d_tile",
            result,
            cuts,
            lanes=self.lanes,
            steps=self.steps(depth),
            vector_result=True,
            tasks=tasks,
        )
        tune(sch, self.target)
        return sch.func


def plan_blocks(types: Sequence[TensorType], attrs: Attrs, target: Target) -> ConvBlocks | None:
    """Of floats; None where channels do not divide into blocks, or every channel is by itself."""
    conv = conv_shape(types, attrs)
    if conv is None or conv.dtype not in BLOCKED or types[1].dtype != conv.dtype or conv.border:
        return None
    lanes, groups = block(conv.dtype, target), conv.groups
    if lanes == 1 or conv.depthwise or conv.out_channels // groups % lanes:
        return None
    planes = groups == 1 and conv.channels <= PLANES and conv.channels % lanes != 0
    if not planes and conv.per_group % lanes:
        return None
    sums = _sums(conv, lanes, planes, target)
    pixels, vectors = best_tile(sums, lanes, target)
    data, result = "NCHW" if planes else f"NCHW{lanes}c", f"NCHW{lanes}c"
    weights = f"OHIW{vectors * lanes}o" if planes else f"OHIW{lanes}i{vectors * lanes}o"
    return ConvBlocks(
        **in_layouts(types, attrs, target, Packing("OIHW", weights), data, result),
        cost=_cost(conv, sums, pixels, vectors, lanes, target),
        conv=conv,
        lanes=lanes,
        planes=planes,
        sums=sums,
        pixels=pixels,
        vectors=vectors,
    )


def in_layouts(
    types: Sequence[TensorType],
    attrs: Attrs,
    target: Target,
    packing: Packing,
    data: str,
    result: str,
    **more: Any,
) -> dict[str, Any]:
    """The fields of a plan for a convolution in these layouts; `more` are attributes that state it,
    too."""
    layouts = {"kernel_layout": packing.to, "data_layout": data, "out_layout": result}
    return {
        "op": "conv2d",
        "types": tuple(types),
        "stated": stated(
            attrs, channels=types[1].shape[0], source_layout=packing.source, **layouts, **more
        ),
        "target": target,
        "data": data if data != "NCHW" else "",
        "result": result,
        "packing": packing,
    }


def _sums(conv: ConvShape, lanes: int, planes: bool, target: Target) -> Sums:
    height, width = conv.out_size
    row = height * width if conv.pointwise else width
    products = conv.per_group * conv.kernel[0] * conv.kernel[1]
    spare = spare_registers(conv.dtype, products, target)
    taps = conv.kernel[1] if taps_share(conv, planes, target) else 1
    blocks = conv.out_channels // conv.groups // lanes
    return Sums(row, blocks, taps, 1 if planes else lanes, spare)


def _cost(
    conv: ConvShape, sums: Sums, pixels: int, vectors: int, lanes: int, target: Target
) -> float:
    height, width = conv.out_size
    rows = conv.batch * height * width / sums.row
    turns = conv.per_group * conv.kernel[0] * conv.kernel[1] / (sums.taps * sums.together)
    parts = conv.out_channels / lanes / vectors
    return rows * turns * parts * row_cost(pixels, vectors, sums, lanes, target)


def taps_share(conv: ConvShape, planes: bool, target: Target) -> bool:
    """Whether neighbouring taps are unrolled together, since most of what they read is the same.
    With a stride it is too little for the registers that it takes."""
    return planes or conv.strides[1] == 1 or target.arch == "x86_64"


class Window(Protocol):
    """strides, dilations, and pads (beginnings, then ends) of any number of dimensions."""

    @property
    def strides(self) -> Sequence[int]: ...
    @property
    def dilations(self) -> Sequence[int]: ...
    @property
    def pads(self) -> Sequence[int]: ...


def tap(
    at: Sequence[Expr], kernel: Sequence[te.IterVar], size: Sequence[Any], window: Window
) -> tuple[list[Expr], Expr]:
    """Where in the data a tap of the window at an output pixel lies, and whether that is inside."""
    rank = len(size)
    pads = window.pads
    place: list[Expr] = []
    inside: list[Expr] = []
    for n, (o, k) in enumerate(zip(at, kernel, strict=True)):
        i = o * window.strides[n] + k.var * window.dilations[n] - pads[n]
        place.append(i)
        inside += [i >= 0] if pads[n] else []
        inside += [i < size[n]] if pads[rank + n] else []
    return place, te.all_of(*inside)


def tune(sch: Schedule, target: Target) -> None:
    """Takes a scheduling model that keeps few registers in use: others load weights
    early, and copy or spill what is in their way."""
    if model := scheduling_model("conv2d", target):
        sch.tune_for(model)
