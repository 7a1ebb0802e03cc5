"""A recurrence by te.scan."""
import tvm
from tvm import te

m, n = te.var("m"), te.var("n")
X = te.placeholder((m, n), name="X")
s_state = te.placeholder((m, n))
s_init = te.compute((1, n), lambda _, i: X[0, i])
s_update = te.compute((m, n), lambda t, i: s_state[t - 1, i] + X[t, i])
s_scan = te.scan(s_init, s_update, s_state, inputs=[X])
s = te.create_schedule(s_scan.op)
fscan = tvm.build(s, [X, s_scan], "llvm", name="myscan")
