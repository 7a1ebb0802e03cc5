"""A matrix product scheduled by hand: the tutorial of the scheduling engine.

Packs both operands into tiles, keeps a tile of sums in registers, and counts what it costs on an
emulated board: executed instructions per vector multiply-accumulate, all of them included.

    python scripts/examples/matmul.py [SIZE]
"""

import argparse

import numpy as np

import mlc_deploy as mlc
from mlc_deploy import te


def matmul(n: int) -> mlc.PrimFunc:
    """What to compute: C = A * B, float32 [n, n]."""
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c], "matmul")


def schedule(n: int, rows: int, columns: int, lanes: int = 4, steps: int = 4) -> mlc.Schedule:
    """How: tiles of rows x columns sums, which stay in registers for the whole of k."""
    sch = mlc.Schedule(matmul(n))
    sch.pad_einsum("C", [rows, columns, steps])  # whole tiles only; zeros change no sum
    a_pack, b_pack = (sch.cache_read("C", operand, "global") for operand in (0, 1))
    for padding in (*sch.get_producers(a_pack), *sch.get_producers(b_pack)):
        sch.compute_inline(padding)
    # A as [tile, k, row of the tile], B as [tile, k, column of the tile]
    sch.transform_layout(a_pack, ("write", 0), lambda i, k: (i // rows, k, i % rows))
    sch.transform_layout(b_pack, ("write", 0), lambda k, j: (j // columns, k, j % columns))
    i, k = sch.get_loops(a_pack)
    tile, row = sch.split(i, [None, rows])
    sch.reorder(tile, k, row)
    sch.unroll(row)
    k, j = sch.get_loops(b_pack)
    tile, group, lane = sch.split(j, [None, columns // lanes, lanes])
    sch.reorder(tile, k, group, lane)
    sch.unroll(group)
    sch.vectorize(lane)
    # the tile of sums: computed in registers, then stored
    store = sch.cache_write("C", 0, "local")
    i, j, k = sch.get_loops("C")
    i, row = sch.split(i, [None, rows])
    j, group, lane = sch.split(j, [None, columns // lanes, lanes])
    k, step = sch.split(k, [None, steps])
    sch.reorder(j, i, k, step, row, group, lane)
    sch.reverse_compute_at(store, i)
    for crop in sch.get_consumers(store):
        sch.reverse_compute_inline(crop)
    init = sch.decompose_reduction("C", k)
    for block in (init, "C", store):
        *unrolled, last = sch.get_loops(block)[2 if block != "C" else 3 :]
        if block == store:
            group, last = sch.split(last, [None, lanes])
            unrolled.append(group)
        for loop in unrolled:
            sch.unroll(loop)
        sch.vectorize(last)
    return sch


BOARDS = {  # board: target, and the tile that its registers hold
    "qemu://cortex-a72": ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72", 8, 12),
    "qemu://cortex-a7": ("llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7", 6, 8),
}


def instructions_per_mac(url: str, n: int) -> float:
    """Executed instructions of the product, packing included, per vector multiply-accumulate."""
    target, rows, columns = BOARDS[url]
    library = mlc.build(schedule(n, rows, columns), target=target)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    with mlc.connect(url) as board:
        c = board.empty((n, n))
        run = board.load(library)["matmul"].profile(board.tensor(a), board.tensor(b), c)
        expected = a.astype(np.float64) @ b
        np.testing.assert_allclose(c.numpy(), expected, 1e-4, 2e-5 * np.abs(expected).max())
        if run.counts is None:
            raise SystemExit(f"instructions are not counted here: {board.why_not_counting}")
        return run.counts[0].total / (n**3 / 4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("size", nargs="?", type=int, default=512, help="rows, columns and depth")
    size = parser.parse_args().size
    for url in BOARDS:
        print(f"{url}: {instructions_per_mac(url, size):.3f} instructions per vector multiply")
