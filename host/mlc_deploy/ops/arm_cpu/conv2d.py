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
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, Reduce
from ...schedule import Schedule
from ...te import Tensor
from ..half import arithmetic, part_sizes, spare_registers, tile_sum
from ..layout import layout, plain_sizes
from ..nn import window_extent
from ..quantize import product
from ..registry import Attrs, TensorType
from ..tile import FEW_TASKS, inline_epilogue, schedule_tile

BLOCKED = ("float32", "float16")
PLANES = 4  # channels up to which planes are read, in layers that are not in blocks
MOST_UNROLLED = 192  # about how many multiply-accumulates there are in a turn of the reduction
MOST_ROW_TAPS = 32  # of a row of the kernel, unrolled: at a row's ends each has a guard of its own
SHORT_TURNS = 8  # of a kernel one pixel wide are made one
TURN = 5  # instructions of a turn beside loads and multiply-accumulates


@dataclass(frozen=True, slots=True)
class Conv:
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


def blocked_attrs(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a convolution (plain data and weights) in blocks; None where channels do
    not divide into blocks."""
    x, w = types
    lanes = block(x.dtype, target)
    if not _is_plain(x, w, attrs) or lanes == 1 or x.dtype not in BLOCKED or attrs.get("pad_value"):
        return None
    channels, out_channels, groups = int(x.shape[1]), int(w.shape[0]), attrs["groups"]  # type: ignore[arg-type]
    found = {"channels": out_channels, "source_layout": "OIHW", "out_layout": f"NCHW{lanes}c"}
    if groups == channels == out_channels:
        if channels % lanes:
            return None
        return {**found, "data_layout": f"NCHW{lanes}c", "kernel_layout": f"OHWI{lanes}o"}
    if out_channels // groups % lanes:
        return None
    planes = groups == 1 and channels <= PLANES and channels % lanes != 0
    if not planes and channels // groups % lanes:
        return None
    conv = _conv(x, w.shape, attrs, planes, target)
    columns = best_tile(conv, lanes, target)[1] * lanes
    if planes:
        return {**found, "data_layout": "NCHW", "kernel_layout": f"OHIW{columns}o"}
    data = f"NCHW{lanes}c"
    return {**found, "data_layout": data, "kernel_layout": f"OHIW{lanes}i{columns}o"}


def _is_plain(x: TensorType, w: TensorType, attrs: Attrs) -> bool:
    static = all(isinstance(n, int) for t in (x, w) for n in t.shape)
    return static and x.dtype == w.dtype and "data_layout" not in attrs and "channels" not in attrs


def takes_blocks(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the attributes are those that blocked_attrs gives, but for depthwise ones."""
    lanes = block(inputs[0].dtype, target)
    kernel = attrs.get("kernel_layout", "")
    return attrs.get("out_layout") == f"NCHW{lanes}c" and kernel.startswith("OHI")


# ------------------------------------------------------------------------------------------ tiles


def _conv(x: TensorType, w: Sequence[Any], attrs: Attrs, planes: bool, target: Target) -> Conv:
    """From plain shapes."""
    lanes = block(x.dtype, target)
    height, width = output_size(x.shape[2:4], w[2:4], attrs)
    row = height * width if is_pointwise(w[2:4], attrs) else width
    products = x.shape[1] // attrs["groups"] * w[2] * w[3]
    spare = spare_registers(x.dtype, products, target)
    taps = w[3] if taps_share(attrs, planes, target) else 1
    return Conv(row, w[0] // attrs["groups"] // lanes, taps, 1 if planes else lanes, spare)


def taps_share(attrs: Attrs, planes: bool, target: Target) -> bool:
    """Whether neighbouring taps are unrolled together, since most of what they read is the same.
    With a stride it is too little for the registers that it takes."""
    return planes or attrs["strides"][1] == 1 or target.arch == "x86_64"


def output_size(size: Sequence[Any], kernel: Sequence[Any], attrs: Attrs) -> tuple[int, int]:
    """Height and width of the result."""
    top, left, bottom, right = attrs["pads"]
    around = (top + bottom, left + right)
    steps = zip(size, around, kernel, attrs["strides"], attrs["dilations"], strict=True)
    height, width = (window_extent(n + pad, k, s, d) for n, pad, k, s, d in steps)
    return height, width


def is_pointwise(kernel: Sequence[Any], attrs: Attrs) -> bool:
    """Whether every pixel of the result needs just the pixel of the same place."""
    return tuple(kernel) == (1, 1) and attrs["strides"] == (1, 1) and not any(attrs["pads"])


def best_tile(conv: Conv, lanes: int, target: Target) -> tuple[int, int]:
    """(pixels, vectors of output channels) of the tile that takes fewest instructions for a row."""
    most = target.vector_registers
    tiles = [
        (pixels, vectors)
        for pixels in range(1, min(most, conv.row) + 1)
        for vectors in range(1, conv.blocks + 1)
        if conv.blocks % vectors == 0 and _registers(pixels, vectors, conv, target) <= most
    ]
    cost = {(p, v): row_cost(p, v, conv, lanes, target) / v for p, v in tiles}
    return min(tiles, key=lambda tile: (cost[tile], tile)) if tiles else (1, 1)


def _registers(pixels: int, vectors: int, conv: Conv, target: Target) -> int:
    sums = pixels * vectors
    if target.arch == "x86_64":  # multiplies a vector by a number in memory, given a register
        return sums + vectors + 1
    if target.arch == "arm" and conv.taps == 1:  # weights come in pairs of registers
        return sums + pixels + 4
    return sums + pixels + min(2, conv.taps - 1) + 2 + conv.spare


def row_cost(pixels: int, vectors: int, conv: Conv, lanes: int, target: Target) -> float:
    whole, rest = divmod(conv.row, pixels)
    cost = whole * _turn_cost(pixels, vectors, conv, lanes, target)
    return cost + (_turn_cost(rest, vectors, conv, lanes, target) if rest else 0)


def _turn_cost(pixels: int, vectors: int, conv: Conv, lanes: int, target: Target) -> float:
    steps = conv.taps * conv.together
    sums = pixels * vectors * steps
    if target.arch == "x86_64":
        return sums + (pixels + vectors) * steps + TURN
    loads = (pixels + conv.taps - 1) * max(1, conv.together // lanes) + vectors * steps
    return sums + loads / 2 + TURN


# ---------------------------------------------------------------------------------- the two stages


def compute_conv2d(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """[N, O/c, H, W, c]; the tile's pixels are one dimension where rows do not matter."""
    x, w = inputs
    lanes, kept = block(x.dtype, target), arithmetic(x.dtype, target)
    planes = not layout(attrs["data_layout"]).tiles
    batch, _, height, width = plain_sizes(layout(attrs["data_layout"]), x.shape).values()
    _, kh, depth, kw, *_, columns = w.shape
    out_blocks, vectors = attrs["channels"] // lanes, columns // lanes
    per_group = out_blocks // attrs["groups"]
    c, ky, kx = (te.reduce_axis((0, n), k) for n, k in ((depth, "c"), (kh, "ky"), (kw, "kx")))
    lane = te.reduce_axis((0, 1 if planes else lanes), "lane")
    over: tuple[te.IterVar, ...] = (ky, c, kx, lane)
    if target.arch == "x86_64":
        over = (ky, c, lane, kx)
    elif not taps_share(attrs, planes, target):
        over = (ky, kx, c, lane)

    def term(b: Expr, f: Expr, l: Expr, y: Expr, q: Expr) -> Expr:  # noqa: E741
        weight = (f // vectors, ky, c, kx)
        column = f % vectors * lanes + l
        if planes:
            return product(x[b, c, y, q], w[(*weight, column)], kept)
        of_group = f // per_group * depth + c if attrs["groups"] > 1 else c
        return product(x[b, of_group, y, q, lane], w[(*weight, lane, column)], kept)

    if is_pointwise((kh, kw), attrs):
        flat = (batch, out_blocks, height * width, lanes)

        def pixel(b: Expr, f: Expr, p: Expr, l: Expr) -> Reduce:  # noqa: E741
            return te.sum(term(b, f, l, p // width, p % width), over)

        tile = tile_sum(flat, pixel, c, "conv2d_tile")
        shape = (batch, out_blocks, height, width, lanes)

        def at(b: Expr, f: Expr, y: Expr, q: Expr, l: Expr) -> Any:  # noqa: E741
            return tile[b, f, y * width + q, l].astype(x.dtype)

        return [te.compute(shape, at, name="conv2d")]
    shape = (batch, out_blocks, *output_size((height, width), (kh, kw), attrs), lanes)

    def element(b: Expr, f: Expr, y: Expr, q: Expr, l: Expr) -> Reduce:  # noqa: E741
        (y, q), inside = tap((y, q), (ky, kx), (height, width), attrs)
        return te.sum(term(b, f, l, y, q), over, where=inside)

    tile = tile_sum(shape, element, c, "conv2d_tile")
    return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="conv2d")]


def tap(
    at: Sequence[Expr], kernel: Sequence[te.IterVar], size: Sequence[Any], attrs: Attrs
) -> tuple[list[Expr], Expr]:
    """Where in the data a tap of the window at an output pixel lies, and whether that is inside.

    attrs: strides, dilations, pads (beginnings, then ends), of any number of dimensions.
    """
    rank = len(size)
    pads = attrs["pads"]
    place: list[Expr] = []
    inside: list[Expr] = []
    for n, (o, k) in enumerate(zip(at, kernel, strict=True)):
        i = o * attrs["strides"][n] + k.var * attrs["dilations"][n] - pads[n]
        place.append(i)
        inside += [i >= 0] if pads[n] else []
        inside += [i < size[n]] if pads[rank + n] else []
    return place, te.all_of(*inside)


def schedule_conv2d(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x, w = func.buffers[:2]
    lanes = block(x.dtype, target)
    result = inline_epilogue(sch, "conv2d")
    sch.fuse_reduction_epilogue("conv2d_tile", result)
    planes = not layout(attrs["data_layout"]).tiles
    kh, kw, columns = int(w.shape[1]), int(w.shape[3]), int(w.shape[-1])  # type: ignore[arg-type]
    plain = TensorType(tuple(plain_sizes(layout(attrs["data_layout"]), x.shape).values()), x.dtype)
    conv = _conv(plain, (attrs["channels"], w.shape[2], kh, kw), attrs, planes, target)
    vectors = columns // lanes
    pixels = best_tile(conv, lanes, target)[0]
    row_taps = min(kw, MOST_ROW_TAPS)
    depth, steps = int(w.shape[2]), conv.taps * conv.together  # type: ignore[arg-type]
    if conv.taps > MOST_ROW_TAPS:
        steps = row_taps if planes else conv.together
    if planes:
        steps *= depth if target.arch == "arm" else 1
    elif conv.taps == 1:  # turns are short; of one alone, all weights would be loaded, and spilled
        extents = (kh, kw, depth, conv.together)
        depth = part_sizes(arithmetic(x.dtype, target), extents, 2)[2]
        steps *= min(SHORT_TURNS, max(1, depth // 2))
    if target.arch == "x86_64":  # elsewhere the lanes of one vector have to be seen together
        steps = min(steps, max(row_taps, MOST_UNROLLED // (pixels * vectors)))
    if is_pointwise((kh, kw), attrs):
        b, f, y, q, _ = sch.get_loops(result)
        all_pixels = sch.fuse(y, q)
        cuts, tasks = {1: vectors, 2: pixels, 3: lanes}, 2
        if conv.blocks // vectors < FEW_TASKS:  # so few filters stay in the cache for all pixels
            sch.reorder(all_pixels, b, f)
            cuts, tasks = {0: pixels, 2: vectors, 3: lanes}, 1
    else:
        cuts, tasks = {1: vectors, 3: pixels, 4: lanes}, 3
    schedule_tile(
        sch,
        "conv2d_tile",
        result,
        cuts,
        lanes=lanes,
        steps=steps,
        vector_result=True,
        tasks=tasks,
    )
    tune(sch, target)
    return sch.func


def tune(sch: Schedule, target: Target) -> None:
    """Takes a scheduling model that keeps few registers in use: others load weights
    early, and copy or spill what is in their way."""
    if target.arch == "aarch64" and target.llvm_cpu != "generic":
        sch.tune_for("generic")
