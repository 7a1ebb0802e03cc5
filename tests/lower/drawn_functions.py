"""Random functions full of what loop passes look for: schedules, and flat loops as kernels have
them, on A, Q and I; the results are B and W."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy.ir import PrimFunc
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule import Schedule
from mlc_deploy.script import from_script
from tests.schedule.draws import drawn_schedule
from tests.schedule.small_programs import chain

SIZE = 512


@dataclass(frozen=True, slots=True)
class Drawn:
    """A function, its arguments, and what they are after it ran."""

    func: PrimFunc
    given: list[NDArray[Any]]
    expected: list[NDArray[Any]]

    def check(self, func: PrimFunc) -> None:
        """func computes the same."""
        found = [a.copy() for a in self.given]
        run(func, *found)
        for wanted, got in zip(self.expected, found, strict=True):
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=str(func))
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=str(func))


# Lines of a program. AT stands for a number that is drawn, others for what they are in SHORT.
SHORT = (
    (r"NEXT", r"FOUR(A, k * 16 + 4)"),
    (r"FOUR\((\w), ([^()]*)\)", r"\1[T.Ramp(\2, 1, 4)]"),
    (r"EIGHT\((\w), ([^()]*)\)", r"\1[T.Ramp(\2, 1, 8)]"),
    (r"WIDE\(", r'T.Cast("int16x8", '),
    (
        r"QUAD\(([^()]*), (\d)\)",
        r'T.Shuffle([T.call_intrin("int32x4", "reinterpret", Q[T.Ramp(\1, 1, 16)])],'
        r" [\2, \2, \2, \2])",
    ),
    (
        r"BYTES\(([^()]*)\)",
        r'T.Cast("int8x8", T.min(T.max(T.nearbyint(A[T.Ramp(\1, 1, 8)])'
        r" + T.Broadcast(T.float32(3), 8), T.Broadcast(T.float32(-128), 8)),"
        r" T.Broadcast(T.float32(127), 8)))",
    ),
)
BODIES = {
    "a tile of sums": """
for i in range(2):
    for k in T.serial(4, annotations={"codegen.phase": True}):
        for r in T.unrolled(4):
            FOUR(S, r * 4) = FOUR(S, r * 4) + T.Broadcast(A[k * 16 + r + AT], 4) * FOUR(A, k * 16)
        for r in T.unrolled(4):
            FOUR(S, 16 + r * 4) = FOUR(S, 16 + r * 4) + T.Broadcast(A[k * 16 + r], 4) * NEXT
    for r in range(32):
        B[i * 32 + r] = S[r]
""",
    "products of halves": """
for k in range(6):
    EIGHT(V, 0) = EIGHT(V, 0) + WIDE(EIGHT(Q, k * 16 + AT)) * WIDE(EIGHT(Q, 128))
    EIGHT(V, 8) = EIGHT(V, 8) + WIDE(EIGHT(Q, k * 16 + AT + 8)) * WIDE(EIGHT(Q, 136))
for r in range(16):
    W[r] = V[r]
""",
    "taps of bytes": """
for k in range(3):
    FOUR(U, 0) = FOUR(U, 0) + QUAD(k * 16 + AT, 0) * T.Broadcast(3, 4)
    FOUR(U, 0) = FOUR(U, 0) + QUAD(k * 16 + AT, 3)
    FOUR(U, 4) = FOUR(U, 4) + QUAD(k * 16 + AT, 1) - QUAD(k * 16 + AT, 2)
    FOUR(U, 4) = FOUR(U, 4) + QUAD(k * 16 + AT + 8, 0) - QUAD(k * 16 + AT + 8, 1)
    FOUR(U, 0) = FOUR(U, 0) + QUAD(k * 16 + AT + 8, 2)
for r in range(8):
    W[r + 32] = T.Cast("int16", U[r])
""",
    "bytes of floats": """
for i in range(2):
    EIGHT(Q, i * 16 + 160) = BYTES(i * 16 + AT)
    EIGHT(Q, i * 16 + 168) = BYTES(i * 16 + AT + 8)
    EIGHT(B, i * 8) = T.Cast("float32x8", T.Cast("int32x8", BYTES(i * 8)) - T.Broadcast(3, 8))
""",
    "columns": """
for i in range(3):
    B[T.Ramp(i * 16, 1, 4)] = A[T.Ramp(i * 32 + AT, 8, 4)]
    B[T.Ramp(i * 16 + 4, 1, 4)] = A[T.Ramp(i * 32 + AT + 1, 8, 4)]
    B[T.Ramp(i * 16 + 8, 1, 4)] = A[T.Ramp(i * 32 + AT + 2, 8, 4)]
    B[T.Ramp(i * 16 + 12, 1, 4)] = A[T.Ramp(i * 32 + AT + 3, 8, 4)]
""",
    "every other": """
for i in range(4):
    B[T.Ramp(i * 8, 1, 8)] = A[T.Ramp(i * 16 + AT, 2, 8)] * 2.0
""",
    "sums around sums": """
for k in range(4):
    S[T.Ramp(0, 1, 4)] = T.Broadcast(0.0, 4)
    for j in range(4):
        S[T.Ramp(0, 1, 4)] = S[T.Ramp(0, 1, 4)] + A[T.Ramp(k * 32 + j * 4 + AT, 1, 4)]
    B[T.Ramp(k * 4, 1, 4)] = B[T.Ramp(k * 4, 1, 4)] + S[T.Ramp(0, 1, 4)]
""",
    "a gather": """
for i in T.serial(16, annotations={"codegen.phase": True}):
    if I[i] < AT + 4:
        B[i] = A[I[i]]
""",
    "long indices": """
for i in T.serial(T.int64(7)):
    for j in T.serial(T.int64(10)):
        if i * T.int64(10) + j < T.int64(64):
            B[i * T.int64(10) + j] = A[i * T.int64(10) + j] + T.cast(i, "float32")
""",
    "pragmas": """
for i in T.serial(4, annotations={"pragma_auto_unroll_max_step": 16}):
    for j in T.serial(6, annotations={"prefetch": [["A", 2]]}):
        B[i * 6 + j] = A[i * 12 + j + AT]
""",
    "shared by tasks": """
for t in T.parallel(6):
    for j in T.serial(4, annotations={"codegen.kept": 2}):
        B[t * 8 + j] = A[t // 2 * 8 + j + AT]
    for j in T.serial(4, annotations={"codegen.kept": 3}):
        B[t * 8 + j + 4] = A[t * 8 + j + AT]
""",
    "fetched bit by bit": """
for i in T.serial(4, annotations={"prefetch_next": ["A"]}):
    for j in T.serial(6):
        for k in T.serial(4):
            B[i * 6 + j] = B[i * 6 + j] + A[i // 2 * 16 + k + AT]
""",
}


def flat(rng: Random) -> Drawn:
    """One of BODIES, or two one after the other."""
    names = rng.sample(sorted(BODIES), rng.randint(1, 2))
    body = "".join(BODIES[name].replace("AT", str(rng.choice((0, 1, 4)))) for name in names)
    for short, long in SHORT:
        body = re.sub(short, long, body)
    lines = "\n    ".join(body.strip().splitlines())
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer(({SIZE},), "float32"), Q: T.Buffer(({SIZE},), "int8"),
         I: T.Buffer((16,), "int32"), B: T.Buffer(({SIZE},), "float32"),
         W: T.Buffer(({SIZE},), "int16")):
    S = T.alloc_buffer((32,), "float32", scope="local")
    V = T.alloc_buffer((16,), "int16", scope="local")
    U = T.alloc_buffer((8,), "int32", scope="local")
    for z in range(32):
        S[z] = 0.0
    for z in range(16):
        V[z] = T.int16(0)
    for z in range(8):
        U[z] = 0
    {lines}
""")
    assert isinstance(func, PrimFunc)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given: list[NDArray[Any]] = [
        numbers.normal(size=SIZE).astype(np.float32),
        numbers.integers(-8, 8, SIZE).astype(np.int8),
        numbers.integers(0, 16, 16).astype(np.int32),
        np.zeros(SIZE, np.float32),
        np.zeros(SIZE, np.int16),
    ]
    return _drawn(func, given)


def scheduled(rng: Random) -> Drawn:
    """A schedule that was drawn."""
    found = drawn_schedule(rng.randrange(400))
    return Drawn(found.scheduled, list(found.inputs), list(found.expected))


def scratch(rng: Random) -> Drawn:
    """A stage in a buffer of its own, in rows that are aligned, or twice."""
    sch = Schedule(chain())
    sch.compute_at("B", sch.split("i_1", [None, rng.choice((2, 4))])[0])
    if rng.random() < 0.5:
        sch.storage_align("B", 0, 0, 8, 1)
    else:
        sch.annotate("B", "double_buffer_scope", 0)
    rows = np.arange(96, dtype=np.float32).reshape(8, 12)
    return _drawn(sch.func, [rows, np.zeros((8, 12), np.float32)])


def open_rows(rng: Random) -> Drawn:
    """Sums of rows of a length that the program does not know, in four parts each."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(n: T.int32, a: T.handle, B: T.Buffer((3,), "float32")):
    A = T.match_buffer(a, (3, n), "float32")
    for i, k in T.grid(3, n):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
""")
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    turns, lane = sch.split("k", [None, 4])
    parts = sch.rfactor(lane, 1)
    sch.decompose_reduction(parts, turns)
    sch.vectorize(lane)
    size = rng.randrange(50)
    rows = np.arange(3 * size, dtype=np.float32).reshape(3, size)
    return _drawn(sch.func, [np.array(size), rows, np.zeros(3, np.float32)])


def _drawn(func: PrimFunc, given: list[NDArray[Any]]) -> Drawn:
    expected = [a.copy() for a in given]
    run(func, *expected)
    return Drawn(func, given, expected)


def function(seed: int) -> Drawn:
    rng = Random(seed)
    return rng.choice((flat, flat, flat, scheduled, scratch, open_rows))(rng)
