"""target="c": the source, by lib.get_source(); the same kernel for a board.

python scripts/examples/from_tvm/c_source.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] * A[i], name="B")
    source = mlc.build([A, B], target="c", name="square").get_source()
    print(source)
    assert "for (ptrdiff_t" in source and "int32_t square(" in source
    x = data(64)
    check(board, lambda target: mlc.build([A, B], target=target), [x], x * x)


if __name__ == "__main__":
    command(main)
