"""Pieces of implementations: vector loads and stores, lanes, calls of LLVM's intrinsics."""

from __future__ import annotations

from collections.abc import Callable

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


def whole(buffer: Buffer) -> Load:
    """All elements of a contiguous parameter of two dimensions."""
    rows, columns = (int(n) for n in buffer.shape)  # type: ignore[arg-type]
    every = ramp(0, rows * columns)
    found = load(buffer, (every // columns, every % columns))
    assert isinstance(found, Load)
    return found


def put(value: Expr, buffer: Buffer, *at: int) -> Stmt:
    """Stores a vector from the element `at` on."""
    lanes = dtype_of(value.dtype).lanes
    return Store(buffer, (*map(const, at[:-1]), ramp(at[-1], lanes)), value)


def lane(vector: Expr, number: int) -> Expr:
    """One lane in all of them."""
    return Shuffle((vector,), (number,) * dtype_of(vector.dtype).lanes, vector.dtype)


def quad(vector: Expr, number: int) -> Expr:
    """One group of four bytes in all of them. As a lane of 32 bits: that is what LLVM selects the
    forms by lane from."""
    return call("reinterpret", vector.dtype, lane(call("reinterpret", "int32x4", vector), number))


def quads(vector: Expr) -> Expr:
    """The register that holds four bytes four times."""
    word = call("reinterpret", "int32", vector)
    return call("reinterpret", with_lanes(dtype_of(vector.dtype).scalar, 16), broadcast(word, 4))


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
        return put(operation(part(c, 4, 0), whole(b), quads(part(a, 4, 0))), c, 0)

    return body


def dot_by_lane(operation: Operation) -> Callable[..., Stmt]:
    """C[i, j] += A[i] · B[j], by four: per row operation(C[i], B, A[i] four times)"""

    def body(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
        data, weights = whole(a), whole(b)
        return seq(
            put(operation(part(c, 4, i, 0), weights, quad(data, i)), c, i, 0) for i in range(4)
        )

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
