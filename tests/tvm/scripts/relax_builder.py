"""A network by BlockBuilder and relax.op, built and run by the virtual machine."""
import numpy as np
import tvm
from tvm import relax

bb = relax.BlockBuilder()
x = relax.Var("x", relax.TensorStructInfo((1, 784), "float32"))
w0 = relax.const(np.random.randn(128, 784).astype("float32") * 0.05)
b0 = relax.const(np.zeros(128, "float32"))
w1 = relax.const(np.random.randn(10, 128).astype("float32") * 0.05)
with bb.function("main", [x]):
    with bb.dataflow():
        lv = bb.emit(relax.op.linear(x, w0, b0))
        lv = bb.emit(relax.op.nn.relu(lv))
        lv = bb.emit(relax.op.matmul(lv, relax.op.permute_dims(w1)))
        out = bb.emit_output(relax.op.nn.softmax(lv))
    bb.emit_func_output(out)
mod = bb.get()
mod.show()
mod = relax.transform.LegalizeOps()(mod)
ex = relax.build(mod, target="llvm")
vm = relax.VirtualMachine(ex, tvm.cpu())
data = np.random.rand(1, 784).astype("float32")
result = vm["main"](tvm.nd.array(data)).numpy()
assert result.shape == (1, 10)
np.testing.assert_allclose(result.sum(), 1, rtol=1e-5)
