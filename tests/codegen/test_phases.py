"""What a schedule notes on loops: phases become functions of their own, of the same results; loops
that are to stay whole are not cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import For, PrimFunc, statements
from mlc_deploy.lower import PHASE, WHOLE, lower
from mlc_deploy.passes.context import PassContext
from mlc_deploy.schedule import Schedule

if TYPE_CHECKING:
    from mlc_rpc import Session


def program(phases: bool) -> PrimFunc:
    """Per row of x, of symbolic number: what is left of its sums with y, doubled, to a scratch
    buffer; and from there, in order of columns."""
    n = te.var("n")
    x, y = te.placeholder((n, 24), "float32", "x"), te.placeholder((24,), "float32", "y")
    doubled = te.compute((n, 24), lambda i, j: (x[i, j] + y[j]) * 2, name="doubled")
    turned = te.compute(
        (n, 24), lambda i, j: doubled[i, 23 - j] + i.astype("float32"), name="turned"
    )
    sch = Schedule(te.create_prim_func([x, y, turned], "turn"))
    row, column = sch.get_loops("turned")
    sch.compute_at("doubled", row)
    sch.parallel(row)
    if phases:
        sch.annotate(sch.get_loops("doubled")[-1], PHASE, True)
        sch.annotate(column, PHASE, True)
    return sch.func


@pytest.mark.parametrize("checked", [False, True])
def test_phases_compute_the_same(local: Session, checked: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 24), np.float32), rng.standard_normal(24, np.float32)
    wanted = ((x + y) * 2)[:, ::-1] + np.arange(5, dtype=np.float32)[:, None]
    for phases in (False, True):
        with PassContext(config={"lower.bound_check": checked}):
            library = mlc.build(program(phases), target="host")
            lines = library.llvm_ir.splitlines()
        made = sum(line.startswith("define internal") and "turn.phase" in line for line in lines)
        assert made == (2 if phases and not checked else 0)  # a check may end the kernel
        out = local.tensor(np.zeros_like(wanted))
        local.load(library)["turn"](local.tensor(x), local.tensor(y), out)
        np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.parametrize("whole", [False, True])
def test_a_whole_loop_is_not_cut_for_a_guard(whole: bool) -> None:
    x = te.placeholder((30, 8), "float32", "x")
    inside = te.if_then_else
    y = te.compute((30, 8), lambda i, j: inside(i < 20, x[i, j], 0), name="y")
    sch = Schedule(te.create_prim_func([x, y]))
    row, _ = sch.get_loops("y")
    if whole:
        sch.annotate(row, WHOLE, True)
    rows = [
        n for n in statements(lower(sch.func).body.body) if isinstance(n, For) and n.name == "i"
    ]
    assert [n.extent.value for n in rows] == ([30] if whole else [20, 10])  # type: ignore[attr-defined]
