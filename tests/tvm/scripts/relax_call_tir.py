"""A graph that calls loops, and functions registered in Python."""
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tir as T


@tvm.register_func("env.relu", override=True)
def env_relu(x, out):
    np.maximum(x, 0, out=out)


@I.ir_module
class MyModule:
    @T.prim_func
    def linear0(x: T.handle, w: T.handle, b: T.handle, z: T.handle):
        m, n, k = T.int64(), T.int64(), T.int64()
        X = T.match_buffer(x, (1, m), "float32")
        W = T.match_buffer(w, (n, m), "float32")
        B = T.match_buffer(b, (n,), "float32")
        Z = T.match_buffer(z, (1, n), "float32")
        Y = T.alloc_buffer((1, n), "float32")
        for i, j, r in T.grid(1, n, m):
            with T.block("Y"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vr] * W[vj, vr]
        for i, j in T.grid(1, n):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]

    @R.function
    def main(x: R.Tensor((1, 784), "float32"), w0: R.Tensor((128, 784), "float32"), b0: R.Tensor((128,), "float32")):
        cls = MyModule
        with R.dataflow():
            lv0 = R.call_tir(cls.linear0, (x, w0, b0), out_sinfo=R.Tensor((1, 128), "float32"))
            out = R.call_dps_packed("env.relu", (lv0,), R.Tensor((1, 128), "float32"))
            R.output(out)
        return out


rng = np.random.default_rng(0)
params = {"w0": rng.normal(size=(128, 784)).astype("float32"), "b0": rng.normal(size=128).astype("float32")}
mod = relax.transform.BindParams("main", {k: tvm.nd.array(v) for k, v in params.items()})(MyModule)
ex = relax.build(mod, target="llvm")
vm = relax.VirtualMachine(ex, tvm.cpu())
x = rng.normal(size=(1, 784)).astype("float32")
out = vm["main"](tvm.nd.array(x))
np.testing.assert_allclose(out.numpy(), np.maximum(x @ params["w0"].T + params["b0"], 0), rtol=1e-4, atol=1e-3)
