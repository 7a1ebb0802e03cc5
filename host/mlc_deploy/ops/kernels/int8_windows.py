"""Windows over blocks of eight channels of 8 bits: depthwise convolution and pooling.

Data are copied once, in strips of rows, with the padding value around them, so that no tap is
guarded. Two products of int8 fit in int16, where weights are within ±127: taps go in pairs, by
smull and smlal, and each pair is added to int32 sums by saddw. Other weights, and data of other
signs, are widened to int16 first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Expr, PrimFunc, const, value_range
from ...schedule import Schedule
from ...te import Tensor
from ..plan import NARROW, Packing, Plan
from ..pool import pool_extents
from ..quantize import BLOCK
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue, schedule_tile, vectorize_rows
from .conv2d import in_layouts
from .conv2d_int8 import BLOCKS
from .shapes import ConvShape, conv_shape, static
from .windows import even_cut, pool_fields, reach

KERNEL = f"OHWI{BLOCK}o"
BYTES = ("int8", "uint8")
ALL_AT_ONCE = 9  # taps up to which a window is summed up as a whole, else row by row
MOST_COPIED = 64  # vectors of a row that one turn copies
STRIP = 1 << 14  # bytes of data, about, that are copied together


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsInt8(Plan):
    """`stage` is the name of its stages. steps: of a window, that are unrolled."""

    stage: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    steps: int

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        result = inline_epilogue(sch, self.stage)
        height, width = (int(i.extent) for i in sch.block(result).iters[2:4])  # type: ignore[call-overload]
        row = (width * self.strides[1] + self.kernel[1]) * self.strides[0] * BLOCK
        many = self.target.arch == "aarch64"
        rows = _strip(height, row if many else 2 * row)
        sch.split(sch.get_loops(result)[2], [None, rows])
        apart = self.strides[1] > 1
        if many:
            high, most = (1, 4) if apart or rows % 2 else (2, 2)
        else:
            high, most = 1, 1 if apart else 2
        task = schedule_tile(
            sch,
            f"{self.stage}_tile",
            result,
            {3: high, 4: even_cut(width, most), 5: BLOCK},
            lanes=BLOCK,
            steps=self.steps,
            vector_result=True,
            tasks=3,
        )
        if "pad" in sch.get_blocks():
            sch.compute_at("pad", task)
            copy_rows(sch, self.target.lanes("int8"), whole=many or apart)
        if model := scheduling_model("windows", self.target):
            sch.tune_for(model)
        return sch.func


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseInt8(WindowsInt8):
    name = "conv2d_int8_depthwise"

    conv: ConvShape
    narrow: bool

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, KH, KW, 1, 8]."""
        x, w = inputs
        (kh, kw), narrow = self.kernel, self.narrow
        (sh, sw), (dh, dw) = self.strides, self.conv.dilations
        data = rows_of(x, self.conv.pads, self.conv.border)
        rows = kh if kh * kw <= ALL_AT_ONCE else 1
        ky = te.reduce_axis((0, kh // rows), "ky")
        together = 2 if narrow else 1
        taps = list(product(range(rows), range(kw)))
        groups = [taps[n : n + together] for n in range(0, len(taps), together)]

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            def term(row: int, column: int) -> Expr:
                tap = ky * rows + row
                value = data(b, c, y * sh + tap * dh, q * sw + column * dw, l).astype("int16")
                weight = w[c, tap, column, 0, l].astype("int16")
                if narrow:
                    return value * weight
                return value.astype("int32") * weight.astype("int32")

            sums = [_sum([term(*tap) for tap in group]).astype("int32") for group in groups]
            return te.sum(_sum(sums), ky)

        shape = (*x.shape[:2], *self.conv.out_size, BLOCK)
        tile = te.compute(shape, element, name="depthwise_tile")
        return [te.compute(shape, lambda *i: tile[i], name="depthwise")]


def plan_depthwise(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Plan | None:
    """Of 8-bit numbers, where the channels divide into blocks."""
    conv = conv_shape(types, attrs)
    if conv is None or {t.dtype for t in types} - set(BYTES) or target.lanes("int8") < BLOCK:
        return None
    if not conv.depthwise or conv.channels % BLOCK:
        return None
    return DepthwiseInt8(
        **in_layouts(types, attrs, target, Packing("OIHW", KERNEL), BLOCKS, BLOCKS),
        stage="depthwise",
        kernel=conv.kernel,
        strides=conv.strides,
        steps=conv.kernel[0],
        conv=conv,
        narrow={t.dtype for t in types} == {"int8"} and bool(attrs.get(NARROW)),
    )


# --------------------------------------------------------------------------------------- pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolInt8(WindowsInt8):
    name = "max_pool_int8"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """[N, C/8, H, W, 8]"""
        (x,) = inputs
        lowest, _ = value_range(x.dtype)
        window = reach(x.shape[2:4], self.attrs)
        data = rows_of(x, window.pads, int(lowest))
        taps = [te.reduce_axis((0, k), f"k{n}") for n, k in enumerate(self.kernel)]
        steps = list(zip(window.strides, taps, window.dilations, strict=True))

        def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
            place = (at * s + k * d for at, (s, k, d) in zip((y, q), steps, strict=True))
            return te.max(data(b, c, *place, l), taps)

        shape = (*x.shape[:2], *pool_extents(x.shape[:4], self.attrs), BLOCK)
        tile = te.compute(shape, element, name="pool_tile")
        return [te.compute(shape, lambda *i: tile[i], name="pool")]


def plan_max_pool(types: Sequence[TensorType], attrs: Attrs, target: Target) -> MaxPoolInt8 | None:
    """Of 8-bit numbers in two dimensions, where channels divide into blocks."""
    (x,) = types
    if not static(x) or len(x.shape) != 4 or x.dtype not in BYTES:
        return None
    if target.lanes("int8") < BLOCK or x.sizes[1] % BLOCK:
        return None
    fields = pool_fields("max_pool", types, attrs, target, BLOCK)
    kh, kw = fields["kernel"]
    return MaxPoolInt8(**fields, stage="pool", steps=kh * kw)


# ----------------------------------------------------------------------------------------- copies


def rows_of(x: Tensor, pads: Sequence[int], value: int, copied_as: str = "") -> Callable[..., Expr]:
    """x within its border of `value`, as a function of an index; x itself where there is none,
    unless a copy of some dtype is wanted in any case. A row with all its channels is one dimension,
    whose vectors need not end where pixels do."""
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


def _sum(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def copy_rows(sch: Schedule, lanes: int, whole: bool) -> None:
    """Rows in vectors, each as a whole in one turn where wanted and not too long."""
    row = sch.get_loops("pad")[-1]
    vectors = -(-int(sch.loop(row).extent) // lanes)  # type: ignore[call-overload]
    if whole and vectors <= MOST_COPIED:
        _, vector, lane = sch.split(row, [None, vectors, lanes])
        sch.unroll(vector)
        sch.vectorize(lane)
    else:
        vectorize_rows(sch, "pad", lanes)


def _strip(height: int, size: int) -> int:
    """How many rows, of so many bytes: half of all at most, where that divides. Around more than
    one strip LLVM keeps the filters in registers, and spills them where copying and summing up are
    in one loop."""
    most = max(1, STRIP // size)
    return divisor(height, min(most, height // 2 if height % 2 == 0 else height))


def divisor(extent: int, most: int) -> int:
    """The largest divisor of extent that is no more than `most`."""
    return next(n for n in range(min(extent, most), 0, -1) if extent % n == 0)
