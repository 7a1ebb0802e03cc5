"""tile, fuse and reorder of a copy whose sizes are not known.

python scripts/examples/from_tvm/tile.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    m, n = te.var("m"), te.var("n")
    A = te.placeholder((m, n), name="A")
    B = te.compute((m, n), lambda i, j: A[i, j], name="B")
    s = te.create_schedule(B.op)
    xo, yo, xi, yi = s[B].tile(B.op.axis[0], B.op.axis[1], x_factor=10, y_factor=5)
    s[B].reorder(yo, xo, xi, yi)
    s[B].fuse(xi, yi)
    print(te.lower(s, [A, B], simple_mode=True))
    x = data(33, 17)
    check(board, lambda target: mlc.build(s, [A, B], target), [x], x)


if __name__ == "__main__":
    command(main)
