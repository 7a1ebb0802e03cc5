"""A bias that sums begin with gives the same results, and only sums that may begin with it do."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import Block, Buffer, Expr, PrimFunc, const, statements
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule import Schedule
from mlc_deploy.schedule.epilogue import fuse_reduction_epilogue
from mlc_deploy.schedule.trace import Trace

ROWS, DEPTH, COLUMNS = 5, 3, 4


def layer(per: str = "column", padded: int = 0, largest: bool = False) -> PrimFunc:
    """relu(x w + bias); per: what the bias depends on; padded: rows of sums that nothing takes."""
    x = te.placeholder((ROWS + padded, DEPTH), "float32", name="x")
    w = te.placeholder((DEPTH, COLUMNS), "float32", name="w")
    shape = {"column": (COLUMNS,), "row": (ROWS,), "element": (ROWS, COLUMNS)}[per]
    bias = te.placeholder(shape, "float32", name="bias")
    k = te.reduce_axis((0, DEPTH), "k")
    reduce = te.max if largest else te.sum
    tile = te.compute(
        (ROWS + padded, COLUMNS), lambda i, j: reduce(x[i, k] * w[k, j], k), name="tile"
    )

    def element(i: Expr, j: Expr) -> Expr:
        at = {"column": (j,), "row": (i,), "element": (i, j)}[per]
        return te.maximum(tile[i, j] + bias[at], const(0, "float32"))

    result = te.compute((ROWS, COLUMNS), element, name="result")
    return te.create_prim_func([x, w, bias, result])


def additions(func: PrimFunc) -> int:
    """How often the result still adds."""
    (last,) = (s for s in statements(func.body) if isinstance(s, Block) and s.name == "result")
    return str(last.body).count("+")


def shape_of(buffer: Buffer) -> list[int]:
    return [int(n) for n in buffer.shape]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("per", "padded", "moved"),
    [
        ("column", 0, True),
        ("row", 0, True),
        ("element", 0, True),
        ("column", 2, True),
        ("row", 2, False),  # the rows beyond have none
        ("element", 2, False),
    ],
)
def test_same_results(per: str, padded: int, moved: bool) -> None:
    func = layer(per, padded)
    begun = fuse_reduction_epilogue(func, "tile", "result")
    assert (additions(func), additions(begun)) == (1, 0 if moved else 1)
    random = np.random.default_rng(0)
    x, w, bias = (random.normal(size=shape_of(b)).astype("float32") for b in func.buffers[:3])
    out = np.full((ROWS, COLUMNS), np.nan, "float32")
    run(begun, x, w, bias, out)
    added = bias[:, None] if per == "row" else bias
    np.testing.assert_allclose(out, np.maximum(x[:ROWS] @ w + added, 0), rtol=1e-5, atol=1e-6)


def test_one_bias_after_another() -> None:
    """The first is made by a stage before the sums, the second is an argument."""
    x = te.placeholder((ROWS, DEPTH), "float32", name="x")
    bias = te.placeholder((COLUMNS,), "float32", name="bias")
    k = te.reduce_axis((0, DEPTH), "k")
    before = te.compute((COLUMNS,), lambda j: bias[j] * 2.0, name="before")
    tile = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(x[i, k], k), name="tile")
    result = te.compute(
        (ROWS, COLUMNS), lambda i, j: before[j] + tile[i, j] + bias[j], name="result"
    )
    func = te.create_prim_func([x, bias, result])
    once = fuse_reduction_epilogue(func, "tile", "result")
    twice = fuse_reduction_epilogue(once, "tile", "result")
    assert [additions(f) for f in (func, once, twice)] == [2, 1, 0]
    random = np.random.default_rng(0)
    a, b = (random.normal(size=shape_of(p)).astype("float32") for p in func.buffers[:2])
    out = np.full((ROWS, COLUMNS), np.nan, "float32")
    run(twice, a, b, out)
    np.testing.assert_allclose(out, a.sum(1)[:, None] + 3 * b, rtol=1e-5, atol=1e-6)


def test_a_bias_that_is_made_later_stays_where_it_is() -> None:
    x = te.placeholder((ROWS, DEPTH), "float32", name="x")
    k = te.reduce_axis((0, DEPTH), "k")
    tile = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(x[i, k], k), name="tile")
    after = te.compute((COLUMNS,), lambda j: x[0, 0] * 2.0, name="after")
    result = te.compute((ROWS, COLUMNS), lambda i, j: tile[i, j] + after[j], name="result")
    func = te.create_prim_func([x, result])
    assert fuse_reduction_epilogue(func, "tile", "result") is func


def test_the_largest_is_no_sum() -> None:
    func = layer(largest=True)
    assert fuse_reduction_epilogue(func, "tile", "result") is func


# ------------------------------------------------------------------------ sums that lie otherwise

LANES, BLOCKS = 4, 3


def packed(rows: int = 0, twice: bool = False) -> PrimFunc:
    """relu(x w + bias) of sums in blocks of LANES columns, which a block in between turns. rows:
    what of it is left out at the end; twice: another result takes the sums."""
    x = te.placeholder((ROWS, DEPTH), "int32", name="x")
    w = te.placeholder((BLOCKS, DEPTH, LANES), "int32", name="w")
    columns = BLOCKS * LANES - rows
    bias = te.placeholder((columns,), "int32", name="bias")
    k = te.reduce_axis((0, DEPTH), "k")
    tile = te.compute(
        (BLOCKS, ROWS, LANES), lambda b, i, c: te.sum(x[i, k] * w[b, k, c], k), name="tile"
    )
    turned = te.compute((ROWS, BLOCKS, LANES), lambda i, b, c: tile[b, i, c], name="turned")

    def element(i: Expr, j: Expr) -> Expr:
        return te.maximum(turned[i, j // LANES, j % LANES] + bias[j], const(0, "int32"))

    result = te.compute((ROWS, columns), element, name="result")
    others = [te.compute((ROWS, LANES), lambda i, c: turned[i, 0, c], name="other")]
    return te.create_prim_func([x, w, bias, result, *(others if twice else [])])


def results(func: PrimFunc) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    given = [random.integers(-9, 9, shape_of(b)).astype("int32") for b in func.buffers]
    run(func, *given)
    return given[3:]


RIGHT = [[1, 0, LANES, 2, 1]]  # column = block * LANES + lane


def test_a_map_that_is_right() -> None:
    func = packed()
    begun = fuse_reduction_epilogue(func, "tile", "result", "turned", RIGHT)
    assert (additions(func), additions(begun)) == (1, 0)
    np.testing.assert_array_equal(results(begun), results(func))
    assert fuse_reduction_epilogue(func, "tile", "result", "turned") is func  # no single iteration


Wrong = tuple[PrimFunc, list[list[int]]]
WRONG: dict[str, Wrong] = {
    "block for lane": (packed(), [[1, 2, LANES, 0, 1]]),
    "another factor": (packed(), [[1, 0, LANES - 1, 2, 1]]),
    "a part of it": (packed(), [[1, 2, 1]]),
    "the reduction's own axis": (packed(), [[1, 0, LANES, 3, 1]]),
    "a row": (packed(), [[1, 1, 1]]),
    "sums that nothing takes": (packed(rows=1), RIGHT),
    "sums that another takes": (packed(twice=True), RIGHT),
    "no such iteration": (packed(), [[2, 0, 1]]),
    "no such iteration of the reduction": (packed(), [[1, 4, 1]]),
    "a factor is missing": (packed(), [[1, 0]]),
    "no numbers": (packed(), [[1, 0, "4"]]),  # type: ignore[list-item]
}


def test_maps_that_are_refused(golden: Callable[..., None]) -> None:
    text = []
    for name, (func, at) in WRONG.items():
        with pytest.raises(ScheduleError) as refused:
            fuse_reduction_epilogue(func, "tile", "result", "turned", at)
        text.append(f"# {name}\n{refused.value}")
    golden("\n\n".join(text), "epilogue_maps_refused")


def test_a_trace_with_a_wrong_map_is_refused() -> None:
    sch = Schedule(packed())
    sch.fuse_reduction_epilogue("tile", "result", "turned", RIGHT)
    text = sch.trace.dumps()
    given, wrong = (json.dumps(m) for m in (RIGHT, [[1, 2, LANES, 0, 1]]))
    assert given in text
    with pytest.raises(ScheduleError, match="which does not follow from its reads"):
        Trace.loads(text.replace(given, wrong)).apply(Schedule(packed()))


NUMBERS = st.integers(0, 4)
ROW = st.lists(NUMBERS, min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, max_size=2), st.sampled_from([0, 1]))
def test_any_map_is_refused_or_right(at: list[list[int]], rows: int) -> None:
    func = packed(rows)
    try:
        begun = fuse_reduction_epilogue(func, "tile", "result", "turned", at)
    except ScheduleError:
        return
    np.testing.assert_array_equal(results(begun), results(func))
