"""A template, its space, tuned and applied (0.8 to 0.19)."""
import os
import tempfile

import numpy as np
import tvm
from tvm import autotvm, te


@autotvm.template("tutorial/matmul")
def matmul(N, L, M, dtype):
    A = te.placeholder((N, L), name="A", dtype=dtype)
    B = te.placeholder((L, M), name="B", dtype=dtype)
    k = te.reduce_axis((0, L), name="k")
    C = te.compute((N, M), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    y, x = s[C].op.axis
    k = s[C].op.reduce_axis[0]
    cfg = autotvm.get_config()
    cfg.define_split("tile_y", y, num_outputs=2)
    cfg.define_split("tile_x", x, num_outputs=2)
    yo, yi = cfg["tile_y"].apply(s, C, y)
    xo, xi = cfg["tile_x"].apply(s, C, x)
    s[C].reorder(yo, xo, k, yi, xi)
    return s, [A, B, C]


N, L, M = 32, 32, 32
task = autotvm.task.create("tutorial/matmul", args=(N, L, M, "float32"), target="llvm")
print(task.config_space)
measure_option = autotvm.measure_option(builder="local", runner=autotvm.LocalRunner(number=2, repeat=1))
tuner = autotvm.tuner.RandomTuner(task)
log = os.path.join(tempfile.mkdtemp(), "matmul.log")
tuner.tune(n_trial=4, measure_option=measure_option, callbacks=[autotvm.callback.log_to_file(log)])
with autotvm.apply_history_best(log):
    with tvm.target.Target("llvm"):
        s, arg_bufs = matmul(N, L, M, "float32")
        func = tvm.build(s, arg_bufs)
a_np = np.random.uniform(size=(N, L)).astype(np.float32)
b_np = np.random.uniform(size=(L, M)).astype(np.float32)
c_tvm = tvm.nd.empty((N, M))
func(tvm.nd.array(a_np), tvm.nd.array(b_np), c_tvm)
np.testing.assert_allclose(c_tvm.numpy(), a_np.dot(b_np), rtol=1e-4)
