"""Vectorized loops under guards that cut the lanes: what they become, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import PrimFunc, te
from mlc_deploy.codegen import compile_kernels
from mlc_deploy.ir import with_fields
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.script import from_script

if TYPE_CHECKING:
    from mlc_rpc import Session

Array = NDArray[Any]


def constant_tail() -> tuple[PrimFunc, list[Array]]:
    """11 elements in vectors of 4: the tail is a vector of 3."""
    a = te.placeholder((11,), "float32", "A")
    b = te.compute((11,), lambda i: a[i] * 2, name="B")
    given = np.arange(11, dtype=np.float32)
    return _in_vectors(te.create_prim_func([a, b]), "B"), [given, given * 2]


def symbolic_tail() -> tuple[PrimFunc, list[Array]]:
    """n elements in vectors of 4: asked once per vector."""
    n = te.var("n")
    a = te.placeholder((n,), "float32", "A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    given = np.arange(11, dtype=np.float32)
    return _in_vectors(te.create_prim_func([a, b]), "B"), [given, given * 2]


def padding() -> tuple[PrimFunc, list[Array]]:
    """Zeros around 6x8: loads outside A would be illegal, so shorter vectors."""
    a = te.placeholder((6, 8), "float32", "A")

    def element(i: Any, j: Any) -> Any:
        inside = te.all_of(i >= 1, i < 7, j >= 1, j < 9)
        return te.if_then_else(inside, a[i - 1, j - 1], 0)

    b = te.compute((8, 12), element, name="B")
    given = np.random.default_rng(0).random((6, 8), np.float32)
    wanted = np.pad(given, ((1, 1), (1, 3)))
    return _in_vectors(te.create_prim_func([a, b]), "B"), [given, wanted]


def symbolic_padding() -> tuple[PrimFunc, list[Array]]:
    """One zero before n elements, and as many as it takes to make m."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n,), "float32", "A")

    def element(i: Any) -> Any:
        return te.if_then_else(te.all_of(i >= 1, i < n + 1), a[i - 1], 0)

    b = te.compute((m,), element, name="B")
    given = np.arange(1, 12, dtype=np.float32)
    return _in_vectors(te.create_prim_func([a, b]), "B"), [given, np.pad(given, (1, 5))]


def safe_choice() -> tuple[PrimFunc, list[Array]]:
    """Both sides may be evaluated in every lane: one select."""
    a = te.placeholder((8,), "float32", "A")
    b = te.compute((8,), lambda i: te.if_then_else((i % 3).equal(0), a[i], a[7 - i]), name="B")
    given = np.arange(8, dtype=np.float32)
    wanted = np.where(np.arange(8) % 3 == 0, given, given[::-1])
    return _in_vectors(te.create_prim_func([a, b]), "B"), [given, wanted.astype(np.float32)]


def masked_scratch() -> tuple[PrimFunc, list[Array]]:
    """A guarded store to scratch keeps what the other lanes hold."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    X = T.alloc_buffer((8,), "float32")
    for i in T.vectorized(8):
        X[i] = 1.0
    for i in T.vectorized(8):
        if A[i] > 3.0:
            X[i] = A[i]
    for i in T.vectorized(8):
        B[i] = X[7 - i]
""")
    assert isinstance(func, PrimFunc)
    given = np.arange(8, dtype=np.float32)
    return func, [given, np.where(given > 3, given, 1)[::-1].astype(np.float32)]


def unsafe_guard() -> tuple[PrimFunc, list[Array]]:
    """A guard of data over an output: its neighbours may be another thread's."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in T.vectorized(8):
        if A[i] > 3.0:
            B[i] = A[i]
""")
    assert isinstance(func, PrimFunc)
    given = np.arange(8, dtype=np.float32)
    return func, [given, np.where(given > 3, given, 0).astype(np.float32)]


def division() -> tuple[PrimFunc, list[Array]]:
    """An integer division guarded against 0 must not be evaluated for all lanes."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in T.vectorized(8):
        B[i] = T.if_then_else(A[i] != 0, 100 // A[i], 0)
""")
    assert isinstance(func, PrimFunc)
    given = np.arange(-3, 5, dtype=np.int32)
    safe = np.where(given == 0, 1, given)
    return func, [given, np.where(given == 0, 0, 100 // safe).astype(np.int32)]


def both_ends() -> tuple[PrimFunc, list[Array]]:
    """Lanes 2 to 6 of 8."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in T.vectorized(8):
        if i >= 2 and 2 * i < 13:
            B[i] = A[i]
""")
    assert isinstance(func, PrimFunc)
    given = np.arange(1, 9, dtype=np.float32)
    return func, [given, np.array([0, 0, 3, 4, 5, 6, 7, 0], np.float32)]


def again_and_again() -> tuple[PrimFunc, list[Array]]:
    """Lanes that load the same four numbers twice."""
    func = from_script("""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((12,), "float32"), B: T.Buffer((24,), "float32")):
    for k in range(3):
        for i in T.vectorized(8):
            B[k * 8 + i] = A[k * 4 + i % 4] + 1.0
""")
    assert isinstance(func, PrimFunc)
    given = np.arange(12, dtype=np.float32)
    return func, [given, np.repeat(given.reshape(3, 1, 4), 2, axis=1).ravel() + np.float32(1)]


def _in_vectors(func: PrimFunc, block: str) -> PrimFunc:
    sch = mlc.Schedule(func)
    _, lanes = sch.split(sch.get_loops(block)[-1], [None, 4])
    sch.vectorize(lanes)
    return sch.func


PROGRAMS = (
    constant_tail,
    symbolic_tail,
    padding,
    symbolic_padding,
    safe_choice,
    masked_scratch,
    unsafe_guard,
    division,
    both_ends,
    again_and_again,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_numbers(program: Callable[[], tuple[PrimFunc, list[Array]]]) -> None:
    func, (given, wanted) = program()
    found = np.zeros_like(wanted)
    run(lower(func).body, given, found)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("board", ["local", "armv7"])
def test_numbers_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(board)
    target = mlc.Target("host" if board == "local" else "armv7a")
    made = {p.__name__: p() for p in PROGRAMS}
    kernels = [lower(with_fields(func, name=n), target) for n, (func, _) in made.items()]
    module = session.load(compile_kernels("predicated", kernels, target))
    for name, (_, (given, wanted)) in made.items():
        tensors = [session.tensor(given), session.tensor(np.zeros_like(wanted))]
        module[name](*tensors)
        np.testing.assert_array_equal(tensors[1].numpy(), wanted, err_msg=name)


def test_printed(golden: Callable[..., None]) -> None:
    text = []
    for program in PROGRAMS:
        text.append(f"# {program.__name__}: {program.__doc__}\n{lower(program()[0]).body}")
    golden("\n\n".join(text), "lower_predication")
