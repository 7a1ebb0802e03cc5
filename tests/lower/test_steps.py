"""Programs after each lowering step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc_deploy import te
from mlc_deploy.errors import LowerError
from mlc_deploy.ir import PrimFunc
from mlc_deploy.lower import lower
from mlc_deploy.schedule import Schedule
from tests.schedule.small_programs import chain, matmul, stencil, symbolic


def tiled_matmul() -> Schedule:
    """Tiles that do not divide, a vector innermost, the consumer in the tile."""
    sch = Schedule(matmul())
    i_outer, i_inner = sch.split("i", [None, 3])
    j_outer, j_inner = sch.split("j", [None, 4])
    sch.reorder(i_outer, j_outer, "k", i_inner, j_inner)
    sch.decompose_reduction("C", "k")
    sch.vectorize(j_inner)
    sch.parallel(i_outer)
    return sch


def windows() -> Schedule:
    """A producer computed for each tile of its consumer, in a buffer of the tile's size."""
    sch = Schedule(stencil())
    sch.split("i_1", [None, 4])
    sch.compute_at("B", "i_1_0")
    return sch


def tail() -> Schedule:
    """12 columns in vectors of 8: the last half is left."""
    sch = Schedule(chain())
    sch.compute_inline("B")
    _, lane = sch.split("j_1", [None, 8])
    sch.vectorize(lane)
    sch.unroll("i_1")
    return sch


def padded_row() -> Schedule:
    """A guarded load: the loop is cut where the guard begins to hold, and where it ends."""
    x = te.placeholder((16,), name="x")
    p = te.compute(
        (20,), lambda i: te.if_then_else(te.all_of(i >= 2, i < 18), x[i - 2], 0), name="p"
    )
    return Schedule(te.create_prim_func([x, p]))


def any_length() -> Schedule:
    sch = Schedule(symbolic())
    sch.split("i", [None, 4])
    return sch


SCHEDULES: tuple[Callable[[], Schedule], ...] = (
    tiled_matmul,
    windows,
    tail,
    padded_row,
    any_length,
)


@pytest.mark.parametrize("make", SCHEDULES, ids=lambda m: m.__name__)
def test_every_step(make: Callable[[], Schedule], golden: Callable[..., None]) -> None:
    func = make().func
    texts = [str(func)]

    def watch(step: str, after: PrimFunc, changed: bool) -> None:
        texts.append(f"--- after {step}\n{after if changed else '(unchanged)'}")

    lower(func, watch=watch)
    golden("\n".join(texts), f"lower_{make.__name__}")


def too_large() -> PrimFunc:
    x = te.placeholder((1 << 16, 1 << 15), name="x")
    return te.create_prim_func([x, te.compute((4,), lambda i: x[i, i], name="y")])


def unrolled_too_often() -> PrimFunc:
    x = te.placeholder((1 << 17,), name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((1 << 17,), lambda i: x[i] + 1, name="y")]))
    sch.unroll("i")
    return sch.func


ERRORS = {
    too_large: "buffer 'x' has 2147483648 elements, 2^31 or more\n  in:  main\n"
    "  try: split the tensor",
    unrolled_too_often: "unroll: loop 'i' would make 131072 copies of its body\n"
    "  in:  for i in T.unrolled(131072):\n  try: unroll fewer loops around each other",
}


@pytest.mark.parametrize("make", ERRORS, ids=lambda m: m.__name__)
def test_errors(make: Callable[[], PrimFunc]) -> None:
    with pytest.raises(LowerError) as caught:
        lower(make())
    assert str(caught.value) == ERRORS[make]
