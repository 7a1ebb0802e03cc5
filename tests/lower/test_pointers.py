"""Cursors: which loops have them, and that a machine that profits computes the same with them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc
from mlc_deploy.ir import For, statements, with_fields
from mlc_deploy.lower.annotations import TOGETHER
from mlc_deploy.lower.machine import bind_target
from mlc_deploy.lower.machine.pointers import CURSORS, find_cursors, follow_pointers
from mlc_deploy.script import from_script


def program(body: str) -> PrimFunc:
    """A loop over k on A (4096 elements) with sums in S."""
    text = "\n        ".join(["for k in range(8):", *body.splitlines()])
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((64,), "float32")):
    S = T.alloc_buffer((4,), "float32", scope="local")
    {text}
""")
    assert isinstance(func, PrimFunc)
    return func


def loop(body: str, func: PrimFunc | None = None) -> For:
    """The loop over k of a program."""
    loops = (s for s in statements((func or program(body)).body) if isinstance(s, For))
    return next(s for s in loops if s.name == "k")


def together(k: For) -> For:
    """The loop, as a schedule annotates it where registers may be free."""
    return with_fields(k, annotations={**k.annotations, TOGETHER: True})


def sums(*offsets: int) -> str:
    return "\n".join(
        f"S[T.Ramp(0, 1, 4)] = S[T.Ramp(0, 1, 4)] + A[T.Ramp(k * 16 + {n}, 1, 4)]" for n in offsets
    )


def test_on_arm_a_cursor_follows_the_loads() -> None:
    (cursor,) = find_cursors(loop(sums(8, 0, 4)), {}, "arm")
    assert (cursor.buffer.name, cursor.step, cursor.start) == ("A", 16, 8) and cursor.moves


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
    func = bind_target(program(sums(0, 4)), mlc.Target("x86_64"))
    assert follow_pointers(func) is func


def test_a_loop_carries_its_cursors() -> None:
    """They are printed with it."""
    func = follow_pointers(bind_target(program(sums(8, 0, 4)), mlc.Target("armv7a")))
    (cursor,) = loop("", func).annotations[CURSORS]
    assert repr(cursor) == "A[k * 16 + 8] += 16 follows"
    assert str(cursor) in str(func)


def tile(rows: int, blocks: int, apart: int) -> str:
    """Sums of single lanes of `rows` vectors, in blocks that lie `apart` elements from another."""
    return "\n".join(
        f"S[T.Ramp(0, 1, 4)] = S[T.Ramp(0, 1, 4)] + "
        f"T.Shuffle([A[T.Ramp(k * 16 + {block * apart + row * 4}, 1, 4)]], {[lane] * 4})"
        for block in range(blocks)
        for lane in range(4)
        for row in range(rows)
    )


def test_on_aarch64_vectors_that_are_in_registers_together_are_loaded_together() -> None:
    (cursor,) = find_cursors(loop(tile(6, 2, 1024)), {}, "aarch64")
    assert (cursor.first, cursor.step, cursor.moves) == (0, 16, True)
    assert set(cursor.groups.values()) == {(0, (3, 3)), (1024, (3, 3))}
    assert cursor.groups[20] == (0, (3, 3)) and cursor.groups[1028] == (1024, (3, 3))


def test_they_take_no_more_registers() -> None:
    (cursor,) = find_cursors(loop(tile(8, 4, 32)), {}, "aarch64")  # one stretch of 32 vectors
    assert set(cursor.groups.values()) == {(start, (4, 4)) for start in (0, 32, 64, 96)}
    windows = "\n".join(
        tile(5, 1, 0).replace("k * 16 +", f"k * 16 + {4 * tap} +") for tap in (0, 1)
    )
    assert find_cursors(loop(windows), {}, "aarch64") == []  # 3 + 2 + 1, which are 3 pairs


def test_vectors_that_are_used_whole_are_loaded_one_by_one() -> None:
    mixed = loop(tile(6, 2, 1024) + "\n" + sums(0))
    (cursor,) = find_cursors(mixed, {}, "arm")
    assert cursor.moves and not cursor.groups
    assert [c.groups for c in find_cursors(mixed, {}, "aarch64")] == [{}, {}]


def test_a_schedule_asks_for_them_at_once() -> None:
    mixed = together(loop(tile(6, 2, 1024) + "\n" + sums(0)))
    (cursor,) = find_cursors(mixed, {}, "arm")
    assert cursor.moves and not cursor.groups
    (cursor,) = find_cursors(mixed, {}, "aarch64")
    assert cursor.moves and all(max(parts) <= 4 for _, parts in cursor.groups.values())


def whole_tile(rows: int, blocks: int, steps: int) -> str:
    """Sums of `rows` by `blocks`, each in a register: vectors of weights, side by side, that are
    used whole, times lanes of the data."""
    return "\n".join(
        f"S[T.Ramp({(row * blocks + block) * 4}, 1, 4)] = "
        f"S[T.Ramp({(row * blocks + block) * 4}, 1, 4)] + "
        f"T.Shuffle([A[T.Ramp(k * 1024 + {row * 4}, 1, 4)]], {[step] * 4}) * "
        f"A[T.Ramp(k * 512 + {(step * blocks + block) * 4}, 1, 4)]"
        for step in range(steps)
        for row in range(rows)
        for block in range(blocks)
    )


@pytest.mark.parametrize(
    ("rows", "blocks", "parts"),
    [(8, 2, {4}), (7, 3, {2, 3, 4}), (6, 4, set())],  # of 26, 31 and 34 registers
)
def test_weights_are_loaded_together_where_registers_are_free(
    rows: int, blocks: int, parts: set[int]
) -> None:
    found = find_cursors(together(loop(whole_tile(rows, blocks, 4))), {}, "aarch64")
    weights = [c for c in found if c.step == 512]
    assert {n for c in weights for _, counts in c.groups.values() for n in counts} == parts


def copies(*offsets: int, to: str = "B") -> str:
    """Vectors of A, doubled, stored at these offsets of a turn's 32."""
    return "\n".join(
        f"{to}[T.Ramp(k * 32 + {n}, 1, 4)] = A[T.Ramp(k * 64 + {n}, 1, 4)] * T.Broadcast(2.0, 4)"
        for n in offsets
    )


@pytest.mark.parametrize(
    ("offsets", "grouped"),
    [
        (range(0, 32, 4), True),
        ((16, 20, 24, 28, 0, 4, 8, 12), True),
        (range(0, 24, 4), False),  # the last two have no neighbours
        ((0, 8, 4, 12), False),
    ],
)
def test_four_neighbours_are_stored_by_one_instruction(
    offsets: Sequence[int], grouped: bool
) -> None:
    k = loop(copies(*offsets))
    assert find_cursors(k, {}, "aarch64") == []  # unless a schedule asks for it
    found = [c for c in find_cursors(together(k), {}, "aarch64") if c.buffer.name == "B"]
    assert [c.start for c in found] == ([offsets[0]] if grouped else [])
    assert all(parts == (4,) for c in found for _, parts in c.groups.values())
    itself = together(loop(copies(*offsets, to="A")))
    assert find_cursors(itself, {}, "aarch64") == []  # later loads may read what is stored
