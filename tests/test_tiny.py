"""The whole stack in one short file: an expression, its loops, a schedule, code, a board."""

from __future__ import annotations

import numpy as np

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir.interp import run


def test_tiny() -> None:
    x, w = te.placeholder((6, 10), name="x"), te.placeholder((10, 13), name="w")
    k = te.reduce_axis((0, 10), "k")
    product = te.compute((6, 13), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="product")
    relu = te.compute((6, 13), lambda i, j: te.maximum(product[i, j], 0), name="relu")
    func = te.create_prim_func([x, w, relu], "matmul_relu")

    sch = mlc.Schedule(func)
    columns, lane = sch.split("j", [None, 4])
    sch.reorder("i", columns, "k", lane)
    sch.reverse_compute_at("relu", columns)
    sch.decompose_reduction("product", "k")
    sch.vectorize(lane)
    sch.parallel("i")
    assert "for i in T.parallel(6):" in str(sch.func)

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((6, 10), (10, 13)))
    wanted = np.maximum(a @ b, 0)

    interpreted = np.zeros((6, 13), np.float32)
    run(sch.func, a, b, interpreted)
    np.testing.assert_allclose(interpreted, wanted, rtol=1e-4, atol=1e-5)

    library = mlc.build(sch, target="host")
    with mlc.connect("local://") as board:
        out = board.empty((6, 13))
        fn = board.load(library)["matmul_relu"]
        fn(board.tensor(a), board.tensor(b), out)
        np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)
        assert fn.time_evaluator(number=2, repeat=3)(board.tensor(a), board.tensor(b), out)
