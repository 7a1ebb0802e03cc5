"""A convolution by te with padding, on a CPU."""
import numpy as np
import tvm
from tvm import te

batch, in_channel, out_channel, in_size, kernel, pad, stride = 1, 4, 8, 10, 3, 1, 1
A = te.placeholder((batch, in_channel, in_size, in_size), name="A")
W = te.placeholder((out_channel, in_channel, kernel, kernel), name="W")
out_size = (in_size - kernel + 2 * pad) // stride + 1
Apad = te.compute(
    (batch, in_channel, in_size + 2 * pad, in_size + 2 * pad),
    lambda n, c, y, x: tvm.tir.if_then_else(
        tvm.tir.all(y >= pad, y - pad < in_size, x >= pad, x - pad < in_size),
        A[n, c, y - pad, x - pad],
        tvm.tir.const(0.0, "float32"),
    ),
    name="Apad",
)
rc = te.reduce_axis((0, in_channel), name="rc")
ry = te.reduce_axis((0, kernel), name="ry")
rx = te.reduce_axis((0, kernel), name="rx")
B = te.compute(
    (batch, out_channel, out_size, out_size),
    lambda n, f, y, x: te.sum(Apad[n, rc, y * stride + ry, x * stride + rx] * W[f, rc, ry, rx], axis=[rc, ry, rx]),
    name="B",
)
s = te.create_schedule(B.op)
n, f, y, x = s[B].op.axis
fo, fi = s[B].split(f, nparts=2)
s[B].reorder(n, fo, y, x, fi)
s[B].parallel(s[B].fuse(n, fo))
s[Apad].compute_inline()
func = tvm.build(s, [A, W, B], "llvm")
a = np.random.uniform(size=(batch, in_channel, in_size, in_size)).astype("float32")
w = np.random.uniform(size=(out_channel, in_channel, kernel, kernel)).astype("float32")
b = tvm.nd.array(np.zeros((batch, out_channel, out_size, out_size), "float32"))
func(tvm.nd.array(a), tvm.nd.array(w), b)
padded = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))
windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
np.testing.assert_allclose(b.numpy(), np.einsum("nchwyx,fcyx->nfhw", windows, w), rtol=1e-4)
