"""Winograd convolutions in blocks of channels, and the rule that says where they pay.

A task takes a strip of whole rows of tiles through all phases, for a group of output channels:
their data is transformed, multiplied with the weights at each point, and transformed back, with
what elementwise work follows. So what lies between stays in the second-level cache, and a thread's
workspace is that of a strip. A strip that several groups share is transformed once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from ...ir import PrimFunc, walk
from ...lower.annotations import PHASE, WHOLE
from ...schedule import Schedule
from ...te import Tensor
from ..layout import layout, plain_sizes
from ..registry import Attrs, TensorType, compute
from ..tile import inline_epilogue, schedule_sum
from ..winograd import KERNEL, TILES, extents
from . import conv2d
from .conv2d import Conv, best_tile, block

L2 = 512 << 10  # bytes: what small boards' cores share
TASKS = 4  # so many are enough for threads to share
PER_BYTE = 0.25  # instructions that a core does while memory delivers a byte
TURNS = 4  # blocks of input channels that are multiplied in a turn
COPIED = 4  # pixels at a time
LOOP = 4  # instructions of a turn beside its work
MOST_CHANNELS = {2: 1 << 20, 3: 2048, 4: 512, 5: 256, 6: 128}  # by tile
GAIN = 0.9  # a cost of at most so much of the direct one is worth the weights' growth


@dataclass(frozen=True, slots=True)
class Shape:
    """A convolution of 3 x 3 in plain numbers; height and width are the result's."""

    batch: int
    channels: int
    out_channels: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Plan:
    """F(tile x tile, 3 x 3): strips of `rows` rows of tiles, whose register tile is `pixels` tiles
    against `vectors` vectors of output channels, which are cut into `groups`. tasks: of all strips
    and groups. cost: instructions, and what memory makes wait, in instructions."""

    tile: int
    rows: int
    pixels: int
    vectors: int
    groups: int
    tasks: int
    cost: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, or None where another way is better, and why."""

    plan: Plan | None
    reason: str


# ------------------------------------------------------------------------------------- the rule


def decide(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Decision:
    """Whether a conv2d of plain data and weights is to be done by Winograd's filtering.

    Errors grow with the tile, and with the root of the channels: MOST_CHANNELS keeps them below
    1.4e-5 of the largest result (beyond 1e-4 of each, of random numbers), which the contract of
    float results has room for. Whoever wants none of that disables the pass `choose_winograd`.
    """
    x, w = types[:2]
    plain = "data_layout" not in attrs and "kernel_layout" not in attrs
    static = all(isinstance(n, int) for t in (x, w) for n in t.shape)
    if not plain or not static or len(x.shape) != 4:
        return Decision(None, "its shape is not known, or its layout is not plain")
    if x.dtype != "float32" or w.dtype != "float32":
        return Decision(None, f"its data is {x.dtype}, not float32")
    if w.sizes[2:] != (KERNEL, KERNEL):
        return Decision(None, f"its kernel is {w.sizes[2]} x {w.sizes[3]}, not 3 x 3")
    if attrs["strides"] != (1, 1) or attrs["dilations"] != (1, 1):
        return Decision(None, "its stride or dilation is not 1")
    if attrs["groups"] != 1 or attrs.get("pad_value"):
        return Decision(None, "it has groups, or a border of other numbers than 0")
    lanes = block(x.dtype, target)
    if lanes == 1:
        return Decision(None, "the target has no vectors")
    height, width = extents(x.sizes[2:], attrs)
    shape = Shape(x.sizes[0], x.sizes[1], w.sizes[0], height, width)
    if shape.channels % lanes or shape.out_channels % lanes:
        return Decision(None, f"its channels do not divide into blocks of {lanes}")
    direct = _direct_cost(shape, lanes, target)
    exact = [tile for tile in TILES if shape.channels <= MOST_CHANNELS[tile]]
    best = min((best_plan(shape, tile, target) for tile in exact), key=lambda plan: plan.cost)
    share = best.cost / direct
    name = f"F({best.tile} x {best.tile}, 3 x 3)"
    if share > GAIN:
        return Decision(None, f"{name} costs {share:.2f} of what direct convolution does")
    return Decision(best, f"{name} costs {share:.2f} of what direct convolution does")


def best_plan(shape: Shape, tile: int, target: Target) -> Plan:
    """The plan of least cost for a tile that has work for threads, if any has; of equal ones that
    with the smallest strips."""
    plans = list(_plans(shape, tile, block("float32", target), target))
    shared = [plan for plan in plans if plan.tasks >= TASKS]
    return min(shared or plans, key=lambda plan: (plan.cost, plan.rows))


def _plans(shape: Shape, tile: int, lanes: int, target: Target) -> Iterator[Plan]:
    down, across = -(-shape.height // tile), -(-shape.width // tile)
    out_blocks = shape.out_channels // lanes
    values = (tile + KERNEL - 1) ** 2
    weights = 4 * values * shape.channels * shape.out_channels
    data, results = _transform_costs(tile)
    for rows in range(1, down + 1):
        if down % rows:
            continue
        tiles, strips = rows * across, shape.batch * (down // rows)
        conv = Conv(tiles, out_blocks, 1, lanes * TURNS)
        pixels, vectors = best_tile(conv, lanes, target)
        turn = conv2d.row_cost(pixels, vectors, conv, lanes, target) / (lanes * TURNS)
        products = values * turn * shape.channels * (out_blocks // vectors)
        strip = 4 * values * tiles * shape.channels
        waits = weights * (strips if weights > L2 else 1)
        waits += strips * strip * (out_blocks // vectors) if strip > L2 else 0
        groups = _groups(strips, out_blocks // vectors)
        of_strip = products + results * tiles * out_blocks
        of_strip += groups * data * tiles * (shape.channels // lanes)
        cost = strips * of_strip + PER_BYTE * waits
        yield Plan(tile, rows, pixels, vectors, groups, strips * groups, cost)


def _groups(strips: int, parts: int) -> int:
    """Into how many groups the output channels are cut, so that there are TASKS tasks."""
    wanted = -(-TASKS // strips)
    return next((n for n in range(min(wanted, parts), 0, -1) if parts % n == 0), 1)


def _transform_costs(tile: int) -> tuple[float, float]:
    """Instructions to transform a tile of one block of channels: data, and results. Sums first,
    then loads and stores, of which pairs are one."""
    size, pairs, alone = tile + KERNEL - 1, tile // 2, tile % 2
    data = 2 * pairs * (pairs + 1) + alone * (size + pairs) + LOOP
    results = 3 * pairs + (tile - 1) * (pairs + alone - 1) + 1 + LOOP
    moved = size * (size + tile) + 2 * tile * tile
    return 2 * size * data + size * size * 3, (size + tile) * results + moved


def _direct_cost(shape: Shape, lanes: int, target: Target) -> float:
    blocks = shape.out_channels // lanes
    conv = Conv(shape.width, blocks, KERNEL, lanes)
    pixels, vectors = best_tile(conv, lanes, target)
    turns = shape.batch * shape.height * KERNEL * (shape.channels // lanes) * blocks / vectors
    weights = 4 * KERNEL * KERNEL * shape.channels * shape.out_channels
    return turns * conv2d.row_cost(pixels, vectors, conv, lanes, target) + PER_BYTE * weights


# ------------------------------------------------------------------------------ the implementation


def blocked_attrs(
    types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """The attributes of a winograd_conv2d of plain data and weights, in blocks."""
    x, w = types[:2]
    lanes = block(x.dtype, target)
    if "data_layout" in attrs or lanes == 1 or x.sizes[1] % lanes or w.sizes[0] % lanes:
        return None
    height, width = extents(x.sizes[2:], attrs)
    shape = Shape(x.sizes[0], x.sizes[1], w.sizes[0], height, width)
    columns = best_plan(shape, attrs["tile"], target).vectors * lanes
    return {
        "channels": shape.out_channels,
        "source_layout": "OIHW",
        "kernel_layout": f"OHWI{lanes}i{columns}o",
        "data_layout": f"NCHW{lanes}c",
        "out_layout": f"NCHW{lanes}c",
    }


def takes_blocks(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> bool:
    lanes = block(inputs[0].dtype, target)
    return attrs.get("data_layout") == f"NCHW{lanes}c" and "kernel_layout" in attrs


def compute_winograd(inputs: Sequence[Tensor], attrs: Attrs, target: Target) -> Sequence[Tensor]:
    return compute("winograd_conv2d", inputs, attrs)


def schedule_winograd(func: PrimFunc, attrs: Attrs, target: Target) -> PrimFunc:
    sch = Schedule(func)
    x = func.buffers[0]
    lanes = block(x.dtype, target)
    batch, channels, *size = plain_sizes(layout(attrs["data_layout"]), x.shape).values()
    shape = Shape(batch, channels, attrs["channels"], *extents(size, attrs))
    plan = best_plan(shape, attrs["tile"], target)
    across = -(-shape.width // plan.tile)
    result = inline_epilogue(sch, "winograd_conv2d")
    b, f, y, q, lane = sch.get_loops(result)
    group, part, vector = sch.split(f, [plan.groups, None, plan.vectors])
    strip, down, i = sch.split(y, [None, plan.rows, plan.tile])
    right, j = sch.split(q, [None, plan.tile])
    sch.reorder(b, strip, group, part, vector, down, right, i, j, lane)
    task = sch.fuse(b, strip, group)
    _schedule_results(sch, (right, i, j, lane))
    sch.annotate(vector, PHASE, True)
    _schedule_products(sch, part, plan.pixels, lanes, lanes * TURNS)
    _schedule_data(sch, task, across)
    sch.annotate(task, WHOLE, True)
    sch.parallel(task)
    return sch.func


def _schedule_results(sch: Schedule, loops: Sequence[str]) -> None:
    """Per tile: its points' columns, then row by row what becomes the result."""
    right, i, j, lane = loops
    sch.compute_at("tile_row", i)
    sch.compute_at("points_row", i)
    sch.compute_at("rows", right)
    row, at, rows_lane = _computed_loops(sch, "rows", right, (3, 4, 5))
    sch.reorder(at, row)
    sch.compute_at("column", at)
    for name, place in (("tile_row", i), ("points_row", i), ("column", at)):
        _in_registers(sch, name, place)
    _unroll(sch, [row], rows_lane)
    _unroll(sch, [j], lane)


def _schedule_products(sch: Schedule, part: str, pixels: int, lanes: int, steps: int) -> None:
    """Per vectors of output channels and point: tiles by channels, summed up in registers."""
    sch.compute_at("product", part)
    f, u, v, t, lane = _computed_loops(sch, "product", part, range(1, 6))
    t, pixel = sch.split(t, [None, pixels])
    sch.reorder(u, v, t, f, pixel, lane)
    sch.compute_at("product_tile", t)
    schedule_sum(sch, "product_tile", t, lanes, steps)
    sch.set_scope("product_tile", 0, "local")
    _unroll(sch, [f, pixel], lane)
    sch.annotate(u, PHASE, True)


def _schedule_data(sch: Schedule, task: str, across: int) -> None:
    """Per block of channels and tile: its columns, then row by row the points."""
    sch.compute_at("points", task)
    u, v, c, t, lane = _computed_loops(sch, "points", task, range(1, 6))
    down, right = sch.split(t, [None, across])
    sch.reorder(c, down, right, u, v, lane)
    sch.compute_at("row", u)
    sch.compute_at("columns", right)
    row, at, columns_lane = _computed_loops(sch, "columns", right, (3, 4, 5))
    sch.reorder(at, row)
    sch.compute_at("window", at)
    if "pad" in sch.get_blocks():
        sch.compute_at("pad", c)
        *_, pixel, pad_lane = sch.get_loops("pad")
        _, pixel = sch.split(pixel, [None, COPIED])
        _unroll(sch, [pixel], pad_lane)
    for name, place in (("row", u), ("window", at)):
        _in_registers(sch, name, place)
    _unroll(sch, [row], columns_lane)
    _unroll(sch, [v], lane)
    sch.annotate(c, PHASE, True)


def _computed_loops(sch: Schedule, name: str, at: str, iters: Sequence[int]) -> list[str]:
    """The loops for iterations of a block that is computed at loop `at`; of one turn where there
    was none."""
    found: list[str] = []
    for number in iters:
        around: list[str] = list(sch.get_loops(name))
        used = set(walk(sch.block(name).iters[number].binding))
        own = (n for n in around[around.index(at) + 1 :] if sch.loop(n).var in used)
        found.append(next(own, None) or sch.add_unit_loop(name))
    return found


def _in_registers(sch: Schedule, name: str, at: str) -> None:
    sch.set_scope(name, 0, "local")
    around: list[str] = list(sch.get_loops(name))
    *others, lane = around[around.index(at) + 1 :]
    _unroll(sch, others, lane)


def _unroll(sch: Schedule, loops: Sequence[str], lane: str) -> None:
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(lane)
