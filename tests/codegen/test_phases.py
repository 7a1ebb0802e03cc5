"""What a schedule notes on loops: phases become functions of their own, of the same results; loops
that are to stay whole are not cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen import c_source
from mlc_deploy.ir import For, PrimFunc, statements, walk
from mlc_deploy.lower import KEPT, PHASE, WHOLE, lower
from mlc_deploy.lower.kept import check_kept
from mlc_deploy.passes.context import PassContext
from mlc_deploy.schedule import Schedule
from mlc_deploy.script import from_script

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


def in_groups(kept: Any) -> PrimFunc:
    """Rows of x doubled to a scratch buffer for two tasks, each of which writes half of the columns
    in another order."""
    x = te.placeholder((3, 24), "float32", "x")
    doubled = te.compute((3, 24), lambda i, j: x[i, j] * 2, name="doubled")
    turned = te.compute((3, 24), lambda i, j: doubled[i, j * 5 % 24], name="turned")
    sch = Schedule(te.create_prim_func([x, turned], "turn"))
    row, column = sch.get_loops("turned")
    half, _ = sch.split(column, [2, None])
    task = sch.fuse(row, half)
    sch.compute_at("doubled", task)
    sch.parallel(task)
    loop = sch.get_loops("doubled")[-1]
    sch.annotate(loop, PHASE, True)
    if kept:
        sch.annotate(loop, KEPT, kept)
    return sch.func


SHARED = """
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    C = T.alloc_buffer((4,), "float32")
    D = T.alloc_buffer((4,), "float32")
    for t in T.parallel(4):
        for j in T.serial(4):
            BEFORE
        AROUND:
            for j in T.serial(4, annotations={"codegen.kept": 2}):
                D[j] = C[j] + A[t // 2 + j]
        for j in T.serial(4):
            B[t * 4 + j] = D[j]
"""


@pytest.mark.parametrize(
    ("before", "around", "kept"),
    [
        ("B[j] = A[t * 4 + j]", "if True", True),
        ("C[j] = A[t * 4 + j]", "if True", False),
        ("D[j] = A[t * 4 + j]", "if True", False),
        ("B[j] = A[t * 4 + j]", "for i in T.serial(3)", False),
        ("B[j] = A[t * 4 + j]", "if t % 2 == 0", False),
    ],
)
def test_only_what_is_the_same_once_in_each_task_is_kept(
    before: str, around: str, kept: bool
) -> None:
    """Not what a task changes, and nothing in a loop or a branch of the task."""
    func: Any = from_script(SHARED.replace("BEFORE", before).replace("AROUND", around))
    loops = [n for n in walk(check_kept(func)) if isinstance(n, For)]
    assert any(KEPT in n.annotations for n in loops) == kept


@pytest.mark.parametrize("kept", [None, 2, 3, 6, 0, "two"])
def test_what_is_kept_is_computed_once_for_tasks_that_follow(local: Session, kept: Any) -> None:
    """A thread that begins with the second task of a row computes it, too. What three tasks or six
    should share differs in them, so each computes it."""
    x = np.random.default_rng(0).standard_normal((3, 24), np.float32)
    out = local.tensor(np.zeros_like(x))
    local.load(mlc.build(in_groups(kept), target="host"))["turn"](local.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), (x * 2)[:, np.arange(24) * 5 % 24])
    source, _ = c_source(mlc.build(in_groups(kept), target="c"))
    assert ("== task_begin || " in source and " % 2 == 0) {" in source) == (kept == 2)
    assert ("== task_begin || " in source) == (kept == 2)
