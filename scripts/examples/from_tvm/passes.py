"""PassContext: levels, passes left out, options, watchers, passes of one's own.

python scripts/examples/from_tvm/passes.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def main(board: Board = "local://") -> None:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] + 1, name="B")
    s = te.create_schedule(B.op)
    s[B].unroll(s[B].split(B.op.axis[0], factor=4)[1])
    seen: list[str] = []

    def mine(func: mlc.PrimFunc) -> mlc.PrimFunc:
        seen.append(func.name)
        return func

    timing = mlc.TimingInstrument()
    own = {"lower.add_pass": [(phase, mine) for phase in ("blocks", "loops", "flat", "final")]}
    x = data(64)
    with mlc.PassContext(
        opt_level=2, disabled_pass=["vectorize_loops"], config=own, instruments=[timing]
    ):
        check(board, lambda target: mlc.build(s, [A, B], target), [x], x + 1)
    assert seen == ["main"] * 4 and "flatten_buffers" in timing.runs


if __name__ == "__main__":
    command(main)
