"""A builder that calls functions of te; R.nn words beside them; any batch."""
import numpy as np
import tvm
from tvm import relax, te, topi


def te_matmul(A, B):
    k = te.reduce_axis((0, A.shape[1]), name="k")
    return te.compute((A.shape[0], B.shape[1]), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="matmul")


A = relax.Var("A", relax.TensorStructInfo((16, 32), "float32"))
B = relax.Var("B", relax.TensorStructInfo((32, 8), "float32"))
bb = relax.BlockBuilder()
with bb.function("main"):
    with bb.dataflow():
        C = bb.emit_te(te_matmul, A, B)
        D = bb.emit_te(topi.nn.relu, C)
        R = bb.emit_output(relax.op.sum(D, axis=1))
    bb.emit_func_output(R, params=[A, B])
mod = bb.get()
mod.show()
vm = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
a, b = (np.random.randn(*s).astype("float32") for s in ((16, 32), (32, 8)))
out = vm["main"](tvm.nd.array(a), tvm.nd.array(b)).numpy()
np.testing.assert_allclose(out, np.maximum(a @ b, 0).sum(1), rtol=1e-3, atol=1e-3)
