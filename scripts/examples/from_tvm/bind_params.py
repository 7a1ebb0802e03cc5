"""Parameters are bound by name, and become part of the compiled module.

python scripts/examples/from_tvm/bind_params.py [BOARD]
"""

# mypy: disable-error-code="attr-defined, type-var, misc"

import numpy as np
from registered_functions import PARAMS, Mixture, expected
from running import Board, command, connected

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of


def main(board: Board = "local://") -> None:
    bound = graph.bind_params(Mixture, PARAMS)
    assert [p.name for p in bound["main"].params] == ["x"]
    bound.show()
    x = np.ones((1, 24), np.float32)
    with connected(board) as session:
        ex = mlc.compile(bound, target_of(session.device))
        assert [name for name, _ in ex.program.inputs] == ["x"]
        result = mlc.VirtualMachine(ex, session)["main"](x)
        np.testing.assert_allclose(result, expected(x), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    command(main)
