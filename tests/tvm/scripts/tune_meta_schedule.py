"""A function in TensorIR, tuned by search."""
import tempfile

import numpy as np
import tvm
from tvm import meta_schedule as ms
from tvm.script import ir as I
from tvm.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32"), C: T.Buffer((32, 32), "float32")):
        for i, j, k in T.grid(32, 32, 32):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


target = tvm.target.Target("llvm --num-cores 1")
with tempfile.TemporaryDirectory() as work_dir:
    database = ms.tune_tir(mod=Module, target=target, work_dir=work_dir, max_trials_global=2, num_trials_per_iter=2, strategy="replay-trace")
    sch = ms.tir_integration.compile_tir(database, Module, target)
lib = tvm.build(sch.mod, target)
a, b = (np.random.rand(32, 32).astype("float32") for _ in range(2))
c = tvm.nd.empty((32, 32))
lib["main"](tvm.nd.array(a), tvm.nd.array(b), c)
np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4)
