"""Models with loops and branches on the board: what they compute, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from mlc_rpc.wire import MAX_SPANS
from tests.runtime.board import (
    IN_ARENA,
    IN_INPUT,
    IN_OUTPUT,
    Board,
    metadata_of,
    model_of,
    module_of,
    refused,
)

SIZE = 256  # bytes of 64 floats
STATE = [IN_ARENA, 0, 0, SIZE]
PROGRAM_ABI = 2
ROWS = 4


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as b:
        yield b


def program(
    procedures: list[Any], calls: list[Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """The state, which begins as 0, is doubled and gets a row of the input in every turn; what it
    is then goes to a row of the output."""
    row = [IN_INPUT, 0, 0, SIZE, 0, SIZE]
    steps = [
        [1, "double", [STATE, [IN_ARENA, 0, SIZE, SIZE]]],
        [0, "add", [[IN_ARENA, 0, SIZE, SIZE], row, STATE]],
        [1, "out", [STATE, [IN_OUTPUT, 0, 0, SIZE, 0, SIZE]]],
    ]
    rows = [{"name": n, "dtype": "float32", "shape": [ROWS, 1, 64]} for n in "xy"]
    said = {"inputs": rows[:1], "outputs": rows[1:], "weights": 0, "weights_hash": b""}
    return model_of(b"", procedures=procedures, calls=calls or steps, arena=640) | said | changes


def object_of(model: dict[str, Any]) -> bytes:
    return module_of("add64", "double64", says={"abi": PROGRAM_ABI, "model": model})


def loop(turns: int, body: int = 1, number: int = 0, **places: Any) -> list[Any]:
    return [0, number, turns, body, *map(places.get, ("condition", "turn", "count"))]


def ran(board: Board, model: dict[str, Any], x: Any) -> tuple[Any, dict[str, Any]]:
    module = board.load(object_of(model))
    args = [board.tensor(x), board.tensor(0 * x)]
    answer = board.call("run", module["module"], None, args, {})
    return board.numpy(args[1], x), answer


X = np.arange(ROWS * 64, dtype=np.float32).reshape(ROWS, 1, 64)


def expected(turns: int) -> Any:
    state, y = 0 * X[0], 0 * X
    for turn in range(turns):
        state = 2 * state + X[turn]
        y[turn] = 2 * state
    return y


def test_a_loop_runs_its_turns(board: Board) -> None:
    y, answer = ran(board, program([[loop(ROWS)], [0, 1, 2]]), X)
    np.testing.assert_array_equal(y, expected(ROWS))
    assert answer["turns"] == [ROWS] * 3
    assert len(answer["nanoseconds"]) == 3


def test_all_calls_together(board: Board) -> None:
    """A client that wants no more is told one number."""
    module = board.load(object_of(program([[loop(ROWS)], [0, 1, 2]])))
    args = [board.tensor(X), board.tensor(0 * X)]
    answer = board.call("run", module["module"], None, args, {"total": True})
    assert len(answer["nanoseconds"]) == 1 and answer["nanoseconds"][0] > 0
    assert answer.keys() == {"nanoseconds"}


def test_spans_of_long_loops_end(board: Board) -> None:
    """What would be more than an answer has room for is not told."""
    calls = [[1, "double", [STATE, [IN_ARENA, 0, SIZE, SIZE]]]]
    module = board.load(object_of(program([[loop(MAX_SPANS + 5)], [0]], calls)))
    args = [board.tensor(X), board.tensor(0 * X)]
    answer = board.call("run", module["module"], None, args, {"spans": True})
    assert answer["turns"] == [MAX_SPANS + 5] and len(answer["spans"]) == MAX_SPANS


@pytest.mark.parametrize(("call", "turn"), [(0, 0), (1, 2), (2, 3)])
def test_a_run_stops_after_a_turn_of_a_call(board: Board, call: int, turn: int) -> None:
    """Nothing comes after it, and it is told where that call's operands are then."""
    module = board.load(object_of(program([[loop(ROWS)], [0, 1, 2]])))
    args = [board.tensor(X), board.tensor(0 * X)]
    answer = board.call("run", module["module"], None, args, {"stop": [call, turn]})
    assert answer["turns"] == [turn + (n <= call) for n in range(3)]
    there = {0: [0, SIZE], 1: [SIZE, turn * SIZE, 0], 2: [0, turn * SIZE]}
    assert answer["places"] == there[call]
    y = board.numpy(args[1], X)
    done = turn + (call == 2)
    np.testing.assert_array_equal(
        y, np.where(np.arange(ROWS)[:, None, None] < done, expected(4), 0)
    )


def test_turns_count_over_all_loops_around_a_call(board: Board) -> None:
    calls = program([])["calls"]
    calls[1][2][1] = [IN_INPUT, 0, 0, SIZE, 0, 2 * SIZE, 1, SIZE]
    nested = [[loop(2)], [loop(2, 2, 1)], [0, 1, 2]]
    module = board.load(object_of(program(nested, calls)))
    args = [board.tensor(X), board.tensor(0 * X)]
    answer = board.call("run", module["module"], None, args, {"stop": [1, 3]})
    assert answer["places"][1] == 3 * SIZE and answer["turns"] == [4, 4, 3]


def test_a_stop_that_does_not_come(board: Board) -> None:
    """The run goes to its end, and says of no place."""
    module = board.load(object_of(program([[loop(ROWS)], [0, 1, 2]])))
    args = [board.tensor(X), board.tensor(0 * X)]
    answer = board.call("run", module["module"], None, args, {"stop": [1, ROWS]})
    assert "places" not in answer and answer["turns"] == [ROWS] * 3
    np.testing.assert_array_equal(board.numpy(args[1], X), expected(ROWS))


def test_a_stop_that_is_refused(board: Board) -> None:
    module = board.load(object_of(program([[loop(ROWS)], [0, 1, 2]])))["module"]
    args = [board.tensor(X), board.tensor(0 * X)]
    said = refused(board, "run", module, None, args, {"stop": [3, 0]})
    assert said.text == "the model has no call 3 to stop after: it has 3"
    said = refused(board, "run", module, "double64", args, {"stop": [0, 0]})
    assert said.text == "run: a run stops after a call of a model, not within a kernel"
    said = refused(board, "run", module, None, args, {"stop": [0]})
    assert said.text == "run: a parameter is not as it must be: stop is a call and its iteration"
    said = refused(board, "time", module, None, args, {"stop": [0, 0], "repeat": 1})
    assert said.text == "time has no option 'stop'"


def test_a_quiet_run_says_nothing(board: Board) -> None:
    module = board.load(object_of(program([[loop(ROWS)], [0, 1, 2]])))
    args = [board.tensor(X), board.tensor(0 * X)]
    assert board.call("run", module["module"], None, args, {"quiet": True}) == {}
    np.testing.assert_array_equal(board.numpy(args[1], X), expected(ROWS))


def test_a_loop_of_no_turns(board: Board) -> None:
    y, answer = ran(board, program([[loop(0)], [0, 1, 2]]), X)
    assert not y.any() and answer["turns"] == [0, 0, 0]


def test_loops_within_each_other(board: Board) -> None:
    """The place in the input moves by both loops."""
    calls = program([])["calls"]
    calls[1][2][1] = [IN_INPUT, 0, 0, SIZE, 0, 2 * SIZE, 1, SIZE]
    calls[2][2][1] = [IN_OUTPUT, 0, 0, SIZE, 0, 2 * SIZE, 1, SIZE]
    nested = [[loop(2)], [loop(2, 2, 1)], [0, 1, 2]]
    y, answer = ran(board, program(nested, calls), X)
    np.testing.assert_array_equal(y, expected(ROWS))
    assert answer["turns"] == [4, 4, 4]


def test_a_place_moves_backwards(board: Board) -> None:
    calls = program([])["calls"]
    calls[1][2][1] = [IN_INPUT, 0, 3 * SIZE, SIZE, 0, -SIZE]
    y, _ = ran(board, program([[loop(ROWS)], [0, 1, 2]], calls), X[::-1].copy())
    np.testing.assert_array_equal(y, expected(ROWS))


def counted(count: int) -> tuple[dict[str, Any], Any]:
    """A loop of as many turns as the last int64 of the input says; rows go backwards through the
    input, from the last that counts on."""
    calls = program([])["calls"]
    calls[1][2][1] = [IN_INPUT, 0, 3 * SIZE, SIZE, 0, -SIZE]
    x = X.copy()
    x.view(np.int64).reshape(-1)[-1] = count
    where = [IN_INPUT, 0, ROWS * SIZE - 8, 8]
    return program([[loop(ROWS, count=where)], [0, 1, 2]], calls), x


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_loop_that_is_counted(board: Board, count: int) -> None:
    model, x = counted(count)
    y, answer = ran(board, model, x)
    state, right = 0 * x[0], 0 * x
    for turn in range(count):
        state = 2 * state + x[count - 1 - turn]
        right[turn] = 2 * state
    np.testing.assert_array_equal(y, right)
    assert answer["turns"] == [count] * 3


@pytest.mark.parametrize("count", [-1, 5, 1 << 40])
def test_a_count_that_is_too_large(board: Board, count: int) -> None:
    model, x = counted(count)
    module = board.load(object_of(model))
    args = [board.tensor(x), board.tensor(0 * x)]
    failed = refused(board, "run", module["module"], None, args, {})
    assert failed.text == (
        "kernel 'double64' (layer 'double', call 0) returned status 3: a dimension is negative, or "
        "more than it may be"
    )


def test_a_place_outside_a_loop_that_did_not_turn(board: Board) -> None:
    """It moves with the loop all the same: it is where the first turn has it."""
    calls = program([])["calls"]
    calls[2][2][1] = [IN_OUTPUT, 0, 3 * SIZE, SIZE, 0, -SIZE]
    x = X.copy()
    x.view(np.int64).reshape(-1)[-1] = 0
    where = [IN_INPUT, 0, ROWS * SIZE - 8, 8]
    y, _ = ran(board, program([[loop(ROWS, count=where), 2], [0, 1]], calls), x)
    assert not y.any()


@pytest.mark.parametrize("holds", [True, False])
def test_a_branch(board: Board, holds: bool) -> None:
    """The condition is the first byte of the input."""
    calls = [
        [1, "then", [[IN_INPUT, 0, 0, SIZE], [IN_OUTPUT, 0, 0, SIZE]]],
        [1, "otherwise", [[IN_INPUT, 0, SIZE, SIZE], [IN_OUTPUT, 0, 0, SIZE]]],
    ]
    x = X.copy()
    x.view(np.uint8).reshape(-1)[0] = holds
    y, answer = ran(board, program([[[1, [IN_INPUT, 0, 0, 1], 1, 2]], [0], [1]], calls), x)
    np.testing.assert_array_equal(y[0], 2 * x[0 if holds else 1])
    assert answer["turns"] == [int(holds), int(not holds)]


def test_a_condition_ends_a_loop(board: Board) -> None:
    """It is the first byte of the turn's row."""
    x = X.copy()
    x.view(np.uint8).reshape(ROWS, -1)[:, 0] = [1, 1, 0, 1]
    condition = [IN_INPUT, 0, 0, 1, 0, SIZE]
    _, answer = ran(board, program([[loop(ROWS, condition=condition)], [0, 1, 2]]), x)
    assert answer["turns"] == [2, 2, 2]


def test_the_number_of_a_turn(board: Board) -> None:
    model = program([[loop(ROWS, turn=[IN_ARENA, 0, 512, 8])], [0, 1, 2]])
    module = board.load(object_of(model))
    args = [board.tensor(X), board.tensor(0 * X)]
    board.call("run", module["module"], None, args, {})
    arena = board.numpy(module["arena"], np.zeros(80, np.int64))
    assert arena[64] == ROWS - 1


@pytest.mark.parametrize("steps", [[5], [loop(1, 0)], [loop(1, 7)], [loop(1, 1, 3)],
                                   [loop(1, 1), loop(1, 1, 1)], [[1, None, 1, 2]]])  # fmt: skip
def test_steps_that_are_not_in_order(board: Board, steps: list[Any]) -> None:
    name = board.blob(object_of(program([steps, [0], [1]])))
    assert refused(board, "module.load", name, None).text.endswith(
        "of procedure 0 is invalid; this runtime takes 256 loops, and 16 within each other"
    )


def test_loops_that_are_nested_too_deep(board: Board) -> None:
    deep = [[loop(1, n + 1, n)] for n in range(20)]
    name = board.blob(object_of(program([*deep, [0]])))
    assert "16 within each other" in refused(board, "module.load", name, None).text


@pytest.mark.parametrize(
    "place",
    [
        [IN_INPUT, 0, 0, SIZE, 0, SIZE + 64],  # beyond the input in the last turn
        [IN_INPUT, 0, SIZE, SIZE, 0, -SIZE],  # before it
        [IN_INPUT, 0, 0, SIZE, 1, SIZE],  # by a loop that is not there
        [IN_INPUT, 0, 0, SIZE, 0, 4],  # to where it is not aligned
        [IN_INPUT, 0, 0, SIZE, 0, 1 << 62],
        [IN_INPUT, 0, 0, SIZE, 0, -(1 << 63)],
        [IN_INPUT, 0, 0, SIZE, 0, SIZE, 0, SIZE],
    ],
)
def test_a_place_that_leaves_its_memory(board: Board, place: list[int]) -> None:
    calls = program([])["calls"]
    calls[1][2][1] = place
    name = board.blob(object_of(program([[loop(ROWS)], [0, 1, 2]], calls)))
    text = refused(board, "module.load", name, None).text
    assert text.startswith("call 1 (layer 'add'): 'b' lies outside its memory"), text


@pytest.mark.parametrize("places", [{"condition": [IN_ARENA, 0, 640, 1]},
                                    {"turn": [IN_ARENA, 0, 636, 8]},
                                    {"turn": [IN_OUTPUT, 0, 0, 8]},
                                    {"count": [IN_ARENA, 0, 636, 8]},
                                    {"count": [IN_INPUT, 0, 4, 8]},
                                    {"count": [IN_INPUT, 1, 0, 8]}])  # fmt: skip
def test_what_a_loop_reads_and_writes_itself(board: Board, places: dict[str, Any]) -> None:
    name = board.blob(object_of(program([[loop(ROWS, **places)], [0, 1, 2]])))
    text = refused(board, "module.load", name, None).text
    assert text == "a loop's condition, iteration or count lies outside its memory"


@pytest.mark.parametrize("steps", [[[0, 0, 1]], [[2, 0, 0, 0]], [-1], ["x"], [[]]])
def test_what_is_no_step(board: Board, steps: list[Any]) -> None:
    name = board.blob(object_of(program([steps])))
    assert "the module's metadata is invalid" in refused(board, "module.load", name, None).text


@pytest.mark.parametrize("align", [0, 3, 128])
def test_alignment_that_is_none(board: Board, align: int) -> None:
    described = deepcopy(metadata_of("x86_64", ["add64"]))
    described["kernels"][0]["params"][0]["align"] = align
    name = board.blob(module_of("add64", says={"kernels": described["kernels"]}))
    assert refused(board, "module.load", name, None).text.endswith("invalid: no alignment")
