"""A matrix product: caches, scopes, factored sums, vectors, threads.

python scripts/examples/from_tvm/matmul_schedule.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te

N = 64


def main(board: Board = "local://") -> None:
    A, B = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), "k")
    C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    CC = s.cache_write(C, "local")
    AA = s.cache_read(A, "global", [CC])
    xo, yo, xi, yi = s[C].tile(s[C].op.axis[0], s[C].op.axis[1], 8, 16)
    s[C].parallel(xo)
    s[C].vectorize(yi)
    s[CC].compute_at(s[C], yo)
    ko, ki = s[CC].split(s[CC].op.reduce_axis[0], factor=4)
    xc, yc = s[CC].op.axis
    s[CC].reorder(ko, xc, ki, yc)
    s[CC].unroll(ki)
    s[CC].vectorize(yc)
    s[AA].compute_at(s[C], xo)
    print(te.lower(s, [A, B, C], simple_mode=True))
    x, y = data(N, N), data(N, N, seed=1)
    check(board, lambda target: mlc.build(s, [A, B, C], target), [x, y], x @ y)

    R = te.placeholder((N, N), name="R")
    j = te.reduce_axis((0, N), "j")
    S = te.compute((N,), lambda i: te.sum(R[i, j], axis=j), name="S")
    s = te.create_schedule(S.op)
    _, inner = s[S].split(j, factor=8)
    SF = s.rfactor(S, inner)
    s[SF].set_scope("local")
    s[SF].compute_at(s[S], s[S].op.axis[0])
    check(board, lambda target: mlc.build(s, [R, S], target), [x], x.sum(1))


if __name__ == "__main__":
    command(main)
