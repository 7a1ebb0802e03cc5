"""Products with weights of few bits that are scaled by blocks (ops/block_scaled.py).

An instruction decides the form of a block's sums. The kernel unpacks weights from their bytes, sums
up a block, multiplies the sums by the block's scales and adds them up in float32, all in registers.
Packed weights have columns side by side, so that a vector of scales serves a vector of sums.
Weights lie in memory in the order in which one row reads them. Several rows read the same weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mlc_targets import Target
from mlc_targets.scheduling import scheduling_model

from ... import te
from ...ir import Dim, Expr, PrimFunc
from ...schedule import Schedule
from ...schedule.tensor_intrin import get_intrin
from ...te import Tensor
from ..block_scaled import nibble, raised_nibble
from ..convolution import OPEN, static
from ..cpu.default import part_reduction, schedule_block
from ..plan import Packing, Plan, fields
from ..registry import Attrs, TensorType
from ..tile import (
    compute_in_registers,
    divisor,
    inline_epilogue,
    loops_inside,
    schedule_intrin_sum,
    schedule_sum,
    unroll,
)

TILE = 16  # columns side by side in packed weights
# Stages: rows side by side; sums of rows; sums of blocks, and of their parts; scales; scaled sums;
# vectors of scaled sums.
ROWS, TOTALS, SUMS, PARTS = "block_rows", "row_sums", "block_sums", "block_parts"
FACTORS, SCALED, VECTORS = "block_factors", "block_tile", "block_vectors"
Element = Callable[[Expr, Expr], Expr]
Sums = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProduct(Plan):
    """rows: of a tile. columns: of a tile. steps: blocks that an iteration takes.

    lanes: columns of a vector of sums. unit: every sum is a multiple of it.
    """

    lanes: ClassVar[int]
    unit: ClassVar[int] = 1
    rows: int
    columns: int
    steps: int

    @property
    def size(self) -> int:
        return int(self.attrs["block"])

    @property
    def bits(self) -> int:
        return int(self.attrs["bits"])

    @property
    def blocks(self) -> int:
        return self.types[2].sizes[1]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        if TOTALS in sch.get_blocks():
            sch = part_reduction(sch, TOTALS, self.target)
        result = inline_epilogue(sch, self.op)
        i, j = sch.get_loops(result)
        i, row = sch.split(i, [None, self.rows])
        parts, vectors = max(self.columns, TILE) // self.columns, self.columns // self.lanes
        j, part, vector, lane = sch.split(j, [None, parts, vectors, self.lanes])
        sch.reorder(j, i, part, vector, row, lane)
        self.schedule_scaled(sch, part)
        unroll(sch, [vector, row])
        sch.vectorize(lane)
        for block in sch.get_blocks():
            if block == ROWS:
                self.schedule_rows(sch)
            elif str(block).startswith(TOTALS):
                schedule_block(sch, block, self.target)
        sch.parallel(j)
        if model := scheduling_model(self.name, self.target):
            sch.tune_for(model)
        return sch.func

    @abstractmethod
    def schedule_scaled(self, sch: Schedule, at: str) -> None:
        """Schedules the stages of a tile inside loop `at`."""

    def schedule_rows(self, sch: Schedule) -> None:
        """Schedules the stage of rows that stand side by side."""
        *outer, lane = sch.get_loops(ROWS)
        unroll(sch, outer[2:])
        sch.vectorize(lane)
        sch.parallel(sch.fuse(*outer[:2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockVectors(BlockProduct):
    """Sums are vectors of columns.

    raised: how much larger stored weights are than their numbers. by_rows: whether the kernel sums
    up row by row.
    """

    raised: ClassVar[int] = 0
    by_rows: ClassVar[bool] = True

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        x, w, scale, *zeros = inputs
        rows = x.shape[0]
        sums = self.sums(self.copied(x), w)
        total = self.totals(x) if zeros or self.raised else None
        over = te.reduce_axis((0, self.blocks), "b")

        def scaled(tile: Expr, group: Expr, row: Expr, j: Expr) -> Expr:
            column, found = group * self.lanes + j, sums(tile, over, group, row, j)
            if total is not None:
                offset: Any = self.raised
                for zero in zeros:
                    offset = zero[tile, over, column].astype(total.dtype) + self.raised
                found = found.astype(total.dtype) - total[row, over] * offset
            factor = scale[tile, over, column].astype("float32")
            return te.sum(found.astype("float32") * factor, over)

        shape = (w.shape[0], TILE // self.lanes, rows, self.lanes)
        tile = te.compute(shape, scaled, name=SCALED)

        def element(i: Expr, j: Expr) -> Expr:
            found: Expr = tile[j // TILE, j % TILE // self.lanes, i, j % self.lanes]
            whole = found if self.unit == 1 else found * (1 / self.unit)
            return whole.astype("float32" if x.dtype == "int8" else x.dtype)

        return [te.compute((rows, self.attrs["channels"]), element, name=self.op)]

    @abstractmethod
    def sums(self, data: Element, w: Tensor) -> Sums:
        """The sums of blocks as a stage, by tile, block, group of lanes, row and lane."""

    def summed(self, w: Tensor, element: Callable[..., Expr]) -> Sums:
        """A stage for `sums`. `element` has no index of the group where a tile is one group."""
        groups = (TILE // self.lanes,) if self.lanes < TILE else ()
        shape = (w.shape[0], self.blocks, *groups, self.types[0].shape[0], self.lanes)
        stage = te.compute(shape, element, name=SUMS)
        return lambda tile, b, group, *i: stage[(tile, b, *([group] if groups else []), *i)]

    def copied(self, x: Tensor) -> Element:
        """The data by row and k. Several rows are read from a copy with the rows of a tile side by
        side, 16 elements at a time."""
        rows, high = x.shape[0], self.rows
        if high == 1:
            return lambda row, k: x[row, k]

        def element(p: Expr, c: Expr, row: Expr, k: Expr) -> Expr:
            at = p * high + row
            return _or_zero(x[at, c * 16 + k], at, rows, high)

        shape = ((rows + high - 1) // high, x.shape[1] // 16, high, 16)
        copy = te.compute(shape, element, name=ROWS)
        return lambda row, k: copy[row // high, k // 16, row % high, k % 16]

    def totals(self, x: Tensor) -> Tensor:
        """The sum of each block of each row, times `unit`."""
        k, size = te.reduce_axis((0, self.size), "k"), self.size
        kind = "int32" if x.dtype == "int8" else "float32"

        def element(row: Expr, b: Expr) -> Expr:
            return te.sum(x[row, b * size + k].astype(kind) * self.unit, k)

        total: Tensor = te.compute((x.shape[0], self.blocks), element, name=TOTALS)
        return total

    def schedule_scaled(self, sch: Schedule, at: str) -> None:
        compute_in_registers(sch, SCALED, at)
        *spatial, lane, over = loops_inside(sch, SCALED, at)
        over, step = sch.split(over, [None, self.steps])
        sch.reorder(over, step, *spatial, lane)
        zero = sch.decompose_reduction(SCALED, over)
        self.schedule_sums(sch, [over, step, *spatial][-1] if self.by_rows else step)
        unroll(sch, [step, *spatial])
        sch.vectorize(lane)
        *spatial, lane = loops_inside(sch, zero, at)
        unroll(sch, spatial)
        sch.vectorize(lane)

    @abstractmethod
    def schedule_sums(self, sch: Schedule, at: str) -> None:
        """Schedules the stages of `sums` inside loop `at`: for one row and one group of lanes if
        by_rows, else for a whole tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksByQuads(BlockVectors):
    """Four neighbours along k are one lane of the data. They multiply vectors of four columns."""

    name = "dense_blocks_quads"
    lanes = 4

    @property
    def unit(self) -> int:  # type: ignore[override]
        return 16 if self.bits == 4 else 1

    def sums(self, data: Element, w: Tensor) -> Sums:
        size, deep, whole = self.size, w.shape[3], self.bits == 8
        t = te.reduce_axis((0, size // 16), "t")
        extents = ((4 if whole else 2, "g"), (1 if whole else 2, "h"), (4, "k"))
        g, h, k = (te.reduce_axis((0, n), name) for n, name in extents)

        def of_block(tile: Expr, b: Expr, four: Expr, row: Expr, j: Expr) -> Expr:
            c = b * (size // 16) + t
            byte = w[tile, c // deep, four, c % deep, g, j, k]
            weight = (byte if whole else nibble(byte, h.var)).astype("int32")
            return te.sum(
                data(row, c * 16 + h * 8 + g * 4 + k).astype("int32") * weight, (t, g, h, k)
            )

        return self.summed(w, of_block)

    def schedule_sums(self, sch: Schedule, at: str) -> None:
        compute_in_registers(sch, SUMS, at)
        name = "aarch64.sdot.nibbles" if self.bits == 4 else "aarch64.sdot.sixteen"
        schedule_intrin_sum(sch, SUMS, at, get_intrin(name), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksBySquares(BlockProduct):
    """Eight neighbours along k of two rows and two columns make a square of sums."""

    name = "dense_blocks_squares"
    lanes = 4
    unit = 16

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        x, w, scale = inputs
        rows, size, deep, high = x.shape[0], self.size, w.shape[3], self.rows

        def copied(q: Expr, c: Expr, pair: Expr, h: Expr, i: Expr, k: Expr) -> Expr:
            row = q * high + pair * 2 + i
            return _or_zero(x[row, c * 16 + h * 8 + k], row, rows, high)

        shape = ((rows + high - 1) // high, x.shape[1] // 16, high // 2, 2, 2, 8)
        copy = te.compute(shape, copied, name=ROWS)
        t = te.reduce_axis((0, size // 16), "t")
        h, g, k = (te.reduce_axis((0, n), name) for n, name in ((2, "h"), (2, "g"), (4, "k")))
        over = te.reduce_axis((0, self.blocks), "b")

        def of_block(
            tile: Expr, b: Expr, four: Expr, pair: Expr, p: Expr, i: Expr, j: Expr
        ) -> Expr:
            c = b * (size // 16) + t
            byte = w[tile, c // deep, four, c % deep, g, p * 2 + j, k]
            value = copy[pair // (high // 2), c, pair % (high // 2), h, i, g * 4 + k]
            weight = nibble(byte, h.var).astype("int32")
            return te.sum(value.astype("int32") * weight, (t, h, g, k))

        tiles, fours, pairs = w.shape[0], TILE // 4, (rows + 1) // 2
        sums = te.compute((tiles, self.blocks, fours, pairs, 2, 2, 2), of_block, name=SUMS)
        factors = te.compute(
            scale.shape,
            lambda tile, b, column: scale[tile, b, column].astype("float32"),
            name=FACTORS,
        )

        def scaled(tile: Expr, four: Expr, pair: Expr, p: Expr, i: Expr, j: Expr) -> Expr:
            found = sums[tile, over, four, pair, p, i, j].astype("float32")
            return te.sum(found * factors[tile, over, four * 4 + p * 2 + j], over)

        squares = te.compute((tiles, fours, pairs, 2, 2, 2), scaled, name=SCALED)
        vectors = te.compute(
            (tiles, fours, pairs, 2, 2, 2),
            lambda tile, four, pair, i, p, j: squares[tile, four, pair, p, i, j],
            name=VECTORS,
        )

        def element(i: Expr, j: Expr) -> Any:
            lane = j % 4
            at = (j // TILE, j % TILE // 4, i // 2, i % 2, lane // 2, lane % 2)
            return vectors[at] * (1 / self.unit)

        return [te.compute((rows, self.attrs["channels"]), element, name=self.op)]

    def schedule_scaled(self, sch: Schedule, at: str) -> None:
        compute_in_registers(sch, VECTORS, at)
        *pairs, i, p, j = loops_inside(sch, VECTORS, at)
        compute_in_registers(sch, SCALED, at)
        sch.tensorize(i, "aarch64.zip.float.squares")
        unroll(sch, pairs)
        *pairs, p, i, j, over = loops_inside(sch, SCALED, at)
        sch.reorder(over, *pairs, p, i, j)
        zero = sch.decompose_reduction(SCALED, over)
        inside = [over, *pairs][-1]
        compute_in_registers(sch, FACTORS, over)
        sch.vectorize(sch.get_loops(FACTORS)[-1])
        compute_in_registers(sch, SUMS, inside)
        schedule_intrin_sum(sch, SUMS, inside, get_intrin("aarch64.smmla.nibbles"), 2)
        sch.tensorize(p, "aarch64.scale.squares")
        unroll(sch, pairs)
        *spatial, i, j = loops_inside(sch, zero, at)
        unroll(sch, [*spatial, i])
        sch.vectorize(j)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksByColumns(BlockVectors):
    """One element of the data multiplies a vector of sixteen columns. int16 holds the sums of a
    part of a block, of `run` elements."""

    name = "dense_blocks_columns"
    lanes = 16
    run: int

    def sums(self, data: Element, w: Tensor) -> Sums:
        if self.bits == 8:
            return self._of_bytes(data, w)
        size, run = self.size, self.run
        t, q, h = (te.reduce_axis((0, n), m) for n, m in ((run // 16, "t"), (8, "q"), (2, "h")))
        runs, rows = size // run, self.types[0].shape[0]

        def of_part(tile: Expr, b: Expr, part: Expr, row: Expr, j: Expr) -> Expr:
            at = b * size + part * run + t * 16
            weight = (nibble(w[tile, at // 2 + q, j], h.var) >> 4).astype("int16")
            return te.sum(data(row, at + q * 2 + h).astype("int16") * weight, (t, q, h))

        parts = te.compute((w.shape[0], self.blocks, runs, rows, self.lanes), of_part, name=PARTS)
        if runs == 1:
            return lambda tile, b, _, row, j: parts[tile, b, 0, row, j]
        over = te.reduce_axis((0, runs), "part")

        def of_block(tile: Expr, b: Expr, row: Expr, j: Expr) -> Expr:
            return te.sum(parts[tile, b, over, row, j].astype("int32"), over)

        return self.summed(w, of_block)

    def _of_bytes(self, data: Element, w: Tensor) -> Sums:
        size = self.size
        t, k = te.reduce_axis((0, size // 16), "t"), te.reduce_axis((0, 16), "k")

        def of_block(tile: Expr, b: Expr, row: Expr, j: Expr) -> Expr:
            at = b * size + t * 16 + k
            return te.sum(data(row, at).astype("int32") * w[tile, at, j].astype("int32"), (t, k))

        return self.summed(w, of_block)

    def schedule_sums(self, sch: Schedule, at: str) -> None:
        multiply = {"aarch64": "aarch64.smlal", "arm": "arm.vmlal"}[self.target.arch]
        if self.bits == 8:
            compute_in_registers(sch, SUMS, at)
            schedule_intrin_sum(sch, SUMS, at, get_intrin(f"{multiply}.columns"), 2)
            return
        if SUMS in sch.get_blocks():
            compute_in_registers(sch, SUMS, at)
            lane, part = sch.get_loops(SUMS)[-2:]
            sch.reorder(part, lane)
            zero = sch.decompose_reduction(SUMS, part)
            for block in (SUMS, zero):
                sch.vectorize(sch.get_loops(block)[-1])
            at = part
        compute_in_registers(sch, PARTS, at)
        schedule_intrin_sum(sch, PARTS, at, get_intrin(f"{multiply}.nibbles"), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksByPairs(BlockVectors):
    """On x86-64 an instruction adds up pairs of neighbours along k in int16. It takes unsigned
    weights, so weights of 4 bits are raised by 8."""

    name = "dense_blocks_pairs"
    lanes = 8

    @property
    def raised(self) -> int:  # type: ignore[override]
        return 8 if self.bits == 4 else 0

    @property
    def depth(self) -> int:
        return min(self.size, 32)

    def sums(self, data: Element, w: Tensor) -> Sums:
        if self.bits == 8:
            return self._of_bytes(data, w)
        size, depth = self.size, self.depth
        runs, eights = size // depth, depth // 8
        t, q, h, k = (
            te.reduce_axis((0, n), m) for n, m in ((runs, "t"), (eights, "q"), (2, "h"), (4, "k"))
        )

        def of_block(tile: Expr, b: Expr, group: Expr, row: Expr, j: Expr) -> Expr:
            eight = b * (size // 8) + t * eights + q
            weight = raised_nibble(w[tile, eight, group * 8 + j, k], h.var)
            value = data(row, eight * 8 + h * 4 + k)
            return te.sum(value.astype("int32") * weight, (t, q, h, k))

        return self.summed(w, of_block)

    def _of_bytes(self, data: Element, w: Tensor) -> Sums:
        size = self.size
        t, k = te.reduce_axis((0, size // 2), "t"), te.reduce_axis((0, 2), "k")

        def of_block(tile: Expr, b: Expr, group: Expr, row: Expr, j: Expr) -> Expr:
            pair = b * (size // 2) + t
            weight = w[tile, pair, group * 8 + j, k].astype("int32")
            return te.sum(data(row, pair * 2 + k).astype("int32") * weight, (t, k))

        return self.summed(w, of_block)

    def copied(self, x: Tensor) -> Element:
        if self.bits == 4:
            return lambda row, k: x[row, k]
        copy = te.compute(x.shape, lambda row, k: x[row, k].astype("int16"), name=ROWS)
        return lambda row, k: copy[row, k]

    def schedule_sums(self, sch: Schedule, at: str) -> None:
        compute_in_registers(sch, SUMS, at)
        if self.bits == 8:
            schedule_intrin_sum(sch, SUMS, at, get_intrin("x86.pmaddwd.8"), 8)
        else:
            intrin = get_intrin(f"x86.pmaddubsw.nibbles{self.depth}")
            schedule_intrin_sum(sch, SUMS, at, intrin, 1)

    def schedule_rows(self, sch: Schedule) -> None:
        row, k = sch.get_loops(ROWS)
        _, lane = sch.split(k, [None, 16])
        sch.vectorize(lane)
        sch.parallel(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksOfFloats(BlockVectors):
    """Data stay floats: weights become floats in registers, for all rows of a tile."""

    name = "dense_blocks_floats"
    lanes = 16
    by_rows = False

    @property
    def unit(self) -> int:  # type: ignore[override]
        return 16 if self.bits == 4 else 1

    def sums(self, data: Element, w: Tensor) -> Sums:
        size, halves = self.size, 2 if self.bits == 4 else 1
        q, h = te.reduce_axis((0, size // halves), "q"), te.reduce_axis((0, halves), "h")

        def of_block(tile: Expr, b: Expr, row: Expr, j: Expr) -> Expr:
            at = b * (size // halves) + q
            weight = w[tile, at, j]
            if self.bits == 4:
                weight = nibble(weight, h.var)
            value = data(row, at * halves + h).astype("float32")
            return te.sum(value * weight.astype("float32"), (q, h))

        return self.summed(w, of_block)

    def copied(self, x: Tensor) -> Element:
        return lambda row, k: x[row, k]

    def schedule_sums(self, sch: Schedule, at: str) -> None:
        compute_in_registers(sch, SUMS, at)
        schedule_sum(sch, SUMS, at, self.lanes, 4)


def plan_floats(types: Sequence[TensorType], attrs: Attrs, target: Target) -> BlockProduct | None:
    x, w, *_ = types
    if "kernel_layout" in attrs or x.dtype not in ("float16", "float32") or not _fits(w):
        return None
    if target.kind == "c" or not target.vector_registers:
        return None
    to, halves = ("NK2k16n", 2) if attrs["bits"] == 4 else ("NK16n", 0)
    most = 1 if target.arch == "arm" else 2
    rows = x.shape[0]
    height = min(rows, most) if isinstance(rows, int) else most
    own = _fields(types, attrs, target, to, halves)
    return BlocksOfFloats(**own, rows=height, columns=TILE)


def _fits(w: TensorType) -> bool:
    """Whether there are enough weights for tiles."""
    return static(w) and w.sizes[0] >= TILE and w.sizes[1] > 1


def _fields(
    types: Sequence[TensorType], attrs: Attrs, target: Target, to: str, halves: int
) -> dict[str, Any]:
    """The fields of a plan with weights in layout `to`. halves: its dimension of halves of bytes; 0
    where it has none."""
    bits, (columns, _, stored) = attrs["bits"], types[1].sizes
    packing = Packing("NK", to, bits=bits, halves=halves)
    more = {"channels": columns, "block": stored * 8 // bits, "halves": halves}
    floats = "float32" if target.float16 == "software" else ""
    beside = Packing("NB", "NB16n", floats=floats)
    own: dict[str, Any] = fields("dense_blocks", types, attrs, target, packing, **more)
    return own | {"beside": beside, "steps": 1}


def plan_blocks(types: Sequence[TensorType], attrs: Attrs, target: Target) -> BlockProduct | None:
    x, w, _, *zeros = types
    bits, narrow = attrs["bits"], bool(attrs.get("narrow"))
    if "kernel_layout" in attrs or x.dtype != "int8" or not _fits(w):
        return None
    (columns, blocks, stored), rows = w.sizes, x.shape[0]
    rows = rows if isinstance(rows, int) else OPEN
    size = stored * 8 // bits
    deep, many = min(size, 32) // 16, rows > 1
    form = _form(target)
    if not form or (form == "columns" and bits == 8 and not narrow):
        return None
    packed = {  # by form and bits: the layout of weights, and its dimension of halves
        ("quads", 4): (f"NK4n{deep}k2k2k4n4k", 4),
        ("quads", 8): (f"NK4n{deep}k4k4n4k", 0),
        ("columns", 4): ("NK2k16n", 2),
        ("columns", 8): ("NK16n", 0),
        ("pairs", 4): ("NK2k16n4k", 2),
        ("pairs", 8): ("NK16n2k", 0),
    }
    own = _fields(types, attrs, target, *packed[form, bits])
    match form:
        case "quads" if many and bits == 4 and target.has("i8mm") and not zeros:
            return BlocksBySquares(**own, rows=min(rows + rows % 2, 16), columns=4)
        case "quads" if many:
            return BlocksByQuads(**own, rows=min(rows, 16), columns=4)
        case "quads":
            own["steps"] = divisor(blocks, 2)
            return BlocksByQuads(**own, rows=1, columns=TILE)
        case "columns":
            # One row takes 14 of 16 registers.
            height = min(rows, 4) if target.arch == "aarch64" else 1
            both = 2 if height == 1 and bits == 4 and -(-columns // TILE) % 2 == 0 else 1
            run = 32 if narrow and size % 32 == 0 else 16
            return BlocksByColumns(**own, rows=height, columns=TILE * both, run=run)
    return BlocksByPairs(**own, rows=min(rows, 4), columns=8 if many else TILE)


def _or_zero(value: Expr, row: Expr, rows: Dim, high: int) -> Expr:
    """A row's element; 0 in the rows that fill up the last tile of `high`."""
    if isinstance(rows, int) and rows % high == 0:
        return value
    return te.if_then_else(row < rows, value, 0)


def _form(target: Target) -> str:
    """How a target's instructions take operands; "" where it has no such instructions."""
    if target.kind == "c" or not target.vector_registers:
        return ""
    if target.arch == "x86_64":
        return "pairs" if target.has("avx2") else ""
    if "arm_cpu" not in target.keys:
        return ""
    return "quads" if target.arch == "aarch64" and target.has("dotprod") else "columns"
