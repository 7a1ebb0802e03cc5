"""Winograd's minimal filtering: convolutions of 3 x 3 with fewer multiplications.

A tile of m x m results needs (m + 2) x (m + 2) data. Both the tile and the filter are transformed
to values of polynomials at m + 2 points per dimension, where a convolution is one product per
point. Summed over the channels, these are (m + 2)^2 matrix products. F(m x m, 3 x 3) of Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), at the first m + 1 of the
points 0, 1, -1, 2, -2, -1/2, 1/2, and at infinity.

winograd_conv2d(x, weights): data NCHW, or in blocks of channels (data_layout, which is the result's
too); weights [O, I, m + 2, m + 2], already transformed, or packed as conv2d's are. Weights of
floats may be [O, I, m + 2, 3], of which only the columns are transformed: they are about half as
many bytes, and each row is transformed in the run. Attributes: tile (m), pads (top, left, bottom,
right), pad_value (default 0); stride and dilation are 1.

Data of int8 give int32, exactly. F(4 x 4, 3 x 3) has whole numbers except for the weights, whose
rows are multiples of 1/24. Rows are multiplied by 24 to be whole. The last row would then be too
large: it is multiplied by 6, and its share of the results by 4. So transformed data (up to 100 *
128) and weights (up to 144 * 128) are int16, and results are 576 times too large. int32 may wrap in
between: 576 is 64 * 9, and 9 has an inverse modulo 2^32, so results below 2^25 are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr, Reduce, const
from ..te import Tensor
from .half import tile_sum
from .layout import Layout, layout, pack, plain_sizes, unpack
from .nn import Weights, data_layouts, plain_weights, weights_of
from .products import conv_products
from .quantize import SUMS, product
from .reference import narrowed
from .registry import Array, Attrs, Operator, register, require
from .shape import pad_array, padded

KERNEL = 3
PAIRS = (Fraction(1), Fraction(2), Fraction(-1, 2))  # points that come with their negatives
TILES = (2, 3, 4, 5, 6)
WHOLE_TILE = 4  # of integers
WHOLE_ROWS = (24, 24, 24, 24, 24, 6)  # the factors that make weights_matrix(4) whole numbers
INVERSE_OF_9 = 954437177  # modulo 2^32
SIXTY_FOURTH = 6  # bits
MOST_WHOLE = 1 << 25  # results of integers are less than this
PIECE = 1024  # filters that are transformed together: their float64, 0.5 MB, stay in a cache
# Filters in a matrix product: OpenBLAS takes several threads above 2^18 multiplications, and here
# they wait for each other for longer than they compute: ResNet-18's weights took 1.7 s of two cores
# instead of 0.7 (scripts/bench/compile_peers.py resnet18 shows it in "cached").
COLUMNS = (1 << 18) // (64 * KERNEL * KERNEL)


def points(tile: int) -> tuple[Fraction, ...]:
    """The tile + 1 finite points of F(tile x tile, 3 x 3)."""
    return (Fraction(0), *(p for pair in PAIRS for p in (pair, -pair)))[: tile + 1]


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (x - root), the constant one first."""
    result = [Fraction(1)]
    for root in roots:
        up, down = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(up, down, strict=True)]
    return result


@cache
def scales(tile: int) -> tuple[Fraction, ...]:
    """By which the values of a filter's polynomial at the tile + 2 points are multiplied."""
    at = points(tile)
    others = ((p - q for q in at if q != p) for p in at)
    return (*(1 / prod(each, start=Fraction(1)) for each in others), Fraction(1))


@cache
def weights_matrix(tile: int) -> Array:
    """G, float64 [tile + 2, 3]: a row of the filter at each point."""
    values = [[p**j for j in range(KERNEL)] for p in points(tile)]
    values.append([Fraction(int(j == KERNEL - 1)) for j in range(KERNEL)])
    rows = [[scale * v for v in row] for scale, row in zip(scales(tile), values, strict=True)]
    return np.array(rows, np.float64)


@cache
def data_matrix(tile: int) -> Array:
    """B transposed, float64 [tile + 2, tile + 2]: points from data."""
    at = points(tile)
    rows = [[*_polynomial([*at[:k], *at[k + 1 :]]), Fraction(0)] for k in range(len(at))]
    return np.array([*rows, _polynomial(at)], np.float64)


@cache
def result_matrix(tile: int) -> Array:
    """A transposed, float64 [tile, tile + 2]: results from points."""
    at = points(tile)
    rows = [[*(p**i for p in at), Fraction(int(i == tile - 1))] for i in range(tile)]
    return np.array(rows, np.float64)


def transformed_weights(w: Array, tile: int, axis: int = 2, rows: bool = True) -> Array:
    """Filters at the points, G w G^T: dimensions `axis` and the next, 3 x 3, become tile + 2 by
    tile + 2; or tile + 2 by 3, if rows are left to be transformed in the run, G w. Of w's dtype; of
    int8 as int16, by whole_weights_matrix."""
    whole = w.dtype == np.int8
    g = whole_weights_matrix() if whole else weights_matrix(tile)
    both = np.kron(g, g) if rows else g  # for rows and columns, as one matrix product
    sides = 2 if rows else 1
    before, behind = w.shape[:axis], w.shape[axis + sides :]
    count = prod(behind)
    columns = next(n for n in range(min(COLUMNS, count), 0, -1) if count % n == 0)
    filters = w.reshape(prod(before), KERNEL**sides, -1, columns).swapaxes(1, 2)
    values = np.empty((prod(before), len(both), count), points_dtype(str(w.dtype)))
    products = values.reshape(prod(before), len(both), -1, columns).swapaxes(1, 2)
    step = max(1, PIECE // count)
    for begin in range(0, len(filters), step):
        some = slice(begin, begin + step)
        products[some] = both @ filters[some].astype(np.float64)
    return values.reshape(*before, *[len(g)] * sides, *behind)


def points_dtype(dtype: str) -> str:
    """The dtype of data and weights at the points."""
    return "int16" if dtype == "int8" else dtype


@cache
def whole_weights_matrix() -> Array:
    """weights_matrix(4), each row times its factor of WHOLE_ROWS."""
    rows: Array = np.rint(weights_matrix(WHOLE_TILE) * np.array(WHOLE_ROWS)[:, None])
    return rows


@cache
def growth(tile: int) -> float:
    """The largest ratio of F(tile x tile, 3 x 3)'s error to a direct convolution's, if numbers at
    the points are rounded as data are.

    For random data and filters, numbers at the points u, v have a variance of |b_u b_v g_u g_v|^2,
    with rows b and g of the matrices. The variance of their rounding errors is proportional to it.
    A result sums them up with weights a_iu a_jv. A direct one sums up 3 x 3 products of variance 1.
    Both dimensions have the same ratio of variances, so it is the ratio of errors.
    """
    at_points = (data_matrix(tile) ** 2).sum(1) * (weights_matrix(tile) ** 2).sum(1)
    return float((result_matrix(tile) ** 2 @ at_points).max()) / KERNEL


# --------------------------------------------------------------------- transforms in expressions


def data_transform(d: Sequence[Expr]) -> list[Expr]:
    """data_matrix times d. The polynomials of a pair of points ±p are (x ± p) Q(x), where Q has
    odd powers only: so the two share the sums over the even and over the odd data."""
    tile = len(d) - KERNEL + 1
    pairs = PAIRS[: tile // 2]
    squares = [p * p for p in pairs]
    every = _polynomial(squares)
    if tile % 2:  # a point without its negative, whose factor all other polynomials have
        alone = points(tile)[-1]
        *rest, last = data_transform([b - a * float(alone) for a, b in pairwise(d)])
        return [*rest, _sum(every, d[1:-1:2]), last]
    result = [_sum(every, d[0::2])]
    for k, p in enumerate(pairs):
        others = _polynomial([*squares[:k], *squares[k + 1 :]])
        even, odd = _sum(others, d[2::2]), _times(p, _sum(others, d[1:-1:2]))
        result += [even + odd, even - odd]
    return [*result, _sum(every, d[1::2])]


def filter_transform(g: Sequence[Expr], tile: int) -> list[Expr]:
    """weights_matrix times g, a row of a filter, without the matrix's scales."""
    first, middle, last = g
    result = [first]
    for p in PAIRS[: tile // 2]:
        even, odd = first + _times(p * p, last), _times(p, middle)
        result += [even + odd, even - odd]
    for p in points(tile)[len(result) :]:
        result.append(_sum([Fraction(1), p, p * p], g))
    return [*result, last]


def result_transform(d: Sequence[Expr]) -> list[Expr]:
    """result_matrix times d, by the sums and differences of the values at ±p."""
    tile = len(d) - KERNEL + 1
    pairs = PAIRS[: tile // 2]
    sums = [d[2 * k + 1] + d[2 * k + 2] for k in range(len(pairs))]
    differences = [d[2 * k + 1] - d[2 * k + 2] for k in range(len(pairs))]
    alone = points(tile)[2 * len(pairs) + 1 :]
    result = []
    for i in range(tile):
        powers = [p**i for p in (*pairs, *alone)]
        values = [*(differences if i % 2 else sums), *d[2 * len(pairs) + 1 : -1]]
        total = _sum(powers, values)
        if i == 0:
            total = total + d[0]
        if i == tile - 1:
            total = total + d[-1]
        result.append(total)
    return result


def _times(c: Fraction, value: Expr) -> Expr:
    """c * value, of the value's dtype: points of int8 data are int16."""
    number = int(c) if c.denominator == 1 else float(c)
    return value if c == 1 else value * const(number, value.dtype)


def whole_result_transform(d: Sequence[Expr]) -> list[Expr]:
    """result_transform of points with the weights of whole_weights_matrix: 24 times the results."""
    *rest, last = d
    return result_transform([*rest, last * (WHOLE_ROWS[0] // WHOLE_ROWS[-1])])


def _sum(coefficients: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of products; products by 1 come first, and need no multiplication."""
    terms = sorted(zip(coefficients, values, strict=True), key=lambda term: term[0] != 1)
    (c, v), *rest = terms
    total = _times(c, v)
    for c, v in rest:
        total = total - v if c == -1 else total + _times(c, v)
    return total


def _element(values: Sequence[Expr], index: Expr) -> Expr:
    """values[index]; loops over the index are unrolled, so that only one value is left."""
    *rest, chosen = values
    for n, value in reversed(list(enumerate(rest))):
        chosen = te.select(index.equal(n), value, chosen)
    return chosen


# ------------------------------------------------------------------------------------ definitions


def extents(size: Sequence[Any], attrs: Attrs) -> tuple[int, int]:
    """Height and width of the result, for data of this height and width."""
    top, left, bottom, right = attrs["pads"]
    return size[0] + top + bottom - KERNEL + 1, size[1] + left + right - KERNEL + 1


def _covered(size: Sequence[Any], attrs: Attrs) -> tuple[int, int, Sequence[int]]:
    """For data of this height and width: how many tiles cover the result down and across, and the
    border (top, left, bottom, right) with which data fill those tiles."""
    m = attrs["tile"]
    height, width = extents(size, attrs)
    down, across = -(-height // m), -(-width // m)
    top, left, _, _ = attrs["pads"]
    bottom = down * m + KERNEL - 1 - size[0] - top
    right = across * m + KERNEL - 1 - size[1] - left
    return down, across, (top, left, bottom, right)


def _described(x: Tensor, w: Tensor, attrs: Attrs) -> tuple[Layout, Weights]:
    """The layout of data and result, and the weights. Raises ValueError if inputs and attributes do
    not fit each other."""
    m = attrs["tile"]
    size = m + KERNEL - 1
    data_layout, out_layout = data_layouts(attrs)
    tiles = (WHOLE_TILE,) if x.dtype == "int8" else TILES
    require(m in tiles, f"winograd_conv2d: tiles of {m}, not one of {tiles}")
    wanted = points_dtype(x.dtype)
    require(w.dtype == wanted, f"winograd_conv2d: data is {x.dtype}, weights are {w.dtype}")
    require(out_layout == data_layout, "winograd_conv2d: out_layout differs from data_layout")
    plain = plain_sizes(data_layout, x.shape)
    _, channels, *area = plain.values()
    fits = x.ndim == len(data_layout.order) and all(isinstance(n, int) for n in (channels, *area))
    require(fits, f"winograd_conv2d: {data_layout.text} of {list(x.shape)}")
    weights = weights_of(w, attrs, "OIHW")
    widths = (size,) if x.dtype == "int8" else (size, KERNEL)
    fits = len(weights.sizes) == 4 and weights.sizes[1:3] == (channels, size)
    fits = fits and weights.sizes[3] in widths
    require(fits, f"winograd_conv2d: {channels} channels, weights {list(weights.sizes)}, tile {m}")
    (lanes,) = data_layout.tiles.get("C", (1,))
    out_channels = weights.sizes[0]
    require(
        out_channels % lanes == 0, f"winograd_conv2d: {out_channels} channels in {out_layout.text}"
    )
    require(
        min(extents(area, attrs)) > 0 and min(attrs["pads"]) >= 0,
        f"winograd_conv2d: pads {list(attrs['pads'])} of data {list(x.shape)}",
    )
    return data_layout, weights


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """The stages, each a tensor of its own, named as the schedule knows them:

    pad                the data with its border, up to whole tiles
    window, columns    a tile's data; its columns transformed
    row, points        a row of that; transformed: [N, x, y, C/c, tile, c]
    filter_row, filters      a row of filters for which this is left to do; transformed
    product_tile, product    summed over the channels: [N, O/c, x, y, tile, c]
    column, rows       a column of the tile's points; transformed to rows of results
    points_row, tile_row     a row of those; transformed
    winograd_conv2d    the result
    """
    x, w = inputs
    data_layout, weights = _described(x, w, attrs)
    batch, channels, *area = plain_sizes(data_layout, x.shape).values()
    (lanes,) = data_layout.tiles.get("C", (1,))
    m = attrs["tile"]
    size = m + KERNEL - 1
    down, across, (top, left, bottom, right) = _covered(area, attrs)
    rest = [0] * (x.ndim - 4)
    around = (0, 0, top, left, *rest, 0, 0, bottom, right, *rest)
    data = padded(x, around, attrs.get("pad_value", 0))

    def datum(b: Expr, c: Expr, t: Expr, i: Expr, j: Expr, e: Expr) -> Expr:
        at = (b, c, t // across * m + i, t % across * m + j)
        value = data[(*at, e)] if data_layout.tiles else data[at]
        return value.astype(points_dtype(x.dtype))

    window = te.compute(
        (batch, channels // lanes, down * across, size, size, lanes), datum, name="window"
    )
    in_run = weights.sizes[3] == KERNEL
    points = _points(window, size, in_run)
    if in_run:
        weights = _filters(weights, m, *_neighbours(attrs))
    tile_row = _results(_products(points, weights), m)

    def result(b: Expr, f: Expr, y: Expr, q: Expr, *lane: Expr) -> Any:
        at = (b, f, y // m * across + q // m, y % m, q % m)
        value = tile_row[(*at, *(lane or (0,)))]
        return value * INVERSE_OF_9 >> SIXTY_FOURTH if x.dtype == "int8" else value

    of_blocks = [lanes] if data_layout.tiles else []
    out = (batch, weights.sizes[0] // lanes, *extents(area, attrs), *of_blocks)
    return [te.compute(out, result, name="winograd_conv2d")]


def _neighbours(attrs: Attrs) -> tuple[int, int]:
    """Of how many channels, and for how many output channels, packed weights lie side by side."""
    tiles = layout(attrs["kernel_layout"]).tiles if "kernel_layout" in attrs else {}
    return prod(tiles.get("I", ())), prod(tiles.get("O", ()))


def _filters(weights: Weights, m: int, near: int, width: int) -> Weights:
    """Filters whose rows are transformed, too, those of `near` channels and for `width` output
    channels side by side."""
    out_channels, channels, size, _ = weights.sizes
    row = te.compute(
        (out_channels // width, size, KERNEL, channels, width),
        lambda f, u, j, c, e: weights.at(f * width + e, c, u, j),
        name="filter_row",
    )
    filters: Tensor = te.compute(
        (out_channels // width, size, channels // near, size, near, width),
        lambda f, u, c, v, n, e: _element(
            filter_transform([row[f, u, j, c * near + n, e] for j in range(KERNEL)], m), v
        ),
        name="filters",
    )

    def at(o: Expr, c: Expr, u: Expr, v: Expr) -> Expr:
        found: Expr = filters[o // width, u, c // near, v, c % near, o % width]
        return found

    return Weights((out_channels, channels, size, size), at)


def _points(window: Tensor, size: int, scaled: bool) -> Tensor:
    """[N, x, y, C/c, tile, c], of tiles of data [N, C/c, tile, size, size, c]. scaled: times the
    scales that filter_transform leaves out."""
    by = scales(size - KERNEL + 1) if scaled else (Fraction(1),) * size

    def scaled_points(data: Sequence[Expr]) -> list[Expr]:
        return [_times(c, value) for c, value in zip(by, data_transform(data), strict=True)]

    batch, blocks, tiles, _, _, lanes = window.shape
    columns = te.compute(
        window.shape,
        lambda b, c, t, u, j, e: _element(
            data_transform([window[b, c, t, i, j, e] for i in range(size)]), u
        ),
        name="columns",
    )
    row = te.compute(columns.shape, lambda *i: columns[i], name="row")
    points: Tensor = te.compute(
        (batch, size, size, blocks, tiles, lanes),
        lambda b, u, v, c, t, e: _element(
            scaled_points([row[b, c, t, u, j, e] for j in range(size)]), v
        ),
        name="points",
    )
    return points


def _products(points: Tensor, weights: Weights) -> Tensor:
    """[N, O/c, x, y, tile, c]: at each point, the sums over the channels."""
    batch, size, _, blocks, tiles, lanes = points.shape
    c = te.reduce_axis((0, blocks), "c")
    lane = te.reduce_axis((0, lanes), "lane")
    shape = (batch, weights.sizes[0] // lanes, size, size, tiles, lanes)

    def multiplied(b: Expr, f: Expr, u: Expr, v: Expr, t: Expr, e: Expr) -> Reduce:
        weight = weights.at(f * lanes + e, c * lanes + lane, u, v)
        point = points[b, u, v, c, t, lane]
        whole = points.dtype == "int16"  # LLVM finds `vmlal` by lane where the lane is second
        return te.sum(product(weight, point, SUMS) if whole else point * weight, (c, lane))

    tile = tile_sum(shape, multiplied, c, "product_tile")
    sums: Tensor = te.compute(shape, lambda *i: tile[i], name="product")
    return sums


def _results(sums: Tensor, m: int) -> Tensor:
    """[N, O/c, tile, m, m, c], of sums of products at the points."""
    batch, blocks, _, _, tiles, lanes = sums.shape
    size = m + KERNEL - 1
    transform = whole_result_transform if sums.dtype == SUMS else result_transform
    column = te.compute(
        (batch, blocks, tiles, size, size, lanes),
        lambda b, f, t, u, v, e: sums[b, f, u, v, t, e],
        name="column",
    )
    rows = te.compute(
        (batch, blocks, tiles, m, size, lanes),
        lambda b, f, t, i, v, e: _element(
            transform([column[b, f, t, u, v, e] for u in range(size)]), i
        ),
        name="rows",
    )
    points_row = te.compute(rows.shape, lambda *i: rows[i], name="points_row")
    tile_row: Tensor = te.compute(
        (batch, blocks, tiles, m, m, lanes),
        lambda b, f, t, i, j, e: _element(
            transform([points_row[b, f, t, i, v, e] for v in range(size)]), j
        ),
        name="tile_row",
    )
    return tile_row


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    w = plain_weights(inputs[1], attrs)
    data_layout, out_layout = data_layouts(attrs)
    sizes = list(plain_sizes(data_layout, inputs[0].shape).values())
    x = unpack(inputs[0], data_layout.text, "NCHW", sizes)
    m = attrs["tile"]
    size = m + KERNEL - 1
    height, width = extents(x.shape[2:], attrs)
    down, across, (top, left, bottom, right) = _covered(x.shape[2:], attrs)
    border = attrs.get("pad_value", 0)
    data = pad_array(x, (0, 0, top, left, 0, 0, bottom, right), value=border).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(data, (size, size), (2, 3))
    b, a = data_matrix(m), result_matrix(m)
    whole = x.dtype == np.int8
    if w.shape[3] == KERNEL:
        w = w.astype(np.float64) @ weights_matrix(m).T
    if whole:
        a = a * (WHOLE_ROWS[0] / np.array(WHOLE_ROWS))
    tiles = windows[:, :, ::m, ::m]
    values = np.einsum("ui,ncyxij,vj->ncyxuv", b, tiles, b, optimize=True)
    products = np.einsum("ncyxuv,ocuv->noyxuv", values, w.astype(np.float64), optimize=True)
    results = np.einsum("iu,noyxuv,jv->noyixj", a, products, a, optimize=True)
    results = results.reshape(x.shape[0], w.shape[0], down * m, across * m)[:, :, :height, :width]
    results = _divided(results) if whole else narrowed(results, str(x.dtype))
    return [pack(results, "NCHW", out_layout.text)]


def _divided(sums: Array) -> Array:
    """Whole numbers in float64 as int32, divided by 576 as the expressions do it. So results agree
    for any int16 weights, though only transformed ones give multiples of 576."""
    ninths = sums.astype(np.int64).astype(np.int32).astype(np.int64) * INVERSE_OF_9
    return ninths.astype(np.int32) >> SIXTY_FOURTH


register(
    Operator(
        "winograd_conv2d",
        _compute,
        _evaluate,
        "anchor",
        multiplies=conv_products(KERNEL * KERNEL),
    )
)
