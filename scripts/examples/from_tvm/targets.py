"""Target strings, boards' names, and `with target:`.

python scripts/examples/from_tvm/targets.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.board.connect import target_of


def main(board: Board = "local://") -> None:
    text = "llvm -keys=arm_cpu,cpu -device=arm_cpu -mtriple=aarch64-linux-gnu -mattr=+neon"
    target = mlc.Target(text)
    assert mlc.Target(str(target)) == target
    print(target, mlc.Target("raspberry-pi/4b-aarch64"), sep="\n")
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] + 1, name="B")
    with target:
        assert mlc.build([A, B]).target == target
    with connected(board) as session, target_of(session.device):
        x = data(64)
        check(session, lambda target: mlc.build([A, B]), [x], x + 1)


if __name__ == "__main__":
    command(main)
