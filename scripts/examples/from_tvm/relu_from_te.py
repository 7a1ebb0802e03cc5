"""Functions from tensors to tensors: relu by te.max of two scalars, alone and after another.

python scripts/examples/from_tvm/relu_from_te.py [BOARD]
"""

from __future__ import annotations

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te


def te_matmul(A: te.Tensor, B: te.Tensor) -> te.Tensor:
    n, l = A.shape
    k = te.reduce_axis((0, l), name="k")
    C: te.Tensor = te.compute(
        (n, B.shape[1]), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="matmul"
    )
    return C


def te_relu(A: te.Tensor) -> te.Tensor:
    C: te.Tensor = te.compute(A.shape, lambda *i: te.max(A[i], 0), name="relu")
    return C


def main(board: Board = "local://") -> None:
    A, B = te.placeholder((16, 32), name="A"), te.placeholder((32, 24), name="B")
    func = te.create_prim_func([A, B, te_relu(te_matmul(A, B))])
    func.show()
    x, y = data(16, 32), data(32, 24, seed=1)
    check(board, lambda target: mlc.build(func, target=target), [x, y], (x @ y).clip(0))


if __name__ == "__main__":
    command(main)
