"""Calls that write into the memory of an argument: rows that are added to a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function, Value, const, evaluate
from mlc_deploy.graph.eliminate import eliminate_dead_code
from mlc_deploy.graph.last_rows import last_rows
from mlc_deploy.graph.program import GraphProgram
from mlc_deploy.graph.states import with_states
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
LEAD, MOST, COUNT, WIDTH = 2, 8, 3, 4


def appending(bb: BlockBuilder, cache: Value, dropping: bool = True) -> Value:
    """Rows behind those of a cache, by parameters of their own."""
    rows = bb.param("rows", (LEAD, COUNT, WIDTH))
    more = [bb.param(n, (), "int64") for n in ("kept", "dropped")[: 2 if dropping else 1]]
    made: Value = bb.emit("append_rows", cache, rows, *more, owned=False)
    return made


def cached(*, branch: bool = False, old: bool = False) -> Function:
    """A cache as a state. branch: rows are added where the first sum is positive, and else
    nothing. old: an output reads the cache as it was."""
    bb = BlockBuilder("main")
    cache: Value = bb.param("cache", (LEAD, MOST, WIDTH))
    after: Value
    outputs: list[Value] = []
    if branch:
        rows = bb.param("rows", (LEAD, COUNT, WIDTH))
        kept = bb.param("kept", (), "int64")
        total = bb.emit("sum", rows, axes=[0, 1, 2], keepdims=False)
        positive = bb.emit("greater", total, const(0.0))
        (after,) = bb.emit_branch(
            positive,
            lambda: [bb.emit("append_rows", cache, rows, kept, owned=False)],
            lambda: [cache],
        )
    else:
        after = appending(bb, cache)
    outputs.append(bb.emit("sum", after, axes=[1], keepdims=False))
    if old:
        outputs.append(bb.emit("sum", cache, axes=[0], keepdims=False))
    names = [f"y{n}" for n in range(len(outputs))]
    return with_states(bb.finish([*outputs, after], [*names, "next"]), {"cache": "next"})


def copied(program: GraphProgram) -> int:
    """How many bytes kernels copy."""
    return sum(c.args[0].size for c in program.calls if c.kernel.startswith("copy"))


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_rows_are_added_in_place(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    function = cached()
    model = mlc.compile(function, TARGETS[board])
    assert model.program.arena == 0 and copied(model.program) == 0
    state, rng = np.zeros((LEAD, MOST, WIDTH), np.float32), np.random.default_rng(0)
    module = session.load(model)
    for step in range(6):
        full = COUNT * (step + 1) > MOST
        given: dict[str, Any] = {
            "rows": rng.normal(size=(LEAD, COUNT, WIDTH)).astype(np.float32),
            "kept": np.int64(MOST - COUNT if full else COUNT * step),
            "dropped": np.int64(1 if full else 0),
        }
        right = evaluate(function, {"cache": state, **given})
        found = module.step(given)
        state = right["next"]
        np.testing.assert_allclose(found["y0"], right["y0"], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(module.save_state()["cache"], state)
    module.close()


def test_a_cache_that_is_read_as_it_was_is_copied(local: Session) -> None:
    function = cached(old=True)
    model = mlc.compile(function, "host")
    assert copied(model.program) >= LEAD * MOST * WIDTH * 4
    given: dict[str, Any] = {
        "rows": np.ones((LEAD, COUNT, WIDTH), np.float32), "kept": np.int64(2),
        "dropped": np.int64(0),
    }  # fmt: skip
    module = local.load(model)
    state = np.zeros((LEAD, MOST, WIDTH), np.float32)
    for _ in range(2):
        right = evaluate(function, {"cache": state, **given})
        found = module.step(given)
        state = right["next"]
        for name, array in found.items():
            np.testing.assert_allclose(array, right[name])
    module.close()


def test_a_branch_adds_rows_in_place(local: Session) -> None:
    function = cached(branch=True)
    model = mlc.compile(function, "host")
    assert copied(model.program) == 0
    state = np.zeros((LEAD, MOST, WIDTH), np.float32)
    module = local.load(model)
    for sign in (1, -1, 1):
        rows = np.full((LEAD, COUNT, WIDTH), sign, np.float32)
        given: dict[str, Any] = {"rows": rows, "kept": np.int64(2)}
        right = evaluate(function, {"cache": state, **given})
        np.testing.assert_allclose(module.step(given)["y0"], right["y0"])
        state = right["next"]
        np.testing.assert_array_equal(module.save_state()["cache"], state)
    assert (state[:, 2:5] == 1).all()
    module.close()


def test_what_does_not_fit_is_refused() -> None:
    bb = BlockBuilder("main")
    with pytest.raises(ValueError, match=r"append_rows: \[2, 3, 4\] float32 to \[2, 8, 5\]"):
        appending(bb, bb.param("cache", (LEAD, MOST, WIDTH + 1)))
    bb = BlockBuilder("main")
    cache, rows = bb.param("cache", (2, 8, 4)), bb.param("rows", (2, 3, 4))
    with pytest.raises(ValueError, match="append_rows: a number of rows that is int32, 0-D"):
        bb.emit("append_rows", cache, rows, bb.param("kept", (), "int32"), owned=False)


def test_the_last_row_alone_is_computed() -> None:
    """Of a layer, a bias and a reshape; what is before a softmax over rows stays whole."""
    bb = BlockBuilder("main")
    x, w = bb.param("x", (5, 4)), const(np.random.default_rng(0).normal(size=(4, 3)), "float32")
    product = bb.emit("dense", x, w, transpose_b=False)
    shifted = bb.emit("add", product, const([1.0, 2.0, 3.0]))
    whole = bb.emit("reshape", shifted, shape=(1, 5, 3))
    cut: dict[str, Any] = {"begin": (0, 4, 0), "step": (1, 1, 1), "shape": (1, 1, 3)}
    row = bb.emit("slice", whole, **cut)
    over_rows = bb.emit("slice", bb.emit("softmax", whole, axis=1), **cut)
    function = bb.finish([row, over_rows], ["row", "over_rows"])
    one = of_first_output(function)
    made = last_rows(one)
    types = [b.outputs[0].type.shape for b in made.bindings]
    assert (1, 3) in types and (5, 3) not in types
    inputs = {"x": np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)}
    for f in (function, one):
        after = last_rows(f)
        for name, right in evaluate(f, inputs).items():
            np.testing.assert_allclose(evaluate(after, inputs)[name], right, rtol=1e-6)
    kept = [b.outputs[0].type.shape for b in last_rows(function).bindings]
    assert (5, 3) in kept


def of_first_output(function: Function) -> Function:
    """The function of its first output alone."""
    first = replace(function, outputs=function.outputs[:1], output_names=("row",))
    return eliminate_dead_code(first)
