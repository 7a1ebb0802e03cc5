"""Compiled, loaded, called by name, and timed: relax.build is mlc.compile here.

python scripts/examples/from_tvm/virtual_machine.py [BOARD]
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
        bb.emit_func_output(bb.emit(op.relu(x)))
    with connected(board) as session:
        ex = mlc.compile(bb.get(), target_of(session.device))
        vm = mlc.VirtualMachine(ex, session)
        given = data(4, 8)
        np.testing.assert_array_equal(vm["main"](given), given.clip(0))
        timed = vm.time_evaluator("main", number=2, repeat=2)(given)
        print(timed.median, "s")
        assert len(timed.samples) == 2


if __name__ == "__main__":
    command(main)
