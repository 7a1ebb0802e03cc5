"""No memory is asked for in a step: counted over 1,000 steps of the program on the board, of
`mlc-runtime run --stream`, and of an exported C program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_rpc import connect
from tests.artifact.test_export import compiled, gcc
from tests.docs.test_commands import stream
from tests.driver.test_streams import HIDDEN, frames, voice_activity

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "device_runtime"
STEPS = 1000

Count = Callable[[], int]
PAGE = HERE.parents[1] / "docs" / "how-to" / "streams.md"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the counter, and the program on the board linked to this machine's C library:
    the static one cannot be preloaded."""
    to = tmp_path_factory.mktemp("counted")
    sources = [p for p in (RUNTIME / "src").glob("*.c") if p.name != "print.c"]  # a C library's own
    for command in (
        (*gcc(), "-O1", "-shared", "-fPIC", str(HERE / "allocations.c"), "-o", "counter.so"),
        (*gcc(), "-O0", "-std=c11", *map(str, sources), "-lm", "-pthread", "-o", "runtime"),
    ):
        made = subprocess.run(command, cwd=to, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    return to


@pytest.fixture(scope="module")
def model() -> mlc.CompiledModel:
    return mlc.compile(onnx.load_from_string(voice_activity().SerializeToString()), "host",
                       values={"sr": 16000})  # fmt: skip


@pytest.fixture
def count(counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Count:
    """What was counted so far of programs that are started from now on."""
    file = tmp_path / "count"
    file.write_bytes(bytes(8))
    monkeypatch.setenv("ALLOCATIONS", str(file))
    monkeypatch.setenv("LD_PRELOAD", str(counted / "counter.so"))
    return lambda: int.from_bytes(file.read_bytes(), "little")


def right(given: NDArray[np.float32]) -> NDArray[np.float32]:
    theirs = onnxruntime.InferenceSession(voice_activity().SerializeToString())
    state, found = np.zeros((2, 1, HIDDEN), np.float32), []
    for frame in given:
        one, state = theirs.run(None, {"input": frame, "state": state, "sr": np.array(16000)})
        found.append(one)
    return np.stack(found)


def test_of_the_board(
    counted: Path, count: Count, model: mlc.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = frames(STEPS + 1)
    with connect("local://", lambda machine: counted / "runtime") as board:
        monkeypatch.delenv("LD_PRELOAD")
        before = count()
        with board.load(model).stream() as left:
            left.step(sounds[0])
            assert count() > before + 5, "nothing is counted"
            before = count()
            found = [left.step(sound)["output"] for sound in sounds[1:]]
            assert count() == before
    np.testing.assert_allclose(found, right(sounds)[1:], rtol=1e-4, atol=1e-5)


def test_of_streams_of_one_module(
    counted: Path, count: Count, model: mlc.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By turns: what one does not use stays where it is."""
    with connect("local://", lambda machine: counted / "runtime") as board:
        monkeypatch.delenv("LD_PRELOAD")
        module = board.load(model)
        streams = [module.stream() for _ in range(3)]
        for stream in streams:
            stream.step(frames(1)[0])
        before = count()
        for frame in frames(100):
            for stream in streams:
                stream.step(frame)
        assert count() == before


def test_of_the_command(
    counted: Path, count: Count, model: mlc.CompiledModel, tmp_path: Path
) -> None:
    file = model.save(tmp_path / "vad.mlc")
    command = [str(counted / "runtime"), "run", str(file), "--stream", "--threads", "1"]
    sounds = frames(STEPS + 1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as run:
        assert run.stdin and run.stdout
        found: list[bytes] = []
        for step, sound in enumerate(sounds):
            run.stdin.write(sound.tobytes())
            found.append(run.stdout.read(4) or b"")
            if step == 0:
                before = count()
        after = count()
        run.stdin.close()
    assert run.returncode == 0 and before > 5 and after == before
    got = np.frombuffer(b"".join(found), np.float32).reshape(-1, 1, 1)
    np.testing.assert_allclose(got, right(sounds), rtol=1e-4, atol=1e-5)


def test_of_a_c_program(tmp_path: Path) -> None:
    """The program of the documentation: as much for one frame as for all."""
    stream(str(tmp_path / "stream.onnx"))
    model = mlc.compile(tmp_path / "stream.onnx", "host", states={"h_in": "h_out"})
    model.export(tmp_path, "stream")
    shutil.copy(HERE / "allocations.c", tmp_path)
    (program,) = re.findall(r"```c\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "main.c").write_text(program)
    counter = subprocess.run([*gcc(), "-O1", "-c", "allocations.c"], cwd=tmp_path)
    assert counter.returncode == 0
    made = compiled(gcc(), tmp_path, "main.c", "allocations.o", "mlc_runtime.c", "stream.o")
    sounds = np.random.default_rng(0).uniform(-1, 1, (STEPS + 1, 1, 8)).astype(np.float32)
    counts: list[int] = []
    for given in (sounds[:1], sounds):
        (tmp_path / "count").write_bytes(bytes(8))
        run = subprocess.run(
            [made], cwd=tmp_path, input=given.tobytes(), capture_output=True,
            env=os.environ | {"ALLOCATIONS": "count"},
        )  # fmt: skip
        assert run.returncode == 0
        got = np.frombuffer(run.stdout, np.float32).reshape(given.shape)
        right = -np.cumsum(given, axis=0, dtype=np.float64)
        np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-4)
        counts.append(int.from_bytes((tmp_path / "count").read_bytes(), "little"))
    assert counts[0] == counts[1] > 0
