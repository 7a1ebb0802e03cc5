"""What local buffers hold while code is emitted: fewer loads and stores, of the same results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.passes.context import PassContext
from mlc_deploy.script import from_script

if TYPE_CHECKING:
    from mlc_rpc import Session

SUMS = "\n".join(
    f"S[T.Ramp({at}, 1, 4)] = S[T.Ramp({at}, 1, 4)] + A[T.Ramp(k * 32 + {n + at}, 1, 4)]"
    for n in (0, 8, 16)
    for at in (0, 4)
)
# name -> statements for each k < 4, and how often S is then read and written: at most once per
# vector where only whole vectors are used
BODIES = {
    "sums": (SUMS, 2, 2),
    "covered": ("S[T.Ramp(0, 1, 4)] = A[T.Ramp(k, 1, 4)]\n" * 3, 0, 1),
    "copies": ("S[0] = A[k]\nS[1] = S[0]\nS[2] = S[1] + S[0]\nB[k] = S[2]", 0, 3),
    "an element of a vector": (
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(k, 1, 4)]\nS[2] = 3.0\nB[T.Ramp(k * 4, 1, 4)] = "
        "S[T.Ramp(0, 1, 4)]", 1, 2,
    ),
    "a vector across two": (
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(k, 1, 4)]\nS[T.Ramp(4, 1, 4)] = A[T.Ramp(k + 9, 1, 4)]\n"
        "B[T.Ramp(k * 4, 1, 4)] = S[T.Ramp(2, 1, 4)]\nS[T.Ramp(0, 1, 4)] = A[T.Ramp(k + 1, 1, 4)]",
        1, 3,
    ),
    "an index of the loop": ("S[1] = A[k]\nS[k] = A[k + 7]\nB[k] = S[1]", 1, 2),
    "an index that is read": ("S[1] = A[k]\nB[k] = S[k]\nS[1] = A[k + 2]\nB[k + 8] = S[1]", 1, 2),
    "every second": (
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(k, 1, 4)]\nS[T.Ramp(0, 1, 4)] = A[T.Ramp(k + 5, 1, 4)]\n"
        "B[T.Ramp(k * 2, 1, 2)] = S[T.Ramp(0, 2, 2)]", 2, 1,
    ),
    "a branch": (
        "S[1] = A[k]\nif k > 1:\n    S[1] = A[k + 3]\n    S[1] = S[1] + 1.0\nB[k] = S[1]", 1, 2
    ),
}  # fmt: skip


def program(body: str) -> PrimFunc:
    text = "\n        ".join(["for k in range(4):", *body.strip().splitlines()])
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((256,), "float32"), B: T.Buffer((32,), "float32")):
    T.func_attr({{"tir.is_scheduled": True}})
    S = T.alloc_buffer((8,), "float32", scope="local")
    for z in T.vectorized(8):
        S[z] = 0.0
    {text}
    for z in T.vectorized(8):
        B[z + 24] = S[z]
""")
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize("name", BODIES)
def test_registers_hold_what_was_stored(local: Session, name: str) -> None:
    body, reads, writes = BODIES[name]
    func = program(body)
    with PassContext(disabled_pass=["unroll_registers", "unroll_loops"]):
        library = mlc.build(func, target="host")
        text = library.llvm_ir
        flat = lower(func).body
    blocks = re.split(r"\n(?=\S+:\n)", text[text.index("k.body:") : text.index("\n}")])
    inside = "\n".join(block for block in blocks if not block.startswith("k.end:"))
    lines = text.splitlines()
    made = [line.split()[0] for line in lines if 'ptr %"S"' in line and "= getelementptr" in line]
    used = [s for s in inside.splitlines() if any(f"ptr {p}," in s for p in ('%"S"', *made))]
    assert sum(" = load " in s for s in used) == reads
    assert sum(s.strip().startswith("store ") for s in used) == writes
    given = np.random.default_rng(0).standard_normal(256, np.float32)
    wanted = np.zeros(32, np.float32)
    run(flat, given, wanted)
    out = local.tensor(np.zeros(32, np.float32))
    local.load(library)["main"](local.tensor(given), out)
    np.testing.assert_array_equal(out.numpy(), wanted)
