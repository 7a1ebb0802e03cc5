"""States: which pairs are ones, their text, their memory, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError, ScriptError
from mlc_deploy.graph import BlockBuilder, Function, const, lower_graph, optimize
from mlc_deploy.graph.states import states_by_name, with_states
from mlc_deploy.graph.verify import verify
from mlc_deploy.script import from_script
from mlc_rpc import Session
from tests.graph.drawn_programs import program_graph


@pytest.fixture(scope="module")
def board() -> Iterator[Session]:
    with mlc.connect("local://") as session:
        yield session


def model(inputs: dict[str, int], outputs: dict[str, str]) -> Function:
    """Each output is the double of an input of that size."""
    bb = BlockBuilder("main")
    params = {name: bb.param(name, (1, size)) for name, size in inputs.items()}
    values = [bb.emit("add", params[of], params[of]) for of in outputs.values()]
    return bb.finish(values, list(outputs))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("h_in", "h_out"), ("state", "stateN"), ("h", "hn"), ("hidden", "hidden_n"),
        ("prev_cell", "next_cell"), ("past.0.key", "present.0.key"), ("c0_in", "c0_out"),
        ("past_key_values.3.value", "present.3.value"), ("cache_in", "cache_out"),
        ("lstm/h:0_in", "lstm/h:0_out"),
    ],
)  # fmt: skip
def test_names_of_states(before: str, after: str) -> None:
    found = model({"x": 8, before: 4}, {"y": "x", after: before})
    assert states_by_name(found) == {before: after}
    assert states_by_name(model({"x": 8, before: 5}, {"y": "x", after: "x"})) == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("image_in", "image_out"), ("input", "output"), ("h", "y"), ("past.0.key", "present.1.key"),
        ("state", "states"), ("frame", "frame_out"),
    ],
)  # fmt: skip
def test_names_that_are_none(before: str, after: str) -> None:
    assert states_by_name(model({"x": 8, before: 4}, {"y": "x", after: before})) == {}


def test_something_comes_in_from_outside() -> None:
    assert states_by_name(model({"h_in": 4}, {"h_out": "h_in"})) == {}


def test_an_end_is_one_states() -> None:
    both = model({"x": 8, "h_in": 4, "h_prev": 4}, {"h_out": "h_in"})
    assert states_by_name(both) == {"h_in": "h_out"}


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            {"g": "h_out"},
            "a state cannot begin with 'g' and end with 'h_out': 'main' has no input 'g'\n"
            "  try: x, h_in",
        ),
        (
            {"h_in": "h_outt"},
            "a state cannot begin with 'h_in' and end with 'h_outt': 'main' has no output "
            "'h_outt'\n  try: h_out",
        ),
        (
            {"x": "h_out"},
            "input 'x' is float32[1, 8], and output 'h_out' is float32[1, 4]: they do not form "
            "a state\n"
            "  try: a pair of one shape and one dtype",
        ),
        (
            {"h_in": "h_out", "z": "y"},
            "a state cannot begin with 'z' and end with 'y': 'main' has no input 'z'\n"
            "  try: x, h_in",
        ),
    ],
)
def test_refusals(states: dict[str, str], message: str) -> None:
    function = model({"x": 8, "h_in": 4}, {"y": "x", "h_out": "h_in"})
    with pytest.raises(GraphError) as caught:
        mlc.compile(function, "aarch64", states=states)
    assert str(caught.value) == message


def test_text() -> None:
    function = with_states(
        model({"x": 8, "h_in": 4}, {"y": "x", "h_out": "h_in"}), {"h_in": "h_out"}
    )
    text = str(function)
    assert "'states': {'h_in': 'h_out'}" in text.replace('"', "'")
    read = from_script(text)
    assert str(read) == text
    assert isinstance(read, Function) and read.states == (("h_in", "h_out"),)
    with pytest.raises(ScriptError, match="states are not names of inputs and outputs"):
        from_script(text.replace('{"h_in": "h_out"}', '["h_in"]'))
    with pytest.raises(ScriptError, match="has no output 'y_out'"):
        from_script(text.replace('{"h_in": "h_out"}', '{"h_in": "y_out"}'))


def test_constants_are_no_states() -> None:
    function = model({"x": 8, "h_in": 4}, {"y": "x", "h_out": "h_in"})
    made = mlc.compile(with_states(function, {"h_in": "h_out"}), "aarch64", values={"h_in": 1.0})
    assert made.reference.states == () and not made.program.states


def test_where_a_state_lies() -> None:
    """Computed element by element, the next state is written over this one; read later, it is
    copied at the end."""
    bb = BlockBuilder("main")
    x, h = bb.param("x", (1, 8)), bb.param("h_in", (1, 8))
    after = bb.emit("tanh", bb.emit("add", x, h))
    function = with_states(bb.finish([after], ["h_out"]), {"h_in": "h_out"})
    program = lower_graph(optimize(function, ()))
    assert [call.kernel for call in program.calls] == ["tanh_add"] or len(program.calls) == 2
    assert all(p.space != "arena" or p.size == 32 for call in program.calls for p in call.args)
    assert [name for name, _ in program.inputs] == ["x"]
    assert program.states == {0: "h_in"}
    spaces = {p.space for call in program.calls for p in call.args}
    assert "output" in spaces


def swapping() -> Function:
    """Two states change places in every run; a third is the sum of all; one stays what it is."""
    bb = BlockBuilder("main")
    x = bb.param("x", (1, 20))
    a, b, c, d = (bb.param(n, (1, 20)) for n in "abcd")
    total = bb.emit("add", bb.emit("add", a, b), bb.emit("add", c, x))
    half = bb.emit("multiply", d, const(0.5, "float32"))
    return bb.finish([b, a, total, d, half], ["a1", "b1", "c1", "d1", "half"])


def check_steps(function: Function, board: Session, steps: int = 4) -> None:
    """A stream on the board against the reference, which is given its states by hand."""
    verify(function)
    made = mlc.compile(function, "host")
    rng = np.random.default_rng(0)
    begin = dict(function.states)
    states = {p.name: np.zeros(p.type.sizes, p.type.dtype) for p in function.params
              if p.name in begin}  # fmt: skip
    inputs = [p for p in function.params if p.name not in begin]
    module = board.load(made)
    with module.stream() as stream:
        for number in range(steps):
            if number == steps - 1:
                states = {n: rng.uniform(-1, 1, s.shape).astype(s.dtype) for n, s in states.items()}
                stream.load_state(states)
            given_ = {p.name: rng.uniform(-1, 1, p.type.sizes).astype(p.type.dtype) for p in inputs}
            right = made.evaluate({**given_, **states})
            got = stream.step(given_)
            assert set(got) == set(right) - set(begin.values())
            for name, array in got.items():
                np.testing.assert_allclose(array, right[name], rtol=1e-4, atol=1e-5)
            states = {n: right[end] for n, end in begin.items()}
            for name, array in stream.save_state().items():
                np.testing.assert_allclose(array, states[name], rtol=1e-4, atol=1e-5)
            stream.load_state(states)  # so that errors do not add up
    module.close()


def test_states_that_change_places(board: Session) -> None:
    pairs = {"a": "a1", "b": "b1", "c": "c1", "d": "d1"}
    check_steps(with_states(swapping(), pairs), board)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_programs(board: Session, seed: int) -> None:
    """Loops and branches around states that the model keeps."""
    check_steps(with_states(program_graph(seed), {"x0": "y", "x1": "z"}), board)
