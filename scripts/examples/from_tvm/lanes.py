"""As many lanes as a register holds: 16 of int8, 8 of int16, 4 of int32 and float32.

python scripts/examples/from_tvm/lanes.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te

LANES = {"int8": 16, "int16": 8, "int32": 4, "float32": 4}


def main(board: Board = "local://") -> None:
    for dtype, lanes in LANES.items():
        A = te.placeholder((256,), dtype, name="A")
        B = te.placeholder((256,), dtype, name="B")
        C = te.compute((256,), lambda i: A[i] + B[i], name="C")
        s = te.create_schedule(C.op)
        _, inner = s[C].split(C.op.axis[0], factor=lanes)
        s[C].vectorize(inner)
        assembly = mlc.build(s, [A, B, C], "armv7a").get_source("asm")
        kind = "f32" if dtype == "float32" else f"i{dtype[3:]}"
        assert f"vadd.{kind}" in assembly and "vld1" in assembly
        x, y = data(256, dtype=dtype), data(256, seed=1, dtype=dtype)
        check(board, lambda target: mlc.build(s, [A, B, C], target), [x, y], x + y)


if __name__ == "__main__":
    command(main)
