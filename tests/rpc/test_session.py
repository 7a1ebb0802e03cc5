"""The client against a board in Python: protocol, deadlines, faults, and what the errors say."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from mlc_rpc import errors
from mlc_rpc.session import Session
from mlc_rpc.wire import ERROR_KINDS, MAX_BANNER, MAX_CHUNK, MAX_MESSAGE, VERSION
from tests.rpc.fake_board import DEATH, GARBAGE, OBJECT, SILENCE, BoardError, FakeBoard


def fail(*error: object) -> Callable[..., Any]:
    def answer(*params: object) -> Any:
        raise BoardError(*error)

    return answer


def test_a_board_describes_itself() -> None:
    with Session(FakeBoard().transport) as session:
        assert session.device.machine == "aarch64"
        assert session.device.cpus[0].model == "cortex-a72"
        assert session.device.features == {"neon"}
        assert not session.counting
        assert session.why_not_counting == "instructions are counted on qemu:// boards only"
        assert 0 < session.ping() < 60


def test_what_a_login_shell_prints_is_passed_over() -> None:
    banner = b"Welcome!\r\n\0mlc-runtime\0" * 1000
    with Session(FakeBoard(banner=banner).transport) as session:
        assert session.ping() > 0


def test_a_stream_that_is_no_runtime() -> None:
    board = FakeBoard(banner=b"x" * (MAX_BANNER + 100), preamble=b"", said="exec format error")
    with pytest.raises(errors.Unreachable) as caught:
        Session(board.transport)
    assert str(caught.value) == (
        "65536 bytes came from the board, and no sign of our program: exec format error; "
        f"it printed: {'x' * 500}\n  on:  fake://"
    )


def test_a_stream_that_ends_at_once() -> None:
    board = FakeBoard(banner=b"sh: not found\n", preamble=b"")
    board._socket.shutdown(1)
    with pytest.raises(errors.Unreachable) as caught:
        Session(board.transport)
    assert str(caught.value).startswith("the board's program did not start")


def test_a_board_that_says_nothing() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        Session(FakeBoard(preamble=b"").transport, timeout=0.2)
    assert str(caught.value) == (
        "nothing from the board's program in 0.2 s\n  on:  fake://\n"
        "  try: a larger timeout, or start the program by hand to see what it says"
    )


def test_another_major_version_is_refused() -> None:
    board = FakeBoard({"hello": lambda *_: [9, 4, bytes(32)]})
    with pytest.raises(errors.Mismatch) as caught:
        Session(board.transport)
    assert str(caught.value) == (
        "the board's program speaks version 9.4 of the wire, this client version "
        f"{VERSION[0]}.{VERSION[1]}\n  on:  fake://\n"
        "  try: use the client and the board's program of the same release"
    )


def test_a_board_that_refuses_our_version() -> None:
    board = FakeBoard({"hello": fail("refused", "the client speaks version 1.0; try: mine", {})})
    with pytest.raises(errors.Mismatch) as caught:
        Session(board.transport)
    assert str(caught.value) == "the client speaks version 1.0\n  on:  fake://\n  try: mine"


def test_another_minor_version_is_welcome() -> None:
    board = FakeBoard({"hello": lambda *_: [VERSION[0], 99, bytes(32)]})
    with Session(board.transport) as session:
        assert session.ping() > 0


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (MAX_CHUNK // 4,), (3, MAX_CHUNK // 4 + 1)])
def test_tensors_come_back_as_they_went(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    board = FakeBoard()
    with Session(board.transport) as session:
        back = session.tensor(array).numpy()
        assert back.shape == array.shape and back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
        assert len(board.named("tensor.write")) == -(-array.nbytes // MAX_CHUNK)


def test_transposed_and_bool_and_bfloat16_tensors() -> None:
    with Session(FakeBoard().transport) as session:
        array = np.arange(12, dtype=np.int64).reshape(3, 4).T
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)
        flags = np.array([True, False, True])
        np.testing.assert_array_equal(session.tensor(flags).numpy(), flags)
        brain = session.empty((2,), "bfloat16")
        brain.write(np.array([0x3F80, 0x4000], np.uint16))
        assert brain.numpy().tolist() == [0x3F80, 0x4000]


def test_a_tensor_refuses_another_shape_or_dtype() -> None:
    with Session(FakeBoard().transport) as session:
        tensor = session.empty((2, 3))
        with pytest.raises(ValueError) as caught:
            tensor.write(np.zeros((3, 2), np.float64))
        assert str(caught.value) == (
            "tensor is float32[2, 3], the array float64[3, 2]\n"
            "  try: array.astype(...) or array.reshape(...)"
        )


def test_tensors_that_nobody_holds_are_freed() -> None:
    board = FakeBoard()
    with Session(board.transport) as session:
        session.empty((4,))
        kept = session.empty((4,))
        kept.close()
        kept.close()
        gc.collect()
        session.empty((4,))
        assert len(board.tensors) == 1


def test_calls_from_threads_and_answers_out_of_order() -> None:
    held: list[Any] = []

    def hold(*params: Any) -> Any:
        held.append(params)
        return SILENCE

    board = FakeBoard({"tensor.fill": hold})
    with Session(board.transport) as session:
        slow = session.link.send("tensor.fill", (1, "zero", 0), 30)
        answers = [session.link.call("ping", n, timeout=10) for n in range(100)]
        assert answers == list(range(100))
        assert held
        board._send([1, slow.id, None, None])
        assert session.link.wait(slow) is None
        seen: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: seen.append(session.link.call("ping", n, timeout=10))
            )
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(20))


def test_a_deadline_passes_and_the_session_lives() -> None:
    board = FakeBoard({"ping": lambda payload: SILENCE})
    with Session(board.transport) as session:
        start = time.monotonic()
        with pytest.raises(errors.Timeout) as caught:
            session.ping(timeout=0.1)
        assert time.monotonic() - start >= 0.1
        assert str(caught.value) == (
            "no answer from the board in time\n  on:  fake://, method ping\n"
            "  try: a larger timeout; if ping does not answer either, connect again"
        )
        late = session.link._next_id - 1
        board._send([1, late, None, "the late answer is dropped"])
        board.faults = {}
        assert session.ping() > 0


def test_a_board_that_takes_no_more_bytes() -> None:
    hold = threading.Event()
    board = FakeBoard({"ping": lambda payload: hold.wait(600)})
    session = Session(board.transport)
    session.link.send("ping", (None,), 5)
    with pytest.raises(errors.Timeout) as caught:
        session.link.call("blob.put", bytes(32), 1, 0, timeout=0.2, tail=bytes(64 << 20))
    assert caught.value.what == "the board took no more bytes for 0.2 s"
    with pytest.raises(errors.Timeout):
        session.ping()
    hold.set()
    session.close()


def test_a_board_that_dies_is_lost_with_its_last_words() -> None:
    board = FakeBoard({"ping": lambda payload: DEATH}, said="exit status 3; it said: out of luck")
    session = Session(board.transport)
    with pytest.raises(errors.Lost) as caught:
        session.ping()
    assert str(caught.value) == (
        "the board's program ended: exit status 3; it said: out of luck\n"
        "  on:  fake://, method ping\n"
        "  try: connect again; what was on the board must be sent again"
    )
    with pytest.raises(errors.Lost):
        session.empty((1,))
    session.close()


def test_a_closed_session_says_so() -> None:
    session = Session(FakeBoard().transport)
    session.close()
    session.close()
    with pytest.raises(errors.Lost) as caught:
        session.ping()
    assert caught.value.what == "the session is closed"


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b"\xc1", "what came is neither answer nor notification: it begins with 0xc1"),
        (
            b"\x93\x01\x02\x03",
            "what came is neither answer nor notification: it begins with 0x93",
        ),
        (
            b"\x94\x01\xc0\x93\xa8protocol\xa3bad\x80\xc0",
            "the board understood no more: bad",
        ),
        (b"\x2a", "what came is neither answer nor notification: it begins with 0x2a"),
        (
            b"\x94\x01\xcd\x7f\xff\xc0\xc0",
            "what came answers a request of id 32767, which waits for none",
        ),
        (
            b"\xc6\x7f\xff\xff\xff" + bytes(4 * MAX_MESSAGE),
            "what came is neither answer nor notification: it begins with 0xc6",
        ),
        (b"\x91" * 5000, "what came is neither answer nor notification: it begins with 0x91"),
    ],
)
def test_bytes_that_are_no_answer_end_the_session(message: bytes, what: str) -> None:
    board = FakeBoard({"ping": lambda payload: SILENCE})
    session = Session(board.transport)
    pending = session.link.send("ping", (None,), 10)
    with contextlib.suppress(OSError):  # the client stops reading half way
        board._socket.sendall(message)
    with pytest.raises(errors.ProtocolError) as caught:
        session.link.wait(pending)
    assert caught.value.what.startswith(what)
    session.close()


def test_garbage_in_place_of_an_answer() -> None:
    session = Session(FakeBoard({"ping": lambda payload: GARBAGE}).transport)
    with pytest.raises(errors.ProtocolError):
        session.ping()
    session.close()


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_every_error_kind_has_its_class(kind: str) -> None:
    board = FakeBoard({"tensor.new": fail(kind, "because", {})})
    with Session(board.transport) as session:
        with pytest.raises(errors.KINDS[kind][0]) as caught:
            session.empty((1,))
        assert caught.value.what == "because"
        assert caught.value.method == "tensor.new"
        assert session.ping() > 0


def test_a_crash_names_signal_kernel_and_layer() -> None:
    details = {"signal": "SIGSEGV", "kernel": "double", "layer": "first", "call": 0}
    text = "SIGSEGV in kernel 'double' (layer 'first', call 0)"
    board = FakeBoard({"run": fail("crashed", text, details)})
    with Session(board.transport) as session:
        with pytest.raises(errors.Crashed) as caught:
            session.load(OBJECT).run({"x": np.zeros(4, np.float32)})
        error = caught.value
        assert (error.signal, error.kernel, error.layer, error.call) == (
            *("SIGSEGV", "double", "first"),
            0,
        )
        assert str(error) == (
            f"{text}\n  on:  fake://, method run\n"
            "  try: build the kernel with bound checks; tensors and modules are still there"
        )


def test_an_error_of_no_known_form() -> None:
    board = FakeBoard({"tensor.new": fail("surprise", 3)})
    with Session(board.transport) as session, pytest.raises(errors.ProtocolError) as caught:
        session.empty((1,))
    assert caught.value.what == "error of the answer is a list of 2, where a list of 3 belongs"


def test_describe_without_what_it_owes() -> None:
    board = FakeBoard({"describe": lambda: {"runtime": "0.1"}})
    with pytest.raises(errors.ProtocolError) as caught:
        Session(board.transport)
    assert caught.value.what == "machine of the answer is missing"


def test_blobs_are_sent_once() -> None:
    data = np.random.default_rng(1).bytes(3 * MAX_CHUNK + 5)
    board = FakeBoard()
    with Session(board.transport) as session:
        name = session.put(data)
        assert name == blake2b(data, digest_size=32).digest()
        assert [params[2] for params in board.named("blob.put")] == [
            *(0, MAX_CHUNK, 2 * MAX_CHUNK, 3 * MAX_CHUNK)
        ]
        assert session.put(data) == name
        assert len(board.named("blob.put")) == 4
        assert session.has(name) and not session.has(bytes(32))
        assert session.get(name) == data
        session.forget(name)
        assert not session.has(name)
        with pytest.raises(errors.Refused) as caught:
            session.get(bytes(32))
        assert caught.value.what == "blob 000000000000 is not on the board"


def test_a_blob_goes_on_where_it_broke_off() -> None:
    data = np.random.default_rng(2).bytes(2 * MAX_CHUNK)
    name = blake2b(data, digest_size=32).digest()
    board = FakeBoard()
    board.blobs[name] = bytearray(data[: MAX_CHUNK + 7])
    with Session(board.transport) as session:
        session.put(data)
    # First a piece of nothing, for which the board takes in what it has.
    sent = [(params[2], len(params[3])) for params in board.named("blob.put")]
    assert sent == [(MAX_CHUNK + 7, 0), (MAX_CHUNK + 7, MAX_CHUNK - 7)]
    assert board.blobs[name] == data


def test_a_damaged_part_of_a_blob_is_sent_again() -> None:
    data = np.random.default_rng(3).bytes(2 * MAX_CHUNK)
    name = blake2b(data, digest_size=32).digest()
    board = FakeBoard()
    board.blobs[name] = bytearray(b"damaged")
    with Session(board.transport) as session:
        session.put(data)
    assert board.blobs[name] == data


def test_an_empty_blob() -> None:
    board = FakeBoard()
    with Session(board.transport) as session:
        assert session.get(session.put(b"")) == b""


def test_a_module_runs_and_is_timed() -> None:
    x = np.arange(4, dtype=np.float32)
    board = FakeBoard()
    with Session(board.transport) as session:
        module = session.load(OBJECT, b"weights")
        assert [str(param) for param in module.metadata.kernels["double"].params] == [
            *("float32[4]", "float32[4]")
        ]
        assert module.metadata.model and module.metadata.model.calls[0].layer == "first"
        a, b = session.tensor(x), session.empty((4,))
        module["double"](a, b, timeout=7)
        assert board.named("run")[-1][3] == {"timeout_ms": 7000, "threads": 1, "quiet": True}
        np.testing.assert_array_equal(b.numpy(), x)
        np.testing.assert_array_equal(module.run({"x": x})["y"], x)
        profile = module.profile({"x": x}, until=1)
        assert profile.run.nanoseconds == (1500,) and profile.run.counts is None
        timing = module["double"].time_evaluator(number=3, repeat=5, min_repeat_ms=1)(a, b)
        assert timing.samples == (0.001,) * 5 and timing.number == (3,) * 5
        assert (timing.median, timing.p95, timing.mad, timing.verdict) == (0.001, 0.001, 0, "ok")
        module.close()
        assert board.named("module.free") == [[7]]


def test_what_a_module_refuses() -> None:
    with Session(FakeBoard().transport) as session:
        module = session.load(OBJECT)
        with pytest.raises(errors.Refused) as caught:
            module["dubble"]
        assert str(caught.value) == (
            "the module has no kernel 'dubble'\n  on:  fake://\n  try: double"
        )
        with pytest.raises(errors.Refused) as caught:
            module.run({"z": np.zeros(4, np.float32)})
        assert str(caught.value) == (
            "the model's inputs are not these (missing: x; unknown: z)\n"
            "  on:  fake://\n  try: inputs x: float32[4]"
        )
        with pytest.raises(TypeError) as wrong:
            module["double"](np.zeros(4))  # type: ignore[arg-type]
        assert str(wrong.value) == (
            "argument 0 of double is not a tensor on the board but ndarray\n"
            "  try: board.tensor(...)"
        )


def test_ctrl_c_ends_the_session() -> None:
    board = FakeBoard({"ping": lambda payload: SILENCE})
    session = Session(board.transport)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.ping(timeout=600)
    board.thread.join(60)
    assert not board.thread.is_alive()
    assert time.monotonic() - start < 300
