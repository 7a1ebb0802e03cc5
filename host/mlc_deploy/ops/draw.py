"""Samples a token from logits by a random number, with temperature, top-k and top-p.

    draw_token(logits[n], temperature, top_k, top_p, draw) -> int64[]

As in decode/sampling.py: keeps the `top_k` most likely tokens (0: all), and of these the fewest
that are together as likely as `top_p`. The result is the token at the share `draw` of the sum of
likelihoods kept.

Few passes go over the logits. One finds the largest logit of each block. The k-th of these bounds
the k-th logit from below: only blocks that reach the bound are searched, and the logits that reach
it are candidates. Without top-k, one more pass adds up exponentials, block by block; top-p then
takes more candidates, until they are likely enough. Bounds among candidates are found byte by byte
of the floats' bits, which sort like the floats once those of negative floats are flipped (radix
selection; Knuth, The Art of Computer Programming, 5.2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from .. import te
from ..ir import Buffer, Expr, ExprLike, For, If, Stmt, Var, call, const, seq
from ..ir.names import Names
from ..te import Tensor
from .loops import each, put
from .registry import Array, Attrs, Operator, register, require

NAME = "draw_token"
BLOCK, LANES = 64, 8  # logits of a block, of a vector
BYTES = 256
FIRST = 64  # candidates of top-p, at first; MORE times as many in each round
MORE = 8
LOWEST, TURNED = -(1 << 31), (1 << 31) - 1  # the least key; the bits of a negative float to flip
# Places of the integers and of the doubles that the loops keep.
FOUND, PREFIX, DONE, CHOSEN, WANTED = range(5)
LARGEST, SUM, KEPT, SO_FAR, GOAL = range(5)
EXPONENTS = 2  # vectors of exponentials at once
SLACK = 0.99  # for rounding
LEAST = 1e-30  # sum that top-p asks for at least, so that one token is left
LOW = float(np.finfo(np.float32).min)


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    logits, temperature, top_k, top_p, draw = inputs
    (size,) = logits.shape
    given = [t.dtype for t in (temperature, top_k, top_p, draw)]
    fits = isinstance(size, int) and given == ["float32", "int64", "float32", "float64"]
    require(fits, f"{NAME}: {given} for logits {list(logits.shape)}")
    assert isinstance(size, int)
    blocks = -(-size // BLOCK)
    scratch: list[tuple[tuple[int, ...], str]] = [
        ((blocks,), "float32"), ((blocks,), "float32"), ((LANES,), "float32"), ((size,), "int32"),
        ((size,), "float32"), ((BYTES,), "float64"), ((5,), "int32"), ((5,), "float64"),
    ]  # fmt: skip

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        return _Loops(size, ins, outs).all()

    shapes, dtypes = [(), *(s for s, _ in scratch)], ["int64", *(d for _, d in scratch)]
    made: list[Tensor] = te.extern(shapes, list(inputs), body, name=NAME, dtype=dtypes)
    return made[:1]


class _Loops:
    """The statements of a call. tops and sums: of each block, the largest logit and the sum of
    exponentials. mass: exponentials of logits, where needed. place: indices of candidates."""

    def __init__(self, size: int, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        self.size, self.blocks = size, -(-size // BLOCK)
        self.logits, *given, draw = ins
        self.temperature, self.top_k, self.top_p = (t[()] for t in given)
        self.draw = draw[()]
        (self.token, self.tops, self.sums, self.few, self.place, self.mass, self.table, self.whole,
         self.real) = outs  # fmt: skip
        self.names = Names()
        self.by_count = te.all_of(self.top_k > 0, self.top_k < self.size)

    def each(self, name: str, extent: ExprLike, body: Callable[[Var], Stmt]) -> Stmt:
        return each(self.names.fresh(name), extent, body)

    def all(self) -> Stmt:
        limited = te.any_of(self.by_count, self.top_p < 1.0)
        return seq((
            self.largest(),
            If(self.by_count, self.real_is(SUM, 0.0), self.powers()),
            If(limited, seq((self.candidates(), *self.limits(), self.of_kept())), self.of_all()),
        ))  # fmt: skip

    # ---- state, and elements

    def whole_is(self, place: int, value: ExprLike) -> Stmt:
        return put(self.whole, (place,), value)

    def real_is(self, place: int, value: ExprLike) -> Stmt:
        return put(self.real, (place,), value)

    def added(self, place: int, value: Expr) -> Stmt:
        return self.real_is(place, self.real[place] + value.astype("float64"))

    def logit(self, i: ExprLike) -> Expr:
        return self.logits[i].astype("float32")

    def power(self, i: Expr) -> Expr:
        largest = self.real[LARGEST].astype("float32")
        return te.exp((self.logit(i) - largest) / self.temperature)

    # ---- passes over all

    def of_blocks(
        self, to: Buffer, of: Callable[[Expr], Expr], joined: Callable[[Expr, Expr], Expr],
        begin: float,
    ) -> list[Stmt]:  # fmt: skip
        """to[b] = of(i), reduced over a block by `joined`; whole blocks go a vector at a time."""

        def whole(b: Var) -> Stmt:
            lane = Var(self.names.fresh("lane"))
            parts = [of(b * BLOCK + v * LANES + lane) for v in range(BLOCK // LANES)]
            every = [self.few[n] for n in range(LANES)]
            vector = put(self.few, (lane,), reduce(joined, parts))
            return seq((
                For(lane, const(LANES), "vectorized", vector),
                put(to, (b,), reduce(joined, every)),
            ))  # fmt: skip

        found = [self.each("b", self.size // BLOCK, whole)] if self.size >= BLOCK else []
        if left := self.size % BLOCK:
            last = self.blocks - 1
            found.append(put(to, (last,), begin))
            found.append(self.each("i", left, lambda i: put(
                to, (last,), joined(to[last], of(last * BLOCK + i)))))  # fmt: skip
        return found

    def largest(self) -> Stmt:
        def more(b: Var) -> Stmt:
            return self.real_is(
                LARGEST, te.maximum(self.real[LARGEST], self.tops[b].astype("float64"))
            )

        tops = self.of_blocks(self.tops, self.logit, te.maximum, LOW)
        return seq((*tops, self.real_is(LARGEST, LOW), self.each("b", self.blocks, more)))

    def powers(self) -> Stmt:
        """All exponentials, their sum in each block, and their sum in all."""

        def some(b: Var) -> Stmt:
            def one(v: Var) -> Stmt:
                lane = Var(self.names.fresh("lane"))
                i = b * LANES * EXPONENTS + v * LANES + lane
                return For(lane, const(LANES), "vectorized", put(self.mass, (i,), self.power(i)))

            return For(v := Var(self.names.fresh("v")), const(EXPONENTS), "unrolled", one(v))

        together = LANES * EXPONENTS
        whole = self.size // together
        return seq((
            self.each("b", whole, some),
            self.each("i", self.size - whole * together, lambda i: put(
                self.mass, (whole * together + i,), self.power(whole * together + i))),
            *self.of_blocks(self.sums, lambda i: self.mass[i], lambda a, b: a + b, 0.0),
            self.real_is(SUM, 0.0),
            self.each("b", self.blocks, lambda b: self.added(SUM, self.sums[b])),
        ))  # fmt: skip

    # ---- candidates

    def candidates(self) -> Stmt:
        """Collects logits that include all of top-k, or as many as top-p needs."""
        wanted, blocks = self.whole[WANTED], self.blocks
        rounds = 1
        while FIRST * MORE ** (rounds - 1) < blocks:
            rounds += 1
        goal = self.real[SUM] * self.top_p.astype("float64")
        bound = self.bound(blocks, lambda i: self.tops[i], None, wanted.astype("float64"))
        done = te.any_of(self.by_count, wanted >= blocks, self.real[KEPT] >= goal)

        def one(_: Var) -> Stmt:
            work = seq((
                If(wanted < blocks, bound, self.whole_is(
                    PREFIX, te.select(self.by_count, const(LOWEST), self.cut()))),
                self.collect(),
                If(done, self.whole_is(DONE, 1), self.whole_is(WANTED, wanted * MORE)),
            ))  # fmt: skip
            return If(self.whole[DONE].equal(0), work)

        first = te.select(self.by_count, self.top_k.astype("int32"), const(FIRST))
        return seq((
            self.whole_is(DONE, 0), self.whole_is(WANTED, first), self.each("round", rounds, one),
        ))  # fmt: skip

    def collect(self) -> Stmt:
        """Collects the logits whose keys reach PREFIX, in order; KEPT is the sum of their
        exponentials."""

        def block(b: Var) -> Stmt:
            def element(j: Var) -> Stmt:
                i = b * BLOCK + j
                return If(_key(self.logit(i)) >= self.whole[PREFIX], self.take(i))

            count = te.minimum(BLOCK, self.size - b * BLOCK)
            inside = self.each("j", count, element)
            return If(_key(self.tops[b]) >= self.whole[PREFIX], inside)

        return seq((*self.none(), self.each("b", self.blocks, block)))

    def none(self) -> tuple[Stmt, Stmt]:
        return self.whole_is(FOUND, 0), self.real_is(KEPT, 0.0)

    def take(self, i: Expr) -> Stmt:
        """Adds a candidate. Without top-k, its exponential is there already."""
        at = self.whole[FOUND]
        return seq((
            put(self.place, (at,), i),
            If(self.by_count, put(self.mass, (i,), self.power(i))),
            self.added(KEPT, self.mass[i]),
            self.whole_is(FOUND, at + 1),
        ))  # fmt: skip

    def cut(self) -> Expr:
        """A key whose logits and larger ones are surely as likely as top-p: all below it add up to
        no more than 1 - top_p."""
        share = (self.real[SUM] / self.size).astype("float32") * (1.0 - self.top_p) * SLACK
        low = te.log(te.maximum(share, LEAST)) * self.temperature
        return _key(self.real[LARGEST].astype("float32") + low)

    def bound(
        self, count: Expr | int, value: Callable[[Var], Expr], weight: Callable[[Var], Expr] | None,
        goal: Expr,
    ) -> Stmt:  # fmt: skip
        """PREFIX becomes the largest key for which the weights from it on reach a goal, SO_FAR the
        weight above it. weight None: each counts 1."""

        def level(shift: int) -> list[Stmt]:
            top = shift == 24

            def digit(b: Var) -> Stmt:
                own = BYTES - 1 - b
                reached = self.real[SO_FAR] + self.table[own] >= goal
                there = seq((self.whole_is(CHOSEN, own), self.whole_is(DONE, 2)))
                return If(
                    self.whole[DONE].equal(0),
                    If(reached, there, self.added(SO_FAR, self.table[own])),
                )

            def element(i: Var) -> Stmt:
                key = _key(value(i))
                own = (key >> shift) + 128 if top else (key >> shift) & (BYTES - 1)
                more = const(1.0, "float64") if weight is None else weight(i).astype("float64")
                counted = put(self.table, (own,), self.table[own] + more)
                same = (key >> (shift + 8) if shift < 24 else key).equal(self.whole[PREFIX])
                return counted if top else If(same, counted)

            chosen = self.whole[CHOSEN]
            prefix = chosen - 128 if top else self.whole[PREFIX] * BYTES + chosen
            return [
                self.each("z", BYTES, lambda z: put(self.table, (z,), 0.0)),
                self.each("i", count, element),
                self.whole_is(CHOSEN, 0), self.whole_is(DONE, 0),
                self.each("d", BYTES, digit),
                self.whole_is(DONE, 0), self.whole_is(PREFIX, prefix),
            ]  # fmt: skip

        levels = (stmt for shift in (24, 16, 8, 0) for stmt in level(shift))
        return seq((self.real_is(SO_FAR, 0.0), *levels))

    # ---- of candidates

    def limits(self) -> list[Stmt]:
        def value(i: Var) -> Expr:
            return self.logit(self.place[i])

        def mass(i: Var) -> Expr:
            return self.mass[self.place[i]]

        def kept(condition: Callable[[Expr], Expr], before: Callable[[Var], Stmt]) -> Stmt:
            """Candidates whose keys do not meet a condition get mass 0."""

            def one(i: Var) -> Stmt:
                own = seq((before(i), self.added(KEPT, mass(i))))
                return If(condition(_key(value(i))), own, put(self.mass, (self.place[i],), 0.0))

            return seq((self.real_is(KEPT, 0.0), self.each("i", self.whole[FOUND], one)))

        found, prefix, goal = self.whole[FOUND], self.whole[PREFIX], self.real[GOAL]
        likeliest = seq((
            self.bound(found, value, None, self.top_k.astype("float64")),
            kept(lambda key: key >= prefix, lambda i: seq(())),
            self.real_is(SUM, self.real[KEPT]),
        ))  # fmt: skip
        together = seq((
            self.real_is(GOAL, te.maximum(self.real[SUM] * self.top_p.astype("float64"), LEAST)),
            self.bound(found, value, mass, goal),
            # Of equal candidates the first are taken, until the goal is reached.
            kept(
                lambda key: te.any_of(
                    key > prefix, te.all_of(key.equal(prefix), self.real[SO_FAR] < goal)
                ),
                lambda i: If(_key(value(i)).equal(prefix), self.added(SO_FAR, mass(i))),
            ),
        ))  # fmt: skip
        return [If(self.by_count, likeliest), If(self.top_p < 1.0, together)]

    def drawn(self, i: Expr, goal: Expr) -> Stmt:
        """The token is i while the sum so far is not larger than the goal."""
        mass = self.mass[i]
        here = te.all_of(self.real[SO_FAR] <= goal, mass > 0.0)
        within = te.minimum(te.maximum(i, 0), self.size - 1)
        return If(here, seq((self.added(SO_FAR, mass), put(self.token, (), within))))

    def of_kept(self) -> Stmt:
        goal = self.real[KEPT] * self.draw
        scan = self.each("i", self.whole[FOUND],
                         lambda i: self.drawn(self.place[i], goal))  # fmt: skip
        return seq((put(self.token, (), 0), self.real_is(SO_FAR, 0.0), scan))

    def of_all(self) -> Stmt:
        goal, chosen = self.real[SUM] * self.draw, self.whole[CHOSEN]

        def block(b: Var) -> Stmt:
            passed = self.real[SO_FAR] + self.sums[b].astype("float64") <= goal
            on = seq((self.added(SO_FAR, self.sums[b]), self.whole_is(CHOSEN, b + 1)))
            return If(self.whole[DONE].equal(0), If(passed, on, self.whole_is(DONE, 1)))

        def element(j: Var) -> Stmt:
            return self.drawn(chosen * BLOCK + j, goal)

        last = te.minimum(chosen, self.blocks - 1)
        return seq((
            self.real_is(SO_FAR, 0.0), self.whole_is(CHOSEN, 0), self.whole_is(DONE, 0),
            self.each("b", self.blocks, block),
            self.whole_is(CHOSEN, last),
            put(self.token, (), chosen * BLOCK),
            self.each("j", te.minimum(BLOCK, self.size - chosen * BLOCK), element),
        ))  # fmt: skip


def _key(x: Expr) -> Expr:
    """An integer that sorts like the float; both zeros have the same."""
    bits = call("reinterpret", "int32", x)
    return te.select(x.equal(0.0), const(0), bits ^ ((bits >> 31) & TURNED))


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    logits, temperature, top_k, top_p, draw = inputs
    scores = logits.astype(np.float64)
    if 0 < top_k < scores.size:
        scores[scores < np.sort(scores)[-int(top_k)]] = -np.inf
    mass = np.exp((scores - scores.max()) / float(temperature))
    if top_p < 1:
        order = np.argsort(-mass, kind="stable")
        before = np.cumsum(mass[order]) - mass[order]
        mass[order[before >= max(float(top_p) * mass.sum(), LEAST)]] = 0.0
    sums = np.cumsum(mass)
    found = np.searchsorted(sums, sums[-1] * float(draw), side="right")
    return [np.array(min(int(found), scores.size - 1), np.int64)]


register(Operator(NAME, _compute, _evaluate, "opaque"))
