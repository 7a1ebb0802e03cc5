"""A strategy of one's own: how an operator is computed on the machines of a key, with a level.

python scripts/examples/from_tvm/own_strategy.py [BOARD]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from running import Board, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import graph, te
from mlc_deploy.board.connect import target_of
from mlc_deploy.graph import op
from mlc_deploy.graph.lower import lower_kernel
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops import Attrs, Plan, TensorType, register_implementation
from mlc_targets import Target


@dataclass(frozen=True, kw_only=True)
class Columns(Plan):
    """Four columns at a time, for each step of the sum."""

    name = "dense_columns"

    def compute(self, inputs: Sequence[te.Tensor]) -> Sequence[te.Tensor]:
        a, b = inputs
        k = te.reduce_axis((0, a.shape[1]), "k")
        shape = (a.shape[0], b.shape[1])
        return [te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], k), name="columns")]

    def schedule(self, func: PrimFunc) -> PrimFunc:
        sch = mlc.Schedule(func)
        i, j, k = sch.get_loops("columns")
        j0, j1 = sch.split(j, [None, 4])
        sch.reorder(i, j0, k, j1)
        sch.decompose_reduction("columns", k)
        sch.vectorize(j1)
        return sch.func


def plan_columns(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Plan | None:
    if types[0].dtype != "float32" or attrs["transpose_b"] or types[1].sizes[1] % 4:
        return None  # others take it
    given = tuple(attrs.items())
    return Columns(op="dense", types=tuple(types), stated=given, target=target)


def main(board: Board = "local://") -> None:
    register_implementation("dense", "lab", "dense_columns", plan_columns, level=15)
    bb = graph.BlockBuilder()
    x, w = (graph.Var(n, graph.tensor_type(s)) for n, s in (("x", (4, 8)), ("w", (8, 16))))
    with bb.function("main", [x, w]):
        bb.emit_func_output(bb.emit(op.relu(bb.emit(op.dense(x, w, transpose_b=False)))))
    with connected(board) as session:
        target = str(target_of(session.device)).replace("-keys=", "-keys=lab,")
        ex = mlc.compile(bb.get(), target)
        text = str(lower_kernel(ex.program.kernels["dense_relu"], ex.target))
        assert 'T.block("columns' in text  # it is the strategy's
        given = data(4, 8), data(8, 16, seed=1)
        found = mlc.VirtualMachine(ex, session)["main"](*given)
    np.testing.assert_array_equal(found, np.maximum(given[0] @ given[1], 0))


if __name__ == "__main__":
    command(main)
