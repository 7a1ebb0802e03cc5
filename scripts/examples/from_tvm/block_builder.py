"""A graph built call by call: function, dataflow, emit_te, emit_output.

python scripts/examples/from_tvm/block_builder.py [BOARD]
"""

from __future__ import annotations

import numpy as np
from relu_from_te import te_matmul, te_relu
from running import Board, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of


def main(board: Board = "local://") -> None:
    bb = graph.BlockBuilder()
    A = graph.Var("A", graph.tensor_type((16, 32)))
    B = graph.Var("B", graph.tensor_type((32, 24)))
    with bb.function("main"):
        with bb.dataflow():
            C = bb.emit_te(te_matmul, A, B)
            D = bb.emit_te(te_relu, C)
            out = bb.emit_output(D)
        bb.emit_func_output(out, params=[A, B])
    module = bb.get()
    module.show()
    x, y = data(16, 32), data(32, 24, seed=1)
    with connected(board) as session:
        ex = mlc.compile(module, target_of(session.device))
        found = mlc.VirtualMachine(ex, session)["main"](x, y)
    np.testing.assert_array_equal(found, (x @ y).clip(0))


if __name__ == "__main__":
    command(main)
