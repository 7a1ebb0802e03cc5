"""Functions from tensors to tensors."""
import numpy as np
import tvm
import tvm.testing
from tvm import te, topi

n, m = 12, 20
A = te.placeholder((n, m), name="A")
C = topi.sum(A, axis=1)
a_np = np.random.uniform(size=(n, m)).astype(A.dtype)
s = te.create_schedule(C.op)
f = tvm.build(s, [A, C], "llvm")
c = tvm.nd.empty((n,))
f(tvm.nd.array(a_np), c)
tvm.testing.assert_allclose(c.numpy(), a_np.sum(1), rtol=1e-5)

x, y = 10, 6
a = te.placeholder((x, y, y), name="a")
b = te.placeholder((y, y), name="b")
d = topi.multiply(topi.add(a, b), b)
s = te.create_schedule(d.op)
f = tvm.build(s, [a, b, d], "llvm")
a_np, b_np = (np.random.uniform(size=t).astype("float32") for t in ((x, y, y), (y, y)))
out = tvm.nd.empty((x, y, y))
f(tvm.nd.array(a_np), tvm.nd.array(b_np), out)
tvm.testing.assert_allclose(out.numpy(), (a_np + b_np) * b_np, rtol=1e-5)
