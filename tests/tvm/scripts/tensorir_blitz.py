"""TensorIR: a module as a script, scheduled (0.8 to 0.18)."""
import numpy as np
import tvm
from tvm.ir.module import IRModule
from tvm.script import tir as T


@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def main(a: T.handle, b: T.handle):
        T.func_attr({"global_symbol": "main", "tir.noalias": True})
        A = T.match_buffer(a, (8,), dtype="float32")
        B = T.match_buffer(b, (8,), dtype="float32")
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] + 1.0


ir_module = MyModule
assert isinstance(ir_module, IRModule)
print(ir_module.script())
mod = tvm.build(ir_module, target="llvm")
a = tvm.nd.array(np.arange(8).astype("float32"))
b = tvm.nd.array(np.zeros((8,)).astype("float32"))
mod(a, b)
np.testing.assert_array_equal(b.numpy(), a.numpy() + 1)
sch = tvm.tir.Schedule(ir_module)
block_b = sch.get_block("B")
(i,) = sch.get_loops(block_b)
i_0, i_1, i_2 = sch.split(i, factors=[2, 2, 2])
sch.reorder(i_0, i_2, i_1)
sch.parallel(i_0)
print(sch.mod.script())
mod = tvm.build(sch.mod, target="llvm")
b = tvm.nd.array(np.zeros((8,)).astype("float32"))
mod["main"](a, b)
np.testing.assert_array_equal(b.numpy(), a.numpy() + 1)
