"""Winograd convolutions in blocks of channels, and the rule that says where they pay.

A task takes a strip of whole rows of tiles through all phases, for a group of output channels
(strips.py): data is transformed, multiplied with the weights at each point, and transformed back;
elementwise work follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlc_targets import Target

from ...ir import PrimFunc
from ...lower.annotations import PHASE, TOGETHER, WHOLE
from ...schedule import Schedule
from ...te import Tensor
from ..convolution import ConvShape, conv_shape
from ..half import spare_registers
from ..plan import SMALL, WEIGHTS, Packing, Plan
from ..quantize import BLOCK
from ..registry import Attrs, TensorType, compute
from ..tile import computed_loops, inline_epilogue, loops_inside, schedule_sums
from ..winograd import KERNEL, TILES, WHOLE_TILE, growth
from .contraction import AT_ONCE, Work, best_tile, cost, prefetch_weights
from .conv2d import block, in_layouts, plan_blocks
from .conv2d_int8 import plan_conv2d
from .intrinsics.microkernels import Microkernel, of_floats, of_int8, of_words
from .strips import PER_BYTE, Strips, best, bytes_moved, groups_of, keep

TURNS = 4  # blocks of input channels that are multiplied in an iteration
COPIED = 4  # pixels at a time
HELD = 2  # largest tile with all points of a block of channels in registers
# Integers are multiplied by shifts and sums, and results of two vectors leave registers. Counted
# by `scripts/bench/kernels.py --target cortex-a72-int8` (LLVM 22), of layers of few channels.
SHIFTED = 1.5
LOOP = 4  # instructions of an iteration beside its work
MOST_CHANNELS = {2: 1 << 20, 3: 2048, 4: 512, 5: 256, 6: 128}  # by tile
MOST_GROWTH = 2  # of errors, in float16
GAIN = 0.9  # up to this share of the direct cost, Winograd is worth the weights' growth


@dataclass(frozen=True, slots=True, kw_only=True)
class TileStrips(Strips):
    """F(tile x tile, 3 x 3) in strips of `rows` rows of tiles. A register tile is `pixels` tiles
    against `vectors` vectors of output channels. in_run: whether rows of filters are transformed in
    the run, for each strip."""

    tile: int
    in_run: bool
    pixels: int
    vectors: int


# ------------------------------------------------------------------------------------- the rule


@dataclass(frozen=True, slots=True)
class Decision:
    """Strips, or None where another way is better, and why. direct: the cost of direct convolution,
    in instructions and waits for its weights."""

    strips: TileStrips | None
    reason: str
    direct: float = 0.0


def decide(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Decision:
    """Whether a conv2d is to be done by Winograd's filtering.

    Errors grow with the tile, and with the root of the channels: MOST_CHANNELS keeps them below
    1.4e-5 of the largest result (beyond 1e-4 of each, of random numbers), which the contract of
    float results has room for. Sums in float16 are of parts, whose errors grow little with the
    channels. Tiles are those with errors of at most MOST_GROWTH times direct convolution's; the
    first transform makes numbers 4 times as large. Disable the pass `choose_winograd` to avoid all
    this.
    """
    conv, x, w = conv_shape(types, attrs), *types[:2]
    if conv is None:
        return Decision(None, "its shape is not known, or its layout is not plain")
    if x.dtype not in ("float32", "float16", "int8") or w.dtype != x.dtype:
        return Decision(None, f"its data is {x.dtype}, neither float32, float16 nor int8")
    if conv.kernel != (KERNEL, KERNEL):
        return Decision(None, f"its kernel is {conv.kernel[0]} x {conv.kernel[1]}, not 3 x 3")
    if conv.strides != (1, 1) or conv.dilations != (1, 1):
        return Decision(None, "its stride or dilation is not 1")
    if conv.groups != 1:
        return Decision(None, "it has groups")
    numbers, whole = numbers_of(x.dtype, target), x.dtype == "int8"
    if numbers is None:
        more = {"int8": ", or sums up products of int8 by itself", "float16": " of float16"}
        return Decision(None, f"the target has no vectors{more.get(x.dtype, '')}")
    if whole and not attrs.get(SMALL):
        return Decision(None, "its sums may be larger than Winograd's filtering has exactly")
    direct = (plan_conv2d if whole else plan_blocks)(types, attrs, target)
    if direct is None or conv.channels % numbers.lanes:
        return Decision(None, f"its channels do not divide into blocks of {numbers.lanes}")
    exact = [tile for tile in numbers.tiles if whole or conv.channels <= MOST_CHANNELS[tile]]
    tried = (best_strips(conv, tile, target) for tile in exact)
    best = min(tried, key=lambda found: found.cost)
    weights = w.bytes
    most = direct.cost + PER_BYTE[target.arch] * weights
    share = best.cost / most
    name = f"F({best.tile} x {best.tile}, 3 x 3)"
    reason = f"{name} costs {share:.2f} of what direct convolution does"
    return Decision(best if share <= GAIN else None, reason, most)


@dataclass(frozen=True, slots=True)
class Numbers:
    """How a CPU takes data of a dtype. lanes: channels in a block. vectors: of a block's sums.
    size: bytes of a number at the points. kernel: what multiplies at the points. tiles: those
    allowed. sums: instructions for each sum in a transform."""

    lanes: int
    vectors: int
    size: int
    kernel: Microkernel
    tiles: tuple[int, ...]
    sums: float


def numbers_of(dtype: str, target: Target) -> Numbers | None:
    """None if the CPU has no vectors or, for int8, has instructions that sum up products faster."""
    if dtype == "float32":
        lanes = block(dtype, target)
        kernel = of_floats(target, lanes, lanes * TURNS)
        return Numbers(lanes, 1, 4, kernel, TILES, 1) if lanes > 1 else None
    if dtype == "float16":
        lanes = block(dtype, target)
        if target.float16 != "arithmetic" or lanes == 1:
            return None
        kernel = of_floats(target, lanes, lanes * TURNS)
        tiles = tuple(tile for tile in TILES if growth(tile) <= MOST_GROWTH)
        return Numbers(lanes, 1, 2, kernel, tiles, 1)
    direct = of_int8(target, 1, BLOCK, narrow=True)
    if direct is None or direct.form != "parts":
        return None
    return Numbers(BLOCK, 2, 2, of_words(target, BLOCK * TURNS), (WHOLE_TILE,), SHIFTED)


def best_strips(conv: ConvShape, tile: int, target: Target, in_run: bool = False) -> TileStrips:
    """The best strips for a tile, and for whether rows of filters are transformed in the run."""
    numbers = numbers_of(conv.dtype, target)
    assert numbers is not None
    return best(_strips(conv, tile, numbers, target, in_run))


def _forms(conv: ConvShape, tile: int, target: Target) -> Iterator[TileStrips]:
    """The best strips for a tile in each form of the weights; for those that grow less, rows of
    filters are transformed in the run. Only float32 are exact enough for rounding them twice."""
    for in_run in (False, True) if conv.dtype == "float32" else (False,):
        yield best_strips(conv, tile, target, in_run)


def _strips(
    conv: ConvShape, tile: int, numbers: Numbers, target: Target, in_run: bool
) -> Iterator[TileStrips]:
    height, width = conv.out_size
    down, across = -(-height // tile), -(-width // tile)
    out_blocks = conv.out_channels // numbers.lanes
    spare = spare_registers(conv.dtype, conv.channels, target)
    size = tile + KERNEL - 1
    values, stored = size * size, size * (KERNEL if in_run else size)
    weights = numbers.size * stored * conv.channels * conv.out_channels
    filters = size * _filter_cost(tile) * conv.channels * out_blocks if in_run else 0
    data, results = (numbers.sums * count for count in _transform_costs(tile, numbers.vectors))
    for rows in range(1, down + 1):
        if down % rows:
            continue
        tiles, strips = rows * across, conv.usual.batch * (down // rows)
        panel = numbers.size * conv.channels * numbers.lanes
        kernel, work = numbers.kernel, Work(tiles, out_blocks, 1, spare, panel)
        sums = best_tile(kernel, work, target)
        products = values * conv.channels / (numbers.lanes * TURNS) * cost(kernel, sums, work)
        strip = numbers.size * values * tiles * conv.channels
        parts = out_blocks // sums.blocks
        waits = bytes_moved(weights, strips, strip, parts)
        groups = groups_of(strips, parts)
        in_and_out = groups * data * (conv.channels // numbers.lanes) + results * out_blocks
        of_strip = products + tiles * in_and_out + filters
        whole = strips * of_strip + PER_BYTE[target.arch] * waits
        yield TileStrips(
            tile=tile,
            in_run=in_run,
            rows=rows,
            pixels=sums.rows,
            vectors=sums.blocks,
            groups=groups,
            tasks=strips * groups,
            cost=whole,
        )


def _transform_costs(tile: int, vectors: int) -> tuple[float, float]:
    """Instructions to transform a tile of one block of channels: (data, results of `vectors`
    vectors). They count sums, loads and stores; a pair of loads or stores is one."""
    size, pairs, alone = tile + KERNEL - 1, tile // 2, tile % 2
    data = 2 * pairs * (pairs + 1) + alone * (size + pairs)
    results = 3 * pairs + (tile - 1) * (pairs + alone - 1) + 1
    if tile <= HELD:
        sums, moved = (size + tile) * results, size * size + tile * tile
        return 2 * size * data + size * size * 1.5 + LOOP, vectors * (sums + moved + LOOP)
    moved = size * (size + tile) + 2 * tile * tile
    sums = (size + tile) * (results + LOOP)
    return 2 * size * (data + LOOP) + size * size * 3, vectors * (sums + moved)


def _filter_cost(tile: int) -> float:
    """Instructions to transform a row of filters, a vector of output channels: sums, and loads and
    stores as for data."""
    sums = 3 * (tile // 2) + 2 * (tile % 2)
    return sums + (KERNEL + tile + KERNEL - 1) / 2


# ------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Winograd(Plan):
    name = "winograd_blocks"

    conv: ConvShape
    kernel: Microkernel
    lanes: int
    strips: TileStrips
    direct: float = field(default=0.0, compare=False, repr=False)

    @property
    def saved(self) -> float:
        return max(0.0, self.direct - self.cost)

    def lighter(self) -> Sequence[Winograd]:
        """Plans of smaller tiles, which have fewer points, or whose filters' rows are transformed
        in the run."""
        numbers = numbers_of(self.conv.dtype, self.target)
        assert numbers is not None
        tiles = (tile for tile in numbers.tiles if tile <= self.strips.tile)
        found = (strips for tile in tiles for strips in _forms(self.conv, tile, self.target))
        worth = (strips for strips in found if strips.cost <= GAIN * self.direct)
        made = [_plan(self.types, self.conv, self.target, s, self.direct) for s in worth]
        most = self.arguments[WEIGHTS].bytes
        return [plan for plan in made if plan.arguments[WEIGHTS].bytes < most]

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return compute(self.op, inputs, self.attrs)

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = Schedule(func)
        plan, lanes = self.strips, self.lanes
        across = -(-self.conv.out_size[1] // plan.tile)
        result = inline_epilogue(sch, "winograd_conv2d")
        b, f, y, q, lane = sch.get_loops(result)
        group, part, vector = sch.split(f, [plan.groups, None, plan.vectors])
        strip, down, i = sch.split(y, [None, plan.rows, plan.tile])
        right, j = sch.split(q, [None, plan.tile])
        sch.reorder(b, strip, group, part, vector, down, right, i, j, lane)
        task = sch.fuse(b, strip, group)
        _schedule_results(sch, (right, i, j, lane), plan.tile <= HELD)
        sch.annotate(vector, PHASE, True)
        by_row = self.kernel.by_number
        column, point = _schedule_products(sch, part, plan.pixels, lanes, lanes * TURNS, by_row)
        if plan.in_run:
            _schedule_filters(sch, column, lanes)
        else:
            prefetch_weights(sch, point, func, self.kernel)
        _schedule_data(sch, task, across, plan.tile <= HELD, plan)
        sch.annotate(task, WHOLE, True)
        sch.parallel(task)
        return sch.func


def plan_winograd(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Winograd | None:
    """None unless the rule finds it worth while."""
    decision = decide(types, attrs, target)
    if decision.strips is None:
        return None
    return planned(types, attrs, target, decision.strips, decision.direct)


def planned(
    types: Sequence[TensorType],
    attrs: Attrs,
    target: Target,
    strips: TileStrips,
    direct: float = 0.0,
) -> Winograd:
    """The plan for a convolution that `decide` takes, in any strips."""
    conv = conv_shape(types, attrs)
    assert conv is not None
    return _plan(types, conv, target, strips, direct)


def _plan(
    types: Sequence[TensorType], conv: ConvShape, target: Target, strips: TileStrips, direct: float
) -> Winograd:
    numbers = numbers_of(conv.dtype, target)
    assert numbers is not None
    lanes = numbers.lanes
    together = f"{strips.vectors * lanes}o"
    packed = f"OHWI{lanes}i{together}"
    if strips.in_run:  # as many neighbours as one instruction loads, and then stores
        near = AT_ONCE // strips.vectors
        packed = f"OHIW{near}i{together}" if near > 1 else f"OHIW{together}"
    packing = Packing("OIHW", packed, tile=strips.tile, rows=not strips.in_run)
    own, blocks = {"tile": strips.tile, "pads": conv.pads}, f"NCHW{lanes}c"
    own |= {"pad_value": conv.border} if conv.border else {}
    fields = in_layouts(types, own, target, packing, blocks, blocks)
    return Winograd(
        **{**fields, "op": "winograd_conv2d"},
        cost=strips.cost,
        conv=conv,
        kernel=numbers.kernel,
        lanes=lanes,
        strips=strips,
        direct=direct,
    )


def _schedule_results(sch: Schedule, loops: Sequence[str], held: bool) -> None:
    """Schedules the transforms of a tile's points: of columns, then row by row to results. held:
    registers hold all of it, and no loops are left."""
    right, i, j, lane = loops
    sch.compute_at("tile_row", i)
    sch.compute_at("points_row", i)
    sch.compute_at("rows", right)
    row, at, rows_lane = computed_loops(sch, "rows", right, (3, 4, 5))
    sch.reorder(at, row)
    sch.compute_at("column", at)
    for name, place in (("tile_row", i), ("points_row", i), ("column", at)):
        _in_registers(sch, name, place)
    _unroll(sch, [at, row] if held else [row], rows_lane)
    _unroll(sch, [i, j] if held else [j], lane)
    if held:
        sch.set_scope("rows", 0, "local")


def _schedule_products(
    sch: Schedule, part: str, pixels: int, lanes: int, steps: int, row_by_row: bool
) -> tuple[str, str]:
    """Schedules the products, by vectors of output channels and point: tiles by channels, summed up
    in registers. Returns the loops over columns of points, and over the points of one."""
    sch.compute_at("product", part)
    f, u, v, t, lane = computed_loops(sch, "product", part, range(1, 6))
    t, pixel = sch.split(t, [None, pixels])
    sch.reorder(u, v, t, f, pixel, lane)
    sch.compute_at("product_tile", t)
    schedule_sums(sch, "product_tile", t, lanes, steps, row_by_row)
    _unroll(sch, [f, pixel], lane)
    sch.annotate(u, PHASE, True)
    return u, v


def _schedule_filters(sch: Schedule, column: str, lanes: int) -> None:
    """Schedules the transforms of filters' rows, for a column of points: by some channels, vectors
    of output channels side by side."""
    sch.compute_at("filters", column)
    c, v, near, e = computed_loops(sch, "filters", column, (2, 3, 4, 5))
    group, lane = sch.split(e, [None, lanes])
    sch.reorder(c, v, near, group, lane)
    sch.compute_at("filter_row", c)
    sch.set_scope("filter_row", 0, "local")
    *loops, e = loops_inside(sch, "filter_row", c)
    row_group, row_lane = sch.split(e, [None, lanes])
    _unroll(sch, [*loops, row_group], row_lane)
    _unroll(sch, [v, near, group], lane)
    sch.annotate(c, TOGETHER, True)


def _schedule_data(sch: Schedule, task: str, across: int, held: bool, strips: Strips) -> None:
    """Schedules the transforms of a tile's data, by block of channels: of columns, then row by row
    to points. held: registers hold all of it, and no loops are left."""
    sch.compute_at("points", task)
    u, v, c, t, lane = computed_loops(sch, "points", task, range(1, 6))
    down, right = sch.split(t, [None, across])
    sch.reorder(c, down, right, u, v, lane)
    sch.compute_at("row", u)
    sch.compute_at("columns", right)
    row, at, columns_lane = computed_loops(sch, "columns", right, (3, 4, 5))
    sch.reorder(at, row)
    sch.compute_at("window", at)
    if "pad" in sch.get_blocks():
        sch.compute_at("pad", c)
        *_, pixel, pad_lane = sch.get_loops("pad")
        _, pixel = sch.split(pixel, [None, COPIED])
        _unroll(sch, [pixel], pad_lane)
    for name, place in (("row", u), ("window", at)):
        _in_registers(sch, name, place)
    _unroll(sch, [at, row] if held else [row], columns_lane)
    _unroll(sch, [u, v] if held else [v], lane)
    if held:
        sch.set_scope("columns", 0, "local")
    sch.annotate(c, PHASE, True)
    keep(sch, c, strips.groups)


def _in_registers(sch: Schedule, name: str, at: str) -> None:
    sch.set_scope(name, 0, "local")
    *others, lane = loops_inside(sch, name, at)
    _unroll(sch, others, lane)


def _unroll(sch: Schedule, loops: Sequence[str], lane: str) -> None:
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(lane)
