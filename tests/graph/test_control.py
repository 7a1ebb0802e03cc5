"""Loops and branches: their text, their values, their memory, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError, LowerError
from mlc_deploy.graph import (
    BlockBuilder,
    Function,
    Value,
    const,
    evaluate,
    lower_graph,
    named_constants,
    optimize,
)
from mlc_deploy.graph.count import multiply_accumulates, operators, parameters
from mlc_deploy.graph.indices import index_extents
from mlc_deploy.graph.nodes import CallBranch, CallLoop
from mlc_deploy.graph.program import BranchStep, LoopStep
from mlc_deploy.graph.sequences import gathers_to_sequences
from mlc_deploy.graph.verify import verify
from mlc_deploy.graph.views import concatenate_in_place
from mlc_deploy.script import from_script
from mlc_rpc import Session
from tests.graph.drawn_programs import program_graph


@pytest.fixture(scope="module")
def board() -> Iterator[Session]:
    with mlc.connect("local://") as session:
        yield session


def recurrence(turns: int = 5, size: int = 4, backwards: bool = False) -> Function:
    """h = h * k + x[t], and all of h."""
    bb = BlockBuilder("main")
    x, h, k = (
        bb.param(n, s) for n, s in (("x", (turns, 1, size)), ("h", (1, size)), ("k", (1, size)))
    )

    def step(turn: Value, states: list[Value], parts: list[Value]) -> Any:
        after = bb.emit("add", bb.emit("multiply", states[0], k), parts[0])
        return [after], [after]

    ends, results = bb.emit_loop(turns, [h], step, read=[(x, backwards)], written=[backwards])
    return bb.finish([*ends, *results], ["last", "all"])


def swapping() -> Function:
    """Two states change places in every turn; a third stays."""
    bb = BlockBuilder("main")
    a, b, c = (bb.param(n, (1, 20)) for n in "abc")

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        return [states[1], states[0], states[2]], [bb.emit("subtract", states[0], states[2])]

    ends, results = bb.emit_loop(3, [a, b, c], step, written=[False])
    return bb.finish([*ends, *results], ["a1", "b1", "c1", "all"])


def counting() -> Function:
    """Doubles until it is over 100, and says how often."""
    bb = BlockBuilder("main")
    x = bb.param("x", (1,))
    limit, none = const([100.0], "float32"), const([0], "int64")
    truth = bb.emit("reshape", bb.emit("less", x, limit), shape=())

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        twice = bb.emit("add", states[1], states[1])
        count = bb.emit("reshape", bb.emit("add", turn, const(1, "int64")), shape=(1,))
        again = bb.emit("reshape", bb.emit("less", twice, limit), shape=())
        return [again, twice, count], []

    ends, _ = bb.emit_loop(1000, [truth, x, none], step, conditional=True)
    return bb.finish(ends[1:], ["y", "turns"])


def choosing() -> Function:
    """Within a loop, a branch by the parity of the turn; one side is a loop itself."""
    bb = BlockBuilder("main")
    x = bb.param("x", (3, 7))

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        odd = bb.emit(
            "equal", bb.emit("mod", turn, const(2, "int64"), truncated=False), const(1, "int64")
        )

        def inner(number: Value, own: list[Value], rows: list[Value]) -> Any:
            sum_ = bb.emit("add", own[0], rows[0])
            return [sum_], [bb.emit("multiply", sum_, rows[0])]

        def then() -> list[Value]:
            zero = const(np.zeros(7, np.float32))
            _, results = bb.emit_loop(3, [zero], inner, read=[(states[0], True)], written=[False])
            return [*results]

        return bb.emit_branch(odd, then, lambda: [bb.emit("negative", states[0])]), []

    ends, _ = bb.emit_loop(4, [x], step)
    return bb.finish(ends, ["y"])


MODELS: dict[str, Callable[[], Function]] = {
    "recurrence": recurrence,
    "recurrence_backwards": lambda: recurrence(backwards=True),
    "recurrence_aligned": lambda: recurrence(6, 32),
    "swapping": swapping,
    "counting": counting,
    "choosing": choosing,
}


def inputs_of(function: Function, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.uniform(0.5, 1.5, p.type.sizes).astype(np.float32) for p in function.params}


def check_on_board(function: Function, board: Session) -> None:
    check_runs(board, mlc.compile(function, "host"), function, inputs_of(function))


def check_runs(
    board: Session, model: mlc.CompiledModel, function: Function, *runs: dict[str, Any]
) -> None:
    module = board.load(model)
    for inputs in runs:
        expected, found = evaluate(function, inputs), module.run(inputs)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, 1e-5, 1e-6, err_msg=name)
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
    module.close()


@pytest.mark.parametrize("name", MODELS)
def test_text_parses_back(name: str) -> None:
    function = MODELS[name]()
    verify(function)
    read = from_script(str(function), constants=named_constants(function))
    assert isinstance(read, Function) and str(read) == str(function)
    given = inputs_of(function)
    expected = evaluate(function, given)
    for key, value in evaluate(read, given).items():
        np.testing.assert_array_equal(value, expected[key])


@pytest.mark.parametrize("name", MODELS)
def test_passes_keep_what_is_computed(name: str) -> None:
    function = MODELS[name]()
    given = inputs_of(function)
    expected = evaluate(function, given)
    for key, value in evaluate(optimize(function), given).items():
        np.testing.assert_allclose(value, expected[key], 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_on_the_board(name: str, board: Session) -> None:
    check_on_board(MODELS[name](), board)


def test_values() -> None:
    found = evaluate(counting(), [np.array([3], np.float32)])
    assert (found["y"].tolist(), found["turns"].tolist()) == ([192], [6])
    found = evaluate(counting(), [np.array([300], np.float32)])
    assert (found["y"].tolist(), found["turns"].tolist()) == ([300], [0])


def test_a_program_of_steps() -> None:
    program = lower_graph(choosing())
    main, *others = program.procedures
    loops = [s for steps in program.procedures for s in steps if isinstance(s, LoopStep)]
    branches = [s for steps in program.procedures for s in steps if isinstance(s, BranchStep)]
    assert ([s.turns for s in loops], len(branches)) == ([4, 3], 1)
    assert len(program.calls) == sum(
        isinstance(s, int) for steps in program.procedures for s in steps
    )
    assert isinstance(main[-1], LoopStep) and loops[0].turn is not None and loops[1].turn is None
    assert len(others) == 4


def test_states_stay_where_they_are() -> None:
    """A recurrence copies its first state in, and each turn's result out, and nothing else."""
    program = lower_graph(optimize(recurrence(6, 32)))
    assert [c.kernel for c in program.calls].count("copy") == 2
    assert program.arena <= 2 * 128


def begun(turns: int = 5, size: int = 32, backwards: bool = False, ends: bool = False) -> Function:
    """Each turn adds x[turn + 1] to the state, which is the turn's result; the first result is x[0]
    itself. ends: the last state is an output, too."""
    bb = BlockBuilder("main")
    x = bb.param("x", (turns + 1, 1, size))
    first = bb.emit("negative", bb.emit("slice", x, begin=(0, 0, 0), shape=(1, 1, size),
                                        step=(1, 1, 1)))  # fmt: skip

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        row = bb.emit("gather", x, bb.emit("add", turn, const(1, "int64")), axis=0)
        after = bb.emit("tanh", bb.emit("add", states[0], row))
        return [after], [after]

    state = bb.emit("reshape", first, shape=(1, size))
    (last,), (rest,) = bb.emit_loop(turns, [state], step, written=[backwards])
    parts = [rest, first] if backwards else [first, rest]
    every = bb.emit("concatenate", *parts, axis=0)
    return bb.finish([every, last] if ends else [every], ["all", "last"] if ends else ["all"])


def planned(function: Function) -> Function:
    return concatenate_in_place(optimize(function))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_state_that_is_a_result_is_copied_nowhere(backwards: bool) -> None:
    """A turn reads it where the turn before wrote it, and the first turn beside the result."""
    program = lower_graph(planned(begun(backwards=backwards)))
    assert [c.kernel for c in program.calls] == ["negative", "add", "tanh_op"]
    added, written = program.calls[1].args, program.calls[2].args[-1]
    step = -128 if backwards else 128
    assert [p.strides for p in (*added[:2], written)] == [((0, step),), ((0, 128),), ((0, step),)]
    assert written.offset - added[0].offset == step
    text = str(program.function)
    assert "trailing=((0, 0),)" in text
    assert str(from_script(text, constants=named_constants(program.function))) == text


@pytest.mark.parametrize(
    ("size", "backwards", "ends"),
    [(32, False, False), (32, True, False), (32, False, True), (32, True, True), (7, False, True)],
)
def test_states_that_are_results_run(
    board: Session, size: int, backwards: bool, ends: bool
) -> None:
    check_on_board(begun(5, size, backwards, ends), board)


def test_a_state_that_is_a_result_begins_another_loop(board: Session) -> None:
    """As a decoder's begins with the last one of an encoder whose results are read later."""
    bb = BlockBuilder("main")
    x = bb.param("x", (6, 1, 32))
    first = bb.emit("negative", bb.emit("slice", x, begin=(0, 0, 0), shape=(1, 1, 32),
                                        step=(1, 1, 1)))  # fmt: skip

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        after = bb.emit("tanh", bb.emit("add", states[0], states[0]))
        return [after], [after]

    state = bb.emit("reshape", first, shape=(1, 32))
    (last,), (rest,) = bb.emit_loop(5, [state], step, written=[False])
    (end,), _ = bb.emit_loop(
        3, [last], lambda t, own, _: ([bb.emit("add", own[0], bb.emit("sigmoid", own[0]))], [])
    )
    every = bb.emit("negative", bb.emit("concatenate", first, rest, axis=0))
    check_on_board(bb.finish([every, end], ["all", "end"]), board)


def test_last_states_that_are_results_are_joined(board: Session) -> None:
    """As those of a layer's two directions are, all of whose outputs the model gives."""
    bb = BlockBuilder("main")
    x = bb.param("x", (6, 1, 32))
    lasts, every = [], []
    for backwards in (False, True):
        begin = (5 if backwards else 0, 0, 0)
        first = bb.emit("slice", x, begin=begin, shape=(1, 1, 32), step=(1, 1, 1))
        first = bb.emit("negative" if backwards else "tanh", first)

        def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
            after = bb.emit("tanh", bb.emit("add", states[0], states[0]))
            return [after], [after]

        state = bb.emit("reshape", first, shape=(1, 32))
        (last,), (rest,) = bb.emit_loop(5, [state], step, written=[backwards])
        parts = (rest, first) if backwards else (first, rest)
        every.append(bb.emit("concatenate", *parts, axis=0))
        lasts.append(bb.emit("reshape", last, shape=(1, 1, 32)))
    both = bb.emit("concatenate", *every, axis=1)
    check_on_board(
        bb.finish([both, bb.emit("concatenate", *lasts, axis=0)], ["all", "ends"]), board
    )


def test_what_a_turn_gathers_by_its_number_is_a_sequence() -> None:
    """But not beyond the end, where gather clamps, nor between aligned places."""
    function = begun()
    changed = gathers_to_sequences(function)
    (loop,) = (b.call for b in changed.bindings if isinstance(b.call, CallLoop))
    assert loop.read == (False,) and "R.gather" not in str(loop.body)
    given = inputs_of(function)
    np.testing.assert_array_equal(evaluate(changed, given)["all"], evaluate(function, given)["all"])
    assert gathers_to_sequences(changed) is changed
    unaligned = begun(size=7)
    assert gathers_to_sequences(unaligned) is unaligned
    bb = BlockBuilder("main")
    x, begin = bb.param("x", (4, 32)), bb.param("s", (32,))

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        return [bb.emit("add", states[0], bb.emit("gather", x, turn, axis=0))], []

    ends, _ = bb.emit_loop(5, [begin], step)
    beyond = bb.finish(ends, ["y"])
    assert gathers_to_sequences(beyond) is beyond


def test_a_model_without_loops_has_no_procedures() -> None:
    bb = BlockBuilder()
    x = bb.param("x", (1, 4))
    program = lower_graph(bb.finish([bb.emit("relu", x)], ["y"]))
    assert program.procedures == () and "procedures" not in program.model_map()


def test_what_nobody_reads_is_left_out() -> None:
    """A result, a sequence, a captured value, and all of a branch's output."""
    bb = BlockBuilder("main")
    x, h, k = bb.param("x", (5, 1, 4)), bb.param("h", (1, 4)), bb.param("k", (1, 4))

    def step(turn: Value, states: list[Value], parts: list[Value]) -> Any:
        return [bb.emit("negative", states[0])], [bb.emit("add", parts[0], k)]

    ends, _ = bb.emit_loop(5, [h], step, read=[(x, False)], written=[False])
    function = optimize(bb.finish(ends, ["y"]))
    (loop,) = (b.call for b in function.bindings if isinstance(b.call, CallLoop))
    assert (len(loop.args), loop.read, loop.written) == (1, (), ())
    assert len(loop.body.bindings) == 1


def test_constants_are_in_the_body() -> None:
    """Where a turn multiplies by them, they can be packed; nothing is left to pass."""
    bb = BlockBuilder("main")
    c, x = bb.param("c", (), "bool"), bb.param("x", (1, 8))
    w = bb.emit("negative", const(np.ones((8, 8), np.float32)))

    def product(value: Value) -> Value:
        made: Value = bb.emit("dense", value, w, transpose_b=True)
        return made

    ends, _ = bb.emit_loop(3, [x], lambda t, own, _: ([product(own[0])], []))
    chosen = bb.emit_branch(c, lambda: [product(ends[0])], lambda: [ends[0]])
    function = bb.finish(chosen, ["y"])
    made = optimize(function)
    loop, branch = (b.call for b in made.bindings)
    assert isinstance(loop, CallLoop) and loop.args == (x,)
    assert isinstance(branch, CallBranch) and branch.args == (c, *made.bindings[0].outputs)
    given = [np.array(True), inputs_of(function)["x"]]
    np.testing.assert_array_equal(evaluate(made, given)["y"], evaluate(function, given)["y"])


def test_indices_within_bodies() -> None:
    bb = BlockBuilder("main")
    index, c = bb.param("i", (3,), "int64"), bb.param("c", (), "bool")
    table = const(np.ones((7, 2), np.float32))

    def step(turn: Value, own: list[Value], parts: list[Value]) -> Any:
        row = bb.emit("gather", table, parts[0], axis=0)
        return [bb.emit("add", own[0], row)], []

    zero = const(np.zeros(2, np.float32))
    ends, _ = bb.emit_loop(3, [zero], step, read=[(index, False)])
    rows = bb.emit_branch(
        c,
        lambda: [bb.emit("gather", table, index, axis=1)],
        lambda: [const(np.zeros((7, 3), np.float32))],
    )
    assert index_extents(bb.finish([*ends, *rows], ["y", "z"])) == {"i": 2}


def test_counts() -> None:
    bb = BlockBuilder("main")
    h = bb.param("h", (1, 8))
    w = const(np.ones((8, 8), np.float32))
    ends, _ = bb.emit_loop(
        10, [h], lambda t, s, p: ([bb.emit("dense", s[0], w, transpose_b=False)], [])
    )
    function = bb.finish(ends, ["y"])
    assert sum(map(multiply_accumulates, function.bindings)) == 640
    assert operators(function) == {"dense": 1} and parameters(function) == 64


def test_a_registered_function_within_a_loop() -> None:
    bb = BlockBuilder("main")
    x = bb.param("x", (4,))

    def step(turn: Value, states: list[Value], _: list[Value]) -> Any:
        return [bb.call_dps_packed("test.twice", [states[0]], states[0].type)], []

    ends, _ = bb.emit_loop(2, [x], step)
    with pytest.raises(LowerError) as caught:
        lower_graph(bb.finish(ends, ["y"]))
    what, _, mend = str(caught.value).splitlines()
    assert what == "'test.twice' runs on this machine, and is in a loop or branch"
    assert mend == "  try: an operator, or a call of it outside"


def broken(**changes: Any) -> str:
    function = recurrence()
    (binding,) = function.bindings
    assert isinstance(binding.call, CallLoop)
    call = replace(binding.call, **changes)
    with pytest.raises(ValueError) as caught:
        verify(replace(function, bindings=(replace(binding, call=call),)))
    return str(caught.value).partition("\n")[0]


def test_refusals() -> None:
    assert broken(turns=4) == "a sequence that 4 iterations read is float32[5, 1, 4]"
    assert broken(turns=-1) == "the loop has -1 iterations"
    assert broken(states=7) == "the loop has 3 arguments, for 8 states and sequences"
    assert broken(conditional=True) == "a loop ends by its first state, bool[]"
    assert broken(counted=True) == "the last argument of a loop that is counted is int64[]"
    assert broken(written=()) == (
        "the body gives float32[1, 4], float32[1, 4], not float32[1, 4] and 0 results"
    )
    assert broken(read=()) == (
        "the body takes int64[], float32[1, 4], float32[1, 4], float32[1, 4], not int64[], "
        "float32[1, 4], float32[5, 1, 4], float32[1, 4]"
    )


def backwards() -> Function:
    """A loop over n rows, from the last on."""
    bb = BlockBuilder("main")
    x, h = bb.param("x", ("n", 20)), bb.param("h", (20,))

    def step(turn: Value, states: list[Value], parts: list[Value]) -> Any:
        number = bb.emit("cast", turn, dtype="float32")
        after = bb.emit("add", bb.emit("multiply", states[0], number), parts[0])
        return [after], [after]

    turns = x.type.shape[0]
    ends, results = bb.emit_loop(turns, [h], step, read=[(x, True)], written=[True])
    return bb.finish([*ends, *results], ["last", "all"])


def test_a_loop_of_as_many_turns_as_a_run_says(board: Session) -> None:
    function = backwards()
    verify(function)
    assert 'turns=R.dim("n"), states=1, read=(True,), written=(True,))' in str(function)
    assert str(from_script(str(function))) == str(function)
    rng = np.random.default_rng(0)
    runs = [
        {"x": rng.random((n, 20), np.float32), "h": rng.random(20, np.float32)}
        for n in (6, 1, 0, 3)
    ]
    check_runs(board, mlc.compile(function, "host", dims={"n": "<=6"}), function, *runs)
    check_runs(board, mlc.compile(function, "host", dims={"n": 6}), function, runs[0])


def test_elements_of_an_open_size_are_refused() -> None:
    bb = BlockBuilder("main")
    x, h = bb.param("x", (4, "n")), bb.param("h", ("n",))
    ends, _ = bb.emit_loop(
        4, [h], lambda t, s, p: ([bb.emit("add", s[0], p[0])], []), read=[(x, False)]
    )
    with pytest.raises(GraphError) as caught:
        mlc.compile(bb.finish(ends, ["y"]), "host", dims={"n": "<=8"})
    assert str(caught.value) == (
        "a loop's iterations each take or give float32[n], and 'n' is known only at run time\n"
        "  try: n=16: one of its sizes"
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_open_programs(board: Session, seed: int) -> None:
    """With loops that turn as often as a run says."""
    function = program_graph(seed, open_rows=True)
    verify(function)
    read = from_script(str(function), constants=named_constants(function))
    assert str(read) == str(function)
    rng = np.random.default_rng(seed)
    runs = []
    for n in (2, 0, 5):
        shapes = {p.name: [n if not isinstance(k, int) else k for k in p.type.shape]
                  for p in function.params}  # fmt: skip
        runs.append(
            {k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes.items()}
        )
    check_runs(board, mlc.compile(function, "host", dims={"n": "<=5"}), function, *runs)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_programs(board: Session, seed: int) -> None:
    """Values of the optimized graph and of the board are those of the graph; text parses back."""
    function = program_graph(seed)
    verify(function)
    read = from_script(str(function), constants=named_constants(function))
    assert str(read) == str(function)
    check_on_board(function, board)
