"""Graph passes alone, and FastMath by opt_level 4, with the error that it costs.

python scripts/examples/from_tvm/graph_passes.py [BOARD]
"""

from __future__ import annotations

import numpy as np
from running import Board, command, connected

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of
from mlc_deploy.graph import op, optimize
from mlc_deploy.graph.passes import eliminate_common_subexpressions, fold_constants


def module() -> mlc.IRModule:
    bb = graph.BlockBuilder()
    x = graph.Var("x", graph.tensor_type((8, 16)))
    with bb.function("main", [x]):
        one = bb.emit(op.exp(x))
        two = bb.emit(op.exp(x))
        shift = bb.emit(op.add(np.ones(16, np.float32), np.ones(16, np.float32)))
        bb.emit_func_output(bb.emit(op.tanh(op.add(op.add(one, two), shift))))
    return bb.get()


def main(board: Board = "local://") -> None:
    function = module()["main"]
    for each in (fold_constants, eliminate_common_subexpressions):
        print(each.__name__, optimize(function, (each,)).script(), sep="\n")
    assert len(optimize(function, (eliminate_common_subexpressions,)).bindings) == 5
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    with connected(board) as session:
        for level in (2, 4):
            with mlc.PassContext(opt_level=level):
                ex = mlc.compile(module(), target_of(session.device))
            found = mlc.VirtualMachine(ex, session)["main"](x)
            right = np.tanh(2 * np.exp(x) + 2)
            np.testing.assert_allclose(found, right, rtol=2e-6 if level == 2 else 4e-5)


if __name__ == "__main__":
    command(main)
