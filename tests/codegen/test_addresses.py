"""Pointers that accesses share, where what they depend on is written in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import IRModule, Stmt, seq
from mlc_deploy.ops.loops import each, put

if TYPE_CHECKING:
    from mlc_rpc import Session


def test_an_index_that_is_read_anew(local: Session) -> None:
    """One expression says where each store goes: a number that every turn changes."""
    x = te.placeholder((3,), name="x")

    def body(ins: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> Stmt:
        made, at = outs
        here = at[0]
        turns = each("i", 3, lambda i: seq((put(at, (0,), i + 1), put(made, (here,), ins[0][i]))))
        return seq((put(at, (0,), 0), put(made, (here,), 5.0), turns))

    y, at = te.extern([(4,), (1,)], [x], body, name="spread", dtype=["float32", "int32"])
    func = te.create_prim_func([x, y, at], "spread")
    module = local.load(mlc.build(IRModule({"spread": func}), target="host"))
    out = local.empty((4,))
    numbers = np.array([1, 2, 3], np.float32)
    module["spread"](local.tensor(numbers), out, local.empty((1,), "int32"))
    np.testing.assert_array_equal(out.numpy(), [5, 1, 2, 3])


def test_an_element_whose_place_is_read_anew(local: Session) -> None:
    """at = x[at + 1], three times: the same expression gives other elements, though nothing writes
    x."""
    x = te.placeholder((4,), "int32", "x")

    def body(ins: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> Stmt:
        (at,) = outs
        return seq((put(at, (0,), 0), *[put(at, (0,), ins[0][at[0] + 1]) for _ in range(3)]))

    at = te.extern((1,), [x], body, name="follow", dtype="int32")
    module = local.load(
        mlc.build(IRModule({"follow": te.create_prim_func([x, at], "follow")}), target="host")
    )
    out = local.empty((1,), "int32")
    module["follow"](local.tensor(np.array([9, 1, 2, 7], np.int32)), out)
    assert out.numpy() == [7]
