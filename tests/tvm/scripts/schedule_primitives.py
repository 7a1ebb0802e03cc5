"""split, tile, fuse, reorder, compute_at, compute_inline, compute_root."""
import numpy as np
import tvm
from tvm import te

n = te.var("n")
m = te.var("m")
A = te.placeholder((m, n), name="A")
B = te.placeholder((m, n), name="B")
C = te.compute((m, n), lambda i, j: A[i, j] * B[i, j], name="C")
s = te.create_schedule([C.op])
xo, yo, xi, yi = s[C].tile(C.op.axis[0], C.op.axis[1], x_factor=10, y_factor=5)
s[C].reorder(xi, yo, xo, yi)
print(tvm.lower(s, [A, B, C], simple_mode=True))
f = tvm.build(s, [A, B, C], "llvm")
x, y = (np.random.rand(20, 15).astype("float32") for _ in range(2))
z = tvm.nd.empty((20, 15))
f(tvm.nd.array(x), tvm.nd.array(y), z)
np.testing.assert_allclose(z.asnumpy(), x * y, rtol=1e-6)

A = te.placeholder((m,), name="A")
B = te.compute((m,), lambda i: A[i] + 1, name="B")
C = te.compute((m,), lambda i: B[i] * 2, name="C")
for way in ("inline", "at", "root"):
    s = te.create_schedule(C.op)
    if way == "inline":
        s[B].compute_inline()
    elif way == "at":
        s[B].compute_at(s[C], C.op.axis[0])
    else:
        s[B].compute_at(s[C], C.op.axis[0])
        s[B].compute_root()
    print(tvm.lower(s, [A, C], simple_mode=True))
    f = tvm.build(s, [A, C], "llvm")
    x = np.random.rand(33).astype("float32")
    z = tvm.nd.empty((33,))
    f(tvm.nd.array(x), z)
    np.testing.assert_allclose(z.numpy(), (x + 1) * 2, rtol=1e-6)
