"""The ends of loops as small code: fewer unrolled turns, the same turns in the same order."""

from __future__ import annotations

import numpy as np

from mlc_deploy import te
from mlc_deploy.ir import For, PrimFunc, Stmt, statements
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.lower.tails import is_seldom, rolled
from mlc_deploy.schedule import Schedule

DEPTH, UNROLLED = 64, 32


def product(rows: int, tile: int) -> PrimFunc:
    """Rows in tiles, of which the last may be smaller; a turn of the sum has 32 steps."""
    a = te.placeholder((rows, DEPTH), "float32", "a")
    b = te.placeholder((DEPTH,), "float32", "b")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((rows,), lambda i: te.sum(a[i, k] * b[k], k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c], "product"))
    i, over = sch.get_loops("c")
    i0, i1 = sch.split(i, [None, tile])
    k0, k1 = sch.split(over, [None, UNROLLED])
    sch.reorder(i0, k0, k1, i1)
    init = sch.decompose_reduction("c", k0)
    sch.unroll(k1)
    sch.unroll(i1)
    sch.unroll(sch.get_loops(init)[-1])
    return sch.func


def turns(s: Stmt) -> list[int]:
    """Of the loops over k, in order."""
    loops = (n for n in statements(s) if isinstance(n, For) and n.name.startswith("k"))
    return [int(n.extent) for n in loops]  # type: ignore[call-overload]


def test_a_tail_is_unrolled_less() -> None:
    flat = lower(product(rows=8 * 10 + 7, tile=10)).body
    assert turns(flat.body) == [DEPTH // UNROLLED, DEPTH // 16]  # 16 * 7 statements, below 192


def test_a_tail_computes_the_same() -> None:
    draw = np.random.default_rng(0)
    func = product(rows=8 * 10 + 7, tile=10)
    a = draw.standard_normal((87, DEPTH)).astype("float32")
    b = draw.standard_normal(DEPTH).astype("float32")
    found, wanted = (np.zeros(87, "float32") for _ in range(2))
    run(lower(func).body, a, b, found)
    run(func, a, b, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_what_runs_often_stays_as_it_is() -> None:
    flat = lower(product(rows=3 * 10 + 7, tile=10)).body
    assert turns(flat.body) == [DEPTH // UNROLLED] * 2
    assert is_seldom(1, 5) and not is_seldom(1, 4)


def test_loops_over_different_strides_are_not_merged() -> None:
    """Of k and j neither is the other's continuation: one loop over both would divide."""
    x = te.placeholder((16, 300), "float32", "x")
    k, j = te.reduce_axis((0, 16), "k"), te.reduce_axis((0, 300), "j")
    y = te.compute((1,), lambda i: te.sum(x[k, j], (k, j)), name="y")
    sch = Schedule(te.create_prim_func([x, y], "total"))
    sch.decompose_reduction("y", sch.get_loops("y")[1])
    sch.unroll(sch.get_loops("y")[-1])
    assert rolled(sch.func.body) is sch.func.body
