"""bind to a thread of a GPU: refused, with what a CPU has instead, which is done here.

python scripts/examples/from_tvm/bind.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    n = 1024
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1, name="B")
    s = te.create_schedule(B.op)
    bx, tx = s[B].split(B.op.axis[0], factor=64)
    for bound, thread in ((bx, "blockIdx.x"), (tx, "threadIdx.x")):
        try:
            s[B].bind(bound, te.thread_axis(thread))
        except mlc.ScheduleError as error:
            print(error)
    s[B].parallel(bx)
    s[B].vectorize(tx)
    x = data(n)
    check(board, lambda target: mlc.build(s, [A, B], target), [x], x + 1)


if __name__ == "__main__":
    command(main)
