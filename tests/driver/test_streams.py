"""Models that keep states on the board, step by step: against onnxruntime, and what is refused."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_rpc import Session, errors
from tests.rpc.listener import wait_until

Array = NDArray[Any]
FRAME, HIDDEN = 320, 32


def voice_activity() -> ModelProto:
    """A detector of speech: a frame's spectrum by a convolution, an LSTM whose state comes in and
    goes out, one probability. The rate decides which branch is taken, as in silero's model."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name)

    node, value = helper.make_node, helper.make_tensor_value_info
    arrays = [
        weights("spectrum", HIDDEN, 1, 64), weights("w", 1, 4 * HIDDEN, HIDDEN),
        weights("r", 1, 4 * HIDDEN, HIDDEN), weights("b", 1, 8 * HIDDEN),
        weights("last", HIDDEN, 1), numpy_helper.from_array(np.array([1]), "one"),
        numpy_helper.from_array(np.array([2]), "two"),
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.array(16000), "rate"),
    ]  # fmt: skip
    body = [
        node("Unsqueeze", ["input", "one"], ["sound"]),
        node("Conv", ["sound", "spectrum"], ["bands"], strides=[32]),
        node("Relu", ["bands"], ["energy"]),
        node("Transpose", ["energy"], ["steps"], perm=[2, 0, 1]),
        node("Slice", ["state", "zero", "one", "zero"], ["h"]),
        node("Slice", ["state", "one", "two", "zero"], ["c"]),
        node("LSTM", ["steps", "w", "r", "b", "", "h", "c"], ["", "hn", "cn"], hidden_size=HIDDEN),
        node("Concat", ["hn", "cn"], ["after"], axis=0),
        node("Squeeze", ["hn", "zero"], ["row"]),
        node("MatMul", ["row", "last"], ["logit"]),
        node("Sigmoid", ["logit"], ["probability"]),
    ]
    other = [
        node("Slice", ["input", "zero", "one", "one"], ["probability"]),
        node("Identity", ["state"], ["after"]),
    ]
    outputs = [
        value("probability", TensorProto.FLOAT, None),
        value("after", TensorProto.FLOAT, None),
    ]
    nodes = [
        node("Equal", ["sr", "rate"], ["fast"]),
        node("If", ["fast"], ["output", "stateN"], name="rates",
             then_branch=helper.make_graph(body, "fast", [], outputs),
             else_branch=helper.make_graph(other, "slow", [], outputs)),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "vad",
        [value("input", TensorProto.FLOAT, [1, FRAME]),
         value("state", TensorProto.FLOAT, [2, 1, HIDDEN]), value("sr", TensorProto.INT64, [])],
        [value("output", TensorProto.FLOAT, [1, 1]),
         value("stateN", TensorProto.FLOAT, [2, 1, HIDDEN])],
        arrays,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "vad.onnx"
    onnx.save(voice_activity(), path)
    return path


@pytest.fixture(scope="module")
def made(file: Path) -> mlc.CompiledModel:
    return mlc.compile(file, "host")


@pytest.fixture(scope="module")
def board() -> Iterator[Session]:
    with mlc.connect("local://") as session:
        yield session


def frames(count: int) -> Array:
    return np.random.default_rng(1).uniform(-1, 1, (count, 1, FRAME)).astype(np.float32)


def check_frames(board: Session, model: mlc.CompiledModel, file: Path, count: int) -> None:
    """Frame by frame what onnxruntime computes, which is given its state by hand."""
    theirs = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    rate = {"sr": np.array(16000)}
    state = np.zeros((2, 1, HIDDEN), np.float32)
    module = board.load(model)
    for number, frame in enumerate(frames(count)):
        found = module.step({"input": frame} | (rate if number == 0 else {}))
        right, state = theirs.run(None, {"input": frame, "state": state, **rate})
        assert list(found) == ["output"]
        np.testing.assert_allclose(found["output"], right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(module.save_state()["state"], state, rtol=1e-3, atol=1e-4)
    module.close()


def test_frame_by_frame(board: Session, made: mlc.CompiledModel, file: Path) -> None:
    assert [name for name, _ in made.program.inputs] == ["input", "sr"]
    check_frames(board, made, file, 300)


@pytest.mark.parametrize(("url", "target"), [("qemu://cortex-a7", "armv7a"),
                                             ("qemu://cortex-a72", "aarch64")])  # fmt: skip
def test_frame_by_frame_on_arm(url: str, target: str, file: Path) -> None:
    with mlc.connect(url) as session:
        check_frames(session, mlc.compile(file, target), file, 20)


def test_a_known_rate_leaves_one_branch(board: Session, file: Path) -> None:
    known = mlc.compile(file, "host", values={"sr": 16000})
    assert [name for name, _ in known.program.inputs] == ["input"]
    module = board.load(known)
    every = [module.step(frame)["output"] for frame in frames(10)]
    module.reset()
    again = [module.step(frame)["output"] for frame in frames(10)]
    np.testing.assert_array_equal(every, again)
    module.close()


def test_streams_have_states_of_their_own(board: Session, made: mlc.CompiledModel) -> None:
    """And share the module, so its weights. A state goes from one to another."""
    module = board.load(made)
    rate = {"sr": np.array(16000)}
    with module.stream() as left, module.stream() as right:
        for frame in frames(5):
            left.step({"input": frame, **rate})
            right.step({"input": -frame, **rate})
        a, b = left.save_state(), right.save_state()
        assert not np.array_equal(a["state"], b["state"])
        right.load_state(a)
        frame = frames(6)[-1]
        one, two = left.step({"input": frame}), right.step({"input": frame})
        np.testing.assert_array_equal(one["output"], two["output"])
    module.close()


def test_run_begins_with_zeros_or_what_is_given(board: Session, made: mlc.CompiledModel) -> None:
    module = board.load(made)
    given = {"input": frames(1)[0], "sr": np.array(16000)}
    first = module.run(given)
    assert list(first) == ["output", "stateN"]
    np.testing.assert_array_equal(first["output"], module.run(given)["output"])
    second = module.run(given | {"state": first["stateN"]})
    assert not np.array_equal(first["output"], second["output"])
    right = made.evaluate(given | {"state": first["stateN"]})
    np.testing.assert_allclose(second["stateN"], right["stateN"], rtol=1e-4, atol=1e-5)
    module.close()


def test_nothing_is_allocated_in_a_step(board: Session, made: mlc.CompiledModel) -> None:
    """Requests of a step to the board: those of its run alone, and no tensor."""
    module = board.load(made)
    module.step({"input": frames(1)[0], "sr": np.array(16000)})
    asked: list[str] = []
    post = board.link._post

    def counted(method: str, *rest: Any, **how: Any) -> Any:
        asked.append(method)
        return post(method, *rest, **how)

    board.link._post = counted  # type: ignore[method-assign]
    try:
        for frame in frames(10):
            module.step({"input": frame})
    finally:
        del board.link._post
    assert asked == ["run"] * 10
    module.close()


def test_a_step_is_few_calls_of_python(board: Session, made: mlc.CompiledModel) -> None:
    """What this machine does for a step: calls of functions, all in the caller's thread. A
    step that put its request together anew, or read times that nobody looks at, took 300."""
    module = board.load(made)
    frame = frames(1)[0]
    module.step({"input": frame, "sr": np.array(16000)})
    calls: Counter[str] = Counter()

    def note(_: object, event: str, __: object) -> None:
        calls[event] += 1

    sys.setprofile(note)
    for _ in range(100):
        module.step({"input": frame})
    sys.setprofile(None)
    assert 20 < (calls["call"] + calls["c_call"]) / 100 < 80, calls
    module.close()


def test_other_threads_ask_while_a_step_reads(board: Session, made: mlc.CompiledModel) -> None:
    """Who waits for a step reads what comes, and hands that over where others wait, too."""
    module, given = board.load(made), frames(300)
    right = [module.step({"input": given[0], "sr": np.array(16000)}) for _ in range(2)][1]
    over, pings = threading.Event(), list[float]()

    def ask() -> None:
        while not over.is_set():
            pings.append(board.ping(timeout=10))

    others = [threading.Thread(target=ask) for _ in range(2)]
    for other in others:
        other.start()
    for frame in given:
        module.step({"input": frame})
    over.set()
    for other in others:
        other.join(10)
        assert not other.is_alive()
    module.reset()
    for _ in range(2):
        again = module.step({"input": given[0]})
    for name in right:
        np.testing.assert_array_equal(again[name], right[name])
    assert len(pings) > 10
    module.close()


def test_a_board_that_dies_between_two_steps(made: mlc.CompiledModel) -> None:
    """Nobody reads then: the next step finds out, and no thread or descriptor stays."""
    before = threading.active_count()
    with mlc.connect("local://") as own:
        module = own.load(made)
        for frame in frames(3):
            module.step({"input": frame, "sr": np.array(16000)})
        assert own.link.transport.process
        os.kill(own.link.transport.process, signal.SIGKILL)
        with pytest.raises(errors.Lost, match="killed by SIGKILL"):
            module.step({"input": frames(1)[0]})
    wait_until(lambda: threading.active_count() <= before, "a thread stays")


def test_an_answer_that_is_interrupted(
    made: mlc.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows is no message that anybody knows the beginning of: the session has ended."""

    with mlc.connect("local://") as own:
        take = own.link._take_message

        def interrupted(source: Any) -> bool:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return take(source)

        module, given = own.load(made), {"input": frames(1)[0], "sr": np.array(16000)}
        for _ in range(2):
            module.step(given)
        monkeypatch.setattr(own.link, "_take_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            module.step(given)
        monkeypatch.undo()
        with pytest.raises(errors.Lost, match="an answer was interrupted while it was read"):
            module.step(given)


def test_streams_of_an_open_size(board: Session) -> None:
    """A step's results are as large as its input, whatever the one before was."""
    bb = mlc.graph.BlockBuilder("main")
    x, before = bb.param("x", ("rows", 3)), bb.param("sum_in", (3,))
    total = bb.emit("add", bb.emit("sum", x, axes=(0,), keepdims=False), before)
    function = bb.finish([bb.emit("add", x, total), total], ["y", "sum_out"])
    model = mlc.compile(function, "host", dims={"rows": "<=8"}, states={"sum_in": "sum_out"})
    right = np.zeros(3, np.float32)
    with board.load(model).stream() as stream:
        for rows in (5, 2, 8, 1):
            given = np.full((rows, 3), rows, np.float32)
            right = right + given.sum(0)
            np.testing.assert_allclose(stream.step(given)["y"], given + right, rtol=1e-6)
            assert stream.results("y")["y"].shape == (rows, 3)
        np.testing.assert_allclose(stream.save_state()["sum_in"], right, rtol=1e-6)


def test_refusals(board: Session, made: mlc.CompiledModel) -> None:
    module = board.load(made)

    def refused(do: Any, *given: Any) -> str:
        with pytest.raises(errors.Refused) as caught:
            do(*given)
        return str(caught.value).partition(" (board")[0]

    mend = "\n  try: inputs input: float32[1, 320], sr: int64[]"
    assert refused(module.step, {"input": frames(1)[0]}).startswith(
        "the step's inputs are not the model's (missing: sr)"
    )
    assert refused(module.step, {"imput": frames(1)[0], "sr": np.array(1)}).startswith(
        "the step's inputs are not the model's (unknown: imput; missing: input)"
    )
    assert mend in refused(module.step, {})
    assert refused(module.step, frames(1)[0]).startswith(
        "an array without a name is for a model of one input"
    )
    assert refused(module.load_state, {"h": 0}).startswith("the model has no state 'h'")
    with pytest.raises(ValueError, match=r"tensor is float32\[2, 1, 32\]"):
        module.load_state({"state": np.zeros(3, np.float32)})
    module.close()
