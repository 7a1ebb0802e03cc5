"""tune_tir with a space function; the best schedule goes back into the module.

python scripts/examples/from_tvm/tune_tir.py [BOARD]
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from running import Board, check, command, connected, data
from traces import N, matmul, stochastic

import mlc_deploy as mlc
from mlc_deploy import tune
from mlc_deploy.board.connect import target_of


def main(board: Board = "local://") -> None:
    mod = matmul()
    with connected(board) as session, TemporaryDirectory() as folder:
        target = target_of(session.device)
        database = tune.tune_tir(
            mod,
            target,
            max_trials_global=2,
            num_trials_per_iter=2,
            space=stochastic,
            work_dir=Path(folder),
            runner=session.board,
            strategy="random",
        )
        sch = tune.compile_tir(database, mod, target)
    assert sch is not None
    mod.update_func(mod.get_global_var("main"), sch.mod["main"])
    x, y = data(N, N), data(N, N, seed=1)
    check(board, lambda target: mlc.build(mod, target=target), [x, y], x @ y)


if __name__ == "__main__":
    command(main)
