"""A bias that sums begin with gives the same results, and only sums that may begin with it do."""

from __future__ import annotations

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.ir import Block, Buffer, Expr, PrimFunc, const, statements
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule.epilogue import fuse_reduction_epilogue

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


def test_the_largest_is_no_sum() -> None:
    func = layer(largest=True)
    assert fuse_reduction_epilogue(func, "tile", "result") is func
