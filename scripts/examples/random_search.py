"""A tuner of one's own, in ten lines: sample a schedule, build it, time it on a board, keep the
best.

    python scripts/examples/random_search.py [BOARD]
"""

from __future__ import annotations

import sys

import numpy as np

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.board.connect import target_of

N = 128


def matmul() -> mlc.IRModule:
    a, b = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), "k")
    c = te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    return mlc.Schedule(te.create_prim_func([a, b, c])).mod


def stochastic(sch: mlc.Schedule) -> mlc.Schedule:
    """Columns are cut in two, at random, and the inner ones are a vector."""
    i, j, k = sch.get_loops(sch.get_block("C"))
    j_0, j_1 = sch.split(j, factors=sch.sample_perfect_tile(j, n=2, max_innermost_factor=64))
    sch.reorder(i, j_0, k, j_1)
    sch.vectorize(j_1)
    return sch


def random_search(mod: mlc.IRModule, num_trials: int, board: str) -> mlc.Schedule:
    best, best_schedule = float("inf"), None
    with mlc.connect(board) as session:
        target = target_of(session.device)
        a, b, c = (session.random((N, N)) for _ in range(3))
        for seed in range(num_trials):
            sch = stochastic(mlc.Schedule(mod, seed=seed))
            lib = mlc.build(sch, target=target, name="main")
            timed = session.load(lib)["main"].time_evaluator(number=10, repeat=3)(a, b, c)
            print(f"{seed}: {timed.median * 1e6:.1f} µs, {sch.trace.decisions}")
            if timed.median < best:
                best, best_schedule = timed.median, sch
    assert best_schedule is not None
    return best_schedule


def main(board: str = "local://") -> None:
    sch = random_search(matmul(), 5, board)
    print(sch.trace)
    with mlc.connect(board) as session:  # and it is right
        x, y = (np.random.default_rng(n).random((N, N), np.float32) for n in range(2))
        z = session.empty((N, N))
        lib = mlc.build(sch, target=target_of(session.device), name="main")
        session.load(lib)["main"](session.tensor(x), session.tensor(y), z)
        np.testing.assert_allclose(z.numpy(), x @ y, rtol=1e-4)


if __name__ == "__main__":
    main(*sys.argv[1:])
