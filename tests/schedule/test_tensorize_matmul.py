"""An int8 matrix product in dot-product and matrix-multiply instructions, scheduled through public
primitives: exact, and what it costs in executed instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import Expr

ROWS, COLUMNS = 8, 12  # of the tile of sums


@dataclass(frozen=True)
class Kernel:
    """side: of the tile that one intrinsic adds to. depth: the products that it sums up.
    products: of one instruction. most: executed instructions per instruction that multiplies, all
    of the kernel's included, at 256 x 252 x 256."""

    intrin: str
    board: str
    mattr: str
    side: int
    depth: int
    products: int
    steps: int
    most: float


KERNELS = (
    Kernel("aarch64.sdot.lane", "qemu://cortex-a76", "+dotprod", 4, 4, 16, 4, 1.30),
    Kernel("aarch64.smmla", "qemu://max,sve=off,sme=off", "+i8mm", 2, 8, 32, 2, 1.52),
)


def program(m: int, n: int, depth: int) -> mlc.PrimFunc:
    """C = A * Bᵀ: int8 [m, depth], int8 [n, depth], int32 [m, n]."""
    a, b = te.placeholder((m, depth), "int8", "A"), te.placeholder((n, depth), "int8", "B")
    k = te.reduce_axis((0, depth), "k")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), k)

    return te.create_prim_func([a, b, te.compute((m, n), element, name="C")], "matmul")


def schedule(func: mlc.PrimFunc, kernel: Kernel) -> mlc.Schedule:
    side, depth = kernel.side, kernel.depth
    sch = mlc.Schedule(func)
    sch.pad_einsum("C", [ROWS, COLUMNS, depth * kernel.steps])
    packs = [sch.cache_read("C", operand, "global") for operand in (0, 1)]
    for pack, size in zip(packs, (ROWS, COLUMNS), strict=True):
        for padding in sch.get_producers(pack):
            sch.compute_inline(padding)
        packed = f"lambda i, k: [i // {size}, k // {depth}, i % {size}, k % {depth}]"
        sch.transform_layout(pack, ("write", 0), packed)
        i, k = sch.get_loops(pack)
        (i, row), (k, byte) = sch.split(i, [None, size]), sch.split(k, [None, depth])
        sch.reorder(i, k, row, byte)
        sch.unroll(row)
        sch.vectorize(byte)
    store = sch.cache_write("C", 0, "local")
    i, j, k = sch.get_loops("C")
    i, i1, i2 = sch.split(i, [None, ROWS // side, side])
    j, j1, j2 = sch.split(j, [None, COLUMNS // side, side])
    k, step, k2 = sch.split(k, [None, kernel.steps, depth])
    sch.reorder(j, i, k, step, i1, j1, i2, j2, k2)
    sch.reverse_compute_at(store, i)
    for crop in sch.get_consumers(store):
        sch.reverse_compute_inline(crop)
    if side == 2:  # four sums make one register
        sch.transform_layout("C", ("write", 0), "lambda i, j: [i // 2, j // 2, i % 2, j % 2]")
    tile = sch.blockize(i2)
    zero = sch.decompose_reduction(tile, k)
    sch.tensorize(tile, kernel.intrin)
    (element,) = sch.get_child_blocks(zero)
    row, lane = sch.get_loops(element)
    store_row, column = sch.get_loops(store)[-2:]
    group, store_lane = sch.split(column, [None, side])
    sch.vectorize(lane)
    sch.vectorize(store_lane)
    for loop in (step, i1, j1, *sch.get_loops(zero)[-2:], row, store_row, group):
        sch.unroll(loop)
    return sch


def executed(kernel: Kernel, m: int, n: int, depth: int) -> int | None:
    """Runs it on full ranges of int8 and compares; instructions, where they are counted."""
    target = f"llvm -mtriple=aarch64-linux-gnu -mattr={kernel.mattr}"
    library = mlc.build(schedule(program(m, n, depth), kernel), target=target)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (rows, depth)).astype(np.int8) for rows in (m, n))
    with mlc.connect(kernel.board, machine="aarch64") as board:
        c = board.empty((m, n), "int32")
        run = board.load(library)["matmul"].profile(board.tensor(a), board.tensor(b), c)
        np.testing.assert_array_equal(c.numpy(), a.astype(np.int32) @ b.astype(np.int32).T)
        return None if run.counts is None else run.counts[0].total


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.intrin)
def test_cost_of_a_product(kernel: Kernel) -> None:
    m, n, depth = 256, 252, 256
    total = executed(kernel, m, n, depth)
    if total is None:
        pytest.skip("this QEMU counts no instructions; try: Debian's qemu-user 7 or 8")
    per_instruction = total / (m * n * depth / kernel.products)
    assert 1 < per_instruction < kernel.most


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.intrin)
@pytest.mark.parametrize("shape", [(50, 70, 45), (1, 13, 3), (8, 12, 16)], ids=str)
def test_products_of_any_shape(kernel: Kernel, shape: tuple[int, int, int]) -> None:
    executed(kernel, *shape)
