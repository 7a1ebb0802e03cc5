"""Matrix products: dense layers, whose weights are packed at compile time, and products of two
matrices of data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from mlc_targets import Target

from ... import te
from ...ir import Dim, Expr, PrimFunc, Reduce, const, same_shape
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import OPEN, static
from ..elementwise import broadcast_shape, element_at
from ..half import arithmetic, sums, tile_sum
from ..plan import NARROW, SHARED, Packing, fields
from ..quantize import BLOCK, BYTES, product, sums_alike
from ..registry import Attrs, TensorType
from ..tile import FEW_TASKS, even_cut, inline_epilogue, schedule_tile
from .contraction import Contraction, Tile, Work, best_tile, chosen, cost, prefetch_weights
from .intrinsics.forms import Place, begin_with_bias, compute_sums, schedule_sums
from .intrinsics.microkernels import of_floats, of_int8

PANEL = 8  # most rows of a tile whose rows are packed
MANY_COLUMNS = 64  # from which on packing rows pays
HALVES = 8  # float16 elements in a vector of ARM's
HALF_ROWS = (10, 9, 8, 7)  # rows of a float16 tile; a number that divides all rows is preferred
MOST_OF_A_ROW = 8  # most vectors of columns against one row, unless a panel of weights has more
LEAST = 1 << 9  # products, below which packing at run time is not worth while
COPY, PACKED, FILLED = "int8_rows", "int8_columns", "columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Contraction):
    """[..., M, K] times K x N: `batch` are the leading dimensions, which broadcast; `columns` is N.
    copied: whether rows are copied side by side first."""

    batch: tuple[Dim, ...] = ()
    columns: int
    copied: bool

    @property
    def depth(self) -> int:
        k = self.types[0].shape[-1]
        assert isinstance(k, int)
        return k


# ----------------------------------------------------------------------------------------- floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatProduct(Product):
    """Vectors of the weights' columns times one element of the data. steps: unrolled steps of the
    reduction. width: columns side by side in packed weights, at most a tile's. filled: whether the
    second matrix is packed at run time, in tiles of columns padded with zeros."""

    steps: int
    width: int
    filled: bool = False

    @property
    def rows(self) -> Dim:
        return self.types[0].shape[-2]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op}_tile"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        a, b = inputs
        over = te.reduce_axis((0, self.depth), "k")
        kept = sums(a.dtype) if self.filled else arithmetic(a.dtype, self.target)
        across, columns = self.columns, self.width
        if self.packing is not None or self.filled:
            across = -(-across // columns) * columns
        packed = self._filled(b, columns) if self.filled else b
        a_at = self._in_panels(a, kept) if self.copied else partial(element_at, a)

        def element(*i: Expr) -> Reduce:
            *_, j = i
            if self.packing is not None:
                weight = b[j // columns, over, j % columns]
            elif self.filled:
                lead = _leading([int(n) for n in b.shape[:-2]], i[:-2])  # type: ignore[arg-type]
                weight = packed[(*lead, j // columns, over, j % columns)]
            else:
                weight = element_at(b, (*i[:-2], over.var, j))
            return te.sum(product(a_at((*i[:-1], over.var)), weight, kept), over)

        tile = tile_sum((*self.batch, self.rows, across), element, over, self.name)
        shape = (*self.batch, self.rows, self.columns)
        return [te.compute(shape, lambda *i: tile[i].astype(a.dtype), name=self.op)]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        rank, lanes = len(self.batch) + 2, self.kernel.lanes
        once, matrices = self._weights_once, self._filled_by_task
        tasks = rank - 2 if matrices else 1 if once else rank - 1
        result = inline_epilogue(sch, self.op)
        task = schedule_tile(
            sch,
            self.name,
            result,
            {rank - 2: self.tile.rows, rank - 1: self.tile.blocks * lanes},
            lanes=lanes,
            steps=self.steps,
            vector_result=True,
            tasks=tasks,
            outermost=rank - 1 if once else 0,
        )
        if once:
            prefetch_weights(sch, task, func, self.kernel)
        if self.copied:
            sch.compute_at("panel", sch.get_loops(result)[1] if matrices else task)
            *_, row, lane = sch.get_loops("panel")
            sch.unroll(row)
            sch.vectorize(lane)
        if self.filled:
            if matrices:
                sch.compute_at(FILLED, task)
            *outer, _, column = sch.get_loops(FILLED)
            if not matrices:
                sch.parallel(sch.fuse(*outer) if outer[1:] else outer[0])
            column, lane = sch.split(column, [None, lanes])
            sch.unroll(column)
            sch.vectorize(lane)
        return sch.func

    @property
    def _filled_by_task(self) -> bool:
        """Whether a task fills and multiplies one matrix of several: a kernel that fills all before
        it multiplies runs on one thread."""
        known = [n for n in self.batch if isinstance(n, int)]
        alone = same_shape(self.types[1].shape[:-2], self.batch) and len(known) == len(self.batch)
        return self.filled and alone and prod(known) >= FEW_TASKS

    @property
    def _weights_once(self) -> bool:
        """Whether a tile's weights pass through the caches once, for all rows: where there are more
        weights than data. Not where rows are copied: each tile of rows is a task, which copies its
        own."""
        rows = self.rows
        if self.packing is None or self.copied or not isinstance(rows, int):
            return False
        return self.tile.rows < rows < self.columns

    def _filled(self, b: Tensor, columns: int) -> Tensor:
        """[..., N / columns, K, columns]: columns of b side by side, and zeros at the end."""
        lead = b.ndim - 2

        def element(*i: Expr) -> Expr:
            tile, k, inside = i[lead:]
            column = tile * columns + inside
            place = (column, k) if self.attrs.get("transpose_b") else (k, column)
            value = b[(*i[:lead], *place)].astype(sums(b.dtype))
            return _or_zero(value, (column, self.columns, columns))

        shape = (*b.shape[:-2], -(-self.columns // columns), self.depth, columns)
        filled: Tensor = te.compute(shape, element, name=FILLED)
        return filled

    def _in_panels(self, x: Tensor, kept: str) -> Callable[[Sequence[Expr]], Expr]:
        """x's elements by row and k, read from panels: a tile's rows side by side, vector by vector
        along k."""
        rows, height, lanes = self.rows, self.tile.rows, self.kernel.lanes

        def element(p: Expr, k: Expr, i: Expr, l: Expr) -> Expr:  # noqa: E741
            value = x[p * height + i, k * lanes + l].astype(kept)
            if isinstance(rows, int) and rows % height == 0:
                return value
            return te.if_then_else(p * height + i < rows, value, 0)

        shape = ((rows + height - 1) // height, self.depth // lanes, height, lanes)
        panel = te.compute(shape, element, name="panel")

        def at(index: Sequence[Expr]) -> Expr:
            i, k = index
            found: Expr = panel[i // height, k // lanes, i % height, k % lanes]
            return found

        return at


def plan_floats(
    op: str, packed: bool, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> FloatProduct | None:
    """dense with weights packed in tiles of columns, or a product of data. A second matrix of data
    needs no packing where its rows are whole vectors; elsewhere many rows of the first pay for it,
    where columns fill half a vector. The number of rows may be known only at run time."""
    a, b = types
    depth = a.shape[-1]
    if "kernel_layout" in attrs or not static(b) or not sums_alike(op, a, b):
        return None
    if not isinstance(depth, int):
        return None
    lanes = target.lanes(arithmetic(a.dtype, target))
    source, columns = _columns(b, attrs)
    turned = source == "NK"
    if not packed and (lanes == 1 or (turned and op == "matmul")):
        return None
    filled = not packed and (columns % lanes != 0 or turned)
    if filled:  # mostly scores of attention: their exponentials amplify errors of float16 sums
        lanes = target.lanes(sums(a.dtype))
    *several, rows, _ = (n if isinstance(n, int) else OPEN for n in a.shape)
    if filled and (rows < PANEL or columns * 2 < lanes):
        return None
    work = Work(rows, -(-columns // lanes))
    tile, steps, copied = _float_tile(rows, depth, columns, lanes, packed, target)
    width = tile.blocks * lanes
    if rows == 1 and attrs.get(SHARED):
        width = _float_tile(OPEN, depth, columns, lanes, packed, target)[0].blocks * lanes
        tile = _over_panels(columns, width, lanes)
    packing = Packing(source, f"NK{width}n") if packed else None
    more: dict[str, Any] = {"channels": columns} if packed else {}
    return FloatProduct(
        **fields(op, types, attrs, target, packing, **more),
        cost=prod(several) * depth / lanes * cost(of_floats(target, lanes, lanes), tile, work),
        batch=broadcast_shape(op, [a.shape[:-2], b.shape[:-2]]),
        columns=columns,
        kernel=of_floats(target, lanes),
        tile=tile,
        steps=steps,
        width=width,
        copied=copied,
        filled=filled,
    )


def _over_panels(columns: int, width: int, lanes: int) -> Tile:
    """The tile of one row against weights that are packed for many rows: a number of panels that
    divides all, of at most MOST_OF_A_ROW vectors."""
    panels = -(-columns // width)
    together = next(
        n
        for n in (4, 3, 2, 1)
        if n == 1 or (panels % n == 0 and n * width <= MOST_OF_A_ROW * lanes)
    )
    return Tile(1, together * width // lanes)


def _float_tile(
    rows: int, depth: int, columns: int, lanes: int, packed: bool, target: Target
) -> tuple[Tile, int, bool]:
    """(tile, steps, whether to copy the rows of a tile side by side first, vector by vector). Two
    copied vectors are one load, and every tile of columns reads them.

    Elsewhere each row of the data has a vector of its own, of neighbours along k. A single row uses
    every weight once, so that many columns make up for the cost of an iteration. For many rows,
    x86-64 holds sums in three quarters of its registers: 8 x 3 vectors took least on an Emerald
    Rapids, 4 x 3 with AVX2 (scripts/bench/seconds.py minilm)."""
    many = rows >= 2 * PANEL and columns >= MANY_COLUMNS and lanes > 1 and depth % lanes == 0
    if packed and many and target.arch == "aarch64":
        return Tile(-(-rows // -(-rows // PANEL)), 2), 4 * lanes, True
    if rows == 1 and target.vector_registers:
        vectors = -(-columns // lanes)
        best = min(range(4, 9), key=lambda n: (-(-vectors // n) * (n + 1), -n))
        return Tile(1, best), max(4, lanes) if target.arch != "x86_64" else 4, False
    if not packed and target.arch == "aarch64" and lanes == HALVES:  # by lanes of 16 registers
        return Tile(next((n for n in HALF_ROWS if rows % n == 0), HALF_ROWS[0]), 2), lanes, False
    if packed and many and target.arch == "x86_64":
        vectors = -(-columns // lanes)
        blocks = min((3, 2), key=lambda n: (-vectors % n, -n))
        return Tile(even_cut(rows, target.vector_registers * 3 // 4 // blocks), blocks), 8, False
    wide, half = (Tile(5, 4), 8, False), (Tile(4, 2), 16, False)
    return {32: wide, 16: half}.get(target.vector_registers, (Tile(4, 4), 4, False))


# ------------------------------------------------------------------------------------------- int8


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerProduct(Product):
    """Products of int8, in int32. A second matrix of data is packed at run time as weights are at
    compile time. Loads beyond the end of k, rows or columns read zeros."""

    @property
    def rows(self) -> int:
        return self.types[0].sizes[-2]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op}_int8"

    @property
    def work(self) -> Work:
        return Work(self.rows, -(-self.columns // BLOCK))

    @property
    def blocks(self) -> int:
        """Iterations along k."""
        return -(-self.depth // self.kernel.depth)

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        a, b = inputs
        data = self._copied(a) if self.copied else a
        weights = self._packed(b) if self.packing is None else b
        leads = [t.sizes[:-2] for t in self.types]
        c = te.reduce_axis((0, self.blocks), "c")
        tiles = BLOCK // self.kernel.columns

        def one(lead: Sequence[Expr], at: Place) -> Expr:
            *outer, block = lead
            own, copy = (at.row, c * self.kernel.depth + at.k), (c, at.row, at.k)
            value = data[(*_leading(leads[0], outer), *(copy if self.copied else own))]
            weight = (*_leading(leads[1], outer), block * tiles + at.tile, c, *at.weight)
            return product(value, weights[weight], "int32")

        batch = [n for n in self.batch if isinstance(n, int)]
        sums = compute_sums(self.kernel, (*batch, self.work.blocks), self.rows, one, (c,))

        def element(*i: Expr) -> Expr:
            *outer, row, column = i
            found: Expr = sums(*outer, column // BLOCK, row, column % BLOCK)
            return found

        return [te.compute((*self.batch, self.rows, self.columns), element, name=self.op)]

    def _copied(self, a: Tensor) -> Tensor:
        """[..., k / depth, rows, depth]: rows side by side, and filled up."""
        kernel = self.kernel

        def element(*i: Expr) -> Expr:
            *lead, block, row, k = i
            k = block * kernel.depth + k
            limits = (row, self.rows, kernel.rows), (k, self.depth, kernel.depth)
            return _or_zero(a[(*lead, row, k)], *limits).astype(kernel.data)

        whole = -(-self.rows // kernel.rows) * kernel.rows
        shape = (*self.types[0].sizes[:-2], self.blocks, whole, kernel.depth)
        copy: Tensor = te.compute(shape, element, name=COPY)
        return copy

    def _packed(self, b: Tensor) -> Tensor:
        """The second matrix, whose rows run along k, packed as the kernel's weights are."""
        kernel, n = self.kernel, b.ndim - 2
        tile = [(int(size), axis) for size, axis in re.findall(r"(\d+)([oi])", kernel.weights)]

        def element(*i: Expr) -> Expr:
            at: dict[str, Expr] = {"o": const(0), "i": const(0)}
            for (size, axis), inside in zip(tile, i[n + 2 :], strict=True):
                at[axis] = at[axis] * size + inside
            column, k = i[n] * kernel.columns + at["o"], i[n + 1] * kernel.depth + at["i"]
            limits = (column, self.columns, BLOCK), (k, self.depth, kernel.depth)
            return _or_zero(b[(*i[:n], column, k)], *limits)

        many = self.work.blocks * (BLOCK // kernel.columns)
        shape = (*self.types[1].sizes[:-2], many, self.blocks, *(size for size, _ in tile))
        packed: Tensor = te.compute(shape, element, name=PACKED)
        return packed

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        tile = chosen(sch, self.kernel, self.tile, self.work)
        result = inline_epilogue(sch, self.op)
        if not self.batch and self.columns % BLOCK == 0:
            begin_with_bias(sch, result, self.kernel, {1: "column"})
        *batch, i, j = sch.get_loops(result)
        i, row = sch.split(i, [None, tile.rows])
        j, vectors, lane = sch.split(j, [None, tile.blocks, BLOCK])
        inner = [vectors, row, lane]
        copies_own_rows = self.copied and self.packing is not None and self.rows > 1
        task, outer = (i, j) if copies_own_rows else (j, i)
        sch.reorder(*batch, task, outer, *inner)
        task = sch.fuse(*batch, task) if batch else task
        schedule_sums(sch, self.kernel, outer, inner, 1, self.target)
        for copy in (PACKED, COPY):
            if copy not in sch.get_blocks():
                continue
            if self.packing is not None:
                sch.compute_at(copy, task)
            *loops, lane = sch.get_loops(copy)
            sch.vectorize(lane)
            if self.packing is None:  # for all tasks
                sch.parallel(sch.fuse(*loops[:2]))
        sch.parallel(task)
        return sch.func


def plan_integers(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> IntegerProduct | None:
    """dense where blocks of eight divide k and the columns, or matmul of two matrices of data, the
    second with its rows along k. None elsewhere, or if the target has no instructions for it."""
    a, b = types[:2]
    packed = op == "dense"
    if "kernel_layout" in attrs or not static(a, b) or b.dtype != "int8":
        return None
    if a.dtype not in (BYTES if packed else ("int8",)):
        return None
    rows, depth = a.sizes[-2:]
    source, columns = _columns(b, attrs)
    if packed and (depth % BLOCK or columns % BLOCK):
        return None
    if not packed and (source != "NK" or columns == 1 or rows * depth * columns < LEAST):
        return None
    narrow = packed and bool(attrs.get(NARROW))
    kernel = of_int8(target, rows, depth, narrow, not packed, a.dtype)
    if kernel is None:
        return None
    weights = kernel.weights.replace("o", "n").replace("i", "k")  # in the letters of a matrix
    packing = Packing(source, f"NK{weights}") if packed else None
    batch = tuple(int(n) for n in broadcast_shape(op, [a.shape[:-2], b.shape[:-2]]))  # type: ignore[arg-type]
    more: dict[str, Any] = {"channels": columns} if packed else {}
    return IntegerProduct(
        **fields(op, types, attrs, target, packing, **more),
        cost=prod(batch) * rows * columns * depth / kernel.rate,
        batch=batch,
        columns=columns,
        kernel=kernel,
        tile=best_tile(kernel, Work(rows, -(-columns // BLOCK)), target),
        copied=kernel.rows > 1 or kernel.data != a.dtype or depth % kernel.depth != 0,
    )


def _or_zero(value: Expr, *limits: tuple[Expr, int, int]) -> Expr:
    """value where each (index, size, block) lies inside; zeros fill up the last block."""
    inside = [at < size for at, size, block in limits if size % block]
    return te.if_then_else(te.all_of(*inside), value, 0) if inside else value


def _columns(b: TensorType, attrs: Attrs) -> tuple[str, int]:
    """The layout of a plain second matrix, and its columns."""
    return ("NK", b.sizes[-2]) if attrs.get("transpose_b") else ("KN", b.sizes[-1])


def _leading(sizes: Sequence[int], index: Sequence[Expr]) -> list[Expr]:
    """The index of a matrix, where leading dimensions broadcast."""
    own = index[len(index) - len(sizes) :]
    return [const(0) if n == 1 else i for n, i in zip(sizes, own, strict=True)]
