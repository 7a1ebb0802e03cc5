"""Pragmas, aligned rows, prefetches and doubled buffers: each changes the loops.

python scripts/examples/from_tvm/pragmas.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te

N = 48


def main(board: Board = "local://") -> None:
    A, B = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), "k")
    C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    BB = s.cache_read(B, "global", [C])
    i, j = s[C].op.axis
    jo, ji = s[C].split(j, factor=16)
    ko, ki = s[C].split(k, factor=8)
    s[C].reorder(i, jo, ko, ki, ji)
    s[C].vectorize(ji)
    s[C].pragma(ki, "auto_unroll_max_step", 16)
    s[C].pragma(ki, "unroll_explicit", True)
    s[C].prefetch(A, i, 1)
    s[BB].compute_at(s[C], ko)
    s[BB].storage_align(s[BB].op.axis[0], 16, 4)
    s[BB].double_buffer()
    print(te.lower(s, [A, B, C]))
    x, y = data(N, N), data(N, N, seed=1)
    check(board, lambda target: mlc.build(s, [A, B, C], target), [x, y], x @ y)
    try:
        s[C].pragma(ki, "parallel_launch_point")
    except mlc.ScheduleError as error:
        print(error)


if __name__ == "__main__":
    command(main)
