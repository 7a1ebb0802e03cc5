"""Runs that stop after a turn of a layer: what it computed there, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.driver.stops import Place, places_of, stop_after
from mlc_deploy.errors import InputError
from mlc_deploy.graph import BlockBuilder, TensorType, Value, const, register_func
from mlc_rpc import Session, errors

Array = NDArray[Any]
STEPS, WIDTH = 6, 16
WEIGHTS = np.random.default_rng(0).normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
X = np.random.default_rng(1).uniform(-1, 1, (STEPS, 1, WIDTH)).astype(np.float32)
BOARDS = [("local://", "host"), ("qemu://cortex-a7", "armv7a"), ("qemu://cortex-a72", "aarch64")]


def recurrent(target: str, turns: int = STEPS, conditional: bool = False) -> mlc.CompiledModel:
    """state = tanh(weights · state + x[turn]), from a state that is given; the last, squared."""
    bb = BlockBuilder("main")
    x, begin = bb.param("x", (turns, 1, WIDTH)), bb.param("begin", (1, WIDTH))

    def step(turn: Any, states: list[Value], parts: list[Value]) -> Any:
        *condition, state = states
        product = bb.emit("dense", state, const(WEIGHTS), transpose_b=True)
        return [*condition, bb.emit("tanh", bb.emit("add", product, parts[0]))], []

    truth = [const(np.array(False))] if conditional else []
    ends, _ = bb.emit_loop(turns, [*truth, begin], step, read=[(x, False)], conditional=conditional)
    return mlc.compile(bb.finish([bb.emit("multiply", ends[-1], ends[-1])], ["y"]), target)


def states(begin: Array) -> Iterator[Array]:
    state = begin
    for row in X:
        state = np.tanh(state @ WEIGHTS.T + row)
        yield state


@pytest.fixture(scope="module")
def board() -> Iterator[Session]:
    with mlc.connect("local://") as session:
        yield session


def looped(model: mlc.CompiledModel) -> str:
    """The layer of the loop that computes the state."""
    (layer,) = (call.layer for call in model.program.calls if "tanh" in call.kernel)
    return layer


@pytest.mark.parametrize(("url", "target"), BOARDS)
def test_every_turn(url: str, target: str) -> None:
    model = recurrent(target)
    layer, begin = looped(model), np.full((1, WIDTH), 0.5, np.float32)
    with mlc.connect(url) as session:
        wanted = [f"{layer}@0-{STEPS - 1}"]
        found = list(stop_after(model, session, {"x": X, "begin": begin}, wanted))
    assert [stopped.turn for stopped in found] == list(range(STEPS))
    for stopped, right in zip(found, states(begin), strict=True):
        (state,) = stopped.results.values()
        np.testing.assert_allclose(state.reshape(right.shape), right, rtol=1e-4, atol=1e-5)


def test_turns_that_do_not_come(board: Session) -> None:
    model = recurrent("host")
    module = board.load(model)
    given = {"x": X, "begin": X[0]}
    with pytest.raises(errors.Refused) as caught:
        module.stop_after(given, looped(model), STEPS)
    assert str(caught.value) == (
        f"layer '{looped(model)}' ran 6 times, so its iteration 6 never came\n"
        "  on:  local://\n"
        "  try: iterations 0 to 5"
    )
    with pytest.raises(errors.Refused) as caught:
        module.stop_after(given, model.program.calls[-1].layer, 1)
    assert str(caught.value).endswith("ran once, so its iteration 1 never came\n  on:  local://\n"
                                      "  try: iteration 0")  # fmt: skip
    with pytest.raises(errors.Refused, match="the model has no layer 'loop'"):
        module.stop_after(given, "loop")
    with pytest.raises(ValueError, match="iterations count from 0, and -1 is below"):
        module.stop_after(given, looped(model), -1)
    np.testing.assert_allclose(
        module.run(given)["y"], list(states(X[0]))[-1] ** 2, rtol=1e-4, atol=1e-5
    )


def test_a_loop_that_does_not_turn(board: Session) -> None:
    """Its condition does not hold in the first turn."""
    model = recurrent("host", conditional=True)
    with pytest.raises(errors.Refused) as caught:
        board.load(model).stop_after({"x": X, "begin": X[0]}, looped(model))
    assert str(caught.value) == (
        f"layer '{looped(model)}' did not run: its loop had no iteration, or another "
        "branch was taken\n"
        "  on:  local://\n"
        "  try: other inputs, or a layer that these inputs reach"
    )


def test_a_loop_that_never_ends(board: Session) -> None:
    """It is looked into all the same."""
    bb = BlockBuilder("main")
    x = bb.param("x", (4,))

    def step(turn: Any, states: list[Value], _: Any) -> Any:
        return [states[0], bb.emit("add", states[1], const(np.ones(4, np.float32)))], []

    truth = const(np.array(True))
    ends, _ = bb.emit_loop((1 << 31) - 1, [truth, x], step, conditional=True)
    model = mlc.compile(bb.finish(ends[1:], ["y"]), "host")
    (layer,) = (call.layer for call in model.program.calls if call.kernel == "add")
    stopped = board.load(model).stop_after({"x": np.zeros(4, np.float32)}, layer, 99)
    (found,) = stopped.results.values()
    assert found.tolist() == [100] * 4


def test_open_dimensions(board: Session) -> None:
    """A result is as large as the run says."""
    bb = BlockBuilder("main")
    x = bb.param("x", ("rows", 3))
    y = bb.emit("sum", bb.emit("exp", x), axes=(0,), keepdims=False)
    function = bb.finish([bb.emit("tanh", y)], ["y"])
    model = mlc.compile(function, "host", dims={"rows": "<=8"})
    given = np.ones((5, 3), np.float32)
    names = [call.layer for call in model.program.calls]
    found = list(stop_after(model, board, {"x": given}, names))
    (last,) = found[-1].results.values()
    np.testing.assert_allclose(last, np.tanh(np.exp(given).sum(0)), rtol=1e-5)
    for stopped in found:
        for array in stopped.results.values():
            assert array.shape in ((5, 3), (3,), (1, 3), ()), (stopped.layer, array.shape)


def test_functions_of_this_machine(board: Session) -> None:
    """They run as far as the stop needs them; none is stopped after."""
    called: list[int] = []

    @register_func("tests.stops.triple", override=True)
    def triple(x: Array, out: Array) -> None:
        called.append(1)
        out[...] = 3 * x

    bb = BlockBuilder("main")
    x = bb.param("x", (4,))
    first = bb.emit("exp", x)
    between = bb.call_dps_packed("tests.stops.triple", [first], TensorType((4,), "float32"))
    last = bb.emit("tanh", between)
    model = mlc.compile(bb.finish([last], ["y"]), "host")
    given = {"x": np.zeros(4, np.float32)}
    begin, end = (call.layer for call in model.program.calls)
    one, two = stop_after(model, board, given, [begin, end])
    assert len(called) == 1
    (before,), (after,) = one.results.values(), two.results.values()
    np.testing.assert_allclose(before, np.ones(4))
    np.testing.assert_allclose(after, np.tanh(np.full(4, 3.0)), rtol=1e-5)
    with pytest.raises(InputError, match="a function of this machine, which no board stops after"):
        places_of(model, [model.host_calls[0].layer])


def test_places() -> None:
    model = recurrent("host")
    layer = looped(model)
    assert places_of(model, [layer, f"{layer}@3", f"{layer}@2-4"]) == [
        Place(layer, range(1)), Place(layer, range(3, 4)), Place(layer, range(2, 5))
    ]  # fmt: skip
    with pytest.raises(InputError) as caught:
        places_of(model, [f"{layer[:-1]}@1"])
    assert str(caught.value).startswith(f"the model has no layer '{layer[:-1]}'\n  try: {layer}")
    with pytest.raises(InputError) as caught:
        places_of(model, [f"{layer}@4-1"])
    assert str(caught.value) == (
        f"iterations go from the first to the last, not from 4 to 1\n  in:  {layer}@4-1\n"
        f"  try: {layer}@1-4"
    )
