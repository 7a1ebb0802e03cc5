"""tensorize by a declared intrinsic: dot products of int8 in int32, four rows at once.

On 32-bit NEON its sums are vmull, vpadal and vpadd; elsewhere plain vectors of the same shape.

    python scripts/examples/from_tvm/tensorize.py [BOARD]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from running import Board, check, command, data

import mlc_deploy as mlc
from mlc_deploy import te

ROWS, DEPTH = 4, 8


def dot_rows(neon: bool) -> te.DeclaredIntrin:
    """c[i] = sum over k of a[k] * b[i, k], of 8 int8 each."""
    a = te.placeholder((DEPTH,), "int8", name="a")
    b = te.placeholder((ROWS, DEPTH), "int8", name="b")
    k = te.reduce_axis((0, DEPTH), name="k")
    c = te.compute(
        (ROWS,),
        lambda i: te.sum(a[k].astype("int32") * b[i, k].astype("int32"), axis=k),
        name="c",
    )

    def sums_of_pairs(ins: Sequence[Any], i: int) -> Any:
        """A row's products, added up in two lanes, by instructions of 32-bit NEON."""
        x, y = ins[0].vload(0, "int8x8"), ins[1].vload([i, 0], "int8x8")
        products = te.call_llvm_pure_intrin("int16x8", "llvm.arm.neon.vmulls", x, y)
        zero = te.vector_const(0, "int32x4")
        sums = te.call_llvm_pure_intrin("int32x4", "llvm.arm.neon.vpadals", zero, products)
        halves = te.vectorlow("int32x2", sums), te.vectorhigh("int32x2", sums)
        return te.call_llvm_pure_intrin("int32x2", "llvm.arm.neon.vpadd", *halves)

    def plain(ins: Sequence[Any], i: int) -> Any:
        total = te.vector_const(0, "int32")
        for n in range(DEPTH):
            total = total + ins[0][n].astype("int32") * ins[1][i, n].astype("int32")
        return total

    def intrin_func(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        ib = te.ir_builder.create()
        if neon:
            for i in range(0, ROWS, 2):
                pairs = [sums_of_pairs(ins, i + n) for n in range(2)]
                both = te.call_llvm_pure_intrin("int32x2", "llvm.arm.neon.vpadd", *pairs)
                ib.emit(outs[0].vstore(i, both))
        else:
            for i in range(ROWS):
                ib.emit(outs[0].vstore(i, plain(ins, i)))
        return ib.get()

    apart = te.decl_buffer(b.shape, "int8", strides=[te.var("s"), 1])
    return te.decl_tensor_intrin(c.op, intrin_func, "dot_rows", binds={b: apart})


def scheduled(neon: bool) -> tuple[te.StageSchedule, list[te.Tensor]]:
    A = te.placeholder((12, DEPTH), "int8", name="A")
    B = te.placeholder((16, DEPTH), "int8", name="B")
    k = te.reduce_axis((0, DEPTH), name="k")
    C = te.compute(
        (12, 16),
        lambda i, j: te.sum(A[i, k].astype("int32") * B[j, k].astype("int32"), axis=k),
        name="C",
    )
    s = te.create_schedule(C.op)
    _, inner = s[C].split(C.op.axis[1], factor=ROWS)
    s[C].tensorize(inner, dot_rows(neon))
    return s, [A, B, C]


def main(board: Board = "local://") -> None:
    def build(target: Any) -> mlc.Library:
        s, args = scheduled(neon=target.arch == "arm")
        return mlc.build(s, args, target)

    assembly = build(mlc.Target("armv7a")).get_source("asm")
    assert "vmull.s8" in assembly and "vpadd.i32" in assembly
    x, y = data(12, DEPTH, dtype="int8"), data(16, DEPTH, seed=1, dtype="int8")
    check(board, build, [x, y], x.astype("int32") @ y.astype("int32").T)


if __name__ == "__main__":
    command(main)
