"""create_prim_func, a schedule of it, its trace."""
import numpy as np
import tvm
from tvm import te, tir

A = te.placeholder((128, 128), name="A")
B = te.placeholder((128, 128), name="B")
k = te.reduce_axis((0, 128), name="k")
Y = te.compute((128, 128), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="Y")
C = te.compute((128, 128), lambda i, j: te.max(Y[i, j], tir.const(0, "float32")), name="C")
func = te.create_prim_func([A, B, C]).with_attr({"global_symbol": "mm_relu"})
mod = tvm.IRModule({"mm_relu": func})
sch = tir.Schedule(mod)
block_Y = sch.get_block("Y", func_name="mm_relu")
i, j, k = sch.get_loops(block_Y)
j0, j1 = sch.split(j, factors=[None, 4])
sch.reorder(j0, k, j1)
block_C = sch.get_block("C", "mm_relu")
sch.reverse_compute_at(block_C, j0)
sch.decompose_reduction(block_Y, k)
print(sch.trace)
lib = tvm.build(sch.mod, target="llvm")
a, b = (np.random.randn(128, 128).astype("float32") for _ in range(2))
c = tvm.nd.empty((128, 128), dtype="float32")
lib["mm_relu"](tvm.nd.array(a), tvm.nd.array(b), c)
np.testing.assert_allclose(c.numpy(), np.maximum(a @ b, 0), rtol=1e-3, atol=1e-3)
