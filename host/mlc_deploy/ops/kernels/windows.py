"""Windows over channels, each by itself: depthwise convolution and pooling.

In blocks of channels, a tile is a few neighbouring pixels of a row, each a vector of channels;
elements that neighbouring windows share are loaded once. Floats are read where they are: taps
outside of the data are left out, as in conv2d.py. Numbers of 8 bits are copied in strips of rows,
with the padding value around them, so that no tap is guarded. Two products of int8 fit in int16
where weights are within ±127: such taps go in pairs, by smull and smlal, and each pair is added to
int32 sums by saddw. Other weights, and data of other signs, are widened to int16 first.

In planes, a tile's vectors are neighbouring pixels of a row. It is several rows high, so that a
loaded row of the data serves all rows of results that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product as combinations
from math import inf, prod
from operator import add
from typing import Any

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, PrimFunc, const, value_range
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, Window, conv_shape, in_border, is_open, usual, whole_tiles
from ..half import arithmetic, sums
from ..plan import NARROW, Packing, Plan, fields
from ..pool import pool_extents, tap_count
from ..quantize import BLOCK, BYTES, product, sums_alike
from ..registry import Attrs, TensorType
from ..shape import padded
from ..tile import divisor, even_cut, inline_epilogue, schedule_tile, vectorize_rows
from .conv2d import BLOCKED, MOST_ROW_TAPS, block, in_layouts

MOST_TAPS = 25  # of a window of floats that is unrolled as a whole
KERNEL = f"OHWI{BLOCK}o"  # filters of 8 bits
ALL_AT_ONCE = 9  # taps up to which a window of 8 bits is summed up as a whole, else row by row
MOST_COPIED = 64  # vectors of a row that one iteration copies
VECTORS_COPIED = 4  # in an iteration, where the length of a row is dynamic
STRIP = 1 << 14  # bytes of data, about, that are copied together
TURN = 5  # instructions of a tile beside its taps, loads and stores
# Instructions for a tap of a block of int8: scripts/bench/kernels.py, on a Cortex-A72 and -A7, with
# LLVM 22; on x86-64 as many as ARM's.
OF_TAP = {"aarch64": 3.2, "arm": 4.5, "x86_64": 3.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(Plan):
    """`stage` is the name of its stages. out_size: height and width of the result. copied: whether
    data are copied, with their padding."""

    stage: str
    out_size: tuple[Any, Any]
    lanes: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    copied: bool

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, self.stage)
        if self.copied and not is_open(self.out_size):
            self._in_strips(sch, result)
        else:
            self._in_registers(sch, result)
        return sch.func

    @property
    def pixels(self) -> int:
        """Neighbouring results of a tile in registers."""
        if self.copied:
            return 4 if self.target.arch == "aarch64" else 2
        return _pixels(self.out_size[1], self.kernel, self.strides, self.target)

    def read(
        self, x: Tensor, window: Window, border: float
    ) -> tuple[Callable[..., Expr], Window, tuple[Any, Any]]:
        """Data as windows read them, as a function of an index; the window over these; the height
        and width of the sums. Where the size is known only at run time, data are copied and sums
        fill whole tiles, so that no tap and no tile has a guard."""
        (height, width), inner = self.out_size, replace(window, pads=(0,) * 4)
        if is_open(x.shape[2:4]):
            rows = height, whole_tiles(width, self.pixels)
            copy = in_border(x, window, self.kernel, rows, border)
            return (lambda *i: copy[i]), inner, rows
        if self.copied:
            return rows_of(x, window.pads, int(border)), inner, (height, width)
        return (lambda *i: x[i]), window, (height, width)

    def _in_registers(self, sch: Schedule, result: str) -> None:
        taps, bordered = self.kernel[0] * self.kernel[1], "pad" in sch.get_blocks()
        steps = taps if taps <= MOST_TAPS else min(self.kernel[1], MOST_ROW_TAPS)
        if self.copied and self.op == "conv2d":
            steps = self.kernel[0]
        task = schedule_tile(
            sch,
            f"{self.stage}_tile",
            result,
            {3: self.pixels, 4: self.lanes},
            lanes=self.lanes,
            steps=steps,
            vector_result=True,
            tasks=2 if bordered else 3,
        )
        if bordered:
            sch.compute_at("pad", task)
            *_, pixel, lane = sch.get_loops("pad")
            _, some = sch.split(pixel, [None, VECTORS_COPIED])
            sch.unroll(some)
            sch.vectorize(lane)

    def _in_strips(self, sch: Schedule, result: str) -> None:
        height, width = self.out_size
        taps, wide = self.kernel[0] * self.kernel[1], self.target.arch == "aarch64"
        apart = self.strides[1] > 1
        row = (width * self.strides[1] + self.kernel[1]) * self.strides[0] * BLOCK
        rows = _strip(height, row if wide else 2 * row)
        sch.split(sch.get_loops(result)[2], [None, rows])
        high, most = (2, 2) if wide and not apart and rows % 2 == 0 else (1, 4 if wide else 2)
        task = schedule_tile(
            sch,
            f"{self.stage}_tile",
            result,
            {3: high, 4: even_cut(width, most if wide or not apart else 1), 5: BLOCK},
            lanes=BLOCK,
            steps=self.kernel[0] if self.op == "conv2d" else taps,
            vector_result=True,
            tasks=3,
        )
        if "pad" in sch.get_blocks():
            sch.compute_at("pad", task)
            copy_rows(sch, self.target.lanes("int8"), whole=wide or apart)
        if model := scheduling_model("windows", self.target):
            sch.tune_for(model)


def _pixels(width: Any, kernel: Sequence[int], strides: Sequence[int], target: Target) -> int:
    """Pixels in a tile of floats: sums, a row of filters and its data fit into registers. Where the
    width is known only at run time, tiles are small, for little of the last one is wasted."""
    wide = target.vector_registers >= 32
    most = 14 if wide else 7 if kernel[1] <= 3 else 4
    some = 8 if wide else 4
    if not isinstance(width, int):
        return some
    return even_cut(width, some if strides[1] > 1 else most)


def instructions(
    result: Sequence[int], kernel: Sequence[int], strides: Sequence[int], target: Target
) -> float:
    """About how many instructions a plan executes for floats. result: [vectors of channels, height,
    width]. In a tile, a tap is an instruction, and so is a load or store of two vectors.
    scripts/bench/kernels.py shows costs beside counts: 0.85 to 1.01 of the counts on a Cortex-A72,
    0.67 to 0.87 on a Cortex-A7, with LLVM 22."""
    pixels, taps = _pixels(result[2], kernel, strides, target), prod(kernel)
    loaded = kernel[0] * ((pixels - 1) * strides[1] + kernel[1]) + taps + pixels
    return prod(result) / pixels * (pixels * taps + loaded / 2 + TURN)


# -------------------------------------------------------------------------------------- depthwise


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseBlocks(Windows):
    """narrow: whether weights of int8 are within ±127."""

    name = "conv2d_depthwise_blocks"

    conv: ConvShape
    narrow: bool

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, C/c, H, W, c] of data [N, C/c, H, W, c] and filters [C/c, KH, KW, 1, c]; of 8 bits in
        int32."""
        x, w = inputs
        data, window, rows = self.read(x, self.conv.window, self.conv.border)
        element = self._sum_of_bytes(data, w) if self.copied else self._sum(data, window, w)
        tile = te.compute((*x.shape[:2], *rows, self.lanes), element, name="depthwise_tile")
        shape = (*x.shape[:2], *self.out_size, self.lanes)
        dtype = tile.dtype if self.copied else x.dtype
        return [te.compute(shape, lambda *i: tile[i].astype(dtype), name="depthwise")]

    def _sum(self, data: Callable[..., Expr], window: Window, w: Tensor) -> Callable[..., Expr]:
        kept = arithmetic(self.conv.dtype, self.target)
        ky, kx = (te.reduce_axis((0, n), k) for n, k in zip(self.kernel, ("ky", "kx"), strict=True))

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            (y, q), inside = window.tap((y, q), (ky, kx), self.conv.size)
            value = product(data(b, c, y, q, l), w[c, ky, kx, 0, l], kept)
            return te.sum(value, (ky, kx), where=inside)

        return element

    def _sum_of_bytes(self, data: Callable[..., Expr], w: Tensor) -> Callable[..., Expr]:
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.conv.dilations
        rows = kh if kh * kw <= ALL_AT_ONCE else 1
        ky = te.reduce_axis((0, kh // rows), "ky")
        together, held = (2, "int16") if self.narrow else (1, "int32")
        taps = list(combinations(range(rows), range(kw)))
        groups = [taps[n : n + together] for n in range(0, len(taps), together)]

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            def term(row: int, column: int) -> Expr:
                tap = ky * rows + row
                value = data(b, c, y * sh + tap * dh, q * sw + column * dw, l).astype("int16")
                return product(value, w[c, tap, column, 0, l].astype("int16"), held)

            of_groups = (reduce(add, (term(*tap) for tap in group)) for group in groups)
            return te.sum(reduce(add, (s.astype("int32") for s in of_groups)), ky)

        return element


def plan_depthwise(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwiseBlocks | None:
    """None unless the channels divide into blocks; a block of floats is a vector."""
    conv = conv_shape(types, attrs, any_size=True)
    if conv is None or not conv.depthwise:
        return None
    dtypes, copied = {t.dtype for t in types}, conv.dtype in BYTES
    lanes = BLOCK if copied else block(conv.dtype, target)
    if copied and (dtypes - set(BYTES) or target.lanes("int8") < BLOCK):
        return None
    if not copied and (conv.dtype not in BLOCKED or len(dtypes) > 1 or conv.border):
        return None
    if lanes == 1 or conv.channels % lanes:
        return None
    blocks, packing = f"NCHW{lanes}c", Packing("OIHW", f"OHWI{lanes}o")
    result, window = (
        (conv.usual.batch * conv.channels // lanes, *conv.usual.out_size),
        (conv.kernel, conv.strides),
    )
    each = OF_TAP[target.arch] * prod(conv.kernel)
    return DepthwiseBlocks(
        **in_layouts(types, attrs, target, packing, blocks, blocks),
        cost=each * prod(result) if copied else instructions(result, *window, target),
        stage="depthwise",
        out_size=conv.out_size,
        lanes=lanes,
        kernel=conv.kernel,
        strides=conv.strides,
        copied=copied,
        conv=conv,
        narrow=dtypes == {"int8"} and bool(attrs.get(NARROW)),
    )


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
        shape = (*x.shape[:2], height, width)
        return [te.compute(shape, lambda *i: tile[i].astype(x.dtype), name="depthwise")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        taps, width = self.conv.kernel[0] * self.conv.kernel[1], self.conv.kernel[1]
        channel = schedule_tile(
            sch,
            "depthwise_tile",
            inline_epilogue(sch, "depthwise"),
            {2: 8 if self.target.vector_registers >= 32 else 4, 3: self.lanes},
            lanes=self.lanes,
            steps=taps if taps <= MOST_TAPS else min(width, MOST_ROW_TAPS),
            vector_result=True,
        )
        if "pad" in sch.get_blocks():
            sch.compute_at("pad", channel)
            vectorize_rows(sch, "pad", self.lanes)
        return sch.func


def plan_depthwise_planes(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> DepthwisePlanes | None:
    """For data in planes; None unless every channel has a filter of its own, and one result."""
    conv = conv_shape(types, attrs)
    if conv is None or not conv.depthwise or not sums_alike("conv2d", *types):
        return None
    if target.lanes(conv.dtype) == 1:
        return None
    lanes = block(conv.dtype, target)
    height, width = conv.out_size
    result = (conv.usual.batch * conv.channels, height, -(-width // lanes))
    return DepthwisePlanes(
        **fields("conv2d", types, attrs, target),
        cost=instructions(result, conv.kernel, conv.strides, target),
        conv=conv,
        lanes=lanes,
    )


# ---------------------------------------------------------------------------------------- pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Windows):
    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op}_blocks"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, C/c, H, W, c]"""
        (x,) = inputs
        average, attrs, size = self.op == "avg_pool", self.attrs, x.shape[2:4]
        shape: tuple[Any, ...] = (*x.shape[:2], *self.out_size, self.lanes)
        taps = [te.reduce_axis((0, k), f"k{n}") for n, k in enumerate(self.kernel)]
        kept = sums(x.dtype) if average else arithmetic(x.dtype, self.target)
        lowest = value_range(x.dtype)[0] if self.copied else -inf
        data, window, rows = self.read(x, reach(size, attrs), 0 if average else lowest)
        over = te.sum if average else te.max

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            (y, q), inside = window.tap((y, q), taps, size)
            return over(data(b, c, y, q, l).astype(kept), taps, where=inside)

        tile = te.compute((*x.shape[:2], *rows, self.lanes), element, name="pool_tile")

        def result(*i: Expr) -> Any:
            count = tap_count(x.shape[:4], attrs, i).astype(kept) if average else None
            return (tile[i] if count is None else tile[i] / count).astype(x.dtype)

        return [te.compute(shape, result, name="pool")]


def plan_pool(op: str, types: Sequence[TensorType], attrs: Attrs, target: Target) -> Pool | None:
    """max_pool or avg_pool of two dimensions, where channels divide into blocks; of 8 bits only
    max_pool."""
    (x,) = types
    copied = x.dtype in BYTES and op == "max_pool"
    if len(x.shape) != 4 or not (copied or x.dtype in BLOCKED):
        return None
    lanes = BLOCK if copied else block(x.dtype, target)
    batch, channels, *_ = x.shape
    if not isinstance(channels, int):
        return None
    if lanes == 1 or channels % lanes or (copied and target.lanes("int8") < BLOCK):
        return None
    blocks, window = f"NCHW{lanes}c", (tuple(attrs["kernel"]), tuple(attrs["strides"]))
    images = batch if isinstance(batch, int) else 1
    height, width = pool_extents(x.shape, attrs)
    result = (images * channels // lanes, *usual((height, width)))
    return Pool(
        **fields(op, types, attrs, target, data=blocks, result=blocks, layout=blocks),
        cost=instructions(result, *window, target),
        stage="pool",
        out_size=(height, width),
        lanes=lanes,
        kernel=window[0],
        strides=window[1],
        copied=copied,
    )


def reach(size: Sequence[Any], attrs: Attrs) -> Window:
    """A pool's window; its pads at the ends are as large as its reach beyond the data."""
    rank, strides, dilations = len(size), tuple(attrs["strides"]), tuple(attrs["dilations"])
    ends = []
    for n, extent in enumerate(pool_extents((1, 1, *size), attrs)):
        last = (extent - 1) * strides[n] - attrs["pads"][n]
        last += dilations[n] * (attrs["kernel"][n] - 1)
        over = last + 1 - size[n]
        ends.append(max(0, over) if isinstance(over, int) else over)
    return Window(strides, dilations, (*attrs["pads"][:rank], *ends))


# ----------------------------------------------------------------------------------------- copies


def rows_of(x: Tensor, pads: Sequence[int], value: int, copied_as: str = "") -> Callable[..., Expr]:
    """x within a border of `value`, as a function of an index; x itself without a border, unless
    `copied_as` asks for a copy of that dtype. A row with all its channels is one dimension, whose
    vectors need not end where pixels do."""
    if not any(pads) and not copied_as:
        return lambda *i: x[i]
    batch, blocks, height, width, lanes = x.shape
    top, left, bottom, right = pads

    def element(b: Expr, c: Expr, y: Expr, e: Expr) -> Expr:
        row, at = y - top, e - left * lanes
        inside = te.all_of(row >= 0, row < height, at >= 0, at < width * lanes)
        found = x[b, c, row, at // lanes, at % lanes]
        return te.if_then_else(inside, found, const(value, x.dtype)).astype(copied_as or x.dtype)

    shape = (batch, blocks, top + height + bottom, (left + width + right) * lanes)
    rows = te.compute(shape, element, name="pad")
    return lambda b, c, y, q, l: rows[b, c, y, q * lanes + l]  # noqa: E741


def copy_rows(sch: Schedule, lanes: int, whole: bool) -> None:
    """Schedules the copy of rows in vectors; a row is one iteration if `whole`, and if it is not
    too long."""
    row = sch.get_loops("pad")[-1]
    vectors = -(-int(sch.loop(row).extent) // lanes)  # type: ignore[call-overload]
    if whole and vectors <= MOST_COPIED:
        _, vector, lane = sch.split(row, [None, vectors, lanes])
        sch.unroll(vector)
        sch.vectorize(lane)
    else:
        vectorize_rows(sch, "pad", lanes)


def _strip(height: int, size: int) -> int:
    """How many rows, of `size` bytes, a strip has: half of all at most, where that divides. Around
    more than one strip LLVM keeps the filters in registers, and spills them where copying and
    summing up are in one loop."""
    most = max(1, STRIP // size)
    return divisor(height, min(most, height // 2 if height % 2 == 0 else height))
