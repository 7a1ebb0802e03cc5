"""Windows over blocks of eight channels of 8 bits: depthwise convolution and pooling.

Data are copied once, in strips of rows, with the padding value around them, so that no tap is
guarded. Two products of int8 fit in int16, where weights are within ±127: taps go in pairs, by
smull and smlal, and each pair is added to int32 sums by saddw. Other weights, and data of other
signs, are widened to int16 first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Expr, PrimFunc, const, value_range
from ...schedule import Schedule
from ...te import Tensor
from ..pool import pool_extents
from ..registry import Attrs, TensorType
from ..tile import inline_epilogue, schedule_tile, vectorize_rows
from .conv2d import output_size
from .int8 import BLOCK
from .int8_conv2d import BLOCKS
from .windows import even_cut, reach

KERNEL = f"OHWI{BLOCK}o"
BYTES = ("int8", "uint8")
ALL_AT_ONCE = 9  # taps up to which a window is summed up as a whole, else row by row
# By machine, a scheduling model that begins few products before they are added up.
FEW_REGISTERS = {"aarch64": "exynos-m3", "arm": "kryo"}
MOST_COPIED = 64  # vectors of a row that one turn copies
STRIP = 1 << 14  # bytes of data, about, that are copied together


def blocked_attrs(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a depthwise convolution of 8-bit numbers (plain data and weights) in
    blocks; None where it is none, or channels do not divide into blocks."""
    x, w = types
    static = all(isinstance(n, int) for t in (x, w) for n in t.shape)
    if not static or {x.dtype, w.dtype} - set(BYTES) or target.lanes("int8") < BLOCK:
        return None
    channels = int(x.shape[1])  # type: ignore[arg-type]
    if "data_layout" in attrs or not attrs["groups"] == channels == w.shape[0]:
        return None
    if channels % BLOCK:
        return None
    return {
        "channels": channels,
        "source_layout": "OIHW",
        "kernel_layout": KERNEL,
        "data_layout": BLOCKS,
        "out_layout": BLOCKS,
    }


def takes_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    """Whether the attributes are those that blocked_attrs gives."""
    dtypes = {t.dtype for t in inputs}
    blocks = attrs.get("kernel_layout") == KERNEL and attrs.get("out_layout") == BLOCKS
    return blocks and not dtypes - set(BYTES)


def compute_depthwise(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """int32 [N, C/8, H, W, 8], of data [N, C/8, H, W, 8] and filters [C/8, KH, KW, 1, 8]."""
    x, w = inputs
    batch, blocks, height, width, lanes = x.shape
    kh, kw = (int(n) for n in w.shape[1:3])  # type: ignore[arg-type]
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    data = rows_of(x, attrs["pads"], attrs.get("pad_value", 0))
    rows = kh if kh * kw <= ALL_AT_ONCE else 1
    ky = te.reduce_axis((0, kh // rows), "ky")
    narrow = x.dtype == w.dtype == "int8" and attrs.get("narrow_weights", False)
    together = 2 if narrow else 1
    taps = list(product(range(rows), range(kw)))
    groups = [taps[n : n + together] for n in range(0, len(taps), together)]

    def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
        def term(row: int, column: int) -> Expr:
            tap = ky * rows + row
            value = data(b, c, y * sh + tap * dh, q * sw + column * dw, l).astype("int16")
            weight = w[c, tap, column, 0, l].astype("int16")
            return value * weight if narrow else value.astype("int32") * weight.astype("int32")

        sums = [_sum([term(*tap) for tap in group]).astype("int32") for group in groups]
        return te.sum(_sum(sums), ky)

    shape = (batch, blocks, *output_size((height, width), (kh, kw), attrs), lanes)
    tile = te.compute(shape, element, name="depthwise_tile")
    return [te.compute(shape, lambda *i: tile[i], name="depthwise")]


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


def schedule_depthwise(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    kernel = [int(n) for n in func.buffers[1].shape[1:3]]  # type: ignore[arg-type]
    return _schedule(func, "depthwise", kernel, attrs, target)


# --------------------------------------------------------------------------------------- pooling


def pool_layout(types: Sequence[TensorType], attrs: Attrs, target: Target) -> dict[str, Any] | None:
    """The attributes of two-dimensional max_pool of 8-bit numbers in blocks; None where channels do
    not divide into blocks."""
    (x,) = types
    static = all(isinstance(n, int) for n in x.shape)
    if not static or len(x.shape) != 4 or "layout" in attrs or x.dtype not in BYTES:
        return None
    if target.lanes("int8") < BLOCK or x.shape[1] % BLOCK:
        return None
    return {"layout": BLOCKS}


def takes_pool(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    return attrs.get("layout") == BLOCKS and inputs[0].dtype in BYTES


def compute_pool(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    """[N, C/8, H, W, 8]"""
    (x,) = inputs
    lowest, _ = value_range(x.dtype)
    data = rows_of(x, reach(x.shape[2:4], attrs), int(lowest))
    taps = [te.reduce_axis((0, k), f"k{n}") for n, k in enumerate(attrs["kernel"])]
    steps = list(zip(attrs["strides"], taps, attrs["dilations"], strict=True))

    def element(b: Expr, c: Expr, y: Expr, q: Expr, l: Expr) -> Expr:  # noqa: E741
        place = (at * s + k * d for at, (s, k, d) in zip((y, q), steps, strict=True))
        return te.max(data(b, c, *place, l), taps)

    shape = (*x.shape[:2], *pool_extents(x.shape[:4], attrs), BLOCK)
    tile = te.compute(shape, element, name="pool_tile")
    return [te.compute(shape, lambda *i: tile[i], name="pool")]


def schedule_pool(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    return _schedule(func, "pool", attrs["kernel"], attrs, target)


# -------------------------------------------------------------------------------------- schedule


def _schedule(
    func: PrimFunc, name: str, kernel: Sequence[int], attrs: Attrs, target: Target
) -> PrimFunc:
    sch = Schedule(func)
    result = inline_epilogue(sch, name)
    height, width = (int(i.extent) for i in sch.block(result).iters[2:4])  # type: ignore[call-overload]
    row = (width * attrs["strides"][1] + kernel[1]) * attrs["strides"][0] * BLOCK
    many = target.arch == "aarch64"
    rows = _strip(height, row if many else 2 * row)
    sch.split(sch.get_loops(result)[2], [None, rows])
    apart = attrs["strides"][1] > 1
    if many:
        high, most = (1, 4) if apart or rows % 2 else (2, 2)
    else:
        high, most = 1, 1 if apart else 2
    pixels = even_cut(width, most)
    task = schedule_tile(
        sch,
        f"{name}_tile",
        result,
        {3: high, 4: pixels, 5: BLOCK},
        lanes=BLOCK,
        steps=kernel[0] if name == "depthwise" else kernel[0] * kernel[1],
        vector_result=True,
        tasks=3,
    )
    if "pad" in sch.get_blocks():
        sch.compute_at("pad", task)
        copy_rows(sch, target.lanes("int8"), whole=many or apart)
    if target.arch in FEW_REGISTERS:
        sch.tune_for(FEW_REGISTERS[target.arch])
    return sch.func


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
