"""blockize, and what the other primitives do with blocks inside blocks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mlc_deploy import Schedule, ScheduleError, te
from mlc_deploy.ir import Block, If, PrimFunc, const, statements
from mlc_deploy.ir.verify import verify
from mlc_deploy.schedule.tree import refreshed, replace
from mlc_deploy.script import from_script
from tests.schedule import draws

Golden = Callable[..., None]


def matmul(n: int = 8, m: int = 12, depth: int = 16) -> PrimFunc:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis((0, depth), "k")
    return te.create_prim_func(
        [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")]
    )


def tiled(func: PrimFunc | None = None) -> tuple[Schedule, str]:
    """(a schedule of 4 x 4 x 4 tiles, the outermost loop of a tile)"""
    sch = Schedule(func or matmul())
    loops = [sch.split(loop, [None, 4]) for loop in sch.get_loops("C")]
    sch.reorder(*(outer for outer, _ in loops), *(inner for _, inner in loops))
    return sch, loops[0][1]


def test_a_reduction(golden: Golden) -> None:
    sch, inner = tiled()
    assert sch.blockize(inner) == "C_o"
    assert sch.get_loops("C_o") == ["i_0", "j_0", "k_0"]
    assert sch.get_loops("C") == ["i_1", "j_1", "k_1"]
    assert sch.get_loops("C_init") == ["i_1_init", "j_1_init"]
    assert sch.get_blocks() == ["C_o"]
    assert sch.get_child_blocks("C_o") == ["C"]
    golden(str(sch.func), "blockize_reduction")


def test_a_reduction_taken_apart(golden: Golden) -> None:
    sch, inner = tiled()
    outer = sch.blockize(inner)
    init = sch.decompose_reduction(outer, "k_0")
    assert sch.get_blocks() == ["C_o_init", "C_o"]
    sch.vectorize(sch.get_loops(sch.get_child_blocks(init)[0])[-1])
    sch.parallel("i_0")
    golden(str(sch.func), "blockize_decomposed")


def test_blocks_within_blocks_within_blocks(golden: Golden) -> None:
    sch, inner = tiled()
    sch.blockize(inner)
    assert sch.blockize("j_0") == "C_o_o"
    assert sch.get_loops("C_o_o") == ["i_0"]
    golden(str(sch.func), "blockize_twice")


def test_regions_of_a_block_with_a_loop_and_vectors_inside() -> None:
    program = from_script(
        """
@T.prim_func
def main(X: T.Buffer((8, 12), "float32"), Y: T.Buffer((8, 16), "float32")):
    for t in range(2):
        with T.block("Y"):
            v_t = T.axis.spatial(2, t)
            T.reads()
            T.writes()
            for i in range(3):
                Y[v_t * 4 + i, T.Ramp(8, 1, 4)] = X[v_t * 4 + 3, T.Ramp(i * 2, 2, 4)]
"""
    )
    assert isinstance(program, PrimFunc)
    block = refreshed(Schedule(program).block("Y"))
    assert [str(r) for r in block.reads] == ["X[v_t * 4 + 3, 0:11]"]
    assert [str(r) for r in block.writes] == ["Y[v_t * 4:v_t * 4 + 3, 8:12]"]


def chain() -> PrimFunc:
    """B = A + 1, C[i, j] = B[i, j] + B[i, j + 1]"""
    a = te.placeholder((8, 9), name="A")
    b = te.compute((8, 9), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((8, 8), lambda i, j: b[i, j] + b[i, j + 1], name="C")
    return te.create_prim_func([a, c])


def fused_across() -> Schedule:
    sch = Schedule(matmul())
    i, j, _ = sch.get_loops("C")
    sch.split(sch.fuse(i, j), [None, 8])
    return sch


def overlapping() -> Schedule:
    sch = Schedule(chain())
    sch.split(sch.get_loops("C")[1], [None, 4])
    sch.compute_at("B", sch.get_loops("C")[1])
    return sch


def guarded() -> Schedule:
    sch = Schedule(matmul())
    sch.split(sch.get_loops("C")[1], [None, 5])
    return sch


def with_condition() -> Schedule:
    sch = Schedule(matmul())
    block = sch.block("C")
    return Schedule(verify(replace(sch.func, block, If(const(3) < sch.loop("i").var, block))))


def together() -> Schedule:
    sch = Schedule(chain())
    sch.compute_at("B", sch.get_loops("C")[0])
    return sch


def blocked() -> Schedule:
    sch, inner = tiled()
    sch.blockize(inner)
    return sch


def blocked_consumer() -> Schedule:
    sch = Schedule(chain())
    _, j = sch.get_loops("C")
    sch.blockize(sch.split(j, [None, 4])[1])
    return sch


REFUSALS: dict[str, list[tuple[Callable[[], Schedule], str, tuple[Any, ...]]]] = {
    "blockize": [
        (blocked, "blockize", ("i_9",)),
        (together, "blockize", ("i_1",)),
        (guarded, "blockize", ("j_1",)),
        (fused_across, "blockize", ("i_j_fused_1",)),
        (overlapping, "blockize", ("ax0",)),
        (with_condition, "blockize", ("j",)),
    ],
    "blocks_in_blocks": [
        (blocked, "compute_inline", ("C_o",)),
        (blocked, "reverse_compute_inline", ("C",)),
        (blocked, "compute_at", ("C", "i_0")),
        (blocked, "reverse_compute_at", ("C_o", "i_0")),
        (blocked, "cache_read", ("C_o", 0, "global")),
        (blocked, "cache_read", ("C", 0, "global")),
        (blocked, "cache_write", ("C", 0, "local")),
        (blocked, "decompose_reduction", ("C", "i_1")),
        (blocked, "rfactor", ("k_0", 0)),
        (blocked, "rfactor", ("k_1", 0)),
        (blocked, "transform_layout", ("C_o", "A", "lambda i, k: [k, i]")),
        (blocked, "transform_block_layout", ("C_o", "lambda i, j, k: [j, i, k]")),
        (blocked, "pad_einsum", ("C_o", (1, 1, 1))),
        (blocked, "decompose_padding", ("C_o", "i_0")),
        (blocked, "reorder", ("i_1", "i_0")),
        (blocked, "fuse", ("k_0", "i_1")),
        (blocked_consumer, "compute_inline", ("B",)),
        (blocked_consumer, "compute_at", ("B", "j_1_1")),
        (blocked_consumer, "transform_layout", ("B", "B", "lambda i, j: [j, i]")),
    ],
}


@pytest.mark.parametrize("group", REFUSALS)
def test_refusals(group: str, golden: Golden) -> None:
    texts = []
    for make, primitive, args in REFUSALS[group]:
        sch = make()
        before = sch.func
        with pytest.raises(ScheduleError) as error:
            getattr(sch, primitive)(*args)
        assert sch.func is before
        texts.append(f"{primitive}{args}\n{error.value}")
    golden("\n\n".join(texts), f"refusals_{group}")


def test_a_consumer_of_loops_inside_a_block_is_computed_at_its_block() -> None:
    sch = blocked_consumer()
    around = sch.get_loops("C_o")
    sch.compute_at("B", around[-1])
    assert sch.get_loops("B") == [*around, "ax0"]
    assert str(sch.loop("ax0").extent) == "5"


# Any sequence of primitives with blockize among them is refused or keeps the result.


def _any_block(sch: Schedule, rng: Random) -> str:
    """Inner blocks too."""
    return rng.choice(
        [s.name for s in statements(sch.func.body) if isinstance(s, Block) and s.iters]
    )


@pytest.mark.parametrize("number", range(6))
def test_random_schedules_of_nested_blocks(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(draws.DRAWS, "blockize", (6, draws._one_loop))
    monkeypatch.setattr(draws, "_block", _any_block)
    after = 0
    for seed in range(1_000_000 + 25 * number, 1_000_000 + 25 * (number + 1)):
        drawn = draws.drawn_schedule(seed)
        draws.check_interpreted(drawn)
        names = [name for name, _ in drawn.steps]
        after += len(names) - names.index("blockize") - 1 if "blockize" in names else 0
    assert after > 10  # steps that met a nested block
