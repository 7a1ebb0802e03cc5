"""An AutoTVM template: splits and knobs by name, tuned on a board.

python scripts/examples/from_tvm/template.py [BOARD]
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from running import Board, check, command, connected, data
from traces import N, matmul

import mlc_deploy as mlc
from mlc_deploy import tune
from mlc_deploy.board.connect import target_of
from mlc_deploy.tune.template import Config, template


@template
def tiled(cfg: Config, sch: mlc.Schedule) -> None:
    i, j, k = sch.get_loops("C")
    cfg.define_split("tile_j", j, num_outputs=2, max_factor=16)
    cfg.define_knob("unroll", [1, 2, 4])
    j0, j1 = cfg["tile_j"].apply(j)
    k0, k1 = sch.split(k, [None, cfg["unroll"].val])
    sch.reorder(i, j0, k0, k1, j1)
    sch.decompose_reduction("C", k0)
    sch.unroll(k1)


def main(board: Board = "local://") -> None:
    with connected(board) as session, TemporaryDirectory() as folder:
        target = target_of(session.device)
        database = tune.tune_tir(
            matmul(),
            target,
            max_trials_global=2,
            num_trials_per_iter=2,
            space=tiled,
            work_dir=Path(folder),
            runner=session.board,
            strategy="random",
        )
        best = tune.compile_tir(database, matmul(), target)
    assert best is not None
    x, y = data(N, N), data(N, N, seed=1)
    check(board, lambda target: mlc.build(best, target=target), [x, y], x @ y)


if __name__ == "__main__":
    command(main)
