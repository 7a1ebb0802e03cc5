"""Bound checks: programs that trespass are stopped, others lose nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc, te
from mlc_deploy.codegen import compile_kernels
from mlc_deploy.codegen.c import c_source
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import Kernel, lower
from mlc_deploy.script import from_script
from mlc_rpc import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlc_rpc import Session

CHECKED = {"lower.bound_check": True}


def checked(func: PrimFunc) -> Kernel:
    with mlc.PassContext(config=CHECKED):
        return lower(func)


def program(body: str) -> PrimFunc:
    """A kernel on A (8), I (8, indices) and B (8)."""
    lines = "\n    ".join(body.strip().splitlines())
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def wrong(A: T.Buffer((8,), "float32"), I: T.Buffer((8,), "int32"), B: T.Buffer((8,), "float32")):
    {lines}
""")
    assert isinstance(func, PrimFunc)
    return func


GATHER = """
for i in range(8):
    B[i] = A[I[i]]
"""
SCATTER = """
for i in range(8):
    B[I[i]] = A[i]
"""
GUARDED = """
for i in range(8):
    B[i] = T.if_then_else(I[i] < 8, A[I[i]], 0.0)
"""
BRANCH = """
for i in range(8):
    if A[I[i]] > 0.0:
        B[i] = 1.0
"""
VECTOR = """
for i in T.vectorized(4):
    B[I[0] + i] = A[i]
"""
INSIDE = np.arange(8, dtype=np.int32)[::-1].copy()
ABOVE, BELOW = INSIDE.copy(), INSIDE.copy()
ABOVE[3], BELOW[3] = 8, -1
FAR = np.full(8, 5, np.int32)  # lanes 5, 6, 7 and 8


@pytest.mark.parametrize(
    ("body", "indices", "status"),
    [
        (GATHER, INSIDE, 0),
        (GATHER, ABOVE, 1),
        (GATHER, BELOW, 1),
        (SCATTER, INSIDE, 0),
        (SCATTER, ABOVE, 1),
        (SCATTER, BELOW, 1),
        (GUARDED, ABOVE, 0),
        (GUARDED, BELOW, 1),
        (BRANCH, INSIDE, 0),
        (BRANCH, ABOVE, 1),
        (VECTOR, FAR - 1, 0),
        (VECTOR, FAR, 1),
        (VECTOR, BELOW - 8, 1),
    ],
)
def test_status(body: str, indices: np.ndarray, status: int, local: Session) -> None:
    kernel = checked(program(body))
    arrays = [np.arange(8, dtype=np.float32), indices, np.zeros(8, np.float32)]
    assert run(kernel.body, *[a.copy() for a in arrays]) == status
    tensors = [local.tensor(a) for a in arrays]
    function = local.load(compile_kernels("wrong", [kernel], mlc.Target("host")))["wrong"]
    if status:
        with pytest.raises(RpcError, match="'wrong' returned status 1: an access outside its buf"):
            function(*tensors)
    else:
        function(*tensors)


def test_printed(golden: Callable[..., None]) -> None:
    text = [str(checked(program(b)).body) for b in (GATHER, SCATTER, GUARDED, BRANCH, VECTOR)]
    golden("\n".join(text), "lower_bound_checks")


def test_in_parallel_tasks(local: Session) -> None:
    kernel = checked(program(GATHER.replace("range(8)", "T.parallel(8)")))
    assert kernel.parallel is not None
    function = local.load(compile_kernels("wrong", [kernel], mlc.Target("host")))["wrong"]
    tensors = [local.tensor(a) for a in (np.zeros(8, np.float32), ABOVE, np.zeros(8, np.float32))]
    with pytest.raises(RpcError, match="an access outside its buffer"):
        function(*tensors)


def test_checks_that_always_hold_cost_nothing() -> None:
    a = te.placeholder((10, 12), "float32", "A")
    b = te.compute((12, 10), lambda i, j: a[j, i] + 1, name="B")
    func = te.create_prim_func([a, b])
    assert str(checked(func).body) == str(lower(func).body)


def test_symbolic_sizes_are_checked() -> None:
    n = te.var("n")
    a = te.placeholder((n,), "float32", "A")
    b = te.compute((n,), lambda i: a[i + 1], name="B")
    given, found = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    assert run(checked(te.create_prim_func([a, b])).body, given, found) == 1
    assert found.tolist() == [1, 2, 3, 4, 0]


@pytest.mark.parametrize("body", [GATHER, SCATTER])
def test_c_source_checks_too(body: str) -> None:
    source, _ = c_source(compile_kernels("wrong", [checked(program(body))], mlc.Target("host")))
    assert source.count("return 1;") == 1
