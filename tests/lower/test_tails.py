"""Sizes that are no multiple of the lanes, in every dtype, interpreted and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.build import build
from mlc_deploy.ir import IRModule, PrimFunc, dtype_of
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
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
