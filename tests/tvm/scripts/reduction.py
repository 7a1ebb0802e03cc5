"""Sums of rows: split of a reduction axis, rfactor."""
import numpy as np
import tvm
import tvm.testing
from tvm import te

n, m = te.var("n"), te.var("m")
A = te.placeholder((n, m), name="A")
k = te.reduce_axis((0, m), "k")
B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
xo, xi = s[B].split(B.op.axis[0], factor=32)
print(tvm.lower(s, [A, B], simple_mode=True))

A = te.placeholder((128, 64), name="A")
k = te.reduce_axis((0, 64), "k")
B = te.compute((128,), lambda i: te.sum(A[i, k], axis=k), name="B")
s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
BF = s.rfactor(B, ki)
fn = tvm.build(s, [A, B], "llvm", name="sum")
dev = tvm.cpu(0)
a = tvm.nd.array(np.random.uniform(size=(128, 64)).astype(A.dtype), dev)
b = tvm.nd.array(np.zeros(128, dtype=B.dtype), dev)
fn(a, b)
tvm.testing.assert_allclose(b.numpy(), np.sum(a.numpy(), axis=1), rtol=1e-4)
