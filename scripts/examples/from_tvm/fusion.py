"""Fusion by the dominator tree: both ways of a diamond end in the convolution's kernel.

python scripts/examples/from_tvm/fusion.py [BOARD]
"""

from __future__ import annotations

import numpy as np
from running import Board, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of
from mlc_deploy.graph import op


def main(board: Board = "local://") -> None:
    bb = graph.BlockBuilder()
    x = graph.Var("x", graph.tensor_type((4, 8)))
    with bb.function("main", [x]):
        y = bb.emit(op.add(x, np.ones((1, 8), np.float32)))
        left, right = bb.emit(op.relu(y)), bb.emit(op.negative(y))
        bb.emit_func_output(bb.emit(op.add(left, right)))
    given = data(4, 8)
    with connected(board) as session:
        ex = mlc.compile(bb.get(), target_of(session.device))
        assert len(ex.program.kernels) == 1
        found = mlc.VirtualMachine(ex, session)["main"](given)
    np.testing.assert_array_equal(found, (given + 1).clip(0) - (given + 1))


if __name__ == "__main__":
    command(main)
