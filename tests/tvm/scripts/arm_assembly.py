"""Targets of ARM boards; the assembly of a kernel."""
import tvm
from tvm import te

n = 1024
A = te.placeholder((n,), name="A")
B = te.placeholder((n,), name="B")
C = te.compute((n,), lambda i: A[i] * B[i] + A[i], name="C")
s = te.create_schedule(C.op)
xo, xi = s[C].split(C.op.axis[0], factor=4)
s[C].vectorize(xi)
for target in (
    tvm.target.Target("llvm -device=arm_cpu -mtriple=aarch64-linux-gnu -mattr=+neon"),
    tvm.target.arm_cpu("rasp4b64"),
):
    with target:
        func = tvm.build(s, [A, B, C], name="mla")
    asm = func.get_source("asm")
    assert "fmla" in asm or "fmul" in asm, asm
    print(target.kind.name, target.keys)
