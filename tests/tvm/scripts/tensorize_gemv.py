"""An intrinsic by TensorIntrin.register, and tensorize."""
import numpy as np
import tvm
from tvm.script import tir as T


@T.prim_func
def dot4_desc(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)
    B = T.match_buffer(b, (4,), "float32", offset_factor=1)
    C = T.match_buffer(c, (4,), "float32", offset_factor=1)
    with T.block("root"):
        T.reads(A[0:4], B[0:4])
        T.writes(C[0:4])
        for i in range(4):
            with T.block("update"):
                vi = T.axis.spatial(4, i)
                C[vi] = A[vi] * B[vi]


@T.prim_func
def dot4_impl(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)
    B = T.match_buffer(b, (4,), "float32", offset_factor=1)
    C = T.match_buffer(c, (4,), "float32", offset_factor=1)
    with T.block("root"):
        T.reads(A[0:4], B[0:4])
        T.writes(C[0:4])
        C[T.ramp(0, 1, 4)] = A[T.ramp(0, 1, 4)] * B[T.ramp(0, 1, 4)]


tvm.tir.TensorIntrin.register("test.mul4", dot4_desc, dot4_impl, override=True)


@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = A[vi] * B[vi]


sch = tvm.tir.Schedule(main)
(i,) = sch.get_loops(sch.get_block("C"))
_, inner = sch.split(i, [None, 4])
sch.tensorize(inner, "test.mul4")
f = tvm.build(sch.mod["main"], target="llvm")
a, b = (np.random.rand(64).astype("float32") for _ in range(2))
c = tvm.nd.empty((64,))
f(tvm.nd.array(a), tvm.nd.array(b), c)
np.testing.assert_allclose(c.numpy(), a * b, rtol=1e-6)
