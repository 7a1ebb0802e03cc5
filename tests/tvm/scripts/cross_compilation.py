"""A library exported, uploaded to a device, loaded and timed there."""
import numpy as np
import tvm
from tvm import rpc, te
from tvm.contrib import utils

n = tvm.runtime.convert(1024) if hasattr(tvm.runtime, "convert") else 1024
A = te.placeholder((n,), name="A")
B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
s = te.create_schedule(B.op)
local_demo = True
target = "llvm" if local_demo else "llvm -mtriple=armv7l-linux-gnueabihf"
func = tvm.build(s, [A, B], target=target, name="add_one")
temp = utils.tempdir()
path = temp.relpath("lib.tar")
func.export_library(path)
remote = rpc.LocalSession() if local_demo else rpc.connect("10.77.1.162", 9090)
remote.upload(path)
func = remote.load_module("lib.tar")
dev = remote.cpu()
a = tvm.nd.array(np.random.uniform(size=1024).astype(A.dtype), dev)
b = tvm.nd.array(np.zeros(1024, dtype=A.dtype), dev)
func(a, b)
np.testing.assert_equal(b.numpy(), a.numpy() + 1)
time_f = func.time_evaluator(func.entry_name, dev, number=10)
cost = time_f(a, b).mean
print("%g secs/op" % cost)
