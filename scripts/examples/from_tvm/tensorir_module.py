"""A module of loops as script: split, reorder, decompose_reduction, reverse_compute_at.

python scripts/examples/from_tvm/tensorir_module.py [BOARD]
"""

# mypy: disable-error-code="valid-type, no-untyped-def, arg-type, attr-defined"

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T


@I.ir_module
class MyModule:
    @T.prim_func
    def main(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        D: T.Buffer((64, 64), "float32"),
    ):
        C = T.alloc_buffer((64, 64), "float32")
        for i, j, k in T.grid(64, 64, 64):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
        for i, j in T.grid(64, 64):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    @T.prim_func
    def twice(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("Y"):
                vi = T.axis.spatial(8, i)
                Y[vi] = X[vi] * T.float32(2)


def main(board: Board = "local://") -> None:
    sch = mlc.Schedule(MyModule)
    block = sch.get_block("C", "main")
    i, j, k = sch.get_loops(block)
    j0, j1 = sch.split(j, factors=[None, 4])
    sch.reorder(j0, k, j1)
    sch.reverse_compute_at(sch.get_block("D", "main"), j0)
    sch.decompose_reduction(block, k)
    sch.work_on("twice")
    sch.vectorize(sch.get_loops("Y")[0])
    sch.mod.show()
    module = mlc.IRModule(dict(MyModule.functions))
    module.update_func(module.get_global_var("main"), sch.mod["main"])
    assert list(mlc.IRModule.from_expr(module["main"])) == ["main"]
    x, y = data(64, 64), data(64, 64, seed=1)
    check(
        board,
        lambda target: mlc.build(module["main"], target=target),
        [x, y],
        (x @ y).clip(0),
    )


if __name__ == "__main__":
    command(main)
