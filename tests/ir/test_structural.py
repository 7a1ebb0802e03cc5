"""Equality up to names, and a hash that is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_deploy import te
from mlc_deploy.ir import (
    Buffer,
    Expr,
    PrimFunc,
    Select,
    Var,
    binary,
    call,
    cast,
    compare,
    const,
    not_,
    same_expr,
    structural_equal,
    structural_hash,
    with_fields,
)
from mlc_deploy.schedule import Schedule
from tests.schedule.programs import PROGRAMS
from tests.schedule.small_programs import chain, matmul, symbolic


def named(a: str, b: str, i: str) -> PrimFunc:
    source = te.placeholder((8, 4), name=a)
    out = te.compute((8, 4), lambda *at: source[at] + 1, name=b)
    func = te.create_prim_func([source, out], name=f"f_{a}")
    sch = Schedule(func)
    sch.add_unit_loop(b)
    return sch.func if i else func


def test_names_do_not_matter() -> None:
    first, second = named("A", "B", "u"), named("other", "names", "u")
    assert str(first) != str(second)
    assert structural_equal(first, second)
    assert structural_hash(first) == structural_hash(second)


A = Buffer("A", (8,))
VI, VJ = Var("i"), Var("j")
EXPRESSIONS: list[Expr] = [
    VI,
    Var("i", "int64"),
    const(1),
    const(2),
    const(1, "int64"),
    const(1.0),
    const(-0.0),
    const(0.0),
    const(float("nan")),
    const(True),
    VI + 1,
    VI - 1,
    VI * 2,
    VI // 2,
    VI % 2,
    binary("min", VI, 2),
    binary("max", VI, 2),
    binary("tdiv", VI, 2),
    VI + VJ,
    VI + VI,
    compare("<", VI, 2),
    compare("<=", VI, 2),
    compare("==", VI, VJ),
    not_(compare("==", A[VI], A[VJ])),
    Select(compare("<", VI, 2), VI, VJ, "int32"),
    Select(compare("<", VI, 2), VJ, VI, "int32"),
    cast("float32", VI),
    cast("int64", VI),
    A[VI],
    A[VI + 1],
    Buffer("A", (9,))[VI],
    Buffer("A", (8,), "int32")[VI],
    Buffer("A", (8,), scope="local")[VI],
    Buffer("A", (8,), strides=(2,))[VI],
    Buffer("A", (8,), alignment=4)[VI],
    call("exp", "float32", A[VI]),
    call("log", "float32", A[VI]),
]


def test_expressions_differ_in_everything_else() -> None:
    hashes = {structural_hash(e): str(e) for e in EXPRESSIONS}
    assert len(hashes) == len(EXPRESSIONS)
    for n, a in enumerate(EXPRESSIONS):
        for m, b in enumerate(EXPRESSIONS):
            assert structural_equal(a, b) == (n == m), f"{a} and {b}"


CHANGES: dict[str, Callable[[Schedule], object]] = {
    "split": lambda s: s.split("i", [None, 2]),
    "reorder": lambda s: s.reorder("j", "i"),
    "parallel": lambda s: s.parallel("i"),
    "unroll": lambda s: s.unroll("i"),
    "annotate a loop": lambda s: s.annotate("i", "key", 1),
    "annotate differently": lambda s: s.annotate("i", "key", 2),
    "annotate a block": lambda s: s.annotate("C", "key", 1),
    "decompose": lambda s: s.decompose_reduction("C", "k"),
    "scope": lambda s: s.set_scope("C", 0, "local"),
    "nothing": lambda s: s.annotate("i", "gone", 1) or s.unannotate("i", "gone"),
}


def test_programs_differ_in_everything_else() -> None:
    funcs = []
    for change in CHANGES.values():
        sch = Schedule(matmul())
        change(sch)
        funcs.append(sch.func)
    assert len({structural_hash(f) for f in funcs}) == len(funcs)


def test_attributes_and_dtypes_matter() -> None:
    func = chain()
    assert not structural_equal(func, with_fields(func, attrs={"a": 1}))
    assert structural_equal(
        with_fields(func, attrs={"a": 1, "b": 2}), with_fields(func, attrs={"b": 2, "a": 1})
    )
    assert not structural_equal(symbolic(), chain())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_equal_to_itself_made_again(program: Callable[..., object]) -> None:
    from random import Random

    first, second = (te.create_prim_func(program(Random(3))) for _ in range(2))  # type: ignore[arg-type]
    assert first is not second
    assert structural_equal(first, second)
    assert structural_hash(first) == structural_hash(second)


def test_same_expr_is_over_the_same_variables() -> None:
    assert same_expr(A[VI + 1], A[VI + 1])
    assert not same_expr(A[VI + 1], A[VJ + 1])
    assert structural_equal(A[VI + 1], A[VJ + 1])
    assert not same_expr(VI + 1, Var("i") + 1)


PRINT_HASHES = """
from tests.schedule.small_programs import chain, matmul, stencil
from mlc_deploy.ir import structural_hash
from mlc_deploy.schedule import Schedule
sch = Schedule(matmul())
sch.annotate("i", "b", {"x": 1, "y": (2, 3)})
sch.annotate("i", "a", "text")
print(*(structural_hash(f) for f in (chain(), stencil(), sch.func)))
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / p) for p in (".", "host", "rpc", "targets"))
    found = set()
    for seed in ("0", "1", "42"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_HASHES],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
