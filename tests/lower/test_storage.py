"""Storage rewrite: who shares the workspace, who must not, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import PrimFunc, te
from mlc_deploy.codegen import compile_kernels
from mlc_deploy.codegen.signature import scratch_layout
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import WORKSPACE, lower
from mlc_deploy.lower.compact import compact_buffers
from mlc_deploy.script import from_script

if TYPE_CHECKING:
    from mlc_rpc import Session


def chain() -> PrimFunc:
    """Five stages over 64x64, each reading the one before transposed; the fourth B too."""
    a = te.placeholder((64, 64), "float32", "A")
    b = te.compute((64, 64), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((64, 64), lambda i, j: b[j, i] * 2, name="C")
    d = te.compute((64, 64), lambda i, j: c[j, i] + 3, name="D")
    e = te.compute((64, 64), lambda i, j: d[i, j] + b[j, i], name="E")
    f = te.compute((64, 64), lambda i, j: e[j, i] * 5, name="F")
    return te.create_prim_func([a, f], "chain")


def in_tiles() -> PrimFunc:
    """The same stages, computed for eight rows of the last at a time."""
    sch = mlc.Schedule(chain())
    outer, _ = sch.split(sch.get_loops("F")[0], [None, 8])
    for block in "EDCB":
        sch.compute_at(block, outer)
    return sch.func


def expected(a: NDArray[np.float32]) -> NDArray[np.float32]:
    b = a + np.float32(1)
    e = (b.T * 2).T + 3 + b.T
    return np.asarray(e.T * 5, np.float32)


# E finds C's place free; B and D are both read when E is written. B is needed whole in every tile.
WHOLE = {"B": 0, "C": 1 << 14, "D": 2 << 14, "E": 1 << 14}
TILES = {"B": 0, "C": 1 << 14, "D": (1 << 14) + (1 << 11), "E": 1 << 14}


@pytest.mark.parametrize(
    ("program", "places", "size"), [(chain, WHOLE, 3 << 14), (in_tiles, TILES, 5 << 12)]
)
def test_stages_share(
    program: Callable[[], PrimFunc], places: dict[str, int], size: int, local: Session
) -> None:
    kernel = lower(program())
    assert kernel.body.attrs[WORKSPACE] == places
    assert scratch_layout(kernel)[1] == size
    given = np.random.default_rng(0).random((64, 64), np.float32)
    tensors = [local.tensor(given), local.tensor(np.zeros((64, 64), np.float32))]
    local.load(compile_kernels("chain", [kernel], mlc.Target("host")))["chain"](*tensors)
    np.testing.assert_allclose(tensors[1].numpy(), expected(given), rtol=1e-6)


def test_disabled_each_has_its_own() -> None:
    with mlc.PassContext(disabled_pass=["share_storage"]):
        assert scratch_layout(lower(chain()))[1] == 4 << 14


def offsets(body: str, allocs: str = "") -> dict[str, int]:
    """Where X and Y of 64 float32 each lie, in a loop over t of 4 turns around `body`."""
    lines = "\n            ".join(body.strip().splitlines())
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((4, 64), "float32")):
    X = T.alloc_buffer((64,), "float32")
    Y = T.alloc_buffer((64,), "float32")
    for t in range(4):
            {lines}
""")
    assert isinstance(func, PrimFunc)
    found: dict[str, int] = lower(func).body.attrs[WORKSPACE]
    return found


USE_Y = """
for k in range(64):
    Y[k] = A[63 - k] + 1.0
for k in range(64):
    B[t, k] = B[t, k] + Y[63 - k]
"""


def test_turns_that_write_all_they_read_share() -> None:
    assert offsets(
        """
for i in range(64):
    X[i] = A[i] * 2.0
for j in range(64):
    B[t, j] = X[63 - j]
"""
        + USE_Y
    ) == {"X": 0, "Y": 0}


def test_what_is_written_in_pieces_shares() -> None:
    assert offsets(
        """
for i, j in T.grid(8, 8):
    X[j * 8 + i] = A[i * 8 + j] * 2.0
for j in range(64):
    B[t, j] = X[63 - j]
"""
        + USE_Y
    ) == {"X": 0, "Y": 0}


APART = {
    "handed on to the next iteration": """
for i in range(64):
    B[t, i] = X[i]
for j in range(64):
    X[j] = A[j]
""",
    "written in part": """
for i in range(32):
    X[i] = A[i] * 2.0
for j in range(64):
    B[t, j] = X[63 - j]
""",
    "written with gaps": """
for i in range(32):
    X[i * 2] = A[i] * 2.0
for j in range(64):
    B[t, j] = X[63 - j]
""",
    "written in the first iteration only": """
if t == 0:
    for i in range(64):
        X[i] = A[i] * 2.0
for j in range(64):
    B[t, j] = X[63 - j]
""",
    "read beyond what the iteration wrote": """
for i in range(8):
    X[t * 16 + i] = A[i] * 2.0
for j in range(8):
    B[t, j] = X[T.max(t * 16 + j - 1, 0)]
""",
}


@pytest.mark.parametrize("how", APART)
def test_what_lives_through_all_turns_stays_apart(how: str) -> None:
    assert set(offsets(APART[how] + USE_Y).values()) == {0, 256}


def test_both_read_at_once_stay_apart() -> None:
    found = offsets("""
for i in range(64):
    X[i] = A[i] * 2.0
for k in range(64):
    Y[k] = A[63 - k] + X[63 - k]
for k in range(64):
    B[t, k] = Y[63 - k]
""")
    assert set(found.values()) == {0, 256}


# ---------------------------------------------------------------------------------- compaction


def shape_of_x(body: str) -> tuple[int, ...]:
    """Of scratch X (8, 8) after compaction; the results must be those of the program."""
    lines = "\n    ".join(body.strip().splitlines())
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    X = T.alloc_buffer((8, 8), "float32")
    {lines}
""")
    assert isinstance(func, PrimFunc)
    given = np.random.default_rng(0).random((8, 8), np.float32)
    wanted, found = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    run(func, given, wanted)
    run(compact_buffers(func), given, found)
    np.testing.assert_array_equal(found, wanted)
    (x,) = compact_buffers(func).body.allocs  # type: ignore[attr-defined]
    shape: tuple[int, ...] = x.shape
    return shape


def test_a_buffer_made_and_used_in_a_turn_shrinks() -> None:
    assert shape_of_x("""
for t in range(8):
    for j in range(8):
        X[t, j] = A[t, j] * 2.0
    for j in range(8):
        B[t, j] = X[t, 7 - j]
""") == (1, 8)


def test_a_sum_over_its_own_turns_shrinks() -> None:
    assert shape_of_x("""
for t, j, k in T.grid(8, 8, 8):
    if k == 0:
        X[t, j] = 0.0
    X[t, j] = X[t, j] + A[t, k]
    if k == 7:
        B[t, j] = X[t, j]
""") == (1, 1)


HANDED_ON = {
    "from the iteration before": """
for t, j in T.grid(8, 8):
    X[t, j] = A[t, j]
    B[t, j] = X[t, j] + T.if_then_else(t > 0, X[t - 1, j], 0.0)
""",
    "to the next iteration": """
for j in range(8):
    for t in range(8):
        B[t, j] = T.if_then_else(t > 0, X[t, j], 0.0)
        if t < 7:
            X[t + 1, j] = A[t, j]
""",
}


@pytest.mark.parametrize("how", HANDED_ON)
def test_a_buffer_handed_from_turn_to_turn_stays(how: str) -> None:
    assert shape_of_x(HANDED_ON[how])[0] == 8
