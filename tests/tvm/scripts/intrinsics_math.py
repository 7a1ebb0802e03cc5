"""Functions of numbers, and a choice."""
import numpy as np
import tvm
from tvm import te

n = te.var("n")
A = te.placeholder((n,), name="A")
B = te.compute(A.shape, lambda i: te.exp(A[i]), name="B")
C = te.compute(A.shape, lambda i: tvm.tir.if_then_else(B[i] > 1.5, tvm.tir.sqrt(B[i]), te.max(A[i], 0.25)), name="C")
s = te.create_schedule(C.op)
s[B].compute_inline()
f = tvm.build(s, [A, C], "llvm", name="myexp")
x = np.linspace(-1, 1, 40).astype("float32")
out = tvm.nd.array(np.zeros_like(x))
f(tvm.nd.array(x), out)
np.testing.assert_allclose(out.numpy(), np.where(np.exp(x) > 1.5, np.sqrt(np.exp(x)), np.maximum(x, 0.25)), rtol=1e-5)
assert "exp" in f.get_source("ll") or f.get_source("ll")
