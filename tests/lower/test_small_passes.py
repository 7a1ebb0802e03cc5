"""No-op removal, narrowing of indices and automatic unrolling: what each rewrites and leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import LowerError, PrimFunc, ScheduleError, te
from mlc_deploy.ir import For, Load, Store, statements, walk
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.lower.machine.lanes import pair_loads
from mlc_deploy.lower.narrow import narrow_indices
from mlc_deploy.lower.no_op import remove_no_ops
from mlc_deploy.script import from_script

Golden = Callable[..., None]


def program(body: str, scratch: str = "") -> PrimFunc:
    lines = "\n    ".join((scratch + body).strip().splitlines())
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    {lines}
""")
    assert isinstance(func, PrimFunc)
    return func


def before_and_after(func: PrimFunc, step: Callable[[PrimFunc], PrimFunc]) -> str:
    return f"{func}\n# =>\n{step(func)}"


SCRATCH = """
X = T.alloc_buffer((64,), "float32")
Y = T.alloc_buffer((64,), "float32")
"""
NO_OPS = """
for i in range(64):
    B[i] = B[i]
for i in range(64):
    B[i] = B[63 - i]
for i in range(64):
    X[i] = A[i]
    Y[i] = X[i]
with T.LetStmt(A[0]) as v:
    B[0] = 1.0
with T.LetStmt(A[1]) as w:
    B[1] = w
T.evaluate(A[2])
"""


def test_no_ops(golden: Golden) -> None:
    golden(before_and_after(program(NO_OPS, SCRATCH), remove_no_ops), "lower_no_ops")


def test_a_program_without_no_ops_stays_the_same() -> None:
    func = program("for i in range(64):\n    B[i] = A[i]")
    assert remove_no_ops(func) is func
    assert narrow_indices(func) is func


WIDE = """
for i in T.serial(T.int64(7)):
    for j in T.serial(T.int64(10)):
        if i * T.int64(10) + j < T.int64(64):
            B[i * T.int64(10) + j] = A[i * T.int64(10) + j] + T.cast(i, "float32")
"""
BEYOND = """
for i in T.serial(T.int64(64)):
    if i * T.int64(4294967296) < T.int64(4294967297):
        B[i] = A[i] + T.cast(i * T.int64(4294967296), "float32")
"""


@pytest.mark.parametrize("body", [WIDE, BEYOND])
def test_narrowing_keeps_the_numbers(body: str) -> None:
    given = np.arange(64, dtype=np.float32)
    wide, narrow = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with mlc.PassContext(disabled_pass=["narrow_indices"]):
        run(lower(program(body)).body, given, wide)
    run(lower(program(body)).body, given, narrow)
    np.testing.assert_array_equal(wide, narrow)


def test_narrowing(golden: Golden) -> None:
    text = [before_and_after(program(body), narrow_indices) for body in (WIDE, BEYOND)]
    golden("\n\n".join(text), "lower_narrowing")


def test_symbolic_extents_stay_wide() -> None:
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        B[i] = A[i]
""")
    assert isinstance(func, PrimFunc)
    (loop,) = [s for s in statements(lower(func).body) if isinstance(s, For)]
    assert loop.var.dtype == "int64"


def test_more_turns_than_an_index_counts_are_not_fused() -> None:
    a = te.placeholder((1,), "float32", "A")
    b = te.compute((65536, 65536), lambda i, j: a[0] + 1, name="B")
    sch = mlc.Schedule(te.create_prim_func([a, b]))
    with pytest.raises(
        ScheduleError, match="fuse: 4294967296 iterations are more than int32 counts"
    ):
        sch.fuse(*sch.get_loops("B"))
    with pytest.raises(LowerError, match="buffer 'B' has 4294967296 elements, 2\\^31 or more"):
        lower(sch.func)


REGISTERS = 'X = T.alloc_buffer((8,), "float32", scope="local")\n'
TILE = """
for i in range(8):
    X[i] = 0.0
for k in range(8):
    for i in range(8):
        X[i] = X[i] + A[k * 8 + i]
for i in range(8):
    B[i] = X[i]
"""


def kinds(func: PrimFunc) -> list[int]:
    """Extents of the loops that are left."""
    loops = [s for s in statements(lower(func).body) if isinstance(s, For)]
    return [int(s.extent) for s in loops]  # type: ignore[call-overload]


def test_loops_over_registers_are_unrolled() -> None:
    assert kinds(program(TILE, REGISTERS)) == [8]  # k
    assert kinds(program(TILE, REGISTERS.replace("local", "global"))) == [8, 8, 8, 8]


@pytest.mark.parametrize(("most", "left"), [(8, [8]), (7, [8, 8, 8, 8]), (0, [8, 8, 8, 8])])
def test_unasked_unrolling_has_a_limit(most: int, left: list[int]) -> None:
    with mlc.PassContext(config={"lower.auto_unroll": most}):
        assert kinds(program(TILE, REGISTERS)) == left


def test_registers_indexed_by_data_leave_their_loops() -> None:
    body = TILE.replace("B[i] = X[i]", 'B[i] = X[T.cast(A[i], "int32")]')
    assert kinds(program(body, REGISTERS)) == [8, 8, 8, 8]


def test_copies_of_a_statement_share_what_is_equal_in_them() -> None:
    func = program("for i, j in T.grid(4, 4):\n    B[i * 4 + j] = A[i * 2] * A[j * 3]")
    sch = mlc.Schedule(func)
    for loop in ("i", "j"):
        sch.unroll(loop)
    flat = lower(sch.func).body
    stores = [s for s in statements(flat.body) if isinstance(s, Store)]
    factors = [n for s in stores for n in walk(s) if isinstance(n, Load)]
    assert len(factors) == 4 * 4 * 2
    assert len(set(factors)) == 4 + 4
    every = [n for n in walk(flat) if isinstance(n, Load)]
    assert list(map(id, every)) == list(map(id, dict.fromkeys(factors)))


def test_asked_unrolling_has_a_limit(golden: Golden) -> None:
    func = program("for i, j in T.grid(8, 8):\n    B[i * 8 + j] = A[i * 8 + j]")
    sch = mlc.Schedule(func)
    for loop in ("i", "j"):
        sch.unroll(loop)
    with mlc.PassContext(config={"lower.unroll_limit": 64}):
        assert kinds(sch.func) == []
    with mlc.PassContext(config={"lower.unroll_limit": 63}), pytest.raises(LowerError) as refused:
        lower(sch.func)
    golden(str(refused.value), "lower_unroll_limit")


GUARDED = """
@T.prim_func
def f(n: T.int32, a: T.Buffer((64,), "float32"), b: T.Buffer((16,), "float32")):
    T.func_attr({"target": "llvm -device=arm_cpu -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7"})
    b[T.Ramp(0, 1, 4)] = T.if_then_else(n < 1, a[T.Ramp(0, 1, 4)], T.Broadcast(T.float32(0), 4))
    b[T.Ramp(4, 1, 4)] = T.if_then_else(n < 2, a[T.Ramp(4, 1, 4)], T.Broadcast(T.float32(0), 4))
    b[T.Ramp(8, 1, 4)] = T.if_then_else(n < 3, a[T.Ramp(8, 1, 4)], T.Broadcast(T.float32(0), 4))
    b[T.Ramp(12, 1, 4)] = T.if_then_else(n < 3, a[T.Ramp(12, 1, 4)], T.Broadcast(T.float32(0), 4))
"""


def test_loads_of_different_guards_are_not_paired() -> None:
    """Of the first two one may lie outside of the buffer; the last two are read together, or not
    at all."""
    before = from_script(GUARDED)
    assert isinstance(before, PrimFunc)
    changed = str(pair_loads(before)).splitlines()[3:]
    kept = str(before).splitlines()[3:]
    assert changed[:2] == kept[:2]
    assert "n < 3, T.Shuffle([a[T.Ramp(8, 1, 8)]], [0, 1, 2, 3])" in changed[2]
    assert "n < 3, T.Shuffle([a[T.Ramp(8, 1, 8)]], [4, 5, 6, 7])" in changed[3]
