"""The client against the runtime itself, on this machine and under QEMU."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.local import local_machine
from mlc_rpc.session import Session
from mlc_rpc.wire import METHODS
from tests.runtime.board import model_of, module_of

ROOT = Path(__file__).parents[2]
BOARDS = ("local://", "qemu://cortex-a7", "qemu://cortex-a72")


@pytest.fixture(params=BOARDS)
def session(
    request: pytest.FixtureRequest, runtime_of: Callable[[str], Path], count_plugin: Path
) -> Iterator[Session]:
    url = str(request.param)
    if url.startswith("qemu") and not shutil.which("qemu-arm"):
        pytest.skip("no QEMU here: apt install qemu-user")
    with connect(url, runtime_of, plugin=count_plugin) as session:
        yield session


def model_object(session: Session, weights: bytes) -> bytes:
    machine = session.device.machine
    return module_of("add64", "double64", machine=machine, says={"model": model_of(weights)})


def test_the_c_method_table_is_that_of_the_wire() -> None:
    source = (ROOT / "device_runtime" / "src" / "serve.c").read_text()
    table = re.search(r"const Method METHODS\[\] = \{(.*?)\n\};", source, re.DOTALL)
    assert table
    rows = re.findall(r'\{"([\w.]+)", (\d+),', table[1])
    expected = [(m.name, str(len(m.params.split(",")) if m.params else 0)) for m in METHODS]
    assert [(name, count) for name, count in rows] == expected


def test_the_board_describes_itself(session: Session) -> None:
    wanted = {
        "local://": local_machine(),
        "qemu://cortex-a7": "arm",
        "qemu://cortex-a72": "aarch64",
    }
    assert session.device.machine == wanted[session.board]
    assert session.emulated == session.board.startswith("qemu")
    assert session.device.cores > 0 and session.device.memory > 1 << 24
    if session.emulated:
        assert "neon" in session.device.features
        assert session.counting, session.why_not_counting


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_tensors(session: Session, size: int) -> None:
    array = np.random.default_rng(size).integers(-128, 127, size, np.int8)
    np.testing.assert_array_equal(session.tensor(array).numpy(), array)


def test_random_is_the_same_on_every_board(
    session: Session, runtime_of: Callable[[str], Path]
) -> None:
    values = session.random((1000,), seed=5).numpy()
    assert values.min() >= -1 and values.max() < 1 and abs(values.mean()) < 0.1
    with connect("local://", runtime_of) as other:
        np.testing.assert_array_equal(other.random((1000,), seed=5).numpy(), values)


def test_blobs(session: Session) -> None:
    data = np.random.default_rng(0).bytes(1_500_000)
    name = session.put(data)
    assert session.put(data) == name and session.has(name)
    assert session.get(name) == data
    session.forget(name)
    assert not session.has(name)


def test_a_kernel_runs_and_is_timed(session: Session) -> None:
    module = session.load(module_of("add64", machine=session.device.machine))
    x = np.arange(64, dtype=np.float32)
    a, b, c = session.tensor(x), session.tensor(x[::-1].copy()), session.empty((64,))
    module["add64"](a, b, c)
    np.testing.assert_array_equal(c.numpy(), np.full(64, 63, np.float32))
    timing = module["add64"].time_evaluator(number=2, repeat=3)(a, b, c)
    assert len(timing.samples) == 3 and min(timing.samples) > 0
    assert (timing.verdict == "emulated") == session.emulated
    module.close()


def test_a_model_runs_layer_by_layer(session: Session) -> None:
    weights = np.linspace(0, 1, 64, dtype=np.float32)
    module = session.load(model_object(session, weights.tobytes()), weights.tobytes())
    x = np.arange(64, dtype=np.float32).reshape(1, 64)
    np.testing.assert_allclose(module.run({"x": x})["y"], x * 4 + weights, rtol=1e-6)
    profile = module.profile({"x": x})
    assert len(profile.run.nanoseconds) == 3
    assert module.metadata.model and module.arena
    assert [call.layer for call in module.metadata.model.calls] == ["first", "second", "third"]
    where = module.metadata.model.calls[0].args[1]
    left = module.arena.read_bytes(where.offset, where.size).view(np.float32)
    np.testing.assert_array_equal(left, x[0] * 2)
    assert len(module.profile({"x": x}, until=2).run.nanoseconds) == 2
    stopped = module.stop_after({"x": x}, "second")
    assert (stopped.kernel, stopped.turn, len(stopped.results)) == ("add64", 0, 1)
    (second,) = stopped.results.values()
    np.testing.assert_allclose(second, x[0] * 2 + weights, rtol=1e-6)
    with pytest.raises(
        errors.Refused, match="layer 'second' ran once, so its iteration 1 never came"
    ):
        module.stop_after({"x": x}, "second", 1)


@pytest.mark.parametrize("session", BOARDS[1:], indirect=True)
def test_executed_instructions_are_exact(session: Session) -> None:
    weights = np.zeros(64, np.float32)
    module = session.load(model_object(session, weights.tobytes()), weights.tobytes())
    x = np.ones((1, 64), np.float32)
    first, again = (module.profile({"x": x}).run.counts for _ in range(2))
    assert first and first == again
    assert [call.index for call in first] == [0, 1, 2]
    # 64 turns of unoptimized code: two loads of pointers ahead, one or two of values in each turn.
    double, add, third = first
    assert third.by_class == add.by_class
    assert double.by_class["vector"] == add.by_class["vector"] == 64
    assert double.by_class["mac"] == 0
    assert add.by_class["store"] >= double.by_class["store"] >= 64
    assert add.by_class["load"] - double.by_class["load"] >= 64
    assert add.total == sum(add.by_class.values())


def test_a_crash_costs_no_tensor_and_no_count(session: Session) -> None:
    module = session.load(module_of("wild", "count", machine=session.device.machine))
    page = session.tensor(np.zeros(64, np.uint8))
    with pytest.raises(errors.Crashed) as caught:
        module["wild"].profile(page)
    assert (caught.value.signal, caught.value.kernel) == ("SIGSEGV", "wild")
    counter = session.tensor(np.array([41], np.int32))
    run = module["count"].profile(counter)
    assert counter.numpy().tolist() == [42]
    if session.emulated:
        assert run.counts and len(run.counts) == 1 and run.counts[0].by_class["store"] >= 1


def test_a_kernel_that_never_ends(session: Session) -> None:
    module = session.load(module_of("spin", machine=session.device.machine))
    page = session.tensor(np.zeros(64, np.uint8))
    with pytest.raises(errors.Timeout) as caught:
        module["spin"](page, timeout=0.3)
    assert caught.value.kernel == "spin"
    assert session.ping() > 0


def test_refusals(session: Session) -> None:
    machine = session.device.machine
    other = "aarch64" if machine != "aarch64" else "arm"
    with pytest.raises(errors.Refused) as caught:
        session.load(module_of("add64", machine=other))
    assert other in caught.value.what and machine in caught.value.what
    module = session.load(module_of("add64", machine=machine))
    short = session.empty((63,))
    with pytest.raises(errors.Refused) as caught:
        module["add64"](short, short, short)
    assert "64" in caught.value.what and "63" in caught.value.what
    with pytest.raises(errors.Refused) as caught:
        session.load(module_of("add64", machine=machine, says={"features": ["not-a-feature"]}))
    assert "not-a-feature" in caught.value.what
