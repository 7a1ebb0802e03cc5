"""Sizes that are no multiple of the lanes, in every dtype, interpreted and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.build import build
from mlc_deploy.ir import Const, Expr, For, If, IRModule, PrimFunc, dtype_of, walk
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.ops import TensorType
from mlc_deploy.schedule import Schedule
from tests.codegen.operators import DTYPES, Array
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33)
LANES = (2, 3, 4, 8, 16)


def program(size: int, dtype: str, lanes: int | None) -> PrimFunc:
    """3 rows of `size`, in vectors of `lanes`; None leaves them to the default schedule."""
    x = te.placeholder((3, size), dtype, "x")
    is_bool = dtype_of(dtype).kind == "bool"
    y = te.compute(
        (3, size), lambda i, j: te.not_(x[i, j]) if is_bool else x[i, j] + x[i, j], name="y"
    )
    name = f"tail_{size}_{dtype}_{lanes}"
    sch = Schedule(te.create_prim_func([x, y], name))
    if lanes is not None:
        _, lane = sch.split("j", [None, lanes])
        sch.vectorize(lane)
    return sch.func


def data(size: int, dtype: str) -> Array:
    values = np.arange(3 * size).reshape(3, size) % 50
    return (values % 2 == 0) if dtype == "bool" else values.astype(dtype)


def expected(x: Array) -> Array:
    return ~x if x.dtype == bool else x + x


@pytest.mark.parametrize("dtype", DTYPES)
def test_interpreted(dtype: str) -> None:
    for size in SIZES:
        for lanes in LANES:
            x = data(size, dtype)
            y = np.zeros_like(x)
            run(lower(program(size, dtype, lanes)).body, x, y)
            np.testing.assert_array_equal(y, expected(x))


@pytest.mark.parametrize("board", TARGETS)
def test_compiled(board: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    for dtype in DTYPES:
        check(session, dtype, TARGETS[board])


def check(session: Session, dtype: str, target: str) -> None:
    cases = [(size, lanes) for size in (1, 7, 17, 33) for lanes in (None, 4)]
    funcs = {c: program(c[0], dtype, c[1]) for c in cases}
    module = session.load(
        build(
            IRModule({f.name: f for f in funcs.values()}), target=mlc.Target(target), name="tails"
        )
    )
    for (size, _), func in funcs.items():
        x = data(size, dtype)
        out = session.tensor(np.zeros_like(x))
        module[func.name](session.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), expected(x), err_msg=func.name)
    module.close()


def loops_of(func: PrimFunc, name: str) -> list[For]:
    """The loops that the passes make of a loop; they compute the same."""
    rng = np.random.default_rng(0)
    shapes = [TensorType(b.shape, b.dtype).sizes for b in func.buffers]
    arrays = [rng.integers(-9, 9, shape).astype("float32") for shape in shapes]
    right = [a.copy() for a in arrays]
    run(func, *right)
    body = lower(func).body
    run(body, *arrays)
    np.testing.assert_array_equal(arrays[-1], right[-1])
    return [n for n in walk(body) if isinstance(n, For) and n.var.name.startswith(name)]


def test_pixels_that_a_tile_skips_cut_no_loop() -> None:
    """14 pixels of step 2 in tiles of 5: the border is in front alone."""
    x, w = te.placeholder((28,), name="x"), te.placeholder((3,), name="w")
    k = te.reduce_axis((0, 3), "k")

    def term(p: Expr) -> Expr:
        at = p * 2 + k.var - 1
        return te.sum(te.if_then_else(te.all_of(at >= 0, at < 28), x[at] * w[k.var], 0), k)

    y = te.compute((14,), term, name="y")
    sch = Schedule(te.create_prim_func([x, w, y], "windows"))
    _, pixel = sch.split("p", [None, 5])
    sch.reorder("k", pixel)
    sch.decompose_reduction("y", "k")
    sch.unroll(pixel)
    extents = [loop.extent for loop in loops_of(sch.func, "k")]
    assert [isinstance(n, Const) and n.value for n in extents] == [2, 3, 3]


def test_rows_of_several_matrices_are_tested_outside_of_their_sums() -> None:
    """Three products of 7 rows in tiles of 4, all tiles in one parallel loop."""
    x, w = te.placeholder((3, 7, 16), name="x"), te.placeholder((3, 16), name="w")
    k = te.reduce_axis((0, 16), "k")
    y = te.compute((3, 7), lambda b, r: te.sum(x[b, r, k.var] * w[b, k.var], k), name="y")
    sch = Schedule(te.create_prim_func([x, w, y], "products"))
    tile, row = sch.split("r", [None, 4])
    sch.reorder("k", row)
    sch.decompose_reduction("y", "k")
    sch.unroll(row)
    sch.parallel(sch.fuse("b", tile))
    guarded = [any(isinstance(n, If) for n in walk(loop)) for loop in loops_of(sch.func, "k")]
    assert guarded == [False, True]  # of whole tiles, of those that hold the last rows
