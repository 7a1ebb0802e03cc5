"""split by a factor, or in a number of parts; a guard keeps what is left over.

python scripts/examples/from_tvm/split.py [BOARD]
"""

from __future__ import annotations

from typing import Any

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    m = te.var("m")
    splits: list[dict[str, Any]] = [{"factor": 32}, {"nparts": 32}]
    for split in splits:
        A = te.placeholder((m,), name="A")
        B = te.compute((m,), lambda i: A[i] * 2, name="B")
        s = te.create_schedule(B.op)
        s[B].split(B.op.axis[0], **split)
        print(te.lower(s, [A, B], simple_mode=True))
        x = data(100)
        check(board, lambda target: mlc.build(s, [A, B], target), [x], x * 2)


if __name__ == "__main__":
    command(main)
