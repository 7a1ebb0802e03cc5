"""FuseOps and FuseTIR: functions of TE are fused with operators, and with each other.

python scripts/examples/from_tvm/fuse_te.py [BOARD]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from running import Board, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import graph, te
from mlc_deploy.board.connect import target_of
from mlc_deploy.graph import op
from mlc_deploy.ir import IRModule

W, BIAS = data(32, 24, seed=1), data(24, seed=2)


def add_te(x: te.Tensor, b: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] + b[j], name="add")


def relu_te(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i, j: te.max(x[i, j], 0.0), name="relu")


def transpose_te(x: te.Tensor) -> Any:
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i], name="transpose")


def module(emit: Callable[[graph.BlockBuilder, graph.Var], Any]) -> IRModule:
    bb = graph.BlockBuilder()
    x = graph.Var("x", graph.tensor_type((4, 32)))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(emit(bb, x))
        bb.emit_func_output(y)
    return bb.get()


def dense_add_relu(bb: graph.BlockBuilder, x: graph.Var) -> Any:
    y = bb.emit(op.dense(x, W, transpose_b=False))
    return bb.emit_te(relu_te, bb.emit_te(add_te, y, BIAS))


def transpose_matmul_softmax(bb: graph.BlockBuilder, x: graph.Var) -> Any:
    y = bb.emit_te(transpose_te, x)
    return bb.emit(op.softmax(bb.emit(op.matmul(y, W[:4] / 8)), axis=-1))


def main(board: Board = "local://") -> None:
    x = data(4, 32)
    e = np.exp(x.T @ W[:4] / 8)
    with connected(board) as session:
        for emit, kernels, expected in (
            (dense_add_relu, ["dense_add_te_relu_te"], np.maximum(x @ W + BIAS, 0)),
            (transpose_matmul_softmax, ["transpose_dense", "softmax"], e / e.sum(1, keepdims=True)),
        ):
            ex = mlc.compile(module(emit), target_of(session.device))
            assert list(ex.program.kernels) == kernels
            found = mlc.VirtualMachine(ex, session)["main"](x)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    command(main)
