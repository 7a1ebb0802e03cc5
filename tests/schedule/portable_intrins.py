"""Tensor intrinsics made of plain vector statements: any machine runs them, and the interpreter."""

from __future__ import annotations

from mlc_deploy import te
from mlc_deploy.ir import (
    Buffer,
    Expr,
    PrimFunc,
    Ramp,
    Shuffle,
    Stmt,
    Store,
    call,
    const,
    load,
    not_,
    select,
    seq,
)
from mlc_deploy.ir.build import broadcast
from mlc_deploy.schedule import TensorIntrin
from mlc_deploy.schedule.tensor_intrin import accumulating, rows_apart

LANES = 4


def tile(dtype: str = "float32", steps: int = 2) -> PrimFunc:
    """C[i, j] = sum over k of A[i, k] * B[k, j], 4 x 4."""
    a = te.placeholder((LANES, steps), dtype, "A")
    b = te.placeholder((steps, LANES), dtype, "B")
    k = te.reduce_axis((0, steps), "k")
    c = te.compute((LANES, LANES), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    return rows_apart(te.create_prim_func([a, b, c]), "A", "B", "C")


def _row(buffer: Buffer, i: int) -> tuple[Expr, ...]:
    return (const(i), Ramp(const(0), const(1), LANES, f"int32x{LANES}"))


def _summed(a: Buffer, b: Buffer, c: Buffer, i: int, begin: Expr) -> Stmt:
    total = begin
    for k in range(int(b.shape[0])):  # type: ignore[arg-type]
        one = load(a, (const(i), const(k)))
        total = total + broadcast(one, LANES) * load(b, _row(b, k))
    return Store(c, _row(c, i), total)


def add_tile(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
    return seq(_summed(a, b, c, i, load(c, _row(c, i))) for i in range(LANES))


def whole_tile(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
    return seq(_summed(a, b, c, i, broadcast(const(0, c.dtype), LANES)) for i in range(LANES))


def squares() -> PrimFunc:
    """C[i] = A[i] * A[i], four of int16, as int32, and one more."""
    a = te.placeholder((LANES,), "int16", "A")

    def element(i: Expr) -> Expr:
        return a[i].astype("int32") * a[i].astype("int32") + 1

    return te.create_prim_func([a, te.compute((LANES,), element, name="C")])


def square(a: Buffer, c: Buffer) -> Stmt:
    at = (Ramp(const(0), const(1), LANES, f"int32x{LANES}"),)
    wide = load(a, at).astype("int32")
    return Store(c, at, wide * wide + 1)


def flipped() -> PrimFunc:
    """C[i, j] = A[j, i], 4 x 4, both contiguous."""
    a = te.placeholder((LANES, LANES), "float32", "A")
    c = te.compute((LANES, LANES), lambda i, j: a[j, i], name="C")
    return te.create_prim_func([a, c])


def flip(a: Buffer, c: Buffer) -> Stmt:
    """All of A by one vector of two indices, its lanes in another order, all of C likewise."""
    lane = Ramp(const(0), const(1), LANES * LANES, f"int32x{LANES * LANES}")
    every = (lane // LANES, lane % LANES)
    order = tuple(j * LANES + i for i in range(LANES) for j in range(LANES))
    return Store(c, every, Shuffle((load(a, every),), order, f"float32x{LANES * LANES}"))


def choice() -> PrimFunc:
    """C[i] = sqrt(A[i]) - B[i] where not A[i] < B[i], else 0."""
    a, b = (te.placeholder((LANES,), "float32", name) for name in "AB")

    def element(i: Expr) -> Expr:
        return select(not_(a[i] < b[i]), te.sqrt(a[i]) - b[i], 0)

    return te.create_prim_func([a, b, te.compute((LANES,), element, name="C")])


def choose(a: Buffer, b: Buffer, c: Buffer) -> Stmt:
    at = (Ramp(const(0), const(1), LANES, f"int32x{LANES}"),)
    x, y = load(a, at), load(b, at)
    root = call("sqrt", f"float32x{LANES}", x)
    return Store(c, at, select(x >= y, root - y, broadcast(const(0.0), LANES)))


def total() -> PrimFunc:
    """C = A[0] + A[1]: no spatial iteration."""
    a = te.placeholder((2,), "int32", "A")
    k = te.reduce_axis((0, 2), "k")
    return te.create_prim_func([a, te.compute((), lambda: te.sum(a[k], k), name="C")])


def add_up(a: Buffer, c: Buffer) -> Stmt:
    return Store(c, (), load(a, (const(0),)) + load(a, (const(1),)))


INTRINS = {
    i.name: i
    for i in (
        TensorIntrin("tile", accumulating(tile()), add_tile, {}),
        TensorIntrin("tile_of_int", accumulating(tile("int32")), add_tile, {}),
        TensorIntrin("whole_tile", tile(), whole_tile, {}),
        TensorIntrin("squares", squares(), square, {}),
        TensorIntrin("flipped", flipped(), flip, {}),
        TensorIntrin("choice", choice(), choose, {}),
        TensorIntrin("total", total(), add_up, {}),
    )
}
