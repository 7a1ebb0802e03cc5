"""A function that may leave out what it adds, and what makes that impossible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.graph.specialize import with_scalars
from mlc_deploy.ir import LEFT_OUT, SCALARS, PrimFunc
from mlc_deploy.ir.interp import run
from mlc_deploy.ir.terms import with_choice
from mlc_deploy.te import Tensor

X, Y = (np.arange(8, dtype=np.float32) * s - 3 for s in (1, -2))


def function(result: Callable[[Tensor, Tensor, int], object]) -> PrimFunc:
    """z[i] = result(x, y, i)."""
    x, y = te.placeholder((8,), name="x"), te.placeholder((8,), name="y")
    z = te.compute((8,), lambda i: result(x, y, i), name="z")
    return te.create_prim_func([x, y, z])


ADDED: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "the right side": (lambda x, y, i: te.max(x[i] + y[i], 0), lambda x, y, i: np.maximum(x, 0)),
    "the left side": (lambda x, y, i: (y[i] + x[i]) * 2, lambda x, y, i: x * 2),
    "twice": (lambda x, y, i: x[i] + y[i] + y[7 - i], lambda x, y, i: x),
    "nothing": (lambda x, y, i: x[i], lambda x, y, i: x),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("adds", [(1, 0), (0, 1)])
def test_one_kernel_adds_it(name: str, adds: Sequence[int]) -> None:
    result, without = ADDED[name]
    func = function(result)
    both = with_choice(func, func.buffers[1], adds)
    assert both is not None
    assert [both.attrs[SCALARS][n]["added"] for n in range(2)] == list(adds)
    assert [both.attrs[LEFT_OUT][n] for n in range(2)] == [() if a else ("y",) for a in adds]
    wanted, added, left = (np.zeros(8, np.float32) for _ in range(3))
    run(func, X, Y, wanted)
    run(with_scalars(both, [1]), X, Y, added)
    run(with_scalars(both, [0]), X, Y * np.float32("nan"), left)
    np.testing.assert_array_equal(added, wanted)
    np.testing.assert_array_equal(left, without(X, Y, None))


OTHERWISE: dict[str, Callable[..., object]] = {
    "multiplied": lambda x, y, i: x[i] + y[i] * 2,
    "added and multiplied": lambda x, y, i: (x[i] + y[i]) * y[i],
    "subtracted": lambda x, y, i: x[i] - y[i],
    "a choice": lambda x, y, i: te.if_then_else(y[i] > 0, x[i] + y[i], x[i]),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_more_than_added(name: str) -> None:
    func = function(OTHERWISE[name])
    assert with_choice(func, func.buffers[1]) is None
