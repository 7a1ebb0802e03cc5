"""Attention (ops/attention.py) in loops over tiles of keys.

Loops go through the keys in tiles. They keep the largest score, the sum of exponentials and the sum
of values, and scale the sums when a tile has a larger score (Milakov and Gimelshein, Online
normalizer calculation for softmax, 2018; Dao et al., FlashAttention, 2022). So only one tile of
scores is stored, whatever the length. A bias may hide keys: tiles before the first or after the
last key that some query of a block sees are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from .. import te
from ..ir import (
    Dim,
    Expr,
    ExprLike,
    For,
    If,
    Ramp,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    expr,
    is_const,
    load,
    seq,
    with_lanes,
)
from ..ir.names import Names
from ..ir.nodes import ForKind
from ..te import Tensor
from .attention_sizes import HEADS_FIRST, NAME, Sizes, counted, in_order, sizes_of
from .elementwise import same_extent
from .fast import falling_exp
from .registry import Attrs

LOW = float(np.finfo(np.float32).min)  # score of a hidden key
TOGETHER = 4  # vectors of scores whose exponentials share their constants
QUAD = 4  # keys whose sums become one vector
HIDDEN = -6e4  # a lower bias hides a key: float16's lowest number is -65504
LONG_ENOUGH = 512  # keys; for fewer, the search for hidden keys costs as much as it saves
Index = Callable[..., Expr]


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """rows: queries whose scores and sums are in registers together. keys: keys multiplied at once.
    steps: unrolled steps of the loop over a head, a vector each. long: keys of a tile. lanes: of a
    vector. vectors: vectors of a value that are in registers together. parallel: whether tasks may
    run in parallel. dtype: of products and of their sums within a tile; the softmax and sums over
    tiles are float32."""

    rows: int = 1
    keys: int = 1
    steps: int = 1
    long: int = 16
    lanes: int = 1
    vectors: int = 1
    parallel: bool = False
    dtype: str = "float32"

    @property
    def wide(self) -> int:
        """Lanes of a vector of float32."""
        return self.lanes // 2 if self.dtype == "float16" else self.lanes


def attend(inputs: Sequence[Tensor], attrs: Attrs, tile: AttentionTile) -> Tensor:
    """The operator in loops over tiles. Its scratch buffers are further outputs of the stage; a
    schedule may put them into registers."""
    n, first = sizes_of(inputs, attrs), attrs.get("heads_first", HEADS_FIRST)
    shape = in_order((n.batch, n.heads, n.count, n.values), first[3])
    high, lanes, wide, kind = tile.rows, tile.lanes, tile.wide, tile.dtype
    scratch: list[tuple[Sequence[Dim], str]] = [
        ((n.width // lanes, high, lanes), kind),  # the queries of a block of rows
        ((high, tile.long), "float32"),  # scores of a tile
        ((high * tile.keys, lanes), kind),  # sums of products
        ((high, n.values), "float32"),  # sums of values
        ((high, tile.vectors, lanes), kind),  # sums of values in registers
        ((high, wide), "float32"),  # sums of exponentials
        ((high,), "float32"),  # the largest scores
        ((high,), "float32"),  # factors of earlier sums
        ((2, wide), "float32"),  # a vector of scores, or of exponentials, and one number
        ((high,), "int32"),  # ends of the keys that queries see
        ((2,), "int32"),  # tiles that some query sees, from and to
    ]
    if kind != "float32":
        scratch.append(((high, tile.long), kind))  # exponentials of a tile

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        return _Loops(n, attrs, tile, ins, outs).all()

    shapes, dtypes = [shape, *(s for s, _ in scratch)], [inputs[0].dtype, *(d for _, d in scratch)]
    made: list[Tensor] = te.extern(shapes, list(inputs), body, name=NAME, dtype=dtypes)
    return made[0]


class _Loops:
    """The statements of a call."""

    def __init__(
        self, n: Sizes, attrs: Attrs, tile: AttentionTile, ins: Sequence[Tensor],
        outs: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self.n, self.attrs, self.tile = n, attrs, tile
        self.q, self.k, self.v, *more = ins
        self.scales = more[len(more) - 2 :] if attrs.get("scaled") else []
        self.bias = more[: len(more) - len(self.scales)]
        (self.y, self.queries, self.scores, self.sums, self.total, self.part, self.powers,
         self.top, self.factor, self.few, self.end, self.span, *short) = outs  # fmt: skip
        self.shares = short[0] if short else self.scores
        self.kind = tile.dtype
        self.first = attrs.get("heads_first", HEADS_FIRST)
        self.names = Names()
        self.window = int(attrs.get("window", 0))
        # A single query sees all valid keys, except those before its window.
        alone = isinstance(n.count, int) and n.count == 1
        self.bounded = bool(attrs.get("causal")) and not alone
        self.before: Dim = n.length - n.count  # keys before the first query's own
        known = isinstance(n.length, int)
        # Whether every tile is full, and all queries see all its keys.
        whole = known and is_const(n.length % tile.long, 0)
        self.full = whole and not (self.bounded or self.window)
        self.looks = bool(self.bias) and (counted(n.length) >= LONG_ENOUGH if known else not alone)

    def loop(
        self, name: str, extent: ExprLike, body: Callable[[Var], Stmt], kind: ForKind = "serial"
    ) -> Stmt:
        var = Var(self.names.fresh(name))
        return For(var, expr(extent), kind, body(var))

    def each(self, name: str, extent: int, body: Callable[[Var], Stmt]) -> Stmt:
        return self.loop(name, extent, body, "unrolled")

    def vector(self, body: Callable[[Var], Stmt], lanes: int = 0) -> Stmt:
        return self.loop("lane", lanes or self.tile.lanes, body, "vectorized")

    def wide(self, body: Callable[[Var], Stmt]) -> Stmt:
        """A vector of float32."""
        return self.vector(body, self.tile.wide)

    def largest(self, lanes: int) -> Expr:
        """The largest number in the first row of `few`."""
        return reduce(te.maximum, (self.few[0, lane] for lane in range(lanes)))

    def all(self) -> Stmt:
        n, high = self.n, self.tile.rows
        blocks = (n.rows + high - 1) // high

        def task(at: Var) -> Stmt:
            lead = at // blocks
            return self.block(lead // n.kept, lead % n.kept, at % blocks * high)

        kind: ForKind = "parallel" if self.tile.parallel else "serial"
        return self.loop("task", n.batch * n.kept * blocks, task, kind)

    def row(self, begin: Expr, r: Expr) -> Expr:
        """Row r of a block; the last row there is where the last block has more."""
        rows = self.n.rows
        whole = isinstance(rows, int) and rows % self.tile.rows == 0
        return begin + r if whole else te.minimum(begin + r, rows - 1)

    def place(self, row: Expr) -> tuple[Expr, Expr]:
        """A row as its head within the group, and its query."""
        if isinstance(self.n.count, int) and self.n.count == 1:
            return row, const(0)
        if self.n.group == 1:
            return const(0), row
        return row // self.n.count, row % self.n.count

    def block(self, b: Expr, h: Expr, row: Expr) -> Stmt:
        """A block of rows, from their queries to their results."""
        n, lanes, high = self.n, self.tile.lanes, self.tile.rows
        low, end = self.seen(row)
        begin = low // self.tile.long * self.tile.long
        tiles = (end - begin + self.tile.long - 1) // self.tile.long

        def start(r: Var) -> Stmt:
            g, s = self.place(self.row(row, r))

            def query(d: Var) -> Stmt:
                def one(lane: Var) -> Stmt:
                    at = in_order((b, h * n.group + g, s, d * lanes + lane), self.first[0])
                    value = self.q[at].astype(self.kind) * float(self.attrs["scale"])
                    return Store(self.queries, (d, r, lane), value)

                return self.vector(one)

            return seq((
                self.loop("d", n.width // lanes, query),
                self.loop("e", n.values // lanes, lambda e: self.vector(
                    lambda lane: Store(self.total, (r, e * lanes + lane), const(0.0)))),
                self.wide(lambda lane: Store(self.powers, (r, lane), const(0.0))),
                Store(self.top, (r,), const(LOW)),
                Store(self.end, (r,), expr(self.before + s + 1)),
            ))  # fmt: skip

        def of_tile(t: Expr) -> Stmt:
            at = begin + t * self.tile.long
            count = const(self.tile.long) if self.full else te.minimum(end - at, self.tile.long)
            return seq((
                self.products(b, h, at, count),
                self.loop("r", high, lambda r: self.softmax(b, h, row, r, at, count)),
                self.values(b, h, at, count),
            ))  # fmt: skip

        return seq((
            self.loop("r", high, start),
            *self.tiles(b, h, row, begin, end, tiles, of_tile),
            self.loop("r", high, lambda r: self.result(b, h, row, r)),
        ))  # fmt: skip

    def tiles(
        self, b: Expr, h: Expr, row: Expr, begin: Expr, end: Expr, count: Expr,
        body: Callable[[Expr], Stmt],
    ) -> list[Stmt]:  # fmt: skip
        """The loop over all tiles, or over those with keys that the bias does not hide, if there
        are any."""
        if not self.looks:
            return [self.loop("tile", count, body)]
        first, last = self.span[0], self.span[1]
        (bias,) = self.bias
        lanes, long = self.tile.lanes, self.tile.long
        of_query = not same_extent(bias.shape[1], 1) or not same_extent(bias.shape[2], 1)
        rows = self.tile.rows if of_query else 1

        def largest(t: Var, r: Var) -> Stmt:
            g, s = self.place(self.row(row, r))

            at = begin + t * long
            keys = te.minimum(end - at, long)

            def one(j: Expr, lane: Expr) -> Stmt:
                value = bias[self.bias_at(b, h * self.n.group + g, s, at + j)].astype("float32")
                return Store(self.few, (const(0), lane), te.maximum(self.few[0, lane], value))

            return seq((
                self.loop("w", keys // lanes, lambda w: self.vector(
                    lambda lane: one(w * lanes + lane, lane))),
                self.loop("w", keys % lanes, lambda w: one(keys // lanes * lanes + w, const(0))),
            ))  # fmt: skip

        def look(t: Var) -> Stmt:
            found = seq((
                If(last.equal(0), Store(self.span, (const(0),), t)),
                Store(self.span, (const(1),), t + 1),
            ))  # fmt: skip
            return seq((
                self.vector(lambda lane: Store(self.few, (const(0), lane), const(LOW))),
                self.loop("r", rows, lambda r: largest(t, r)),
                If(self.largest(lanes) > HIDDEN, found),
            ))  # fmt: skip

        return [
            Store(self.span, (const(0),), const(0)), Store(self.span, (const(1),), const(0)),
            self.loop("tile", count, look),
            If(last.equal(0), Store(self.span, (const(1),), count)),
            self.loop("tile", last - first, lambda t: body(first + t)),
        ]  # fmt: skip

    def bias_at(self, *index: Expr) -> tuple[Expr, ...]:
        """An index of the scores as an index of the bias."""
        (bias,) = self.bias
        return tuple(const(0) if same_extent(m, 1) else i
                     for i, m in zip(index, bias.shape, strict=True))  # fmt: skip

    def seen(self, row: Expr) -> tuple[Expr, Expr]:
        """The keys that queries of a block see, as a begin and an end."""
        n, high = self.n, self.tile.rows
        if not self.bounded:
            low = te.maximum(expr(n.length) - self.window, 0) if self.window else const(0)
            return low, expr(n.length)
        s = self.place(row)[1]
        together = s + high <= n.count  # of one head
        last = te.minimum(s + high, n.count)
        end = self.before + te.select(together, last, n.count)
        if not self.window:
            return const(0), end
        low = self.before + te.select(together, s, 0) + 1 - self.window
        return te.maximum(low, 0), end

    def products(self, b: Expr, h: Expr, at: Expr, count: Expr) -> Stmt:
        """The scores of a tile. Products are summed in lanes, and the lanes added up at the end."""
        keys = self.tile.keys
        some = self.loop("u", count // keys, lambda u: self.product(b, h, at, u * keys, keys))
        if keys == 1:
            return some
        left = count % keys
        rest = self.loop("u", left, lambda u: self.product(b, h, at, count - left + u, 1))
        return some if self.full and self.tile.long % keys == 0 else seq((some, rest))

    def product(self, b: Expr, h: Expr, at: Expr, key: Expr, keys: int) -> Stmt:
        high, lanes = self.tile.rows, self.tile.lanes

        def step(d: Expr) -> Stmt:
            def one(r: Expr, j: Expr, lane: Expr) -> Stmt:
                place = in_order((b, h, at + key + j, d * lanes + lane), self.first[1])
                product = self.queries[d, r, lane] * self.k[place].astype(self.kind)
                own = r * keys + j
                return Store(self.sums, (own, lane), self.sums[own, lane] + product)

            return self.each("j", keys, lambda j: self.each(
                "r", high, lambda r: self.vector(lambda lane: one(r, j, lane))))  # fmt: skip

        zero = self.each("z", high * keys, lambda z: self.vector(
            lambda lane: Store(self.sums, (z, lane), const(0.0, self.kind))))  # fmt: skip
        whole, steps = self.n.width // lanes, self.tile.steps
        every = self.loop("d", whole // steps, lambda d: self.each(
            "e", steps, lambda e: step(d * steps + e)))  # fmt: skip
        return seq((zero, every, *self.added(key, keys)))

    def added(self, key: Expr, keys: int) -> list[Stmt]:
        """Adds up the lanes, and stores the scores."""
        lanes = self.tile.lanes
        found: list[Stmt] = []
        if self.kind != "float32" and keys > 1:
            return self.added_short(key, keys)
        for r in range(self.tile.rows):
            if keys % QUAD or lanes % QUAD:
                for j in range(keys):
                    total = self.sums[r * keys + j, 0]
                    for lane in range(1, lanes):
                        total = total + self.sums[r * keys + j, lane]
                    found.append(Store(self.scores, (const(r), key + j), total.astype("float32")))
                continue
            for j in range(0, keys, QUAD):
                every = [
                    _folded(load(self.sums, (const(r * keys + j + i), _ramp(const(0), lanes))))
                    for i in range(QUAD)
                ]
                total = _pairs(_pairs(*every[:2]), _pairs(*every[2:]))
                found.append(Store(self.scores, (const(r), _ramp(key + j, QUAD)), total))
        return found

    def added_short(self, key: Expr, keys: int) -> list[Stmt]:
        """The same for float16. Adds neighbouring lanes of vectors, until each lane is the score of
        one row and key."""
        lanes = self.tile.lanes
        every = [load(self.sums, (const(z), _ramp(const(0), lanes)))
                 for z in range(self.tile.rows * keys)]  # fmt: skip
        step = 1
        while step < lanes:
            every = [_pairs(*every[z : z + 2]) for z in range(0, len(every), 2)]
            step *= 2
        found: list[Stmt] = []
        some = min(keys, lanes)
        for number, sums in enumerate(every):
            for begin in range(0, lanes, some):
                r, j = divmod(number * lanes + begin, keys)
                part = Shuffle((sums,), tuple(range(begin, begin + some)),
                               with_lanes(self.kind, some))  # fmt: skip
                place = const(r), _ramp(key + j, some)
                found.append(Store(self.scores, place, part.astype("float32")))
        return found

    def softmax(self, b: Expr, h: Expr, row: Expr, r: Var, at: Expr, count: Expr) -> Stmt:
        """Turns a row's scores into exponentials; updates the row's largest score and its sums."""
        lanes = self.tile.wide
        both = next(c for c in (TOGETHER, 2, 1) if self.tile.long % (c * lanes) == 0)
        turns = (count + both * lanes - 1) // (both * lanes)
        g, s = self.place(self.row(row, r))
        softcap = float(self.attrs.get("softcap", 0.0))
        exp = falling_exp if lanes > 1 else te.exp  # the first is for vectors

        # Where all keys of a tile count, the scores after them need only be small.
        whole = not (self.bounded or self.window or softcap or self.bias or self.scales)
        behind = self.loop(
            "j", turns * (both * lanes) - count,
            lambda j: Store(self.scores, (r, count + j), const(LOW)),
        )  # fmt: skip

        def score(i: Expr, lane: Var) -> Stmt:
            j = i * lanes + lane
            x = self.scores[r, j]
            if whole:
                return Store(self.few, (const(0), lane), te.maximum(self.few[0, lane], x))
            if self.scales:
                scale = self.scales[0][b, h, at + j, 0]
                x = x * (scale if self.full else te.if_then_else(j < count, scale, 0.0))
            if softcap:
                x = te.tanh(x * (1 / softcap)) * softcap
            for bias in self.bias:
                own = self.bias_at(b, h * self.n.group + g, s, at + j)
                value = bias[own] if self.full else te.if_then_else(j < count, bias[own], 0)
                x = x + value.astype("float32")
            there = j < (te.minimum(count, self.end[r] - at) if self.bounded else count)
            if self.window:
                there = te.all_of(there, at + j >= self.end[r] - self.window)
            x = x if self.full else te.select(there, x, LOW)
            return seq((
                Store(self.scores, (r, j), x),
                Store(self.few, (const(0), lane), te.maximum(self.few[0, lane],
                                                              self.scores[r, j])),
            ))  # fmt: skip

        def power(i: Expr, lane: Var) -> Stmt:
            j = i * lanes + lane
            power = exp(self.scores[r, j] - self.few[1, 0])
            short = self.kind != "float32"
            return seq((
                Store(self.scores, (r, j), power),
                Store(self.few, (const(0), lane), self.few[0, lane] + self.scores[r, j]),
                *([Store(self.shares, (r, j), self.scores[r, j].astype(self.kind))]
                  if short else []),
            ))  # fmt: skip

        def through(body: Callable[[Expr, Var], Stmt]) -> Stmt:
            return self.loop("w", turns, lambda w: self.each(
                "x", both, lambda x: self.wide(lambda i: body(w * both + x, i))))  # fmt: skip

        return seq((
            self.wide(lambda lane: Store(self.few, (const(0), lane), const(LOW))),
            *([behind] if whole and not self.full else []),
            through(score),
            Store(self.few, (const(1), const(0)), te.maximum(self.top[r], self.largest(lanes))),
            Store(self.factor, (r,), exp(self.top[r] - self.few[1, 0])),
            Store(self.top, (r,), self.few[1, 0]),
            self.wide(lambda lane: Store(self.few, (const(0), lane), const(0.0))),
            through(power),
            self.wide(lambda lane: Store(
                self.powers, (r, lane),
                self.powers[r, lane] * self.factor[r] + self.few[0, lane])),
        ))  # fmt: skip

    def values(self, b: Expr, h: Expr, at: Expr, count: Expr) -> Stmt:
        """Sums of values: the scaled sums of earlier tiles, plus this tile's."""
        high, lanes, some = self.tile.rows, self.tile.lanes, self.tile.vectors
        short = self.kind != "float32"

        def of_part(p: Var) -> Stmt:
            def element(c: Expr, lane: Expr) -> Expr:
                return (p * some + c) * lanes + lane

            def every(body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
                return self.each("r", high, lambda r: self.each(
                    "c", some, lambda c: self.vector(lambda lane: body(r, c, lane))))  # fmt: skip

            def key(j: Expr) -> Stmt:
                def one(r: Expr, c: Expr, lane: Expr) -> Stmt:
                    place = in_order((b, h, at + j, element(c, lane)), self.first[2])
                    power = self.shares[r, j]
                    if self.scales:
                        power = power * self.scales[1][b, h, at + j, 0]
                    product = power * self.v[place].astype(self.kind)
                    return Store(self.part, (r, c, lane), self.part[r, c, lane] + product)

                return every(one)

            def scaled(r: Expr, c: Expr, lane: Expr) -> Expr:
                return self.total[r, element(c, lane)] * self.factor[r]

            def begun(r: Expr, c: Expr, lane: Expr) -> Stmt:
                value = const(0.0, self.kind) if short else scaled(r, c, lane)
                return Store(self.part, (r, c, lane), value)

            def done(r: Expr, c: Expr, lane: Expr) -> Stmt:
                value = self.part[r, c, lane]
                if short:
                    value = scaled(r, c, lane) + value.astype("float32")
                return Store(self.total, (r, element(c, lane)), value)

            left = count % QUAD
            return seq((
                every(begun),
                self.loop("u", count // QUAD, lambda u: self.each(
                    "j", QUAD, lambda j: key(u * QUAD + j))),
                *([] if self.full else [self.loop("j", left, lambda j: key(count - left + j))]),
                every(done),
            ))  # fmt: skip

        return self.loop("p", self.n.values // (some * lanes), of_part)

    def result(self, b: Expr, h: Expr, row: Expr, r: Var) -> Stmt:
        n, lanes = self.n, self.tile.lanes
        g, s = self.place(row + r)
        whole = self.powers[r, 0]
        for lane in range(1, self.tile.wide):
            whole = whole + self.powers[r, lane]

        def element(e: Var) -> Stmt:
            def one(lane: Var) -> Stmt:
                at = in_order((b, h * n.group + g, s, e * lanes + lane), self.first[3])
                value = self.total[r, e * lanes + lane] * self.factor[r]
                return Store(self.y, at, value.astype(self.y.dtype))

            return self.vector(one)

        written = seq((
            Store(self.factor, (r,), 1 / whole),
            self.loop("e", n.values // lanes, element),
        ))  # fmt: skip
        if isinstance(n.rows, int) and n.rows % self.tile.rows == 0:
            return written
        return If(row + r < n.rows, written)


def _ramp(start: Expr, lanes: int) -> Expr:
    return Ramp(start, const(1), lanes, with_lanes("int32", lanes))


def _folded(vector: Expr) -> Expr:
    """A vector of four lanes, each a sum of several lanes."""
    lanes = dtype_of(vector.dtype).lanes
    while lanes > QUAD:
        lanes //= 2
        kind = with_lanes("float32", lanes)
        low, high = (Shuffle((vector,), tuple(range(n, n + lanes)), kind) for n in (0, lanes))
        vector = low + high
    return vector


def _pairs(a: Expr, b: Expr) -> Expr:
    """Sums of neighbouring lanes of a, then of b."""
    last = 2 * dtype_of(a.dtype).lanes
    even, odd = (Shuffle((a, b), tuple(range(n, last, 2)), a.dtype) for n in (0, 1))
    return even + odd
