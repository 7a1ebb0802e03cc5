"""Each primitive's effect, before and after, as printed programs; and that the result stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.ir import PrimFunc, numpy_dtype
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule import Schedule
from mlc_deploy.script import from_script
from tests.schedule.draws import Step
from tests.schedule.programs import fixed
from tests.schedule.small_programs import (
    Program,
    chain,
    diamond,
    matmul,
    normalized,
    padded,
    stencil,
    symbolic,
    two_results,
)

# primitive -> a program, the steps before it, and the step that is shown.
SHOWN: dict[str, tuple[Program, list[Step]]] = {
    "split": (chain, [("split", ("j", (None, 4)))]),
    "split_with_guard": (chain, [("split", ("j", (None, 5)))]),
    "split_in_three": (chain, [("split", ("j", (2, None, 3)))]),
    "split_symbolic": (symbolic, [("split", ("i", (None, 4)))]),
    "fuse": (chain, [("fuse", ("i", "j"))]),
    "fuse_a_loop_of_one_turn": (
        chain,
        [
            ("split", ("j", (None, 12))),
            ("fuse", ("j_0", "j_1_1")),
            ("split", ("j_0_j_1_1_fused", (None, 5))),
        ],
    ),
    "reorder": (matmul, [("reorder", ("k", "i"))]),
    "parallel": (chain, [("parallel", ("i",))]),
    "vectorize": (chain, [("vectorize", ("j",))]),
    "unroll": (chain, [("unroll", ("j",))]),
    "add_unit_loop": (chain, [("add_unit_loop", ("B",))]),
    "annotate": (chain, [("annotate", ("j", "pragma", 4))]),
    "unannotate": (chain, [("annotate", ("B", "pragma", 4)), ("unannotate", ("B", "pragma"))]),
    "compute_inline": (chain, [("compute_inline", ("B",))]),
    "reverse_compute_inline": (chain, [("reverse_compute_inline", ("C",))]),
    "compute_at": (chain, [("compute_at", ("B", "i_1"))]),
    "compute_at_a_window": (
        stencil,
        [("split", ("i_1", (None, 5))), ("compute_at", ("B", "i_1_0"))],
    ),
    "compute_at_under_a_guard": (
        stencil,
        [("split", ("i_1", (None, 4))), ("compute_at", ("B", "i_1_0"))],
    ),
    "compute_at_of_a_whole_dimension": (
        chain,
        [("split", ("j_1", (None, 5))), ("compute_at", ("B", "j_1_0", (1,)))],
    ),
    "compute_at_two_results": (two_results, [("compute_at", ("B", "i_1"))]),
    "compute_at_a_reduction": (normalized, [("compute_at", ("top", "i_1"))]),
    "reverse_compute_at": (chain, [("reverse_compute_at", ("C", "i"))]),
    "reverse_compute_at_tiles": (
        matmul,
        [
            ("split", ("i", (None, 3))),
            ("split", ("j", (None, 4))),
            ("reorder", ("i_0", "j_0", "i_1_1", "j_1_1", "k")),
            ("reverse_compute_at", ("D", "j_0")),
        ],
    ),
    "decompose_reduction": (matmul, [("decompose_reduction", ("C", "k"))]),
    "decompose_reduction_outside": (
        matmul,
        [("split", ("i", (None, 3))), ("decompose_reduction", ("C", "i_1_1"))],
    ),
    "cache_read": (matmul, [("cache_read", ("C", 1, "local"))]),
    "cache_write": (matmul, [("cache_write", ("D", 0, "local"))]),
    "set_scope": (chain, [("set_scope", ("B", 0, "local"))]),
}


def applied(sch: Schedule, step: Step) -> None:
    name, args = step
    getattr(sch, name)(*args)


@pytest.mark.parametrize("shown", SHOWN)
def test_primitive(shown: str, golden: Callable[..., None]) -> None:
    program, steps = SHOWN[shown]
    sch = Schedule(program())
    for step in steps[:-1]:
        applied(sch, step)
    before = str(sch.func)
    applied(sch, steps[-1])
    name, args = steps[-1]
    code = f"sch.{name}({', '.join(map(repr, args))})"
    golden("\n".join([before, f"\n--- {code}\n", str(sch.func)]), f"primitive_{shown}")
    check_same(program(), sch.func)


def check_same(program: PrimFunc, scheduled: PrimFunc) -> None:
    """Both give the same numbers, 11 for every symbolic dimension."""
    rng = np.random.default_rng(1)
    shapes = [tuple(n if isinstance(n, int) else 11 for n in b.shape) for b in program.buffers]
    data = [
        rng.integers(-4, 5, shape).astype(numpy_dtype(b.dtype))
        for b, shape in zip(program.buffers, shapes, strict=True)
    ]
    expected, actual = [a.copy() for a in data], [a.copy() for a in data]
    run(program, *expected)
    run(scheduled, *actual)
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(x, y)


# ------------------------------------------------------------------------------------- looking


def test_looking_at_a_program() -> None:
    sch = Schedule(diamond())
    assert sch.get_blocks() == ["B", "C", "D"]
    assert sch.get_loops("C") == ["i_1"]
    assert sch.get_consumers("B") == ["C", "D"]
    assert sch.get_producers("D") == ["B", "C"]
    assert sch.get_output_blocks() == ["D"]
    assert sch.get_block("C") == "C"
    assert fixed(sch.block("C").writes[0].buffer.shape) == (16,)


def test_a_copy_is_independent() -> None:
    sch = Schedule(chain())
    other = sch.copy()
    other.parallel("i")
    assert sch.loop("i").kind == "serial"
    assert other.loop("i").kind == "parallel"


def test_names_are_derived_and_unique() -> None:
    sch = Schedule(chain())
    assert sch.split("i", [None, 4]) == ["i_0", "i_1_1"]  # i_1 is C's loop
    assert sch.fuse("i_0", "i_1_1") == "i_0_i_1_1_fused"


def test_parallel_turns_may_compute_what_they_need_for_themselves() -> None:
    """Windows overlap: each turn has its own B, so that nothing is shared."""
    sch = Schedule(stencil())
    sch.split("i_1", [None, 4])
    sch.compute_at("B", "i_1_0")
    sch.parallel("i_1_0")
    check_same(stencil(), sch.func)


def test_turns_of_a_fused_loop_write_tiles_of_their_own() -> None:
    """Two of its digits number tiles that are cut further, the last beyond the end."""
    x = te.placeholder((8, 14), "float32", "x")
    func = te.create_prim_func([x, te.compute((8, 14), lambda i, j: x[i, j] + 1.0, name="y")])
    sch = Schedule(func)
    a, b, c = sch.split("i", [2, None, 2])
    d, e, f = sch.split("j", [None, 2, 4])
    sch.reorder(d, a, b, c, e, f)
    sch.parallel(sch.fuse(d, a))
    check_same(func, sch.func)


def test_a_padded_block_stays_whole() -> None:
    sch = Schedule(padded())
    sch.split("j", [None, 3])
    sch.compute_at("P", "j_0")
    check_same(padded(), sch.func)


@pytest.mark.parametrize("combined", ["{} + {}", "{} * {}", "T.min({}, {})", "T.max({}, {})"])
def test_parts_of_a_reduction_begin_once(combined: str) -> None:
    """rfactor where a reduction begins with a number of each row's, that is not neutral."""
    func = from_script(
        f"""
@T.prim_func
def f(X: T.Buffer((3, 8), "int32"), B: T.Buffer((3,), "int32"), Y: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, 8):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi] = B[vi]
            Y[vi] = {combined.format("Y[vi]", "X[vi, vk]")}
"""
    )
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    _, inner = sch.split("k", [None, 4])
    sch.rfactor(inner, 1)
    rng = np.random.default_rng(0)
    x, b = rng.integers(-3, 4, (3, 8), np.int32), rng.integers(2, 9, 3, np.int32)
    parts, whole = np.zeros(3, np.int32), np.zeros(3, np.int32)
    run(sch.func, x, b, parts)
    run(func, x, b, whole)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("combined", ["{} + {}", "{} * {}", "T.min({}, {})", "T.max({}, {})"])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 9])
def test_parts_begin_where_a_guard_skips_all_their_steps(combined: str, size: int) -> None:
    """rfactor of a dynamic extent: with fewer elements than parts, some parts keep their init."""
    func = from_script(
        f"""
@T.prim_func
def f(x: T.handle, Y: T.Buffer((3,), "int32"), n: T.int32):
    X = T.match_buffer(x, (3, n), "int32")
    for i, k in T.grid(3, n):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi] = 2
            Y[vi] = {combined.format("Y[vi]", "X[vi, vk]")}
"""
    )
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    _, inner = sch.split("k", [None, 4])
    sch.rfactor(inner, 1)
    x = np.random.default_rng(size).integers(-3, 4, (3, size), np.int32)
    parts, whole = np.zeros(3, np.int32), np.zeros(3, np.int32)
    run(sch.func, x, parts, size)
    run(func, x, whole, size)
    np.testing.assert_array_equal(parts, whole)
