"""Guard hoisting: what is tested once, what stays, and that partition leaves it to do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlc_deploy import PrimFunc, te
from mlc_deploy.ir import Expr, For, If, statements
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.lower.hoist import hoist_guards
from mlc_deploy.schedule import Schedule
from tests.lower.test_small_passes import before_and_after, program

GUARDS = """
for i, j in T.grid(8, 8):
    if i > 1 and j > 2:
        B[i * 8 + j] = A[i * 8 + j]
for i1, j1 in T.grid(8, 8):
    B[i1 * 8 + j1] = T.if_then_else(i1 < 7, A[j1], B[i1 * 8 + j1])
for i2 in range(8):
    if i2 > 3:
        B[i2] = A[i2]
    if i2 > 3 and A[i2] > 0.0:
        B[i2 + 8] = A[i2]
for i3, j3 in T.grid(8, 8):
    if A[i3] > 0.0:
        B[j3] = A[j3]
for i4 in T.parallel(8):
    if A[0] > 0.0:
        B[i4] = A[i4]
for i5 in range(8):
    B[i5] = T.if_then_else(i5 > 3, A[i5], B[i5 + 1])
for i6, j6 in T.grid(8, 8):
    if j6 > 3:
        if i6 > 2:
            B[i6 * 8 + j6] = A[j6]
    if j6 < i6:
        B[j6] = B[j6]
for i7 in range(8):
    if i7 > 3:
        if A[i7 - 4] > 0.0:
            B[i7] = A[i7]
for i8 in range(8):
    if i8 > 0:
        if 12 % i8 < 2:
            B[i8] = A[i8]
for i9, j9 in T.grid(8, 8):
    if i9 > 4:
        B[j9 + 8] = A[j9]
    else:
        B[j9 + 16] = A[i9]
for i10 in range(8):
    if A[0] > 0.0:
        B[i10 + 24] = A[i10]
    else:
        B[i10 + 32] = A[i10]
"""


def test_guards(golden: Callable[..., None]) -> None:
    golden(before_and_after(program(GUARDS), hoist_guards), "lower_hoist_guards")


def test_same_results() -> None:
    func = program(GUARDS)
    a = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    before, after = np.zeros(64, np.float32), np.zeros(64, np.float32)
    run(func, a, before)
    run(hoist_guards(func), a, after)
    np.testing.assert_array_equal(after, before)


def test_a_program_without_guards_stays_the_same() -> None:
    func = program("for i in range(64):\n    B[i] = A[i]")
    assert hoist_guards(func) is func


def windows() -> PrimFunc:
    """Sums of 3 by 5 neighbours, of those that there are; a loop between the window's."""
    x = te.placeholder((6, 4, 40), "float32", "x")
    ky, c, kx = (te.reduce_axis((0, n), k) for n, k in ((3, "ky"), (4, "c"), (5, "kx")))

    def element(i: Expr, j: Expr) -> Expr:
        y, q = i + ky.var - 1, j + kx.var - 2
        inside = te.all_of(y >= 0, y < 6, q >= 0, q < 40)
        return te.sum(x[y, c, q], (ky, c, kx), where=inside)

    y = te.compute((6, 40), element, name="y")
    sch = Schedule(te.create_prim_func([x, y], "windows"))
    i, j, ky_, c_, kx_ = sch.get_loops("y")
    outer, inner = sch.split(j, [None, 8])
    rows = sch.fuse(i, outer)
    sch.reorder(rows, ky_, c_, kx_, inner)
    sch.unroll(kx_)
    sch.unroll(inner)
    sch.decompose_reduction("y", ky_)
    return sch.func


def test_rows_of_a_window_are_passed_over() -> None:
    """One loop over the window's rows, with one test of the row: partition makes no copies of it
    for the first and the last row."""
    func = windows()
    body = lower(func).body
    rows = [s for s in statements(body) if isinstance(s, For) and s.extent.value == 3]  # type: ignore[attr-defined]
    assert len(rows) == 1 and isinstance(rows[0].body, If)
    x = np.random.default_rng(0).standard_normal((6, 4, 40)).astype(np.float32)
    wanted, got = np.empty((6, 40), np.float32), np.empty((6, 40), np.float32)
    run(func, x, wanted)
    run(body, x.reshape(-1), got.reshape(-1))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
