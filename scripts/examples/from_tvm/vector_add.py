"""C = A + B of any length: the first program.

python scripts/examples/from_tvm/vector_add.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.placeholder((n,), name="B")
    C = te.compute(A.shape, lambda i: A[i] + B[i], name="C")
    s = te.create_schedule(C.op)
    print(te.lower(s, [A, B, C], simple_mode=True))
    x, y = data(1000), data(1000, seed=1)
    check(board, lambda target: mlc.build(s, [A, B, C], target), [x, y], x + y)


if __name__ == "__main__":
    command(main)
