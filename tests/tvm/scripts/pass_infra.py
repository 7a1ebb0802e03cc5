"""Passes in sequence, a context, options."""
import numpy as np
import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        y = R.add(x, R.const(1.0, "float32"))
        z = R.multiply(y, R.const(2.0, "float32"))
        return R.nn.silu(z)


seq = tvm.transform.Sequential(
    [relax.transform.FoldConstant(), relax.transform.LegalizeOps(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
)
with tvm.transform.PassContext(opt_level=3):
    mod = seq(Module)
    ex = relax.build(mod, "llvm")
vm = relax.VirtualMachine(ex, tvm.cpu())
x = np.random.rand(4, 8).astype("float32")
v = (x + 1) * 2
np.testing.assert_allclose(vm["main"](tvm.nd.array(x)).numpy(), v / (1 + np.exp(-v)), rtol=1e-5)

A = te.placeholder((64,), name="A")
B = te.compute((64,), lambda i: A[i] + 1, name="B")
s = te.create_schedule(B.op)
s[B].unroll(s[B].split(B.op.axis[0], factor=4)[1])
with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
    f = tvm.build(s, [A, B], "llvm")
