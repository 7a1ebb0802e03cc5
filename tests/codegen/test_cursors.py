"""Cursors: which loops have them, and that a machine that profits computes the same with them."""

from __future__ import annotations

import pytest

from mlc_deploy import PrimFunc
from mlc_deploy.codegen.cursors import find_cursors
from mlc_deploy.ir import For, statements
from mlc_deploy.script import from_script


def loop(body: str) -> For:
    """The innermost loop, over k, of a program on A (4096 elements) with sums in S."""
    text = "\n        ".join(["for k in range(8):", *body.splitlines()])
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((64,), "float32")):
    S = T.alloc_buffer((4,), "float32", scope="local")
    {text}
""")
    assert isinstance(func, PrimFunc)
    return next(s for s in statements(func.body) if isinstance(s, For) and s.name == "k")


def sums(*offsets: int) -> str:
    return "\n".join(
        f"S[T.Ramp(0, 1, 4)] = S[T.Ramp(0, 1, 4)] + A[T.Ramp(k * 16 + {n}, 1, 4)]" for n in offsets
    )


def test_on_arm_a_cursor_follows_the_loads() -> None:
    (cursor,) = find_cursors(loop(sums(8, 0, 4)), {}, "arm")
    assert (cursor.buffer.name, cursor.step, cursor.first) == ("A", 16, 8) and cursor.moves


def test_on_aarch64_each_stretch_of_data_has_one() -> None:
    near, far = range(0, 16, 4), range(1024, 1040, 4)
    found = find_cursors(loop(sums(*near, *far)), {}, "aarch64")
    assert [(c.first, c.step, c.moves) for c in found] == [(0, 16, False), (1024, 16, False)]
    assert find_cursors(loop(sums(*near)), {}, "aarch64") == []  # LLVM's own pointer does
    assert find_cursors(loop(sums(*near, 1024)), {}, "aarch64") == []  # costs more than it saves


@pytest.mark.parametrize(
    "body",
    [
        "B[k] = A[k]",  # writes memory
        "S[0] = S[0] + A[k]",  # loads no vectors
        "if k > 3:\n    S[T.Ramp(0, 1, 4)] = A[T.Ramp(k * 16, 1, 4)]",
        "for j in range(4):\n    S[T.Ramp(0, 1, 4)] = A[T.Ramp(k * 16 + j * 4, 1, 4)]",
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(k * 16, 2, 4)]",
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(k // 2 * 16, 1, 4)]",  # not the same step every turn
        "S[T.Ramp(0, 1, 4)] = A[T.Ramp(64, 1, 4)]",
    ],
)
def test_other_loops_have_none(body: str) -> None:
    assert find_cursors(loop(body), {}, "arm") == []


def test_other_machines_have_none() -> None:
    assert find_cursors(loop(sums(0, 4)), {}, "x86_64") == []
