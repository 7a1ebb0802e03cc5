"""print(te.lower(...)): flat loops, and in simple mode loops as they were scheduled.

python scripts/examples/from_tvm/print_lowered.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    A = te.placeholder((8, 32), name="A")
    B = te.compute((8, 32), lambda i, j: A[i, j] * 3, name="B")
    s = te.create_schedule(B.op)
    s[B].vectorize(s[B].split(B.op.axis[1], factor=8)[1])
    print(te.lower(s, [A, B], simple_mode=True))
    print(te.lower(s, [A, B]))
    x = data(8, 32)
    check(board, lambda target: mlc.build(s, [A, B], target), [x], x * 3)


if __name__ == "__main__":
    command(main)
