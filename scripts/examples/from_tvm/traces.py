"""A schedule's trace: printed, replayed, sampled anew; and the best of some trials.

python scripts/examples/from_tvm/traces.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te

N = 32


def matmul() -> mlc.IRModule:
    A, B = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), "k")
    C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return mlc.IRModule.from_expr(te.create_prim_func([A, B, C]))


def stochastic(sch: mlc.Schedule) -> mlc.Schedule:
    i, j, k = sch.get_loops(sch.get_block("C", "main"))
    j0, j1 = sch.split(j, factors=sch.sample_perfect_tile(j, n=2))
    sch.reorder(i, j0, k, j1)
    sch.decompose_reduction("C", k)
    return sch


def main(board: Board = "local://") -> None:
    x, y = data(N, N), data(N, N, seed=1)
    for seed in range(2):
        sch = stochastic(mlc.Schedule(matmul(), seed=seed))
        sch.trace.show()
        again = mlc.Schedule(matmul())
        sch.trace.apply(again)
        assert str(again.mod) == str(sch.mod)
        check(board, lambda target: mlc.build(again, target=target), [x, y], x @ y)


if __name__ == "__main__":
    command(main)
