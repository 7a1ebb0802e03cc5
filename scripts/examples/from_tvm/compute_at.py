"""Where B is computed: at a loop of C, inlined, or by itself; B is an argument, too.

Inlined, nothing would write the argument B: that is refused, and B is left out of the arguments.

    python scripts/examples/from_tvm/compute_at.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    m = te.var("m")
    A = te.placeholder((m,), name="A")
    B = te.compute((m,), lambda i: A[i] + 1, name="B")
    C = te.compute((m,), lambda i: B[i] * 2, name="C")
    s = te.create_schedule(C.op)
    x = data(100)

    s[B].compute_at(s[C], C.op.axis[0])
    print(te.lower(s, [A, B, C], simple_mode=True))
    check(board, lambda target: mlc.build(s, [A, B, C], target), [x], x + 1, (x + 1) * 2)

    s[B].compute_inline()
    try:
        te.lower(s, [A, B, C], simple_mode=True)
    except mlc.ScheduleError as error:
        print(error)
    check(board, lambda target: mlc.build(s, [A, C], target), [x], (x + 1) * 2)

    s[B].compute_root()
    check(board, lambda target: mlc.build(s, [A, B, C], target), [x], x + 1, (x + 1) * 2)


if __name__ == "__main__":
    command(main)
