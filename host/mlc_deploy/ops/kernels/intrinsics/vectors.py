"""Pieces of implementations: vector loads and stores, lanes, calls of LLVM's intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....ir import (
    Buffer,
    Expr,
    Load,
    Ramp,
    Shuffle,
    Stmt,
    Store,
    binary,
    call,
    cast,
    const,
    dtype_of,
    load,
    seq,
    with_lanes,
)
from ....ir.build import broadcast


def ramp(start: int, lanes: int) -> Expr:
    return Ramp(const(start), const(1), lanes, with_lanes("int32", lanes))


def part(buffer: Buffer, lanes: int, *at: int) -> Expr:
    """`lanes` neighbours in the last dimension, from the element `at` on."""
    return load(buffer, (*map(const, at[:-1]), ramp(at[-1], lanes)))


def whole(buffer: Buffer, *at: int) -> Load:
    """All elements of the dimensions after `at`, which are contiguous."""
    return stretch(buffer, at, 0, prod(buffer.shape[len(at) :]))  # type: ignore[arg-type]


def stretch(buffer: Buffer, at: Sequence[int], first: int, lanes: int) -> Load:
    """`lanes` elements of the dimensions after `at`, which are contiguous, from `first` on."""
    sizes = [int(n) for n in buffer.shape[len(at) :]]  # type: ignore[arg-type]
    left, every, index = prod(sizes), ramp(first, lanes), list[Expr]()
    for n, size in enumerate(sizes):
        left //= size
        place = every // left if left > 1 else every
        index.append(place % size if n else place)
    found = load(buffer, (*map(const, at), *index))
    assert isinstance(found, Load)
    return found


def put(value: Expr, buffer: Buffer, *at: int) -> Stmt:
    """Stores a vector from the element `at` on."""
    lanes = dtype_of(value.dtype).lanes
    return Store(buffer, (*map(const, at[:-1]), ramp(at[-1], lanes)), value)


def lane(vector: Expr, number: int) -> Expr:
    """One lane, broadcast to all."""
    return Shuffle((vector,), (number,) * dtype_of(vector.dtype).lanes, vector.dtype)


def quad(vector: Expr, number: int) -> Expr:
    """One group of four bytes, broadcast to all, as a lane of 32 bits: LLVM selects the forms by
    lane from it."""
    return call("reinterpret", vector.dtype, lane(call("reinterpret", "int32x4", vector), number))


def widened(vector: Expr) -> Expr:
    """A vector twice as long, with the vector in both halves."""
    lanes = dtype_of(vector.dtype).lanes
    twice = with_lanes(dtype_of(vector.dtype).scalar, 2 * lanes)
    return Shuffle((vector,), (*range(lanes), *range(lanes)), twice)


def words(vector: Expr, many: int) -> Expr:
    """The register that holds four bytes `many` times."""
    dtype = dtype_of(vector.dtype)
    word = call("reinterpret", "int32", vector)
    every = with_lanes(dtype.scalar, many * dtype.lanes)
    return call("reinterpret", every, broadcast(word, many))


def repeated(vector: Expr, many: int) -> Expr:
    """The vector repeated, up to `many` lanes."""
    kind = dtype_of(vector.dtype)
    if kind.lanes == many:
        return vector
    every = (*range(kind.lanes),) * (many // kind.lanes)
    return Shuffle((vector,), every, with_lanes(kind.scalar, many))


Operation = Callable[..., Expr]


def llvm(name: str, dtype: str) -> Operation:
    """The intrinsic of that name, which gives `dtype`."""

    def operation(*args: Expr) -> Expr:
        return call(name, dtype, *args)

    return operation


def swapped(operation: Operation) -> Operation:
    """(acc, a, b) -> operation(acc, b, a)"""
    return lambda acc, a, b: operation(acc, b, a)


def added(operation: Operation) -> Operation:
    """(acc, a, …) -> acc + operation(a, …), which LLVM makes one instruction."""
    return lambda acc, *args: binary("+", acc, operation(*args))


def by_halves(add_pairs: Operation) -> Operation:
    """Sums of neighbours in a and then in b, by an operation on vectors half as long."""

    def operation(a: Expr, b: Expr) -> Expr:
        sums = tuple(add_pairs(*halves(x)) for x in (a, b))
        return Shuffle(sums, tuple(range(dtype_of(a.dtype).lanes)), a.dtype)

    return operation


def halves(vector: Expr) -> list[Expr]:
    """Lower and upper half of a vector."""
    dtype = dtype_of(vector.dtype)
    half = dtype.lanes // 2
    kind = with_lanes(dtype.scalar, half)
    return [Shuffle((vector,), tuple(range(n, n + half)), kind) for n in (0, half)]


# ------------------------------------------------------------------------------- implementations


def elementwise(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(A, B)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        lanes = int(c.shape[0])  # type: ignore[arg-type]
        return put(operation(part(a, lanes, 0), part(b, lanes, 0)), c, 0)

    return body


def elementwise_sum(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(C, A, B)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        lanes = int(c.shape[0])  # type: ignore[arg-type]
        return put(operation(part(c, lanes, 0), part(a, lanes, 0), part(b, lanes, 0)), c, 0)

    return body


def looked_up(first: Operation, further: Operation) -> Callable[..., Stmt]:
    """C = T[A], 64 bytes of T at a time: first(t0, t1, t2, t3, at), 0 where `at` is beyond them,
    then further(before, t0, t1, t2, t3, at), which leaves such lanes as they were."""

    def body(a: Buffer, table: Buffer, c: Buffer) -> Stmt:
        lanes = int(c.shape[0])  # type: ignore[arg-type]
        at = call("reinterpret", f"uint8x{lanes}", part(a, lanes, 0))
        quarters = [[part(table, 16, q + n) for n in range(0, 64, 16)] for q in range(0, 256, 64)]
        found = first(*quarters[0], at)
        for number, quarter in enumerate(quarters[1:], 1):
            beyond = broadcast(const(64 * number, "uint8"), lanes)
            found = further(found, *quarter, binary("-", at, beyond))
        return put(found, c, 0)

    return body


def pairwise(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(A), A of twice the lanes"""

    def body(a: Buffer, c: Buffer) -> Stmt:
        return put(operation(part(a, int(a.shape[0]), 0)), c, 0)  # type: ignore[arg-type]

    return body


def pairwise_sum(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(C, A), A of twice the lanes"""

    def body(a: Buffer, c: Buffer) -> Stmt:
        wide, lanes = (int(x.shape[0]) for x in (a, c))  # type: ignore[arg-type]
        return put(operation(part(c, lanes, 0), part(a, wide, 0)), c, 0)

    return body


def pairwise_of_halves(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(first half of A, second half of A)"""

    def body(a: Buffer, c: Buffer) -> Stmt:
        lanes = int(c.shape[0])  # type: ignore[arg-type]
        return put(operation(part(a, lanes, 0), part(a, lanes, lanes)), c, 0)

    return body


def dot_of_one(operation: Operation) -> Callable[..., Stmt]:
    """C[j] += A · B[j], by four: operation(C, B, A four times)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        return put(operation(part(c, 4, 0), whole(b), words(part(a, 4, 0), 4)), c, 0)

    return body


def dot_of_pairs(operation: Operation) -> Callable[..., Stmt]:
    """C[j] += A · B[j], by two: operation(C, A in every pair, B widened)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        lanes = int(c.shape[0])  # type: ignore[arg-type]
        weights = cast(a.dtype, whole(b))
        return put(operation(part(c, lanes, 0), words(part(a, 2, 0), lanes), weights), c, 0)

    return body


def dot_by_lane(operation: Operation) -> Callable[..., Stmt]:
    """C[i, j] += A[i] · B[j], by four: per row operation(C[i], B, A[i] four times)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        data, weights = whole(a), whole(b)
        return seq(
            put(operation(part(c, 4, i, 0), weights, quad(data, i)), c, i, 0) for i in range(4)
        )

    return body


def dot_rows_by_lane(operation: Operation) -> Callable[..., Stmt]:
    """C[i, j] += A[i] · B[., j], by eight: per row, for each half of A[i], operation(C[i], half
    of B, the half of A[i] in every lane)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        rows = int(a.shape[0])  # type: ignore[arg-type]
        data = whole(a) if rows == 2 else widened(part(a, 8, 0, 0))
        halves = [whole(b, h) for h in range(2)]

        def row(i: int) -> Stmt:
            total: Expr = part(c, 4, i, 0)
            for h, half in enumerate(halves):
                total = operation(total, half, quad(data, 2 * i + h))
            return put(total, c, i, 0)

        return seq(map(row, range(rows)))

    return body


def dot_rows_of_quads(operation: Operation) -> Callable[..., Stmt]:
    """C += A · B[.], all rows of C in one register: for each half of eight along k operation(C,
    that half of each row in all lanes of the row, half of B for every row)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        sums, data = whole(c), whole(a)
        rows, columns = (int(n) for n in c.shape)  # type: ignore[arg-type]
        lanes, fours = rows * columns, call("reinterpret", f"int32x{2 * rows}", data)
        total: Expr = sums
        for h in range(2):
            every = tuple(2 * row + h for row in range(rows) for _ in range(columns))
            quads = call(
                "reinterpret", f"uint8x{4 * lanes}", Shuffle((fours,), every, f"int32x{lanes}")
            )
            total = operation(total, quads, repeated(whole(b, h), 4 * lanes))
        return Store(c, sums.indices, total)

    return body


def top_bits(packed: Expr) -> list[Expr]:
    """The lower and the upper halves of bytes, at the top of int8: 16 times the numbers."""
    lanes = dtype_of(packed.dtype).lanes
    low = packed << broadcast(const(4, "uint8"), lanes)
    high = packed & broadcast(const(0xF0, "uint8"), lanes)
    return [call("reinterpret", f"int8x{lanes}", half) for half in (low, high)]


def dot_of_nibbles(operation: Operation) -> Callable[..., Stmt]:
    """C[j] += A · B[., j], by four: for each half of the bytes of each part of B operation(C, half,
    four of A in every lane)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        total: Expr = part(c, 4, 0)
        data = part(a, 16, 0)
        for g in range(2):
            for h, weights in enumerate(top_bits(whole(b, g))):
                total = operation(total, weights, quad(data, 2 * h + g))
        return put(total, c, 0)

    return body


def dot_of_sixteen(operation: Operation) -> Callable[..., Stmt]:
    """C[j] += A · B[., j], by four: operation(C, B[g], four of A in every lane)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        total, data = part(c, 4, 0), part(a, 16, 0)
        for g in range(4):
            total = operation(total, whole(b, g), quad(data, g))
        return put(total, c, 0)

    return body


def columns_of_bytes(multiply: Operation) -> Callable[..., Stmt]:
    """C += A[k] * B[k], by eight columns, the products of two neighbours added first, in int16"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        data = part(a, 16, 0)
        totals: list[Expr] = [part(c, 8, 0), part(c, 8, 8)]
        for k in range(0, 16, 2):
            products = [
                [
                    multiply(*two)
                    for two in zip(halves(part(b, 16, n, 0)), halves(lane(data, n)), strict=True)
                ]
                for n in (k, k + 1)
            ]
            for n, (first, second) in enumerate(zip(*products, strict=True)):
                totals[n] = totals[n] + cast("int32x8", first + second)
        return seq(put(t, c, 8 * n) for n, t in enumerate(totals))

    return body


def squares_of_nibbles(operation: Operation) -> Callable[..., Stmt]:
    """C[p] += A · B[., p], by eight: four of each part of B are eight of two columns; for each half
    of their bytes operation(C[p], A[h], half)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        parts = tuple(call("reinterpret", "int32x4", whole(b, g)) for g in range(2))
        data, four = [whole(a, h) for h in range(2)], ramp(0, 4)

        def square(p: int) -> Stmt:
            columns = Shuffle(parts, (2 * p, 2 * p + 4, 2 * p + 1, 2 * p + 5), "int32x4")
            index = (const(p), four // 2, four % 2)
            total: Expr = load(c, index)
            weights = top_bits(call("reinterpret", "uint8x16", columns))
            for x, half in zip(data, weights, strict=True):
                total = operation(total, x, half)
            return Store(c, index, total)

        return seq(map(square, range(2)))

    return body


def columns_of_nibbles(multiply: Operation) -> Callable[..., Stmt]:
    """C += A[k] * a half of B[k / 2], by eight columns: C + multiply(half, A[k] in every lane)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        data = part(a, 16, 0)
        totals: list[Expr] = [part(c, 8, 0), part(c, 8, 8)]
        for q in range(8):
            for h, half in enumerate(top_bits(part(b, 16, q, 0))):
                numbers = half >> broadcast(const(4, "int8"), 16)
                both = zip(halves(numbers), halves(lane(data, 2 * q + h)), strict=True)
                totals = [t + multiply(*two) for t, two in zip(totals, both, strict=True)]
        return seq(put(t, c, 8 * n) for n, t in enumerate(totals))

    return body


def dot_of_raised_nibbles(by_pairs: Operation, add_pairs: Operation) -> Callable[..., Stmt]:
    """C[j] += A · (B[., j] + 8): add_pairs(the sum over fours of A of by_pairs(half, the four in
    every lane), 1), int16 in between: 8 * 2 * 15 * 128 is less than 2^15"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        pairs: Expr | None = None
        for q in range(int(b.shape[0])):  # type: ignore[arg-type]
            flipped = whole(b, q) ^ broadcast(const(0x88, "uint8"), 32)
            low = flipped & broadcast(const(15, "uint8"), 32)
            high = flipped >> broadcast(const(4, "uint8"), 32)
            for h, weights in enumerate((low, high)):
                product = by_pairs(weights, words(part(a, 4, 8 * q + 4 * h), 8))
                pairs = product if pairs is None else pairs + product
        assert pairs is not None
        return put(part(c, 8, 0) + add_pairs(pairs, broadcast(const(1, "int16"), 16)), c, 0)

    return body


def scaled_squares(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
    """C[p] += A[p] * two of B, for each of two rows"""
    four, scales = ramp(0, 4), part(b, 4, 0)

    def square(p: int) -> Stmt:
        index = (const(p), four // 2, four % 2)
        factor = Shuffle((scales,), (2 * p, 2 * p + 1) * 2, "float32x4")
        return Store(c, index, load(c, index) + cast("float32x4", load(a, index)) * factor)

    return seq(map(square, range(2)))


def dot_in_fours(
    multiply: Operation, add_pairs: Operation, apart: bool = False
) -> Callable[..., Stmt]:
    """C[j] = add_pairs(C[j], multiply(A, B[j])); where A has two halves, their products are added
    first, or added to C apart"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        depth = int(a.shape[0])  # type: ignore[arg-type]

        def eights(vector: Expr) -> list[Expr]:
            return halves(vector) if depth == 16 else [vector]

        data = eights(part(a, depth, 0))

        def channel(j: int) -> Stmt:
            weights = eights(part(b, depth, j, 0))
            first, *others = map(multiply, data, weights)
            sums = part(c, 4, j, 0)
            for products in others:
                sums = add_pairs(sums, products) if apart else sums
                first = first if apart else binary("+", first, products)
            return put(add_pairs(sums, first), c, j, 0)

        return seq(map(channel, range(4)))

    return body


def dot_of_windows(operation: Operation, lanes: int) -> Callable[..., Stmt]:
    """C[q, c] += the c-th column of A · B[q, c]: for so many channels each, operation(C[q], columns
    of A, B[q])"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        pixels, channels, taps = (int(n) for n in b.shape)  # type: ignore[arg-type]
        size = lanes * taps
        columns = turned([part(a, size, n) for n in range(0, channels * taps, size)], taps)

        def dot(q: int, first: int) -> Stmt:
            every = ramp(first * taps, size)
            weights = load(b, (const(q), every // taps, every % taps))
            total = operation(part(c, lanes, q, first), columns[first // lanes], weights)
            return put(total, c, q, first)

        return seq(dot(q, first) for q in range(pixels) for first in range(0, channels, lanes))

    return body


def turned(vectors: Sequence[Expr], rows: int) -> list[Expr]:
    """The columns, one after the other, of a matrix of `rows` rows in one vector or two."""
    kind = dtype_of(vectors[0].dtype)
    columns = len(vectors) * kind.lanes // rows
    order = [i * columns + j for j in range(columns) for i in range(rows)]
    starts = range(0, len(order), kind.lanes)
    return [Shuffle(tuple(vectors), tuple(order[n : n + kind.lanes]), kind.name) for n in starts]


def dot_of_neighbours(operation: Operation) -> Callable[..., Stmt]:
    """C = operation(C, A, B), neighbours of A and B for each of C; where A has a dimension before
    B's, B is repeated along it"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        sums, data = whole(c), whole(a)
        weights = repeated(whole(b), dtype_of(data.dtype).lanes)
        return Store(c, sums.indices, operation(sums, data, weights))

    return body


def interleaved_pairs(a: Buffer, c: Buffer) -> Stmt:
    """C = the columns of A, of two rows, one after the other, in C's dtype"""
    lanes = int(a.shape[1])  # type: ignore[arg-type]
    order = tuple(row * lanes + column for column in range(lanes) for row in range(2))
    rows = (part(a, lanes, 0, 0), part(a, lanes, 1, 0))
    columns = Shuffle(rows, order, with_lanes(a.dtype, 2 * lanes))
    return Store(c, whole(c).indices, cast(c.dtype, columns))


def interleaved_quads(a: Buffer, c: Buffer) -> Stmt:
    """C = the columns of A, of four rows, one after the other. Where C has four dimensions, each
    index of the first takes every other block of eight. Words change places, then bytes in each 128
    bits. A fence separates the two, as LLVM would make eight unpacking instructions of both."""
    blocks = range(int(a.shape[1]) // 8)  # type: ignore[arg-type]
    phases = int(c.shape[0]) if c.ndim == 4 else 1  # type: ignore[arg-type]
    together = min(len(blocks), 2)  # in a register
    size = 32 * together
    dtype, floats = with_lanes(a.dtype, size), f"float32x{size // 4}"
    given = tuple(
        call("reinterpret", floats, stretch(a, (), first, size))
        for first in range(0, 32 * len(blocks), size)
    )
    in_parts = tuple(
        part + 4 * row + column
        for part in range(0, size, 16) for column in range(4) for row in range(4)
    )  # fmt: skip

    def columns_of(chosen: Sequence[int]) -> Expr:
        words = tuple(
            2 * (row * len(blocks) + block) + half
            for block in chosen for half in range(2) for row in range(4)
        )  # fmt: skip
        moved = call(
            f"llvm.arithmetic.fence.v{size // 4}f32", floats, Shuffle(given, words, floats)
        )
        return Shuffle((call("reinterpret", dtype, moved),), in_parts, dtype)

    stores = []
    for phase in range(phases):
        at, mine = (phase,) * (phases > 1), blocks[phase::phases]
        for n in range(0, len(mine), together):
            place = stretch(c, at, 32 * n, size)
            stores.append(Store(c, place.indices, columns_of(mine[n : n + together])))
    return seq(stores)


def transposed(a: Buffer, c: Buffer) -> Stmt:
    """C = the transpose of A, in two vectors each."""
    rows, columns = (int(n) for n in a.shape)  # type: ignore[arg-type]
    lanes = rows * columns // 2
    places = [ramp(n * lanes, lanes) for n in range(2)]
    vectors = [load(a, (p // columns, p % columns)) for p in places]
    return seq(
        Store(c, (p // rows, p % rows), half)
        for p, half in zip(places, turned(vectors, rows), strict=True)
    )


def rows_of_squares(a: Buffer, c: Buffer) -> Stmt:
    """C[i] = the i-th row of A[0], then that of A[1]"""
    squares = (whole(a, 0), whole(a, 1))
    every = ramp(0, 4)

    def row(i: int) -> Stmt:
        lanes = (2 * i, 2 * i + 1, 2 * i + 4, 2 * i + 5)
        return Store(c, (const(i), every // 2, every % 2), Shuffle(squares, lanes, f"{c.dtype}x4"))

    return seq(map(row, range(2)))


def sums_of_fours(add_pairs: Operation) -> Callable[..., Stmt]:
    """C[j] = the sum of A[j]: add_pairs(add_pairs(A[0], A[1]), add_pairs(A[2], A[3]))"""

    def body(a: Buffer, c: Buffer) -> Stmt:
        rows = [part(a, 4, n, 0) for n in range(4)]
        return put(add_pairs(add_pairs(*rows[:2]), add_pairs(*rows[2:])), c, 0)

    return body


def outer_by_lane(operation: Operation) -> Callable[..., Stmt]:
    """C[i, j] += A[i] * B[j]: per row operation(A[i] in every lane, B, C[i])"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        lanes = int(a.shape[0])  # type: ignore[arg-type]
        x, y = part(a, lanes, 0), part(b, lanes, 0)
        return seq(
            put(operation(lane(x, i), y, part(c, lanes, i, 0)), c, i, 0) for i in range(lanes)
        )

    return body


def matrix(operation: Operation) -> Callable[..., Stmt]:
    """C += A · Bᵀ, each of them one register."""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        sums = whole(c)
        return Store(c, sums.indices, operation(sums, whole(a), whole(b)))

    return body
